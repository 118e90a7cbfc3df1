/*
 * A block of keys and the rows that see them, compiled by the file that includes this with its
 * vectors: scores, weights, sums of values.
 */
#ifndef ROPEKIT_CPU_ATTENTION_BLOCK_H
#define ROPEKIT_CPU_ATTENTION_BLOCK_H

#include "backends/cpu/attention/few_rows.h"

_Static_assert(CPU_ATTENTION_PAD % PANEL == 0 && CPU_ATTENTION_ROWS % GROUP == 0, "whole panels");

/* --- panels: element d of key or dimension n at [d][n] --- */

CPU_INLINE simd_u32 pack_words(const char *row, int words) {
    return words == SIMD_LANES ? simd_load_u(row) : simd_some_words(row, words);
}

/* Some words of as many keys as a vector has lanes. */
CPU_INLINE void pack_square(int dtype, const char *const *rows, int count, int64_t at, int words,
                            float *to) {
    simd_u32 x[SIMD_LANES];
    for (int k = 0; k < SIMD_LANES; k++)
        x[k] = k < count ? pack_words(rows[k] + at, words) : (simd_u32){0};
    simd_transpose(x);
    for (int i = 0; i < SIMD_LANES; i++) {
        if (i >= words)
            return;
        if (dtype == ROPE_F32) {
            simd_store_u(to + i * PANEL, x[i]);
            continue;
        }
        const simd_pair pair = simd_split_words(dtype, x[i]);
        simd_store_f(to + 2 * i * PANEL, pair.x1);
        simd_store_f(to + (2 * i + 1) * PANEL, pair.x2);
    }
}

CPU_INLINE void pack_half(int dtype, const char *const *rows, int count, int64_t at, int dim,
                          float *to) {
    const int size = cpu_dtype_size(dtype), in_word = 4 / size, words = dim / in_word;
    int i = 0;
    for (; i + SIMD_LANES <= words && count >= SIMD_LANES; i += SIMD_LANES)
        pack_square(dtype, rows, SIMD_LANES, at + i * 4, SIMD_LANES, to + i * in_word * PANEL);
    for (int left; i < words; i += left) {
        left = words - i < SIMD_LANES ? words - i : SIMD_LANES;
        pack_square(dtype, rows, count, at + i * 4, left, to + i * in_word * PANEL);
    }
    for (int d = words * in_word; d < dim; d++)
        for (int k = 0; k < SIMD_LANES; k++)
            to[d * PANEL + k] = k < count ? cpu_load(dtype, rows[k] + at, d) : 0;
}

/* Elements from `at` bytes on of `count` keys, or more. */
CPU_INLINE void pack_keys(int dtype, const char *const *rows, int count, int64_t at, int dim,
                          float *panel) {
    pack_half(dtype, rows, count, at, dim, panel);
    pack_half(dtype, rows + SIMD_LANES, count - SIMD_LANES, at, dim, panel + SIMD_LANES);
}

/* PANEL elements of keys, or fewer, from `at` bytes on. */
CPU_INLINE void pack_values(int dtype, const char *const *rows, int from, int to, int64_t at,
                            int count, float *panel) {
    const int64_t next = at + SIMD_LANES * cpu_dtype_size(dtype);
    const int low = count < SIMD_LANES ? count : SIMD_LANES, high = count - low;
    for (int k = from; k < to; k++) {
        const int whole = count >= PANEL;
        simd_store_f(panel + k * PANEL, whole ? simd_widen(dtype, rows[k] + at)
                                              : simd_widen_some(dtype, rows[k] + at, low));
        simd_store_f(panel + k * PANEL + SIMD_LANES,
                     whole      ? simd_widen(dtype, rows[k] + next)
                     : high > 0 ? simd_widen_some(dtype, rows[k] + next, high)
                                : (simd_f32){0});
    }
}

/* --- products --- */

/* `count` rows by a panel of keys; beside each chain some lines are prefetched. */
CPU_INLINE void multiply_keys(int count, const float *q, int dim, const float *panel, float *s,
                              int lines, prefetch_rows *prefetch) {
    waiting_nodes waiting;
    prefetch_rows ahead = *prefetch;
    for (int chain = 0; chain < chains_of(dim); chain++) {
        add_chain(count, chain, q, dim, dim, panel, waiting, s, KEYS);
        prefetch_lines(&ahead, lines);
    }
    *prefetch = ahead;
}

