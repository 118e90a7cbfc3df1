/* From the caller's arguments of "append" to a checked call. */
#ifndef ROPEKIT_COMMON_APPEND_CALL_H
#define ROPEKIT_COMMON_APPEND_CALL_H

#include <ropekit/backend.h>

/* Fills call, a rope_append_call, from args, a rope_append_args: rope_operation.read of "append".
 */
rope_status rope_append_call_read(const void *problem, const void *args, void *call, void **stream,
                                  int *empty);

#endif
