/*
 * Few rows of a head, compiled by the file that includes this with its vectors: keys and values are
 * read where they are, since what is packed would be used too rarely. Sums have the order of those
 * of panels.
 */
#ifndef ROPEKIT_CPU_ATTENTION_FEW_ROWS_H
#define ROPEKIT_CPU_ATTENTION_FEW_ROWS_H

#include "backends/cpu/attention/row_groups.h"
#include "backends/cpu/attention/weights.h"

CPU_INLINE int has_few(const cpu_attention_block *b) {
    return b->of_head <= CPU_ATTENTION_FEW;
}

/* --- prefetches --- */

/* Keys whose values are read together. */
enum { FEW_KEYS = 32 };

/* Rows to prefetch between products: many prefetches at once would wait for each other, and
 * products for them. */
typedef struct prefetch_rows {
    const char *row[FEW_KEYS];
    int count, bytes; /* of a row */
} prefetch_rows;

/* Of `count` keys from i on of a list of K (which 0) or V, beyond its end of the list that is read
 * next, rows of the tile's heads: the share that a head has of them, in the order of memory. */
CPU_INLINE void rows_to_prefetch(const cpu_attention_block *b, const char *const *rows, int i,
                                 int count, int end, int which, int row, prefetch_rows *prefetch) {
    const int heads = b->rows / b->of_head, all = end + b->ahead_count,
              own = row / b->of_head * count;
    int head = own % heads, n = 0;
    prefetch->bytes = i >= end ? b->ahead_bytes
                               : (which ? b->v_head_dim : b->head_dim) * cpu_dtype_size(b->dtype);
    for (i += own / heads; n < count && i < all; n++) {
        prefetch->row[n] =
            i < end ? rows[i] + head * b->step[which] : b->ahead[i - end] + head * b->ahead_step;
        if (++head == heads) {
            head = 0;
            i++;
        }
    }
    prefetch->count = n;
}

CPU_INLINE void prefetch_row(const prefetch_rows *prefetch, int n) {
    for (int line = 0; n < prefetch->count && line < prefetch->bytes; line += 64)
        __builtin_prefetch(prefetch->row[n] + line, 0, 2);
}

/* --- scores: lanes are chains --- */

/* Keys of a vector, vectors of a panel of keys, and the most rows that are multiplied together. */
enum { IN_VECTOR = SIMD_LANES / CHAINS, VECTORS = PANEL / IN_VECTOR, FEW_ROWS = 4 };

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
#pragma GCC unroll 4
    for (int r = 0; r < count; r++) {
        const simd_f32 x = query_elements(q + r * q_row);
#pragma GCC unroll 8
        for (int v = 0; v < vectors; v++)
            sum[r * vectors + v] = simd_fma(x, k[v], sum[r * vectors + v]);
    }
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

/* The chains of a segment of n elements. */
CPU_INLINE void multiply_segment(int dtype, int count, int vectors, const float *q, int64_t q_row,
                                 const char *const *keys, int64_t at, int n, simd_f32 *sum) {
    const int size = cpu_dtype_size(dtype);
    int d = 0;
#pragma GCC unroll 8
    for (int i = 0; i < count * vectors; i++)
        sum[i] = (simd_f32){0};
    for (; d + CHAINS <= n; d += CHAINS)
        multiply_elements(dtype, count, vectors, q + d, q_row, keys, at + d * size, sum);
    if (d < n)
        multiply_last(dtype, count, vectors, q + d, q_row, keys, at + d * size, n - d, sum);
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
                           const char *const *keys, const prefetch_rows *prefetch) {
    enum { MOST = 8 };
    const int dim = b->head_dim, vectors = MOST / count;
    const float *q = b->q + r * dim;
    simd_f32 chains[FEW_ROWS][VECTORS];
    for (int first = 0, n = 0; first < dim; first += SEGMENT) {
        for (int v = 0; v < VECTORS; v += vectors) {
            simd_f32 sum[MOST];
            multiply_segment(dtype, count, vectors, q + first, dim, keys + v * IN_VECTOR,
                             (int64_t)first * cpu_dtype_size(dtype),
                             dim - first < SEGMENT ? dim - first : SEGMENT, sum);
#pragma GCC unroll 8
            for (int i = 0; i < count * vectors; i++)
                chains[i / vectors][v + i % vectors] = sum[i];
            for (int i = 0; i < vectors * IN_VECTOR; i++)
                prefetch_row(prefetch, n++);
        }
        for (int i = 0; i < count; i++)
            add_lanes(first == 0, chains[i], b->scores + (r + i) * KEYS + key);
    }
}

