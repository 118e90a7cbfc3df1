/* From the caller's descriptor of "append" to a full-sized one with every field checked and every
 * default in it. */
#ifndef ROPEKIT_COMMON_APPEND_DESCRIPTOR_H
#define ROPEKIT_COMMON_APPEND_DESCRIPTOR_H

#include <ropekit/append.h>

/* `full` borrows the pointers of `given`. Without a rotation rope.rotary_dim is 0. */
rope_status rope_append_descriptor_read(const rope_append_desc *given, rope_append_desc *full);

/* Checks a norm of heads of so many elements, and fills in its defaults. */
rope_status rope_norm_check(const char *name, rope_norm *norm, int32_t dtype, int32_t head_dim);

#endif