/* sum += `count` rows by keys from..to - 1, PANEL elements of their values. */
CPU_INLINE void multiply_values(int count, const float *p, int from, int to, const float *panel,
                                group_sum sum) {
    multiply_on(count, p + from, KEYS, 1, to - from, panel + from * PANEL, PANEL, sum);
}

/* Whether all is finite. */
CPU_INLINE int is_finite(int count, group_sum sum) {
    simd_u32 odd = {0};
#pragma GCC unroll 12
    for (int r = 0; r < count; r++)
        for (int part = 0; part < 2; part++)
            odd |= (simd_u32)(sum[r][part] * simd_set_f(0) != (simd_f32){0});
    return !simd_any(odd);
}

/* Joins a block's sums to o. */
CPU_INLINE void join_sums(int count, group_sum sum, const float *rescale, float *o, int o_stride) {
#pragma GCC unroll 12
    for (int r = 0; r < count; r++)
        for (int part = 0; part < 2; part++) {
            float *at = o + r * o_stride + part * SIMD_LANES;
            simd_store_f(at, simd_fma(simd_load_f(at), simd_set_f(rescale[r]), sum[r][part]));
        }
}

/* --- scores --- */

/* Scores of the rows of a head that begin at one, from a panel: one copy for every dtype. */
static CPU_NOINLINE void multiply_rows(const cpu_attention_block *b, int row, int key,
                                       prefetch_rows *prefetch) {
    const int bytes = b->head_dim * cpu_dtype_size(b->dtype), chains = chains_of(b->head_dim);
    int lines = (PANEL * ((bytes + 63) / 64) + chains - 1) / chains;
    for (int r = row, n; r < row + b->of_head; r += n) {
        n = group_of(b->of_head - r % b->of_head);
        const group_range g = range_of(b, r, n);
        if (g.to <= key || g.from >= key + PANEL)
            continue;
        BY_COUNT(n, multiply_keys(n_, b->q + r * b->head_dim, b->head_dim, b->panel,
                                  b->scores + r * KEYS + key, lines, prefetch))
        lines = 0;
    }
}

CPU_INLINE void add_scores(int dtype, const cpu_attention_block *b, int key, int count,
                           const char *const *rows) {
    prefetch_rows prefetch = rows_from(b, rows, PANEL, PANEL, count, 0);
    for (int r = 0; r < b->rows; r += b->of_head) {
        if (has_few(b)) {
            score_few(dtype, b, r, key, count, rows, &prefetch);
            continue;
        }
        pack_keys(dtype, rows, count, r / b->of_head * b->step[0], b->head_dim, b->panel);
        multiply_rows(b, r, key, &prefetch);
    }
}

static void block_scores(const cpu_attention_block *b, int first, int count, const char *const *k) {
    for (int key = first; key < first + count; key += PANEL) {
        const char *const *rows = k + (key - first);
        const int left = first + count - key;
        if (b->dtype == ROPE_F32)
            add_scores(ROPE_F32, b, key, left, rows);
        else if (b->dtype == ROPE_BF16)
            add_scores(ROPE_BF16, b, key, left, rows);
        else
            add_scores(ROPE_F16, b, key, left, rows);
    }
}

/* --- weights --- */

static void block_weights(const cpu_attention_block *b) {
    for (int r = 0, n; r < b->rows; r += n) {
        n = group_of(b->of_head - r % b->of_head);
        const group_range g = range_of(b, r, n);
        const int from = g.from / SIMD_LANES * SIMD_LANES,
                  to = (g.to + SIMD_LANES - 1) / SIMD_LANES * SIMD_LANES;
        if (g.from < g.to)
            weigh_rows(b, 0, r, n, from, to,
                       g.partial || from != g.from || to != g.to || b->cap != 0);
    }
}

/* --- values --- */

/* The same chain over the keys that a row sees alone: 0 * infinity is not 0. */
static CPU_NOINLINE void add_seen_values(const cpu_attention_block *b, int row, int n,
                                         group_range g, const float *panel, int d) {
    for (int r = row; r < row + n; r++) {
        simd_f32 sum[2] = {{0}, {0}};
        for (int part = 0; part < 2; part++) {
            float *at = b->o + r * b->o_stride + d + part * SIMD_LANES;
            for (int k = g.from; k < g.to; k++)
                if (sees(b, r, k))
                    sum[part] =
                        simd_fma(simd_set_f(b->scores[r * KEYS + k]),
                                 simd_load_f(panel + k * PANEL + part * SIMD_LANES), sum[part]);
            simd_store_f(at, simd_fma(simd_load_f(at), simd_set_f(b->rescale[r]), sum[part]));
        }
    }
}

