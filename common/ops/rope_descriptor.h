/* From the caller's descriptor to a full-sized one with every field checked and every default in
 * it. */
#ifndef ROPEKIT_COMMON_DESCRIPTOR_H
#define ROPEKIT_COMMON_DESCRIPTOR_H

#include <ropekit/rope.h>

/* `full` borrows the pointers of `given`. */
rope_status rope_descriptor_read(const rope_desc *given, rope_desc *full);

/* Axis of a pair in a checked descriptor. */
int32_t rope_descriptor_axis(const rope_desc *desc, int32_t pair);

/* Bytes of an element of a type in ROPE_F32..ROPE_I64. */
static inline int32_t rope_dtype_size(int32_t dtype) {
    return dtype == ROPE_F64 || dtype == ROPE_I64   ? 8
           : dtype == ROPE_F32 || dtype == ROPE_I32 ? 4
                                                    : 2;
}

#endif
