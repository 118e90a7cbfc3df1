/* Tensors of a call: pointers, sizes, strides and overlap, checked as every operation checks them.
 */
#ifndef ROPEKIT_COMMON_TENSOR_H
#define ROPEKIT_COMMON_TENSOR_H

#include "common/ops/view.h"

#include <ropekit/backend.h>

/* What the plan says of a tensor. */
typedef struct rope_tensor_form {
    const char *name;
    int64_t head_dim;
    int32_t in_element, out_element; /* bytes */
    int32_t out_optional;            /* 1: out may be NULL */
} rope_tensor_form;

/* What a present tensor reads and writes; without an out, `out` stays unset. */
typedef struct rope_tensor_spans {
    int64_t count[4];
    rope_span in, out;
    int in_place;
} rope_tensor_spans;

/* Bytes of an element of a type. */
static inline int32_t rope_dtype_size(int32_t dtype) {
    return dtype == ROPE_F64 || dtype == ROPE_I64   ? 8
           : dtype == ROPE_F32 || dtype == ROPE_I32 ? 4
           : dtype >= ROPE_F8E4M3                   ? 1
                                                    : 2;
}

static inline int rope_all_zero(const int64_t *stride, int n) {
    int64_t bits = 0;
    for (int d = 0; d < n; d++)
        bits |= stride[d];
    return bits == 0;
}

/* A pointer that must be given; the alignment is a power of two. The field's name is that of the
 * tensor, or "", and one of its own. */
rope_status rope_pointer_check(const char *tensor, const char *field, const void *pointer,
                               int32_t alignment);

/* The product of the sizes of a tensor, which with 8 bytes an element fits 63 bits. */
rope_status rope_sizes_check(const rope_args *args, int64_t heads, int64_t head_dim,
                             const char *name, int64_t *elements);

/* Fills operand and spans. operand->heads is 0 where the tensor has no elements: the rest is then
 * unset. */
rope_status rope_tensor_read(const rope_args *args, const rope_tensor *given,
                             const rope_tensor_form *form, rope_operand *operand,
                             rope_tensor_spans *spans);

#endif
