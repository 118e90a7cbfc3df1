/* Windows by exact angles of one axis: a block's angles stay in registers from their
 * turns to the last head of q and k. */
#ifndef ROPEKIT_CPU_PLAIN_LANES_H
#define ROPEKIT_CPU_PLAIN_LANES_H

#include "backends/cpu/row_lanes.h"
#include "backends/cpu/walk_lanes.h"

/* Descriptors that take this road. */
CPU_INLINE int lanes_serves_plain(const rope_problem *p) {
    return lanes_serves_blocks(p) && p->angle_mode == ROPE_ANGLE_EXACT && p->axes == 1 &&
           !p->xpos_rate;
}

/* Elements lie side by side, a token's heads nearer than the next token. */
CPU_INLINE int lanes_is_plain(const rope_operand *operand) {
    return operand->heads == 0 || (operand->in_stride[3] == 1 && operand->out_stride[3] == 1 &&
                                   operand->in_stride[2] <= operand->in_stride[1]);
}

CPU_INLINE void lanes_plain_angles(int count, const rope_problem *p, const rope_token *token,
                                   const uint64_t *list, lanes_cos_sin *a) {
    const lanes_factors factor = lanes_factors_of(p, token);
    const int scaled = lanes_scales(p);
    lanes_w turns[LANES_GROUP];
    LANES_EACH(w, count) turns[w] = lanes_exact(1, p, token, list, w * LANES);
    lanes_turns(count, turns, a);
    for (int w = 0; w < count && scaled; w++)
        a[w] = (lanes_cos_sin){a[w].c * factor.c, a[w].s * factor.s};
}

CPU_INLINE void lanes_plain_row(lanes_kind kind, lanes_block block, const rope_problem *p,
                                const rope_token *token, float *cosines, lanes_row *row) {
    const int group = block.size < LANES_GROUP * LANES ? 1 : LANES_GROUP;
    const uint64_t *list = p->set[token->set].turns + block.first;
    lanes_cos_sin a[LANES_GROUP], last = {{0}, {0}};
#pragma GCC unroll 16
    for (int v = 0; v * LANES < block.size; v += group) {
        lanes_plain_angles(group, p, token, list + v * LANES, a);
        LANES_EACH(w, group) row->c[v + w] = a[w].c;
        LANES_EACH(w, group) row->s[v + w] = a[w].s;
    }
    if (block.rest)
        lanes_plain_angles(1, p, token, list + lanes_rest_at(block), &last);
    row->rest_c = last.c;
    row->rest_s = last.s;
    row->cosines = cosines;
    for (int v = 0; v * LANES < block.size && kind.dtype == ROPE_F16 && !kind.swap; v++)
        lanes_store_f(cosines + v * LANES, row->c[v]);
    lanes_arrange_row(kind, block.size, row);
}

/* Where the heads of a token are, and which of them rotate. */
typedef struct lanes_place {
    int64_t batch, index;
    const cpu_slice *slice;
} lanes_place;

/* The block of some heads. */
CPU_INLINE void lanes_plain_windows(lanes_kind kind, lanes_block block, const lanes_heads *heads,
                                    const lanes_row *row) {
    const char *in = heads->in;
    char *out = heads->out;
    const int64_t end =
        2 * (int64_t)block.pairs * cpu_dtype_size(kind.dtype) - lanes_block_offset(kind, block);
    for (int64_t h = 0; h < heads->count; h++) {
        if (kind.part && block.first == 0)
            lanes_copy_before(kind, heads, in, out);
        lanes_rotate_block(kind, block, heads, in, out, row);
        if (kind.part && lanes_is_last(block))
            lanes_copy_after(kind, heads, in + end, out + end);
        in += heads->in_stride;
        out += heads->out_stride;
    }
}

/* The block of a tensor's heads. */
CPU_INLINE void lanes_plain_heads(lanes_kind kind, lanes_block block, const rope_problem *p,
                                  const rope_call *call, int tensor, const lanes_place *place,
                                  const lanes_row *row) {
    const int bytes = cpu_dtype_size(kind.dtype);
    const rope_operand *operand = &call->tensor[tensor];
    const int64_t first = place->slice->first_head[tensor], last = place->slice->last_head[tensor];
    if (first >= last) /* absent: nothing else of it is set */
        return;
    const cpu_head head = cpu_head_of(operand, bytes, place->batch, place->index, first);
    const int64_t at = lanes_block_offset(kind, block) + (int64_t)p->rotary_offset[tensor] * bytes;
    lanes_heads heads = {.in = head.in + at,
                         .out = head.out + at,
                         .count = last - first,
                         .in_stride = operand->in_stride[2] * bytes,
                         .out_stride = operand->out_stride[2] * bytes};
    if (kind.part)
        lanes_set_beside(p, operand, tensor, bytes, &heads);
    /* Two calls: each is compiled for one value of touch. One token of parts would lose by more
     * than several gain. */
    if (kind.dtype == ROPE_F32 && !kind.part && lanes_touches(place->slice, heads.count)) {
        heads.touch = 1;
        lanes_plain_windows(kind, block, &heads, row);
    } else {
        lanes_plain_windows(kind, block, &heads, row);
    }
}

