/* The coefficients of one token, LANES pairs at a time. */
#ifndef ROPEKIT_CPU_ROW_LANES_H
#define ROPEKIT_CPU_ROW_LANES_H

#include "backends/cpu/angle_lanes.h"

CPU_INLINE lanes_f lanes_from_bf16(lanes_h h) {
    return (lanes_f)(lanes_words_of(h) << 16);
}

#if !defined(LANES_TO_BF16_NATIVE)
CPU_INLINE lanes_h lanes_to_bf16(lanes_f x) {
    return lanes_low_halves(lanes_bf16_words(x));
}
#endif

/* What every vector of a row has in common. */
typedef struct lanes_row_frame {
    lanes_d position; /* where there is one axis, the same in each lane */
    float position_f32;
    float factor;
    uint32_t negate; /* sign bit of sin in transpose and inverse */
} lanes_row_frame;

/* Position of each of LANES pairs from `pair` on. */
CPU_INLINE void lanes_positions(const rope_problem *p, const rope_token *token, int pair,
                                int64_t position[LANES]) {
    for (int i = 0; i < LANES; i++)
        position[i] = token->at[p->pair_axis[pair + i]];
}

CPU_INLINE lanes_cos_sin lanes_exact(int one_axis, const rope_problem *p, const rope_token *token,
                                     const lanes_row_frame *frame, const uint64_t *list, int pair) {
    lanes_w turns, position;
    int64_t each[LANES];
    if (!one_axis)
        lanes_positions(p, token, pair, each);
    for (int i = 0; i < 2; i++) {
        memcpy(&turns.part[i], list + pair + i * LANES / 2, sizeof turns.part[i]);
        position.part[i] = frame->position;
        if (!one_axis)
            memcpy(&position.part[i], each + i * LANES / 2, sizeof position.part[i]);
        turns.part[i] *= position.part[i];
    }
    return lanes_turns(&turns);
}

CPU_INLINE lanes_cos_sin lanes_f32(int one_axis, const rope_problem *p, const rope_token *token,
                                   const lanes_row_frame *frame, const float *list, int pair) {
    lanes_f inv_freq = lanes_load_f(list + pair);
    if (one_axis)
        return lanes_radians(inv_freq * frame->position_f32);
    int64_t each[LANES];
    lanes_positions(p, token, pair, each);
    lanes_f position;
    for (int i = 0; i < LANES; i++)
        position[i] = (float)each[i];
    return lanes_radians(inv_freq * position);
}

/* Fills whole vectors: the problem's lists and the row are padded. */
CPU_INLINE void lanes_fill_row(int mode, int one_axis, const rope_problem *p,
                               const rope_token *token, float *restrict c, float *restrict s) {
    const rope_frequency_set *set = &p->set[token->set];
    const uint64_t *turns = set->turns;
    const float *inv_freq = set->inv_freq;
    const lanes_row_frame frame = {.position = (lanes_d){0} + (uint64_t)token->at[0],
                                   .position_f32 = (float)token->at[0],
                                   .factor = (float)set->attention_factor,
                                   .negate = p->direction != ROPE_FORWARD ? 0x80000000u : 0u};
    for (int i = 0, pairs = p->pairs; i < pairs; i += LANES) {
        lanes_cos_sin a = mode == ROPE_ANGLE_EXACT
                              ? lanes_exact(one_axis, p, token, &frame, turns, i)
                              : lanes_f32(one_axis, p, token, &frame, inv_freq, i);
        lanes_store_f(c + i, a.c * frame.factor);
        lanes_store_u(s + i, (lanes_u)(a.s * frame.factor) ^ frame.negate);
    }
}

static cpu_row lanes_computed_row(const rope_problem *p, const rope_token *token,
                                  cpu_row_buffer *buffer) {
    cpu_row row = {buffer->list[0], buffer->list[1], buffer->list[0], buffer->list[1]};
    int one_axis = p->axes == 1;
    if (p->angle_mode == ROPE_ANGLE_EXACT && one_axis)
        lanes_fill_row(ROPE_ANGLE_EXACT, 1, p, token, buffer->list[0], buffer->list[1]);
    else if (p->angle_mode == ROPE_ANGLE_EXACT)
        lanes_fill_row(ROPE_ANGLE_EXACT, 0, p, token, buffer->list[0], buffer->list[1]);
    else if (one_axis)
        lanes_fill_row(ROPE_ANGLE_F32, 1, p, token, buffer->list[0], buffer->list[1]);
    else
        lanes_fill_row(ROPE_ANGLE_F32, 0, p, token, buffer->list[0], buffer->list[1]);
    return row;
}

/* One list of a table whose entries lie side by side. */
static void lanes_table_list(int dtype, const void *table, int64_t from, int pairs, float *list) {
    const char *entry = (const char *)table + from * cpu_dtype_size(dtype);
    int i = 0;
    for (; dtype != ROPE_F32 && i + LANES <= pairs; i += LANES) {
        lanes_h h = lanes_load_h(entry + 2 * i);
        lanes_store_f(list + i, dtype == ROPE_BF16 ? lanes_from_bf16(h) : lanes_from_f16(h));
    }
    for (; i < pairs; i++)
        list[i] = rope_table_entry(dtype, entry, i);
}

/* Forward, one axis, entries side by side, a full row in halves. */
CPU_INLINE int lanes_table_is_plain(const rope_problem *p, const rope_call *call) {
    return p->direction == ROPE_FORWARD && p->axes == 1 && call->table_stride[2] == 1 &&
           !(p->table_width == ROPE_TABLE_FULL && p->pairing_out == ROPE_PAIRING_INTERLEAVED);
}

static cpu_row lanes_table_row(const rope_problem *p, const rope_call *call,
                               const rope_token *token, cpu_row_buffer *buffer) {
    cpu_row row = {buffer->list[0], buffer->list[1], buffer->list[0], buffer->list[1]};
    lanes_table_list(p->table_dtype, call->cos, token->at[0], p->pairs, buffer->list[0]);
    lanes_table_list(p->table_dtype, call->sin, token->at[0], p->pairs, buffer->list[1]);
    if (p->table_width == ROPE_TABLE_HALF)
        return row;
    int64_t second = token->at[0] + p->pairs;
    lanes_table_list(p->table_dtype, call->cos, second, p->pairs, buffer->list[2]);
    lanes_table_list(p->table_dtype, call->sin, second, p->pairs, buffer->list[3]);
    row.c2 = buffer->list[2];
    row.s2 = buffer->list[3];
    return row;
}

static cpu_row lanes_row(const rope_problem *p, const rope_call *call, const rope_token *token,
                         int tensor, cpu_row_buffer *buffer) {
    if (p->arithmetic == ROPE_ARITHMETIC_MODEL_DTYPE || p->xpos_rate)
        return cpu_generic_row(p, call, token, tensor, buffer);
    if (p->angle_mode != ROPE_ANGLE_TABLE)
        return lanes_computed_row(p, token, buffer);
    if (lanes_table_is_plain(p, call))
        return lanes_table_row(p, call, token, buffer);
    return cpu_generic_row(p, call, token, tensor, buffer);
}

#endif
