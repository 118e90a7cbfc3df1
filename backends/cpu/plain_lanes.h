/* Whole heads of 64 pairs by exact angles of one axis: a token's stay in registers from their turns
 * to the last head of q and k. */
#ifndef ROPEKIT_CPU_PLAIN_LANES_H
#define ROPEKIT_CPU_PLAIN_LANES_H

#include "backends/cpu/rotate_lanes.h"
#include "backends/cpu/row_lanes.h"

/* Descriptors that take this road. */
CPU_INLINE int lanes_serves_plain(const rope_problem *p) {
    return p->pairs == 64 && p->head_dim[0] == 128 && p->head_dim[1] == 128 &&
           p->angle_mode == ROPE_ANGLE_EXACT && p->axes == 1 && !p->xpos_rate &&
           p->arithmetic != ROPE_ARITHMETIC_MODEL_DTYPE && p->pairing_in == p->pairing_out;
}

/* Elements lie side by side, and a token's heads nearer than the next token. */
CPU_INLINE int lanes_is_plain(const rope_operand *operand) {
    return operand->heads == 0 || (operand->in_stride[3] == 1 && operand->out_stride[3] == 1 &&
                                   operand->in_stride[2] <= operand->in_stride[1]);
}

CPU_INLINE void lanes_plain_row(lanes_kind kind, const rope_problem *p, const rope_token *token,
                                float *cosines, lanes_row *row) {
    const int scaled = lanes_scales(p);
    const lanes_factors factor = lanes_factors_of(p, token);
#pragma GCC unroll 16
    for (int v = 0; v < 64 / LANES; v += LANES_GROUP) {
        lanes_cos_sin a[LANES_GROUP];
        lanes_w turns[LANES_GROUP];
        LANES_EACH(w, LANES_GROUP)
        turns[w] = lanes_exact(1, p, token, p->set[token->set].turns, (v + w) * LANES);
        lanes_turns(LANES_GROUP, turns, a);
        LANES_EACH(w, LANES_GROUP) row->c[v + w] = a[w].c;
        LANES_EACH(w, LANES_GROUP) row->s[v + w] = a[w].s;
    }
    for (int v = 0; v < 64 / LANES && scaled; v++) {
        row->c[v] *= factor.c;
        row->s[v] *= factor.s;
    }
    row->cosines = cosines;
    for (int v = 0; v < 64 / LANES && kind.dtype == ROPE_F16; v++)
        lanes_store_f(cosines + v * LANES, row->c[v]);
    lanes_arrange_row(kind, row);
}

CPU_INLINE void lanes_plain_heads(lanes_kind kind, const rope_operand *operand, int64_t batch,
                                  int64_t index, int64_t first, int64_t last,
                                  const lanes_row *row) {
    const int size = cpu_dtype_size(kind.dtype);
    if (first >= last) /* absent: nothing else of it is set */
        return;
    const cpu_head head = cpu_head_of(operand, size, batch, index, first);
    const int64_t in_stride = operand->in_stride[2] * size,
                  out_stride = operand->out_stride[2] * size;
    const char *in = head.in;
    char *out = head.out;
    for (int64_t h = first; h < last; h++) {
        lanes_rotate_head(kind, NULL, in, out, row);
        in += in_stride;
        out += out_stride;
    }
}

CPU_INLINE void lanes_plain_kind(lanes_kind kind, const rope_problem *p, const rope_call *call,
                                 const cpu_slice *slice, int64_t batch, int64_t index,
                                 const rope_token *token) {
    float cosines[64] __attribute__((aligned(64)));
    lanes_row row;
    kind.parity = lanes_parity(kind);
    lanes_plain_row(kind, p, token, cosines, &row);
    for (int t = 0; t < 2; t++)
        lanes_plain_heads(kind, &call->tensor[t], batch, index, slice->first_head[t],
                          slice->last_head[t], &row);
}

CPU_INLINE void lanes_plain_dtype(int dtype, const rope_problem *p, const rope_call *call,
                                  const cpu_slice *slice, int64_t batch, int64_t index,
                                  const rope_token *token) {
    const lanes_kind half = lanes_kind_of(dtype, ROPE_PAIRING_HALF_SPLIT),
                     inter = lanes_kind_of(dtype, ROPE_PAIRING_INTERLEAVED);
    if (p->pairing_in == ROPE_PAIRING_INTERLEAVED)
        lanes_plain_kind(inter, p, call, slice, batch, index, token);
    else
        lanes_plain_kind(half, p, call, slice, batch, index, token);
}

static CPU_APART void lanes_f32_plain(const rope_problem *p, const rope_call *call,
                                      const cpu_slice *slice, int64_t batch, int64_t index,
                                      const rope_token *token) {
    lanes_plain_dtype(ROPE_F32, p, call, slice, batch, index, token);
}

static CPU_APART void lanes_f16_plain(const rope_problem *p, const rope_call *call,
                                      const cpu_slice *slice, int64_t batch, int64_t index,
                                      const rope_token *token) {
    lanes_plain_dtype(ROPE_F16, p, call, slice, batch, index, token);
}

static CPU_APART void lanes_bf16_plain(const rope_problem *p, const rope_call *call,
                                       const cpu_slice *slice, int64_t batch, int64_t index,
                                       const rope_token *token) {
    lanes_plain_dtype(ROPE_BF16, p, call, slice, batch, index, token);
}

typedef void (*lanes_plain_token)(const rope_problem *p, const rope_call *call,
                                  const cpu_slice *slice, int64_t batch, int64_t index,
                                  const rope_token *token);

static CPU_APART void lanes_read_token(const rope_problem *p, const rope_call *call, int64_t batch,
                                       int64_t index, rope_token *token) {
    rope_token_read(p, call, batch, index, token);
}

/* What computes one token stands apart, or compilers carry its constants from token to token by way
 * of memory. */
CPU_INLINE void lanes_rotate_plain(lanes_plain_token rotate, int counts, const rope_problem *p,
                                   const rope_call *call, const cpu_slice *slice) {
    rope_token token;
    int64_t batch = 0, index = slice->first_token;
    if (index >= call->tokens) {
        batch = index / call->tokens;
        index %= call->tokens;
    }
    for (int64_t left = slice->last_token - slice->first_token; left > 0; left--) {
        token.set = 0;
        token.at[0] = rope_sum(index, call->position.offset);
        if (!counts)
            lanes_read_token(p, call, batch, index, &token);
        rotate(p, call, slice, batch, index, &token);
        if (++index == call->tokens) {
            index = 0;
            batch++;
        }
    }
}

#endif