CPU_INLINE void lanes_plain_block(lanes_kind kind, lanes_block block, const rope_problem *p,
                                  const rope_call *call, const rope_token *token,
                                  const lanes_place *place) {
    float cosines[LANES_BLOCK] __attribute__((aligned(64)));
    lanes_row row;
    kind = lanes_block_kind(kind, block.size);
    lanes_plain_row(kind, block, p, token, cosines, &row);
    for (int t = 0; t < 2; t++)
        lanes_plain_heads(kind, block, p, call, t, place, &row);
}

/* `known` is the number of pairs where it is known when this is compiled, or 0. */
CPU_INLINE void lanes_plain_kind(lanes_kind kind, int known, const rope_problem *p,
                                 const rope_call *call, const lanes_place *place,
                                 const rope_token *token) {
    const int pairs = p->pairs;
    lanes_block block;
    if (known) {
        lanes_plain_block(kind, lanes_block_at(known, 0, known), p, call, token, place);
        return;
    }
    for (int i = 0; i < pairs; i += block.size + block.rest) {
        block = lanes_block_at(lanes_block_size(pairs - i), i, pairs);
        if (block.size == 64)
            lanes_plain_block(kind, lanes_block_at(64, i, pairs), p, call, token, place);
        else if (block.size == 32)
            lanes_plain_block(kind, lanes_block_at(32, i, pairs), p, call, token, place);
        else if (block.size == 2 * LANES)
            lanes_plain_block(kind, lanes_block_at(2 * LANES, i, pairs), p, call, token, place);
        else if (block.size == LANES)
            lanes_plain_block(kind, lanes_block_at(LANES, i, pairs), p, call, token, place);
        else
            lanes_plain_block(kind, lanes_block_at(0, i, pairs), p, call, token, place);
    }
}

CPU_INLINE void lanes_plain_dtype(int dtype, int known, int part, const rope_problem *p,
                                  const rope_call *call, const lanes_place *place,
                                  const rope_token *token) {
    lanes_kind half = lanes_kind_of(dtype, ROPE_PAIRING_HALF_SPLIT),
               inter = lanes_kind_of(dtype, ROPE_PAIRING_INTERLEAVED);
    half.part = inter.part = part;
    if (p->pairing_in == ROPE_PAIRING_INTERLEAVED)
        lanes_plain_kind(inter, known, p, call, place, token);
    else
        lanes_plain_kind(half, known, p, call, place, token);
}

typedef void (*lanes_plain_token)(const rope_problem *p, const rope_call *call,
                                  const lanes_place *place, const rope_token *token);

/* The functions of one dtype: for windows of 64 pairs, the most frequent, for others, and for parts
 * of heads. */
typedef struct lanes_plain {
    lanes_plain_token of_64, any, part;
} lanes_plain;

#define LANES_PLAIN_TOKEN(name, dtype, known, part)                                                \
    static CPU_APART void lanes_##name(const rope_problem *p, const rope_call *call,               \
                                       const lanes_place *place, const rope_token *token) {        \
        lanes_plain_dtype(dtype, known, part, p, call, place, token);                              \
    }
#define LANES_PLAIN(name, dtype)                                                                   \
    LANES_PLAIN_TOKEN(name##_of_64, dtype, 64, 0)                                                  \
    LANES_PLAIN_TOKEN(name##_any, dtype, 0, 0)                                                     \
    LANES_PLAIN_TOKEN(name##_part, dtype, 0, 1)                                                    \
    static const lanes_plain lanes_##name##_plain = {lanes_##name##_of_64, lanes_##name##_any,     \
                                                     lanes_##name##_part};
LANES_PLAIN(f32, ROPE_F32)
LANES_PLAIN(f16, ROPE_F16)
LANES_PLAIN(bf16, ROPE_BF16)

static CPU_APART void lanes_read_token(const rope_problem *p, const rope_call *call, int64_t batch,
                                       int64_t index, rope_token *token) {
    rope_token_read(p, call, batch, index, token);
}

/* What computes one token stands apart, or compilers carry its constants from token to token by way
 * of memory. */
static void lanes_rotate_plain(const lanes_plain *plain, int counts, const rope_problem *p,
                               const rope_call *call, const cpu_slice *slice) {
    const int part = lanes_is_part(p, &call->tensor[0], 0) || lanes_is_part(p, &call->tensor[1], 1);
    const lanes_plain_token rotate = part             ? plain->part
                                     : p->pairs == 64 ? plain->of_64
                                                      : plain->any;
    rope_token token;
    lanes_place place = {0, slice->first_token, slice};
    if (place.index >= call->tokens) {
        place.batch = place.index / call->tokens;
        place.index %= call->tokens;
    }
    for (int64_t left = slice->last_token - slice->first_token; left > 0; left--) {
        token.set = 0;
        token.at[0] = rope_sum(place.index, call->position.offset);
        if (!counts)
            lanes_read_token(p, call, place.batch, place.index, &token);
        rotate(p, call, &place, &token);
        if (++place.index == call->tokens) {
            place.index = 0;
            place.batch++;
        }
    }
}

#endif
