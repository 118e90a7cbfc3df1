/* The cos/sin row of one token, a vector of pairs at a time: from its angles or from the caller's
 * tables. */
#ifndef ROPEKIT_CPU_ROPE_COS_SIN_ROW_H
#define ROPEKIT_CPU_ROPE_COS_SIN_ROW_H

#include "backends/cpu/rope/kernel.h"
#include "backends/cpu/simd/cos_sin.h"
#include "backends/cpu/simd/element.h"

/* Position of each of SIMD_LANES pairs from `pair` on. */
CPU_INLINE void row_positions(const rope_problem *p, const rope_token *token, int pair,
                              int64_t position[SIMD_LANES]) {
    for (int i = 0; i < SIMD_LANES; i++)
        position[i] = token->at[p->pair_axis[pair + i]];
}

CPU_INLINE simd_turns row_phase(int one_axis, const rope_problem *p, const rope_token *token,
                                const uint64_t *list, int pair) {
    simd_turns phase;
    int64_t each[SIMD_LANES];
    if (one_axis)
        return simd_phase_at(list, token->at[0], pair);
    row_positions(p, token, pair, each);
    for (int i = 0; i < 2; i++) {
        simd_u64 position;
        memcpy(&position, each + i * SIMD_LANES / 2, sizeof position);
        memcpy(&phase.part[i], list + pair + i * SIMD_LANES / 2, sizeof phase.part[i]);
        phase.part[i] *= position;
    }
    return phase;
}

CPU_INLINE simd_f32 row_radians(int one_axis, const rope_problem *p, const rope_token *token,
                                const float *list, int pair) {
    simd_f32 inv_freq = simd_load_f(list + pair);
    if (one_axis)
        return inv_freq * (float)token->at[0];
    int64_t each[SIMD_LANES];
    row_positions(p, token, pair, each);
    simd_f32 position;
    for (int i = 0; i < SIMD_LANES; i++)
        position[i] = (float)each[i];
    return inv_freq * position;
}

/* What is known of rows when a kernel is compiled. */
typedef struct row_rule {
    int mode, one_axis;
    int scaled; /* by the attention factor, or sin negated */
} row_rule;

/* The attention factor, and the sign of the direction in that of sin. */
typedef struct row_factors {
    float c, s;
} row_factors;

CPU_INLINE row_factors row_factors_of(const rope_problem *p, const rope_token *token) {
    float c = (float)p->set[token->set].attention_factor;
    row_factors factor = {c, p->direction == ROPE_FORWARD ? c : -c};
    return factor;
}

/* `count` vectors of a row, of pairs from `pair` on. */
CPU_INLINE void row_fill(int count, row_rule rule, const rope_problem *p, const rope_token *token,
                         int pair, float *restrict c, float *restrict s) {
    const rope_frequency_set *set = &p->set[token->set];
    const row_factors factor = row_factors_of(p, token);
    simd_cos_sin a[SIMD_GROUP];
    if (rule.mode == ROPE_ANGLE_EXACT) {
        simd_turns phase[SIMD_GROUP];
        for (int i = 0; i < count; i++)
            phase[i] = row_phase(rule.one_axis, p, token, set->turns, pair + i * SIMD_LANES);
        simd_cos_sin_turns(count, phase, a);
    } else {
        simd_f32 radians[SIMD_GROUP];
        for (int i = 0; i < count; i++)
            radians[i] = row_radians(rule.one_axis, p, token, set->inv_freq, pair + i * SIMD_LANES);
        simd_cos_sin_radians(count, radians, a);
    }
    for (int i = 0; i < count; i++) {
        simd_store_f(c + i * SIMD_LANES, rule.scaled ? a[i].c * factor.c : a[i].c);
        simd_store_f(s + i * SIMD_LANES, rule.scaled ? a[i].s * factor.s : a[i].s);
    }
}

/* Fills whole vectors of some rows: the problem's lists and the rows are padded. */
CPU_INLINE void row_fill_angles(row_rule rule, const rope_problem *p, const rope_token *tokens,
                                int count, cpu_pairs pairs, const cpu_cos_sin_row *rows) {
    for (int r = 0; r < count; r++) {
        int i = 0;
        for (; i + SIMD_GROUP * SIMD_LANES <= pairs.count; i += SIMD_GROUP * SIMD_LANES)
            row_fill(SIMD_GROUP, rule, p, &tokens[r], pairs.first + i, rows[r].c1 + i,
                     rows[r].s1 + i);
        for (; i < pairs.count; i += SIMD_LANES)
            row_fill(1, rule, p, &tokens[r], pairs.first + i, rows[r].c1 + i, rows[r].s1 + i);
    }
}

