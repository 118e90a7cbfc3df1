/*
 * Few rows of a head, compiled by the file that includes this with its vectors: keys and values are
 * read where they are, since what is packed would be used too rarely. Sums have the order of those
 * of panels.
 */
#ifndef ROPEKIT_CPU_ATTENTION_FEW_ROWS_H
#define ROPEKIT_CPU_ATTENTION_FEW_ROWS_H

#include "backends/cpu/attention/prefetch.h"
#include "backends/cpu/attention/row_groups.h"
#include "backends/cpu/attention/weights.h"

/* Most rows of a head for which nothing is packed. */
enum { FEW = SIMD_LANES == 16 ? 16 : 8 };

CPU_INLINE int has_few(const cpu_attention_block *b) {
    return b->of_head <= FEW;
}

/* --- prefetches --- */

/* Keys whose values are read together. */
enum { FEW_KEYS = 32 };

/* Of `count` keys from i on of a list of `all` keys of K (which 0) or V, or where they lie beyond
 * it of the list that is read next. */
CPU_INLINE prefetch_rows rows_from(const cpu_attention_block *b, const char *const *rows, int i,
                                   int count, int all, int which) {
    const int heads = b->rows / b->of_head, dim = which ? b->v_head_dim : b->head_dim,
              more = cpu_dtype_size(b->dtype) / b->size[which];
    const prefetch_rows none = {.shift = more / 2};
    prefetch_rows p = none;
    if (i >= all) {
        p.row = b->ahead;
        p.end = b->ahead + (b->ahead_count < count ? b->ahead_count : count);
        p.bytes = (heads - 1) * b->ahead_step + b->ahead_bytes;
        return p;
    }
    p.row = rows + i;
    p.end = rows + (all - i < count ? all : i + count);
    p.bytes = (heads - 1) * b->step[which] + dim * b->size[which];
    return p;
}

/* As many lines as were read from `at` bytes on, in steps of `bytes`: many prefetches at once would
 * wait for each other, and products for them. */
CPU_INLINE void prefetch_bytes(prefetch_rows *prefetch, int at, int bytes) {
    if (bytes >= 64 || at % 64 == 0)
        prefetch_lines(prefetch, bytes > 64 ? bytes / 64 : 1);
}

/* --- scores: lanes are chains --- */

/* Keys of a vector, vectors of a panel of keys, and the most rows that are multiplied together. */
enum {
    IN_VECTOR = SIMD_LANES / CHAINS,
    VECTORS = PANEL / IN_VECTOR,
    FEW_ROWS = SIMD_LANES == 16 ? 8 : 4,
    FEW_SUMS = 2 * FEW_ROWS
};

/* CHAINS elements of a key, or of each of two, from `at` bytes on. */
CPU_INLINE simd_f32 key_elements(int dtype, const char *const *keys, int64_t at) {
#if SIMD_LANES == 16
    if (dtype == ROPE_F32)
        return simd_join_f(keys[0] + at, keys[1] + at);
    const simd_u16 h = simd_join_h(keys[0] + at, keys[1] + at);
    return dtype == ROPE_BF16 ? simd_from_bf16(h) : simd_from_f16(h);
#else
    return simd_widen(dtype, keys[0] + at);
#endif
}

/* CHAINS elements of a row of q, for each key of a vector. */
CPU_INLINE simd_f32 query_elements(const float *q) {
#if SIMD_LANES == 16
    return simd_twice_f(q);
#else
    return simd_load_f(q);
#endif
}

/* sum[r * vectors + v] += CHAINS elements of row r of q by those of the keys of vector v. */
CPU_INLINE void multiply_elements(int dtype, int count, int vectors, const float *q, int64_t q_row,
                                  const char *const *keys, int64_t at, simd_f32 *sum) {
    simd_f32 k[8];
#pragma GCC unroll 8
    for (int v = 0; v < vectors; v++)
        k[v] = key_elements(dtype, keys + v * IN_VECTOR, at);
#pragma GCC unroll 8
    for (int r = 0; r < count; r++) {
        const simd_f32 x = query_elements(q + r * q_row);
#pragma GCC unroll 8
        for (int v = 0; v < vectors; v++)
            sum[r * vectors + v] = simd_fma(x, k[v], sum[r * vectors + v]);
    }
}

