/* Weights of a norm of q, k or v. */
#ifndef ROPEKIT_PYTHON_NORM_WEIGHT_H
#define ROPEKIT_PYTHON_NORM_WEIGHT_H

#include "python/csrc/tensor.h"

#include <ropekit/append.h>

/* Of heads, or of elements alone, in float32 or the type of what it weighs. */
const char *check_weight(const tensor *lead, const tensor *t, const char *name);

/* Of so many heads of `all` elements; a tensor without a handle is none. */
const char *put_weight(const tensor *t, const char *name, const rope_norm *norm, int64_t heads,
                       int64_t all, rope_norm_weight *target);

#endif