/* Multiplies a row by XPos' scales: in pieces, by loops that compilers turn into vectors where they
 * can. */
static void row_scale_row(const rope_problem *p, const rope_token *token, int tensor,
                          cpu_pairs pairs, float *restrict c, float *restrict s) {
    enum { PIECE = 64 };
    int64_t exponent[PIECE];
    float scale[PIECE];
    for (int from = 0; from < pairs.count; from += PIECE) {
        const int first = pairs.first + from,
                  count = pairs.count - from < PIECE ? pairs.count - from : PIECE;
        for (int i = 0; i < count; i++)
            exponent[i] = rope_xpos_of(p, first + i, token->at[p->pair_axis[first + i]], tensor);
        for (int i = 0; i < count; i++)
            scale[i] = rope_xpos_scale(exponent[i]);
        for (int i = 0; i < count; i++) {
            c[from + i] *= scale[i];
            s[from + i] *= scale[i];
        }
    }
}

static void row_round_list(int dtype, int pairs, float *list) {
    for (int i = 0; i < pairs; i += SIMD_LANES)
        simd_store_f(list + i, simd_round_to(dtype, simd_load_f(list + i)));
}

/* The arithmetic of a model's dtype has coefficients of that dtype. */
static void row_round(const rope_problem *p, int pairs, const cpu_cos_sin_row *row) {
    float *const lists[4] = {row->c1, row->s1, row->c2, row->s2};
    for (int i = 0; i < (row->c1 == row->c2 ? 2 : 4); i++) {
        if (p->dtype == ROPE_BF16)
            row_round_list(ROPE_BF16, pairs, lists[i]);
        else if (p->dtype == ROPE_F16)
            row_round_list(ROPE_F16, pairs, lists[i]);
    }
}

static void rope_compute_rows(const rope_problem *p, const rope_token *tokens, int count,
                              int tensor, cpu_pairs pairs, const cpu_cos_sin_row *rows) {
    const row_rule unscaled = {ROPE_ANGLE_EXACT, 1, 0}, exact = {ROPE_ANGLE_EXACT, 1, 1},
                   exact_axes = {ROPE_ANGLE_EXACT, 0, 1}, f32 = {ROPE_ANGLE_F32, 1, 1},
                   f32_axes = {ROPE_ANGLE_F32, 0, 1};
    int one_axis = p->axes == 1, scaled = cpu_scales_rows(p);
    if (p->angle_mode == ROPE_ANGLE_F32 && one_axis)
        row_fill_angles(f32, p, tokens, count, pairs, rows);
    else if (p->angle_mode == ROPE_ANGLE_F32)
        row_fill_angles(f32_axes, p, tokens, count, pairs, rows);
    else if (!one_axis)
        row_fill_angles(exact_axes, p, tokens, count, pairs, rows);
    else if (scaled)
        row_fill_angles(exact, p, tokens, count, pairs, rows);
    else
        row_fill_angles(unscaled, p, tokens, count, pairs, rows);
    for (int i = 0; i < count && p->xpos_rate; i++)
        row_scale_row(p, &tokens[i], tensor, pairs, rows[i].c1, rows[i].s1);
    for (int i = 0; i < count && p->arithmetic == ROPE_ARITHMETIC_MODEL_DTYPE; i++)
        row_round(p, pairs.count, &rows[i]);
}

/* Entries side by side. Past the last pair stand ones, which no later step trips over. */
CPU_INLINE void row_read_entries(int dtype, const char *entry, int pairs, float *list) {
    int i = 0;
    for (; i + SIMD_LANES <= pairs; i += SIMD_LANES)
        simd_store_f(list + i, simd_widen(dtype, entry + i * cpu_dtype_size(dtype)));
#pragma GCC unroll 1
    for (int end = i < pairs ? i + SIMD_LANES : i; i < end; i++)
        list[i] = i < pairs ? cpu_load(dtype, entry, i) : 1;
}

/* Entries of first and second elements alternately. */
CPU_INLINE void row_read_neighbours(int dtype, const char *entry, int pairs, float *first,
                                    float *second) {
    int i = 0;
    for (; i + SIMD_LANES <= pairs; i += SIMD_LANES) {
        simd_pair x = simd_load_neighbours(dtype, entry + 2 * i * cpu_dtype_size(dtype));
        simd_store_f(first + i, x.x1);
        simd_store_f(second + i, x.x2);
    }
#pragma GCC unroll 1
    for (int end = i < pairs ? i + SIMD_LANES : i; i < end; i++) {
        first[i] = i < pairs ? cpu_load(dtype, entry, 2 * i) : 1;
        second[i] = i < pairs ? cpu_load(dtype, entry, 2 * i + 1) : 1;
    }
}

