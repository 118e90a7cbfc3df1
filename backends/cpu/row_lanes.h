/* The coefficients of one token, LANES pairs at a time. */
#ifndef ROPEKIT_CPU_ROW_LANES_H
#define ROPEKIT_CPU_ROW_LANES_H

#include "backends/cpu/angle_lanes.h"

/* Position of each of LANES pairs from `pair` on. */
CPU_INLINE void lanes_positions(const rope_problem *p, const rope_token *token, int pair,
                                int64_t position[LANES]) {
    for (int i = 0; i < LANES; i++)
        position[i] = token->at[p->pair_axis[pair + i]];
}

CPU_INLINE lanes_cos_sin lanes_exact(const rope_problem *p, const rope_token *token, int pair) {
    lanes_w turns, position;
    memcpy(&turns, p->set[token->set].turns + pair, sizeof turns);
    if (p->axes == 1) {
        turns *= (uint64_t)token->at[0];
        return lanes_turns(&turns);
    }
    int64_t each[LANES];
    lanes_positions(p, token, pair, each);
    memcpy(&position, each, sizeof position);
    turns *= position;
    return lanes_turns(&turns);
}

CPU_INLINE lanes_cos_sin lanes_f32(const rope_problem *p, const rope_token *token, int pair) {
    lanes_f inv_freq = lanes_load_f(p->set[token->set].inv_freq + pair);
    if (p->axes == 1)
        return lanes_radians(inv_freq * (float)token->at[0]);
    int64_t each[LANES];
    lanes_positions(p, token, pair, each);
    lanes_f position;
    for (int i = 0; i < LANES; i++)
        position[i] = (float)each[i];
    return lanes_radians(inv_freq * position);
}

/* Fills whole vectors: the problem's lists and the row are padded. */
static cpu_row lanes_computed_row(const rope_problem *p, const rope_token *token,
                                  cpu_row_buffer *buffer) {
    float factor = (float)p->set[token->set].attention_factor;
    uint32_t negate = p->direction != ROPE_FORWARD ? 0x80000000u : 0u;
    for (int i = 0; i < p->pairs; i += LANES) {
        lanes_cos_sin a =
            p->angle_mode == ROPE_ANGLE_EXACT ? lanes_exact(p, token, i) : lanes_f32(p, token, i);
        lanes_store_f(buffer->list[0] + i, a.c * factor);
        lanes_store_u(buffer->list[1] + i, (lanes_u)(a.s * factor) ^ negate);
    }
    cpu_row row = {buffer->list[0], buffer->list[1], buffer->list[0], buffer->list[1]};
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
