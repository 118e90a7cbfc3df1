/* The kernel of a vector ISA: what its lanes cannot do goes the way of generic.h. */
#ifndef ROPEKIT_CPU_KERNEL_LANES_H
#define ROPEKIT_CPU_KERNEL_LANES_H

#include "backends/cpu/rotate_lanes.h"

/* fp32 arithmetic, elements side by side, and no window that moves within itself. */
static int lanes_can(const rope_problem *p, const rope_operand *operand) {
    int moves = p->pairing_in != p->pairing_out && operand->in == operand->out;
    return p->dtype != ROPE_F64 && p->arithmetic == ROPE_ARITHMETIC_FP32 &&
           operand->in_stride[3] == 1 && operand->out_stride[3] == 1 && !moves;
}

/* Streaming stores need whole, aligned vectors. */
static int lanes_can_stream(const lanes_heads *heads, int size) {
    uintptr_t mask = (uintptr_t)heads->out | (uintptr_t)heads->out_stride |
                     (uintptr_t)((int64_t)heads->pairs * size);
    return mask % (4 * LANES) == 0;
}

static lanes_heads lanes_heads_of(const rope_problem *p, const rope_operand *operand, int tensor,
                                  int64_t batch, int64_t index, const cpu_slice *slice) {
    int size = cpu_dtype_size(p->dtype), offset = p->rotary_offset[tensor];
    cpu_head head = cpu_head_of(operand, size, batch, index, slice->first_head[tensor]);
    int copies = operand->in != operand->out;
    lanes_heads heads = {
        .in = head.in + (int64_t)offset * size,
        .out = head.out + (int64_t)offset * size,
        .count = slice->last_head[tensor] - slice->first_head[tensor],
        .in_stride = operand->in_stride[2] * size,
        .out_stride = operand->out_stride[2] * size,
        .before = copies ? (int64_t)offset * size : 0,
        .after = copies ? (int64_t)(p->head_dim[tensor] - offset - 2 * p->pairs) * size : 0,
        .pairs = p->pairs,
    };
    return heads;
}

CPU_INLINE void lanes_dispatch_pairing(int dtype, int stream, const rope_problem *p,
                                       const lanes_heads *heads, const cpu_row *row) {
    const int half = ROPE_PAIRING_HALF_SPLIT, inter = ROPE_PAIRING_INTERLEAVED;
    if (p->pairing_in != p->pairing_out) {
        if (p->pairing_in == inter)
            lanes_rotate_any(dtype, inter, half, stream, heads, row);
        else
            lanes_rotate_any(dtype, half, inter, stream, heads, row);
    } else if (heads->pairs == 64 && row->c1 == row->c2 && !(heads->before | heads->after)) {
        if (p->pairing_in == inter)
            lanes_rotate_64(dtype, inter, stream, heads, row);
        else
            lanes_rotate_64(dtype, half, stream, heads, row);
    } else if (p->pairing_in == inter) {
        lanes_rotate_any(dtype, inter, inter, stream, heads, row);
    } else {
        lanes_rotate_any(dtype, half, half, stream, heads, row);
    }
}

static void lanes_f32_heads(int stream, const rope_problem *p, const lanes_heads *heads,
                            const cpu_row *row) {
    if (stream)
        lanes_dispatch_pairing(ROPE_F32, 1, p, heads, row);
    else
        lanes_dispatch_pairing(ROPE_F32, 0, p, heads, row);
}

static void lanes_f16_heads(int stream, const rope_problem *p, const lanes_heads *heads,
                            const cpu_row *row) {
    if (stream)
        lanes_dispatch_pairing(ROPE_F16, 1, p, heads, row);
    else
        lanes_dispatch_pairing(ROPE_F16, 0, p, heads, row);
}

static void lanes_bf16_heads(int stream, const rope_problem *p, const lanes_heads *heads,
                             const cpu_row *row) {
    if (stream)
        lanes_dispatch_pairing(ROPE_BF16, 1, p, heads, row);
    else
        lanes_dispatch_pairing(ROPE_BF16, 0, p, heads, row);
}

static void lanes_rotate_tensor(const rope_problem *p, const rope_call *call, int tensor,
                                int64_t batch, int64_t index, const cpu_slice *slice,
                                const cpu_row *row) {
    const rope_operand *operand = &call->tensor[tensor];
    if (!lanes_can(p, operand)) {
        cpu_rotate_heads(p, call, tensor, batch, index, slice, row);
        return;
    }
    lanes_heads heads = lanes_heads_of(p, operand, tensor, batch, index, slice);
    int stream = slice->stream && operand->in != operand->out &&
                 lanes_can_stream(&heads, cpu_dtype_size(p->dtype));
    if (p->dtype == ROPE_F32)
        lanes_f32_heads(stream, p, &heads, row);
    else if (p->dtype == ROPE_BF16)
        lanes_bf16_heads(stream, p, &heads, row);
    else
        lanes_f16_heads(stream, p, &heads, row);
}

/* Positions are the offset plus the token's index, and nothing else depends on the token. */
CPU_INLINE int lanes_counts(const rope_problem *p, const rope_call *call) {
    const rope_position_map *map = &call->position;
    return !map->ids && !map->cu_seqlens && !map->offsets && map->shard == ROPE_SHARD_NONE &&
           p->axes == 1 && p->frequency_sets == 1 && p->angle_mode != ROPE_ANGLE_TABLE;
}

static void lanes_rotate_token(const rope_problem *p, const rope_call *call, int64_t batch,
                               int64_t index, const cpu_slice *slice, cpu_row_buffer *buffer) {
    rope_token token;
    if (lanes_counts(p, call))
        token = (rope_token){.at = {rope_sum(index, call->position.offset)}};
    else
        token = rope_token_of(p, call, batch, index);
    cpu_row row = {0};
    for (int tensor = 0; tensor < 2; tensor++) {
        if (call->tensor[tensor].heads == 0)
            continue;
        if (token.fate == ROPE_TOKEN_PASSES) {
            cpu_pass_heads(p, call, tensor, batch, index, slice);
            continue;
        }
        if (p->dtype == ROPE_F64) {
            cpu_rotate_heads_f64(p, call, &token, tensor, batch, index, slice, buffer);
            continue;
        }
        if (!row.c1 || p->xpos_rate)
            row = lanes_row(p, call, &token, tensor, buffer);
        lanes_rotate_tensor(p, call, tensor, batch, index, slice, &row);
    }
}

static void lanes_rotate_slice(const rope_problem *p, const rope_call *call,
                               const cpu_slice *slice) {
    cpu_row_buffer buffer;
    int64_t batch = 0, index = slice->first_token;
    if (index >= call->tokens) {
        batch = index / call->tokens;
        index %= call->tokens;
    }
    for (int64_t i = slice->first_token; i < slice->last_token; i++) {
        lanes_rotate_token(p, call, batch, index, slice, &buffer);
        if (++index == call->tokens) {
            index = 0;
            batch++;
        }
    }
    if (slice->stream)
        lanes_fence();
}

#endif
