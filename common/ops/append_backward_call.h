/* From the arguments of "append_backward" to its call. */
#ifndef ROPEKIT_COMMON_APPEND_BACKWARD_CALL_H
#define ROPEKIT_COMMON_APPEND_BACKWARD_CALL_H

#include "common/ops/append_call.h"

#include <ropekit/backend.h>

/* As rope_append_within. */
extern const rope_operation rope_append_backward_within;

/* As rope_operation.read. */
rope_status rope_append_backward_call_read(const void *problem, const void *args, void *call,
                                           void **stream, int *empty);

/* Fills where the gradient of weights goes, or that there is none. */
rope_status rope_weight_gradient_read(const char *name, float *given, int64_t dim,
                                      const rope_append_operand *o, rope_append_weights *sums);

#endif
