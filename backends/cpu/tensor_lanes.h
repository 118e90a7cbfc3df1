/* One tensor of a slice: its heads, how they are walked and where results go. */
#ifndef ROPEKIT_CPU_TENSOR_LANES_H
#define ROPEKIT_CPU_TENSOR_LANES_H

#include "backends/cpu/walk_lanes.h"

/* At the token that is next. */
typedef struct lanes_tensor {
    lanes_heads heads;
    int64_t in_step, out_step; /* bytes from token to token */
    int vectors;               /* elements lie side by side */
    int stream;                /* vectors are stored around the cache */
    int stage;                 /* heads go around it by way of the L1 */
} lanes_tensor;

/* What goes around the cache if it is beyond it. Three roundings for each result of 16 bits take as
 * long as that saves. */
CPU_INLINE int lanes_goes_around(const rope_problem *p, int dtype) {
    return p->arithmetic != ROPE_ARITHMETIC_MODEL_DTYPE || dtype == ROPE_F32;
}

/* Streaming stores need aligned vectors, and lines that are written whole. */
CPU_INLINE int lanes_can_stream(const rope_problem *p, const lanes_tensor *tensor, int size) {
    const lanes_heads *heads = &tensor->heads;
    const int64_t beside = heads->before | heads->after;
    uintptr_t lines = (uintptr_t)heads->out | (uintptr_t)heads->out_stride |
                      (uintptr_t)tensor->out_step | (uintptr_t)beside;
    return lines % (4 * LANES) == 0 &&
           p->pairs * size % lanes_store_bytes(p, size, beside != 0) == 0 &&
           heads->in != heads->out;
}

enum { LANES_STAGE = 16384 }; /* bytes of heads that wait in the L1, sixteen of them at least */

/* A token's heads lie side by side from line to line, and sixteen of them are whole lines. Less
 * than 1 KiB would be read back while it is written. */
CPU_INLINE int lanes_can_stage(const lanes_tensor *tensor, int64_t head) {
    const lanes_heads *heads = &tensor->heads;
    const int64_t token = heads->count * head;
    uintptr_t lines = (uintptr_t)(heads->out - heads->before) | (uintptr_t)tensor->out_step |
                      (uintptr_t)token | (uintptr_t)(16 * head);
    return LANES > 4 && lines % 64 == 0 && heads->out_stride == head && heads->in != heads->out &&
           heads->in_stride <= tensor->in_step && token >= 1024 && head <= LANES_STAGE / 16;
}

/* A tensor at the first token of a run. */
CPU_INLINE lanes_tensor lanes_tensor_of(int dtype, const rope_problem *p, const rope_call *call,
                                        int tensor, int64_t batch, int64_t index,
                                        const cpu_slice *slice) {
    const rope_operand *operand = &call->tensor[tensor];
    const int64_t size = cpu_dtype_size(dtype), offset = p->rotary_offset[tensor] * size;
    cpu_head head = cpu_head_of(operand, (int)size, batch, index, slice->first_head[tensor]);
    lanes_tensor t = {
        .heads = {.in = head.in + offset,
                  .out = head.out + offset,
                  .count = slice->last_head[tensor] - slice->first_head[tensor],
                  .in_stride = operand->in_stride[2] * size,
                  .out_stride = operand->out_stride[2] * size,
                  .pairs = p->pairs},
        .in_step = operand->in_stride[1] * size,
        .out_step = operand->out_stride[1] * size,
        .vectors = operand->in_stride[3] == 1 && operand->out_stride[3] == 1,
    };
    const lanes_heads *h = &t.heads;
    lanes_set_beside(p, operand, tensor, (int)size, &t.heads);
    const int64_t bytes = h->before + 2 * p->pairs * size + h->after;
    const int around = slice->exceeds && lanes_goes_around(p, dtype);
    int64_t ahead = lanes_heads_ahead(p, slice, (int)size, bytes, 0);
    t.stream = around && lanes_can_stream(p, &t, (int)size);
    t.stage = around && !t.stream && lanes_can_stage(&t, p->head_dim[tensor] * size);
    t.heads.in_ahead = lanes_ahead(slice, ahead, h->count, h->in_stride, t.in_step);
    ahead = lanes_heads_ahead(p, slice, (int)size, bytes, 1);
    t.heads.out_ahead = lanes_ahead(slice, ahead, h->count, h->out_stride, t.out_step);
    ahead = lanes_heads_far(p, slice, h->count, (int)size, bytes);
    t.heads.in_far = lanes_ahead(slice, ahead, h->count, h->in_stride, t.in_step);
    t.heads.touch = lanes_touches(slice, h->count);
    return t;
}

#endif