/* Scores of the rows of a head that begin at one, and of `count` keys, or a panel of them. */
CPU_INLINE void score_few(int dtype, const cpu_attention_block *b, int row, int key, int count,
                          const char *const *rows, prefetch_rows *prefetch) {
    const int64_t at = row / b->of_head * b->step[0];
    const char *keys[PANEL];
    for (int i = 0; i < PANEL; i++)
        keys[i] = rows[i < count ? i : count - 1] + at;
    for (int r = row, end = row + b->of_head, n; r < end; r += n) {
        n = end - r >= 4 ? 4 : end - r >= 2 ? 2 : 1;
        if (n == 4)
            score_rows(dtype, 4, b, r, key, keys, prefetch);
        else if (n == 2)
            score_rows(dtype, 2, b, r, key, keys, prefetch);
        else
            score_rows(dtype, 1, b, r, key, keys, prefetch);
        prefetch->count = 0;
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

/* Adds values of some keys of a head, of dtype and `at` bytes behind rows, to the sums of `count`
 * rows of all dimensions. */
CPU_INLINE void add_few_keys(int dtype, int count, const cpu_attention_block *b, int r,
                             group_range keys, int panels, const char *const *rows, int64_t at,
                             const prefetch_rows *prefetch) {
    const int each = (FEW_KEYS + panels - 1) / panels;
    const float *weights = b->scores + r * KEYS;
    float *sums = b->panel + r * b->o_stride;
    for (int i = 0; i < panels; i++, sums += PANEL, at += (int64_t)PANEL * cpu_dtype_size(dtype)) {
        group_sum sum;
        for (int n = 0; n < each; n++)
            prefetch_row(prefetch, i * each + n);
        load_sums(count, sums, b->o_stride, sum);
        for (int k = keys.from; k < keys.to; k++) {
            const simd_pair value = value_elements(dtype, rows[k] + at);
#pragma GCC unroll 12
            for (int row = 0; row < count; row++) {
                const simd_f32 x = simd_set_f(weights[row * KEYS + k]);
                sum[row][0] = simd_fma(x, value.x1, sum[row][0]);
                sum[row][1] = simd_fma(x, value.x2, sum[row][1]);
            }
        }
        store_sums(count, sum, sums, b->o_stride);
    }
}

/* Adds values of FEW_KEYS keys from `key` on to sums of all dimensions, which lie in b->panel: a
 * row of values is then read whole. */
CPU_INLINE void add_few(int dtype, const cpu_attention_block *b, int key, int count,
                        const char *const *rows) {
    for (int r = 0, n; r < b->rows; r += n) {
        const int head = r / b->of_head;
        prefetch_rows prefetch = {.count = 0};
        if (r == head * b->of_head)
            rows_to_prefetch(b, rows, key + FEW_KEYS, FEW_KEYS, b->to, 1, r, &prefetch);
        n = group_of((head + 1) * b->of_head - r);
        const group_range g = range_of(b, r, n);
        const group_range keys = {.from = g.from > key ? g.from : key,
                                  .to = g.to < key + FEW_KEYS ? g.to : key + FEW_KEYS};
        BY_COUNT(n, add_few_keys(dtype, n_, b, r, keys, count / PANEL, rows, head * b->step[1],
                                 &prefetch))
    }
}

#endif