/* The sums of a group of rows, where all its numbers are finite or each row sees every key; returns
 * whether they were added. */
CPU_INLINE int add_group(const cpu_attention_block *b, int r, int count, group_range g, int d) {
    group_sum sum;
    clear_sums(count, sum);
    multiply_values(count, b->scores + r * KEYS, g.from, g.to, b->panel, sum);
    if (g.from >= g.to || (g.partial && !is_finite(count, sum)))
        return 0;
    join_sums(count, sum, b->rescale + r, b->o + r * b->o_stride + d, b->o_stride);
    return 1;
}

/* Dimensions d.. of the rows of a head that begin at one, from a panel: one copy for every dtype.
 */
static CPU_NOINLINE void add_packed(const cpu_attention_block *b, int row, int d) {
    for (int r = row, n; r < row + b->of_head; r += n) {
        n = group_of(b->of_head - r % b->of_head);
        const group_range g = range_of(b, r, n);
        int added = 0;
        BY_COUNT(n, added = add_group(b, r, n_, g, d))
        if (!added && g.from < g.to)
            add_seen_values(b, r, n, g, b->panel, d);
    }
}

/* pack_values of PANEL elements that rows have or have in codes. */
static CPU_NOINLINE void pack_few(const cpu_attention_block *b, const char *const *rows, int head,
                                  int d) {
    const int size = cpu_dtype_size(b->dtype);
    const char *elements[KEYS];
    for (int k = b->from; k < b->to; k++) {
        elements[k] = rows[k] + head * b->step[1] + d * size;
        if (b->codes[1].append) {
            cpu_attention_decode(b, (cpu_attention_coded){1, head, d, PANEL}, rows + k, 1, b->stage,
                                 0);
            elements[k] = b->stage;
        }
        pack_values(b->dtype, elements, k, k + 1, 0, PANEL, b->spare);
    }
}

static void join_few(const cpu_attention_block *b, int first, int count, const char *const *rows) {
    for (int r = 0; r < b->rows; r++) {
        const group_range g = range_of(b, r, 1);
        for (int d = 0; d < count && g.from < g.to; d += PANEL) {
            group_sum sum;
            load_sums(1, b->panel + r * b->o_stride + d, 0, sum);
            if (b->dtype == ROPE_BF16) {
                const simd_f32 even = sum[0][0], odd = sum[0][1];
                sum[0][0] = simd_low(even, odd);
                sum[0][1] = simd_high(even, odd);
            }
            if (is_finite(1, sum)) {
                join_sums(1, sum, b->rescale + r, b->o + r * b->o_stride + first + d, 0);
                continue;
            }
            pack_few(b, rows, r / b->of_head, d);
            add_seen_values(b, r, 1, g, b->spare, first + d);
        }
    }
}

/* PANELs of dimensions of few rows. */
CPU_INLINE void add_to_few(int dtype, const cpu_attention_block *b, int first, int count,
                           const char *const *rows) {
    memset(b->panel, 0, (size_t)(b->rows * b->o_stride) * sizeof(float));
    for (int key = b->from; key < b->to; key += FEW_KEYS)
        add_few(dtype, b, key, count, rows);
    join_few(b, first, count, rows);
}

CPU_INLINE void add_values(int dtype, const cpu_attention_block *b, int first, int count,
                           const char *const *v) {
    int d = 0;
    if (has_few(b) && b->rows <= CPU_ATTENTION_PAD && count >= PANEL) {
        d = count / PANEL * PANEL;
        add_to_few(dtype, b, first, d, v);
    }
    for (; d < count; d += PANEL)
        for (int r = 0; r < b->rows; r += b->of_head) {
            const int64_t at = r / b->of_head * b->step[1] + (int64_t)d * cpu_dtype_size(dtype);
            pack_values(dtype, v, b->from, b->to, at, count - d, b->panel);
            add_packed(b, r, first + d);
        }
}

static void block_values(const cpu_attention_block *b, int first, int count, const char *const *v) {
    if (b->dtype == ROPE_F32)
        add_values(ROPE_F32, b, first, count, v);
    else if (b->dtype == ROPE_BF16)
        add_values(ROPE_BF16, b, first, count, v);
    else
        add_values(ROPE_F16, b, first, count, v);
}

#define ATTENTION_KERNEL(isa, append_kernel)                                                       \
    {                                                                                              \
        .needs = (isa), .append = &(append_kernel), .panel = PANEL, .few = FEW,                    \
        .scores = block_scores, .weights = block_weights, .values = block_values,                  \
        .join = block_join, .scale = block_scale                                                   \
    }

#endif
