/* The order of a tensor's dimensions. */
#ifndef ROPEKIT_PYTHON_LAYOUT_H
#define ROPEKIT_PYTHON_LAYOUT_H

#include "python/csrc/config_text.h"
#include "python/csrc/tensor.h"

enum { BATCH, TOKEN, HEAD, DIM };

/* Size of what BATCH..DIM names; 1 where the layout has no such dimension. */
int64_t size_along(const tensor *t, int32_t layout, int what);

/* Strides over [batch, token, head, dim]. */
void put_strides(const tensor *t, int32_t layout, int64_t stride[4]);

/* Dimensions that a layout has. */
int32_t dims_of(int32_t layout);

/* Refuses another number of dimensions, and, where args is given, another batch or other tokens
 * than those of `like`. */
const char *check_shape(const tensor *t, const char *name, int32_t layout, const rope_args *args,
                        const char *like);

#endif
