/* Positions, tables and the flag of a call: everything of a rope_args but its tensors. */
#ifndef ROPEKIT_COMMON_POSITIONS_H
#define ROPEKIT_COMMON_POSITIONS_H

#include <ropekit/backend.h>

/* Batch and tokens, which are checked ahead of the tensors. */
rope_status rope_extent_check(const rope_args *args);

/* An index array: NULL, or a multiple of the alignment. */
rope_status rope_index_check(const char *field, const void *pointer, int32_t alignment);

/* Fills all of a call but its tensors. What the plan and the other fields leave unread must be 0.
 * `empty`: there is no element to write, so tables need not be there. */
rope_status rope_positions_read(const rope_problem *problem, const rope_args *args, int empty,
                                rope_call *call);

#endif