/* The same of twice as many elements. */
CPU_INLINE void multiply_two(int dtype, int count, int vectors, const float *q, int64_t q_row,
                             const char *const *keys, int64_t at, simd_f32 *sum) {
#if SIMD_LANES == 16
    if (dtype == ROPE_F16) { /* a vector of one key is converted as it is loaded */
        simd_f32 k[2][8];
#pragma GCC unroll 8
        for (int v = 0; v < vectors; v++) {
            const simd_f32 a = simd_widen(dtype, keys[2 * v] + at),
                           b = simd_widen(dtype, keys[2 * v + 1] + at);
            k[0][v] = simd_low_halves_of(a, b);
            k[1][v] = simd_high_halves_of(a, b);
        }
#pragma GCC unroll 16
        for (int i = 0; i < 2 * count; i++) {
            const simd_f32 x = query_elements(q + i / 2 * q_row + i % 2 * CHAINS);
#pragma GCC unroll 8
            for (int v = 0; v < vectors; v++) {
                simd_f32 *to = sum + i / 2 * vectors + v;
                *to = simd_fma(x, k[i % 2][v], *to);
            }
        }
        return;
    }
#endif
    multiply_elements(dtype, count, vectors, q, q_row, keys, at, sum);
    multiply_elements(dtype, count, vectors, q + CHAINS, q_row, keys,
                      at + CHAINS * cpu_dtype_size(dtype), sum);
}

/* The same of fewer elements than CHAINS. */
CPU_INLINE void multiply_last(int dtype, int count, int vectors, const float *q, int64_t q_row,
                              const char *const *keys, int64_t at, int left, simd_f32 *sum) {
    float rows[FEW_ROWS][CHAINS] = {{0}}, elements[8 * IN_VECTOR][CHAINS] = {{0}};
    const char *last[8 * IN_VECTOR];
    for (int r = 0; r < count; r++)
        memcpy(rows[r], q + r * q_row, (size_t)left * sizeof(float));
    for (int k = 0; k < vectors * IN_VECTOR; k++) {
        for (int i = 0; i < left; i++)
            elements[k][i] = cpu_load(dtype, keys[k] + at, i);
        last[k] = (const char *)elements[k];
    }
    multiply_elements(ROPE_F32, count, vectors, rows[0], CHAINS, last, 0, sum);
}

/* The chains of a segment of elements, from `first` on, of rows of `dim` of them. */
CPU_INLINE void multiply_segment(int dtype, int count, int vectors, const float *q, int dim,
                                 const char *const *keys, int first, prefetch_rows *prefetch,
                                 simd_f32 *sum) {
    const int size = cpu_dtype_size(dtype), keys_size = vectors * IN_VECTOR * size,
              n = dim - first < SEGMENT ? dim - first : SEGMENT;
    const int64_t at = (int64_t)first * size;
    prefetch_rows lines = *prefetch;
    int d = 0;
    q += first;
#pragma GCC unroll 16
    for (int i = 0; i < count * vectors; i++)
        sum[i] = (simd_f32){0};
    for (; d + 2 * CHAINS <= n; d += 2 * CHAINS) {
        prefetch_bytes(&lines, d * keys_size, 2 * CHAINS * keys_size);
        multiply_two(dtype, count, vectors, q + d, dim, keys, at + d * size, sum);
    }
    *prefetch = lines;
    for (; d + CHAINS <= n; d += CHAINS)
        multiply_elements(dtype, count, vectors, q + d, dim, keys, at + d * size, sum);
    if (d < n)
        multiply_last(dtype, count, vectors, q + d, dim, keys, at + d * size, n - d, sum);
}

