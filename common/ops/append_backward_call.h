/* From the arguments of "append_backward" to its call. */
#ifndef ROPEKIT_COMMON_APPEND_BACKWARD_CALL_H
#define ROPEKIT_COMMON_APPEND_BACKWARD_CALL_H

#include <ropekit/backend.h>

/* As rope_operation.read. */
rope_status rope_append_backward_call_read(const void *problem, const void *args, void *call,
                                           void **stream, int *empty);

#endif
