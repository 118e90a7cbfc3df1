/* Some tokens' heads of a tensor to the kernel that is compiled for them. */
#ifndef ROPEKIT_CPU_DISPATCH_LANES_H
#define ROPEKIT_CPU_DISPATCH_LANES_H

#include "backends/cpu/any_lanes.h"
#include "backends/cpu/tensor_lanes.h"

/* Parts that stand apart go by blocks and keep their pairing. */
CPU_INLINE void lanes_dispatch_pairing(lanes_kind kind, const rope_problem *p,
                                       const lanes_heads *heads, const cpu_row *rows, int tokens) {
    const int blocks = kind.part || (!kind.model && lanes_serves_blocks(p));
    lanes_kind half = kind, inter = kind;
    half.in_pairing = inter.out_pairing = ROPE_PAIRING_HALF_SPLIT;
    inter.in_pairing = half.out_pairing = ROPE_PAIRING_INTERLEAVED;
    if (!kind.part && p->pairing_in != p->pairing_out) {
        if (p->pairing_in == ROPE_PAIRING_INTERLEAVED)
            lanes_rotate_any(inter, heads, rows, tokens);
        else
            lanes_rotate_any(half, heads, rows, tokens);
        return;
    }
    half.out_pairing = half.in_pairing;
    inter.out_pairing = inter.in_pairing;
    if (p->pairing_in == ROPE_PAIRING_INTERLEAVED && blocks)
        lanes_rotate_blocks(inter, heads, rows, tokens);
    else if (p->pairing_in == ROPE_PAIRING_INTERLEAVED)
        lanes_rotate_any(inter, heads, rows, tokens);
    else if (blocks)
        lanes_rotate_blocks(half, heads, rows, tokens);
    else
        lanes_rotate_any(half, heads, rows, tokens);
}

CPU_INLINE void lanes_dispatch(int dtype, const rope_problem *p, const lanes_tensor *tensor,
                               const cpu_row *rows, int tokens) {
    lanes_kind kind = {.dtype = dtype, .fetch = 1}, model = kind;
    model.model = 1;
    lanes_kind stream = kind, model_stream = model;
    stream.stream = model_stream.stream = 1;
    if (p->arithmetic != ROPE_ARITHMETIC_MODEL_DTYPE && tensor->stream)
        lanes_dispatch_pairing(stream, p, &tensor->heads, rows, tokens);
    else if (p->arithmetic != ROPE_ARITHMETIC_MODEL_DTYPE)
        lanes_dispatch_pairing(kind, p, &tensor->heads, rows, tokens);
    else if (dtype == ROPE_F32 && tensor->stream)
        lanes_dispatch_pairing(model_stream, p, &tensor->heads, rows, tokens);
    else
        lanes_dispatch_pairing(model, p, &tensor->heads, rows, tokens);
}

static CPU_APART void lanes_f32_heads(const rope_problem *p, const lanes_tensor *tensor,
                                      const cpu_row *rows, int tokens) {
    lanes_dispatch(ROPE_F32, p, tensor, rows, tokens);
}

static CPU_APART void lanes_f16_heads(const rope_problem *p, const lanes_tensor *tensor,
                                      const cpu_row *rows, int tokens) {
    lanes_dispatch(ROPE_F16, p, tensor, rows, tokens);
}

static CPU_APART void lanes_bf16_heads(const rope_problem *p, const lanes_tensor *tensor,
                                       const cpu_row *rows, int tokens) {
    lanes_dispatch(ROPE_BF16, p, tensor, rows, tokens);
}

/* Parts of heads that go by blocks, with what lies beside them. They stand apart: calls in the
 * loops of whole heads would cost those registers. */
CPU_INLINE void lanes_dispatch_parts(int dtype, const rope_problem *p, const lanes_tensor *tensor,
                                     const cpu_row *rows, int tokens) {
    lanes_kind unfetched = {.dtype = dtype, .part = 1}, fetch = unfetched;
    fetch.fetch = 1;
    lanes_kind stream = fetch;
    stream.stream = 1;
    if (tensor->stream)
        lanes_dispatch_pairing(stream, p, &tensor->heads, rows, tokens);
    else if (tensor->heads.in_ahead)
        lanes_dispatch_pairing(fetch, p, &tensor->heads, rows, tokens);
    else
        lanes_dispatch_pairing(unfetched, p, &tensor->heads, rows, tokens);
}

static CPU_APART void lanes_f32_parts(const rope_problem *p, const lanes_tensor *tensor,
                                      const cpu_row *rows, int tokens) {
    lanes_dispatch_parts(ROPE_F32, p, tensor, rows, tokens);
}

static CPU_APART void lanes_f16_parts(const rope_problem *p, const lanes_tensor *tensor,
                                      const cpu_row *rows, int tokens) {
    lanes_dispatch_parts(ROPE_F16, p, tensor, rows, tokens);
}

static CPU_APART void lanes_bf16_parts(const rope_problem *p, const lanes_tensor *tensor,
                                       const cpu_row *rows, int tokens) {
    lanes_dispatch_parts(ROPE_BF16, p, tensor, rows, tokens);
}

CPU_INLINE void lanes_rotate_heads(int dtype, const rope_problem *p, const lanes_tensor *tensor,
                                   const cpu_row *rows, int tokens) {
    const int part = (tensor->heads.before | tensor->heads.after) && lanes_serves_blocks(p);
    if (dtype == ROPE_F32)
        (part ? lanes_f32_parts : lanes_f32_heads)(p, tensor, rows, tokens);
    else if (dtype == ROPE_BF16)
        (part ? lanes_bf16_parts : lanes_bf16_heads)(p, tensor, rows, tokens);
    else
        (part ? lanes_f16_parts : lanes_f16_heads)(p, tensor, rows, tokens);
}

/* The heads of some tokens around the cache by way of the L1. */
static CPU_APART void lanes_rotate_staged(int dtype, const rope_problem *p,
                                          const lanes_tensor *tensor, const cpu_row *rows,
                                          int tokens) {
    char stage[LANES_STAGE] __attribute__((aligned(64)));
    const lanes_heads *heads = &tensor->heads;
    const int64_t head = heads->out_stride, most = LANES_STAGE / head / 16 * 16;
    lanes_tensor part = *tensor;
    part.heads.out = stage + heads->before;
    part.heads.out_ahead = 0;
    part.heads.by_head = 0;
    for (int t = 0; t < tokens; t++)
        for (int64_t h = 0; h < heads->count; h += part.heads.count) {
            char *out = heads->out - heads->before + t * heads->out_step + h * head;
            part.heads.in = heads->in + t * heads->in_step + h * heads->in_stride;
            part.heads.count = heads->count - h < most ? heads->count - h : most;
            lanes_rotate_heads(dtype, p, &part, &rows[t], 1);
            for (int64_t at = 0; at < part.heads.count * head; at += 4 * LANES)
                lanes_stream_f(out + at, lanes_load_f(stage + at));
        }
}

#endif
