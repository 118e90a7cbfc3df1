/* From the arguments of "attention_backward" to its call. */
#ifndef ROPEKIT_COMMON_ATTENTION_BACKWARD_CALL_H
#define ROPEKIT_COMMON_ATTENTION_BACKWARD_CALL_H

#include <ropekit/backend.h>

/* As rope_operation.read. */
rope_status rope_attention_backward_call_read(const void *problem, const void *args, void *call,
                                              void **stream, int *empty);

/* Copies the caller's struct, of any version. Returns the forward's arguments, perhaps in `full`,
 * to which args then points; NULL after an error. */
const rope_attention_args *rope_attention_backward_args_read(const void *given,
                                                             rope_attention_backward_args *args,
                                                             rope_attention_args *full,
                                                             rope_status *status);

#endif
