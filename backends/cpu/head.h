/* One head of a call: where it is, its elements, and copies of what does not rotate. */
#ifndef ROPEKIT_CPU_HEAD_H
#define ROPEKIT_CPU_HEAD_H

#include "backends/cpu/kernel.h"
#include "common/math/half.h"
#include "common/math/layout.h"

/* Kernels are specialized by inlining. Without optimization nothing is dropped after it, and frames
   would be megabytes: there these are functions as any other. */
#ifdef __OPTIMIZE__
#define CPU_INLINE static inline __attribute__((always_inline))
#else
#define CPU_INLINE static inline
#endif
#define CPU_APART __attribute__((noinline))

enum { CPU_MAX_PAIRS = ROPE_MAX_ROTARY_DIM / 2, CPU_ROW_PADDING = 16 };

/* One head: its two addresses and what separates its elements. */
typedef struct cpu_head {
    const char *in;
    char *out;
    int64_t in_stride, out_stride; /* elements */
} cpu_head;

CPU_INLINE int cpu_dtype_size(int dtype) {
    return dtype == ROPE_F64 ? 8 : dtype == ROPE_F32 ? 4 : 2;
}

CPU_INLINE float cpu_load(int dtype, const char *base, int64_t i) {
    if (dtype == ROPE_F32)
        return ((const float *)base)[i];
    uint16_t h = ((const uint16_t *)base)[i];
    return dtype == ROPE_BF16 ? rope_from_bf16(h) : rope_from_f16(h);
}

CPU_INLINE void cpu_store(int dtype, char *base, int64_t i, float x) {
    if (dtype == ROPE_F32)
        ((float *)base)[i] = x;
    else
        ((uint16_t *)base)[i] = dtype == ROPE_BF16 ? rope_to_bf16(x) : rope_to_f16(x);
}

static void cpu_copy_elements(int size, const cpu_head *head, int64_t from, int64_t to) {
    if (head->in == head->out || from >= to)
        return;
    if (head->in_stride == 1 && head->out_stride == 1) {
        memcpy(head->out + from * size, head->in + from * size, (size_t)((to - from) * size));
        return;
    }
    for (int64_t i = from; i < to; i++)
        memcpy(head->out + i * head->out_stride * size, head->in + i * head->in_stride * size,
               (size_t)size);
}

/* A head as the call gives it: element 0, not the window. */
CPU_INLINE cpu_head cpu_head_of(const rope_operand *operand, int size, int64_t batch, int64_t token,
                                int64_t head) {
    const int64_t *in = operand->in_stride, *out = operand->out_stride;
    cpu_head h = {(const char *)operand->in + (batch * in[0] + token * in[1] + head * in[2]) * size,
                  (char *)operand->out + (batch * out[0] + token * out[1] + head * out[2]) * size,
                  in[3], out[3]};
    return h;
}

CPU_INLINE cpu_head cpu_window_of(const cpu_head *head, int size, int64_t offset) {
    cpu_head w = {head->in + offset * head->in_stride * size,
                  head->out + offset * head->out_stride * size, head->in_stride, head->out_stride};
    return w;
}

/* The window moves from one pairing to the other, element by element and bit by bit. */
static void cpu_move_window(const rope_problem *p, int size, const cpu_head *window) {
    uint64_t elements[2 * CPU_MAX_PAIRS];
    for (int i = 0; i < 2 * p->pairs; i++)
        memcpy(&elements[i], window->in + i * window->in_stride * size, (size_t)size);
    for (int i = 0; i < p->pairs; i++) {
        int from[2] = {rope_first_of(p->pairing_in, i), rope_second_of(p->pairing_in, i, p->pairs)};
        int to[2] = {rope_first_of(p->pairing_out, i), rope_second_of(p->pairing_out, i, p->pairs)};
        for (int j = 0; j < 2; j++)
            memcpy(window->out + to[j] * window->out_stride * size, &elements[from[j]],
                   (size_t)size);
    }
}

/* A token that is not rotated: outside every sequence, or outside the table. */
static void cpu_pass_heads(const rope_problem *p, const rope_call *call, int tensor, int64_t batch,
                           int64_t index, const cpu_slice *slice) {
    int size = cpu_dtype_size(p->dtype), offset = p->rotary_offset[tensor];
    for (int64_t h = slice->first_head[tensor]; h < slice->last_head[tensor]; h++) {
        cpu_head head = cpu_head_of(&call->tensor[tensor], size, batch, index, h);
        cpu_head window = cpu_window_of(&head, size, offset);
        cpu_copy_elements(size, &head, 0, offset);
        if (p->pairing_in == p->pairing_out)
            cpu_copy_elements(size, &window, 0, 2 * p->pairs);
        else
            cpu_move_window(p, size, &window);
        cpu_copy_elements(size, &head, offset + 2 * p->pairs, p->head_dim[tensor]);
    }
}

#endif
