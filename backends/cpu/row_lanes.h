/* The coefficients of one token, LANES pairs at a time. */
#ifndef ROPEKIT_CPU_ROW_LANES_H
#define ROPEKIT_CPU_ROW_LANES_H

#include "backends/cpu/angle_lanes.h"
#include "backends/cpu/element_lanes.h"

/* Position of each of LANES pairs from `pair` on. */
CPU_INLINE void lanes_positions(const rope_problem *p, const rope_token *token, int pair,
                                int64_t position[LANES]) {
    for (int i = 0; i < LANES; i++)
        position[i] = token->at[p->pair_axis[pair + i]];
}

CPU_INLINE lanes_w lanes_exact(int one_axis, const rope_problem *p, const rope_token *token,
                               const uint64_t *list, int pair) {
    lanes_w turns;
    int64_t each[LANES];
    if (!one_axis)
        lanes_positions(p, token, pair, each);
    for (int i = 0; i < 2; i++) {
        lanes_d position = (lanes_d){0} + (uint64_t)token->at[0];
        if (!one_axis)
            memcpy(&position, each + i * LANES / 2, sizeof position);
        memcpy(&turns.part[i], list + pair + i * LANES / 2, sizeof turns.part[i]);
        turns.part[i] *= position;
    }
    return turns;
}

CPU_INLINE lanes_f lanes_f32(int one_axis, const rope_problem *p, const rope_token *token,
                             const float *list, int pair) {
    lanes_f inv_freq = lanes_load_f(list + pair);
    if (one_axis)
        return inv_freq * (float)token->at[0];
    int64_t each[LANES];
    lanes_positions(p, token, pair, each);
    lanes_f position;
    for (int i = 0; i < LANES; i++)
        position[i] = (float)each[i];
    return inv_freq * position;
}

/* What is known of rows when a kernel is compiled. */
typedef struct lanes_rule {
    int mode, one_axis;
    int scaled; /* by the attention factor, or sin negated */
} lanes_rule;

/* The attention factor, and the sign of the direction in that of sin. */
typedef struct lanes_factors {
    float c, s;
} lanes_factors;

CPU_INLINE lanes_factors lanes_factors_of(const rope_problem *p, const rope_token *token) {
    float c = (float)p->set[token->set].attention_factor;
    lanes_factors factor = {c, p->direction == ROPE_FORWARD ? c : -c};
    return factor;
}

/* `count` vectors of a row from `pair` on. */
CPU_INLINE void lanes_fill(int count, lanes_rule rule, const rope_problem *p,
                           const rope_token *token, int pair, float *restrict c,
                           float *restrict s) {
    const rope_frequency_set *set = &p->set[token->set];
    const lanes_factors factor = lanes_factors_of(p, token);
    lanes_cos_sin a[LANES_GROUP];
    if (rule.mode == ROPE_ANGLE_EXACT) {
        lanes_w turns[LANES_GROUP];
        for (int i = 0; i < count; i++)
            turns[i] = lanes_exact(rule.one_axis, p, token, set->turns, pair + i * LANES);
        lanes_turns(count, turns, a);
    } else {
        lanes_f radians[LANES_GROUP];
        for (int i = 0; i < count; i++)
            radians[i] = lanes_f32(rule.one_axis, p, token, set->inv_freq, pair + i * LANES);
        lanes_radians(count, radians, a);
    }
    for (int i = 0; i < count; i++) {
        lanes_store_f(c + pair + i * LANES, rule.scaled ? a[i].c * factor.c : a[i].c);
        lanes_store_f(s + pair + i * LANES, rule.scaled ? a[i].s * factor.s : a[i].s);
    }
}

