/* The caches of k and v in a call, their scales and q's, and where a token's place comes from. */
#ifndef ROPEKIT_COMMON_APPEND_CACHE_H
#define ROPEKIT_COMMON_APPEND_CACHE_H

#include "common/ops/regions.h"

#include <ropekit/backend.h>

/* Slots, table, starts and pages of args, where a cache is given. */
rope_status rope_append_mapping_check(const rope_append_problem *problem,
                                      const rope_append_args *args);

/* Fills what rope_append_mapping_check checked, which must be there when a tensor is cached, and
 * the region of slots or of the table. */
rope_status rope_append_mapping_read(const rope_append_problem *problem,
                                     const rope_append_args *args, rope_append_call *call,
                                     rope_region *list);

/* Fills cache and scale of k or v, whose heads are known, and the regions of both. */
rope_status rope_append_cache_read(const rope_append_problem *problem, const rope_append_args *args,
                                   int which, rope_append_operand *operand, rope_region region[2]);

/* Fills q's scale and its region. */
rope_status rope_append_q_scale_read(const rope_append_problem *problem,
                                     const rope_append_args *args, rope_append_operand *operand,
                                     rope_region *region);

/* A cache or scale that the plan does not read, and scales of a tensor that is not cached. */
rope_status rope_append_cache_unread(const rope_append_problem *problem,
                                     const rope_append_args *args);

#endif