/* One row of a table into the list of first elements and, from a full row, that of second ones. */
CPU_INLINE void row_read_one(int dtype, const rope_problem *p, const void *table, int64_t from,
                             cpu_pairs pairs, float *first, float *second) {
    const int size = cpu_dtype_size(dtype);
    const char *entry = (const char *)table + (from + pairs.first) * size;
    if (p->table_width == ROPE_TABLE_FULL && p->pairing_out == ROPE_PAIRING_INTERLEAVED) {
        row_read_neighbours(dtype, entry + (int64_t)pairs.first * size, pairs.count, first, second);
        return;
    }
    row_read_entries(dtype, entry, pairs.count, first);
    if (p->table_width == ROPE_TABLE_FULL)
        row_read_entries(dtype, entry + (int64_t)p->pairs * size, pairs.count, second);
}

static void row_read_table(const rope_problem *p, const void *table, int64_t from, cpu_pairs pairs,
                           float *first, float *second) {
    if (p->table_dtype == ROPE_F32)
        row_read_one(ROPE_F32, p, table, from, pairs, first, second);
    else if (p->table_dtype == ROPE_BF16)
        row_read_one(ROPE_BF16, p, table, from, pairs, first, second);
    else
        row_read_one(ROPE_F16, p, table, from, pairs, first, second);
}

/* Tables may hold NaNs of any bits, and rounding to bfloat16 looks for none (simd_bf16_words). */
static void row_quiet_nans(const rope_problem *p, int pairs, const cpu_cos_sin_row *row) {
    float *const lists[4] = {row->c1, row->s1, row->c2, row->s2};
    const int count = p->dtype != ROPE_BF16 ? 0 : row->c1 == row->c2 ? 2 : 4;
    for (int list = 0; list < count; list++)
        for (int i = 0; i < pairs; i += SIMD_LANES)
            simd_store_f(lists[list] + i, simd_quiet_nan(simd_load_f(lists[list] + i)));
}

/* rope_directed on whole lists; of a half row c2 and s2 are c1 and s1. */
CPU_INLINE void row_direct(int inverse, int pairs, float *c1, float *s1, float *c2, float *s2) {
    for (int i = 0; i < pairs; i += SIMD_LANES) {
        simd_f32 a = simd_load_f(c1 + i), b = simd_load_f(s1 + i);
        simd_f32 c = simd_load_f(c2 + i), d = simd_load_f(s2 + i);
        if (inverse) {
            simd_f32 determinant = simd_fma(a, c, b * d);
            simd_store_f(c1 + i, c / determinant);
            simd_store_f(c2 + i, a / determinant);
            b = b / determinant;
            d = d / determinant;
        }
        simd_store_f(s1 + i, inverse ? -b : -d);
        simd_store_f(s2 + i, inverse ? -d : -b);
    }
}

/* Tables of several axes, or of strided entries. */
static void row_gather(const rope_problem *p, const rope_call *call, const rope_token *token,
                       cpu_pairs pairs, const cpu_cos_sin_row *row) {
    for (int i = 0; i < pairs.count; i++) {
        rope_coefficients m = rope_coefficients_of(p, call, token, pairs.first + i, 0);
        row->c1[i] = m.c1;
        row->s1[i] = m.s1;
        row->c2[i] = m.c2;
        row->s2[i] = m.s2;
    }
    row_quiet_nans(p, pairs.count, row);
}

static void rope_read_row(const rope_problem *p, const rope_call *call, const rope_token *token,
                          cpu_pairs pairs, const cpu_cos_sin_row *row) {
    if (p->axes > 1 || call->table_stride[2] != 1) {
        row_gather(p, call, token, pairs, row);
        return;
    }
    row_read_table(p, call->cos, token->at[0], pairs, row->c1, row->c2);
    row_read_table(p, call->sin, token->at[0], pairs, row->s1, row->s2);
    row_quiet_nans(p, pairs.count, row);
    if (p->direction == ROPE_TRANSPOSE)
        row_direct(0, pairs.count, row->c1, row->s1, row->c2, row->s2);
    else if (p->direction == ROPE_INVERSE)
        row_direct(1, pairs.count, row->c1, row->s1, row->c2, row->s2);
    if (p->arithmetic == ROPE_ARITHMETIC_MODEL_DTYPE)
        row_round(p, pairs.count, row);
}

#endif