/* Fills whole vectors of some rows: the problem's lists and the rows are padded. */
CPU_INLINE void lanes_fill_angles(lanes_rule rule, const rope_problem *p, const rope_token *tokens,
                                  int count, const cpu_row *rows) {
    const int pairs = p->pairs;
    for (int r = 0; r < count; r++) {
        int i = 0;
        for (; i + LANES_GROUP * LANES <= pairs; i += LANES_GROUP * LANES)
            lanes_fill(LANES_GROUP, rule, p, &tokens[r], i, rows[r].c1, rows[r].s1);
        for (; i < pairs; i += LANES)
            lanes_fill(1, rule, p, &tokens[r], i, rows[r].c1, rows[r].s1);
    }
}

/* Multiplies a row by XPos' scales: in pieces, by loops that compilers turn into vectors where they
 * can. */
static void lanes_scale_row(const rope_problem *p, const rope_token *token, int tensor,
                            float *restrict c, float *restrict s) {
    enum { PIECE = 64 };
    int64_t exponent[PIECE];
    float scale[PIECE];
    for (int from = 0; from < p->pairs; from += PIECE) {
        int count = p->pairs - from < PIECE ? p->pairs - from : PIECE;
        for (int i = 0; i < count; i++)
            exponent[i] = rope_xpos_of(p, from + i, token->at[p->pair_axis[from + i]], tensor);
        for (int i = 0; i < count; i++)
            scale[i] = rope_xpos_scale(exponent[i]);
        for (int i = 0; i < count; i++) {
            c[from + i] *= scale[i];
            s[from + i] *= scale[i];
        }
    }
}

static void lanes_round_list(int dtype, int pairs, float *list) {
    for (int i = 0; i < pairs; i += LANES)
        lanes_store_f(list + i, lanes_round_to(dtype, lanes_load_f(list + i)));
}

/* The arithmetic of a model's dtype has coefficients of that dtype. */
static void lanes_round_row(const rope_problem *p, const cpu_row *row) {
    float *const lists[4] = {row->c1, row->s1, row->c2, row->s2};
    for (int i = 0; i < (row->c1 == row->c2 ? 2 : 4); i++) {
        if (p->dtype == ROPE_BF16)
            lanes_round_list(ROPE_BF16, p->pairs, lists[i]);
        else if (p->dtype == ROPE_F16)
            lanes_round_list(ROPE_F16, p->pairs, lists[i]);
    }
}

/* Whether the attention factor scales rows, or sin is negated. */
CPU_INLINE int lanes_scales(const rope_problem *p) {
    return p->direction != ROPE_FORWARD || p->frequency_sets > 1 || p->set[0].attention_factor != 1;
}

static void lanes_compute_rows(const rope_problem *p, const rope_token *tokens, int count,
                               int tensor, const cpu_row *rows) {
    const lanes_rule plain = {ROPE_ANGLE_EXACT, 1, 0}, exact = {ROPE_ANGLE_EXACT, 1, 1},
                     exact_axes = {ROPE_ANGLE_EXACT, 0, 1}, f32 = {ROPE_ANGLE_F32, 1, 1},
                     f32_axes = {ROPE_ANGLE_F32, 0, 1};
    int one_axis = p->axes == 1, scaled = lanes_scales(p);
    if (p->angle_mode == ROPE_ANGLE_F32 && one_axis)
        lanes_fill_angles(f32, p, tokens, count, rows);
    else if (p->angle_mode == ROPE_ANGLE_F32)
        lanes_fill_angles(f32_axes, p, tokens, count, rows);
    else if (!one_axis)
        lanes_fill_angles(exact_axes, p, tokens, count, rows);
    else if (scaled)
        lanes_fill_angles(exact, p, tokens, count, rows);
    else
        lanes_fill_angles(plain, p, tokens, count, rows);
    for (int i = 0; i < count && p->xpos_rate; i++)
        lanes_scale_row(p, &tokens[i], tensor, rows[i].c1, rows[i].s1);
    for (int i = 0; i < count && p->arithmetic == ROPE_ARITHMETIC_MODEL_DTYPE; i++)
        lanes_round_row(p, &rows[i]);
}

#endif
