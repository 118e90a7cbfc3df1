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

/* The layout that is stated, else that of as many dimensions. */
int32_t layout_of(int32_t stated, const tensor *t);

/* Dimensions that a layout has. */
int32_t dims_of(int32_t layout);

/* Refuses a q, k or v of another type than the lead, or than there are, and one of too few
 * dimensions or with heads of more than `most` elements. */
const char *check_operand(const tensor *lead, const char *lead_name, const tensor *t,
                          const char *name, int32_t most);

/* Refuses another number of dimensions, and, where args is given, another batch or other tokens
 * than those of `like`. */
const char *check_shape(const tensor *t, const char *name, int32_t layout, const rope_args *args,
                        const char *like);

#endif
