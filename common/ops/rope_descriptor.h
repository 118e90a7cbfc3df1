/* From the caller's descriptor to a full-sized one with every field checked and every default in
 * it. */
#ifndef ROPEKIT_COMMON_DESCRIPTOR_H
#define ROPEKIT_COMMON_DESCRIPTOR_H

#include <ropekit/rope.h>

/* `full` borrows the pointers of `given`. most: the largest head_dim that the operation takes. */
rope_status rope_descriptor_read(const rope_desc *given, int32_t most, rope_desc *full);

/* Axis of a pair in a checked descriptor. */
int32_t rope_descriptor_axis(const rope_desc *desc, int32_t pair);

/* Whether rope_transposed gives the rotation of gradients of a checked descriptor's. */
rope_status rope_transpose_check(const rope_desc *desc);

#endif