/* Sums of CHAINS neighbours of as many vectors. */
CPU_INLINE simd_f32 join_chains(const simd_f32 x[CHAINS]) {
#if SIMD_LANES == 4
    return simd_even(simd_even(x[0], x[1]) + simd_odd(x[0], x[1]),
                     simd_even(x[2], x[3]) + simd_odd(x[2], x[3])) +
           simd_odd(simd_even(x[0], x[1]) + simd_odd(x[0], x[1]),
                    simd_even(x[2], x[3]) + simd_odd(x[2], x[3]));
#else
    return simd_add_eights(x);
#endif
}

/* The chains of a panel of keys to their scores; the first segment's are stored, others are added.
 */
CPU_INLINE void add_lanes(int first, const simd_f32 *chains, float *scores) {
    for (int v = 0; v < VECTORS; v += CHAINS, scores += SIMD_LANES) {
        const simd_f32 sum = join_chains(chains + v);
        simd_store_f(scores, first ? sum : simd_load_f(scores) + sum);
    }
}

/* Scores of `count` rows from r on and of a panel of keys. */
CPU_INLINE void score_rows(int dtype, int count, const cpu_attention_block *b, int r, int key,
                           const char *const *keys, prefetch_rows *prefetch) {
    const int dim = b->head_dim, vectors = count == FEW_ROWS ? 2 : 8 / count;
    const float *q = b->q + r * dim;
    simd_f32 chains[FEW_ROWS][VECTORS];
    for (int first = 0; first < dim; first += SEGMENT) {
        for (int v = 0; v < VECTORS; v += vectors) {
            simd_f32 sum[FEW_SUMS];
            multiply_segment(dtype, count, vectors, q, dim, keys + v * IN_VECTOR, first, prefetch,
                             sum);
#pragma GCC unroll 16
            for (int i = 0; i < count * vectors; i++)
                chains[i / vectors][v + i % vectors] = sum[i];
        }
        for (int i = 0; i < count; i++)
            add_lanes(first == 0, chains[i], b->scores + (r + i) * KEYS + key);
    }
}

/* `count` rows of a head, n elements each; those of codes are put into the stage. */
CPU_INLINE void find_elements(const cpu_attention_block *b, int which, int head, int n,
                              const char *const *rows, int count, const char **to) {
    const int64_t at = head * b->step[which], bytes = (int64_t)n * cpu_dtype_size(b->dtype);
    const int coded = b->codes[which].append != NULL;
    if (coded)
        cpu_attention_decode(b, (cpu_attention_coded){which, head, 0, n}, rows, count, b->stage,
                             bytes);
    for (int i = 0; i < count; i++)
        to[i] = coded ? b->stage + i * bytes : rows[i] + at;
}

/* Scores of the rows of a head that begin at one, and of `count` keys, or a panel of them. */
CPU_INLINE void score_few(int dtype, const cpu_attention_block *b, int row, int key, int count,
                          const char *const *rows, prefetch_rows *prefetch) {
    const char *keys[PANEL];
    prefetch_rows none = {.row = NULL};
    if (count > PANEL)
        count = PANEL;
    find_elements(b, 0, row / b->of_head, b->head_dim, rows, count, keys);
    for (int i = count; i < PANEL; i++)
        keys[i] = keys[count - 1];
    for (int r = row, end = row + b->of_head, n; r < end; r += n, prefetch = &none) {
        n = end - r >= FEW_ROWS ? FEW_ROWS : end - r >= 4 ? 4 : end - r >= 2 ? 2 : 1;
        if (n == 8)
            score_rows(dtype, FEW_ROWS, b, r, key, keys, prefetch);
        else if (n == 4)
            score_rows(dtype, 4, b, r, key, keys, prefetch);
        else if (n == 2)
            score_rows(dtype, 2, b, r, key, keys, prefetch);
        else
            score_rows(dtype, 1, b, r, key, keys, prefetch);
    }
}

/* --- values --- */

CPU_INLINE void load_sums(int count, const float *from, int64_t stride, group_sum sum) {
#pragma GCC unroll 12
    for (int r = 0; r < count; r++)
        for (int part = 0; part < 2; part++)
            sum[r][part] =
                from ? simd_load_f(from + r * stride + part * SIMD_LANES) : (simd_f32){0};
}

/* PANEL elements of a value; those of bf16 are parted into even and odd ones, at half the cost. */
CPU_INLINE simd_pair value_elements(int dtype, const char *at) {
    if (dtype == ROPE_BF16)
        return simd_split_words(dtype, simd_load_u(at));
    return (simd_pair){simd_widen(dtype, at),
                       simd_widen(dtype, at + SIMD_LANES * cpu_dtype_size(dtype))};
}

/* Sums of rows, whose weights lie KEYS apart. */
typedef struct few_sums {
    const float *weights;
    float *sums;
    int64_t stride;
} few_sums;

/* Adds values of some keys of a head to the sums of `count` rows, `side` panels of dimensions from
 * `panel` on at once. */
CPU_INLINE void add_panels(int dtype, int count, int side, few_sums to, int panel, group_range keys,
                           const char *const *rows, prefetch_rows *prefetch) {
    const int bytes = PANEL * cpu_dtype_size(dtype), at = panel * bytes;
    float *const sums = to.sums + panel * PANEL;
    prefetch_rows lines = *prefetch;
    group_sum sum[4];
#pragma GCC unroll 4
    for (int i = 0; i < side; i++)
        load_sums(count, sums + i * PANEL, to.stride, sum[i]);
    for (int k = keys.from; k < keys.to; k++) {
        prefetch_bytes(&lines, k * bytes, side * bytes);
#pragma GCC unroll 4
        for (int i = 0; i < side; i++) {
            const simd_pair value = value_elements(dtype, rows[k] + at + i * bytes);
#pragma GCC unroll 12
            for (int row = 0; row < count; row++) {
                const simd_f32 x = simd_set_f(to.weights[row * KEYS + k]);
                sum[i][row][0] = simd_fma(x, value.x1, sum[i][row][0]);
                sum[i][row][1] = simd_fma(x, value.x2, sum[i][row][1]);
            }
        }
    }
    *prefetch = lines;
#pragma GCC unroll 4
    for (int i = 0; i < side; i++)
        store_sums(count, sum[i], sums + i * PANEL, to.stride);
}

/* The same of all panels; sums of few rows alone would wait for each other. */
CPU_INLINE void add_few_keys(int dtype, int count, const cpu_attention_block *b, int r,
                             group_range keys, int panels, const char *const *rows,
                             prefetch_rows *prefetch) {
    enum { MOST = 4 };
    const int side = count >= MOST ? 1 : MOST / count;
    const few_sums to = {b->scores + r * KEYS, b->panel + r * b->o_stride, b->o_stride};
    int i = 0;
    for (; i + side <= panels; i += side)
        add_panels(dtype, count, side, to, i, keys, rows, prefetch);
    for (; i < panels && side > 1; i++)
        add_panels(dtype, count, 1, to, i, keys, rows, prefetch);
}

/* Adds values of FEW_KEYS keys from `key` on to sums of all dimensions, which lie in b->panel: a
 * row of values is then read whole. */
CPU_INLINE void add_few(int dtype, const cpu_attention_block *b, int key, int count,
                        const char *const *rows) {
    prefetch_rows prefetch = rows_from(b, rows, key + FEW_KEYS, FEW_KEYS, b->to, 1),
                  none = {.row = NULL};
    const int from = b->from > key ? b->from : key,
              to = b->to < key + FEW_KEYS ? b->to : key + FEW_KEYS;
    const char *values[KEYS];
    for (int r = 0, n; r < b->rows; r += n) {
        const int head = r / b->of_head, first = r == head * b->of_head;
        n = group_of((head + 1) * b->of_head - r);
        if (first)
            find_elements(b, 1, head, count, rows + from, to - from, values + from);
        const group_range g = range_of(b, r, n);
        const group_range keys = {.from = g.from > key ? g.from : key,
                                  .to = g.to < key + FEW_KEYS ? g.to : key + FEW_KEYS};
        BY_COUNT(n, add_few_keys(dtype, n_, b, r, keys, count / PANEL, values,
                                 first ? &prefetch : &none))
    }
}

#endif
