/* Products of tiles by dot products of pairs of bf16: the MATRIX_ macros of matrix.h, and the
 * vectors with them. A sum is one chain over pairs, the second element of each first. */
#ifndef ROPEKIT_CPU_ATTENTION_AVX512_BF16_H
#define ROPEKIT_CPU_ATTENTION_AVX512_BF16_H

#include "backends/cpu/simd/avx512_bf16.h"

#include "backends/cpu/attention/prefetch.h"

/* Pairs of 64 bytes; rows whose sums are in registers, by two panels and by four; lines that are
 * read ahead for 32 elements of 16 keys. */
enum { PAIRS = 16, ROWS_AT_ONCE = 8, VALUE_ROWS = 4, SUMS = 16, LINES = 12 };

CPU_INLINE __m512i broadcast(const char *pair) {
    int32_t word;
    memcpy(&word, pair, sizeof word);
    return _mm512_set1_epi32(word);
}

CPU_INLINE __m512 add_pairs(__m512 sum, __m512i x, __m512i y) {
    return _mm512_dpbf16_ps(sum, (__m512bh)x, (__m512bh)y);
}

/* Sums of some rows by vectors of 16 columns, each of a panel. */
CPU_INLINE void multiply_some(int rows, int vectors, const char *a, int64_t a_bytes,
                              const char *const *panel, int chunks, float *c, int64_t c_step) {
    __m512 sum[SUMS];
    for (int i = 0; i < rows * vectors; i++)
        sum[i] = _mm512_setzero_ps();
    for (int k = 0; k < chunks; k++)
        for (int n = 0; n < PAIRS; n++) {
            __m512i pairs[4];
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++)
                pairs[v] = _mm512_loadu_si512(panel[v] + k * 2048 + n * 64);
#pragma GCC unroll 12
            for (int r = 0; r < rows; r++) {
                const __m512i pair = broadcast(a + r * a_bytes + k * 64 + n * 4);
#pragma GCC unroll 4
                for (int v = 0; v < vectors; v++)
                    sum[r * vectors + v] = add_pairs(sum[r * vectors + v], pair, pairs[v]);
            }
        }
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++)
            _mm512_storeu_ps(c + r * c_step + v * 16, sum[r * vectors + v]);
}

/* 16 or 32 rows by 32 columns. */
static void multiply(int two, const char *a, int64_t a_bytes, const char *panel, int chunks,
                     float *c, int64_t c_step) {
    const char *const panels[2] = {panel, panel + 1024};
    for (int r = 0; r < (two ? 32 : 16); r += ROWS_AT_ONCE)
        multiply_some(ROWS_AT_ONCE, 2, a + r * a_bytes, a_bytes, panels, chunks, c + r * c_step,
                      c_step);
}

/* Four words of each of the 16 / width keys of a vector, in every four of the key's lanes. */
CPU_INLINE __m512i load_keys(int width, const char *keys, int64_t bytes) {
    __m512i x = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i_u *)keys));
    if (width == 8)
        x = _mm512_mask_broadcast_i32x4(x, 0xff00,
                                        _mm_loadu_si128((const __m128i_u *)(keys + bytes)));
    if (width == 4) {
        x = _mm512_inserti32x4(x, _mm_loadu_si128((const __m128i_u *)(keys + bytes)), 1);
        x = _mm512_inserti32x4(x, _mm_loadu_si128((const __m128i_u *)(keys + 2 * bytes)), 2);
        x = _mm512_inserti32x4(x, _mm_loadu_si128((const __m128i_u *)(keys + 3 * bytes)), 3);
    }
    return x;
}

/* Rows of q of a pair, for each key of a vector. */
CPU_INLINE __m512i load_queries(int width, __mmask16 there, const char *q) {
    const __m512i x = _mm512_maskz_loadu_epi32(there, q);
    return width == 4   ? _mm512_broadcast_i32x4(_mm512_castsi512_si128(x))
           : width == 8 ? _mm512_broadcast_i32x8(_mm512_castsi512_si256(x))
                        : x;
}

CPU_INLINE void store_scores(int width, __m512 sum, float *c) {
    if (width == 16) {
        _mm512_storeu_ps(c, sum);
    } else if (width == 8) {
        _mm256_storeu_ps(c, _mm512_castps512_ps256(sum));
        _mm256_storeu_ps(c + 16, _mm512_extractf32x8_ps(sum, 1));
    } else {
        _mm_storeu_ps(c, _mm512_castps512_ps128(sum));
        _mm_storeu_ps(c + 16, _mm512_extractf32x4_ps(sum, 1));
        _mm_storeu_ps(c + 32, _mm512_extractf32x4_ps(sum, 2));
        _mm_storeu_ps(c + 48, _mm512_extractf32x4_ps(sum, 3));
    }
}

/* Adds their products with four pairs of q. */
CPU_INLINE __m512 add_words(int width, __m512 sum, const char *keys, int64_t bytes,
                            const __m512i q[4]) {
    const __m512i x = load_keys(width, keys, bytes);
    sum = add_pairs(sum, _mm512_shuffle_epi32(x, 0x00), q[0]);
    sum = add_pairs(sum, _mm512_shuffle_epi32(x, 0x55), q[1]);
    sum = add_pairs(sum, _mm512_shuffle_epi32(x, 0xaa), q[2]);
    return add_pairs(sum, _mm512_shuffle_epi32(x, 0xff), q[3]);
}

/* A vector has `width` rows of q of each of its keys. */
CPU_INLINE void multiply_wide(int width, const char *keys, int64_t bytes, const __m512i *q,
                              int chunks, prefetch_rows *prefetch, float *c) {
    enum { VECTORS = 4 };
    const int each = 16 / width;
    prefetch_rows lines = *prefetch;
    for (int first = 0; first < 16; first += VECTORS * each) {
        __m512 sum[VECTORS];
        for (int i = 0; i < VECTORS; i++)
            sum[i] = _mm512_setzero_ps();
        for (int k = 0; k < chunks; k++) {
            prefetch_lines(&lines, LINES * VECTORS * each / 16);
            for (int n = 0; n < PAIRS; n += 4) {
                const char *at = keys + first * bytes + k * 64 + n * 4;
                const __m512i *pair = q + k * PAIRS + n;
#pragma GCC unroll 4
                for (int i = 0; i < VECTORS; i++)
                    sum[i] = add_words(width, sum[i], at + i * each * bytes, bytes, pair);
            }
        }
        for (int i = 0; i < VECTORS; i++)
            store_scores(width, sum[i], c + (first + i * each) * 16);
    }
    *prefetch = lines;
}

CPU_INLINE int width_of(int rows) {
    return rows <= 4 ? 4 : rows <= 8 ? 8 : 16;
}

static inline void repeat_queries(const char *q, int rows, int chunks, float *spare) {
    const __mmask16 there = (__mmask16)((1u << rows) - 1);
    __m512i *pairs = (__m512i *)(void *)spare;
    for (int n = 0; n < chunks * PAIRS; n++)
        pairs[n] = load_queries(width_of(rows), there, q + n * 4 * (int64_t)rows);
}

/* 16 keys by some rows of q. */
static inline void multiply_keys(const char *keys, int64_t bytes, const char *q, int rows,
                                 int chunks, prefetch_rows *prefetch, float *spare, float *c) {
    const __m512i *pairs = (const __m512i *)(const void *)spare;
    const int width = width_of(rows);
    (void)q;
    if (width == 4)
        multiply_wide(4, keys, bytes, pairs, chunks, prefetch, c);
    else if (width == 8)
        multiply_wide(8, keys, bytes, pairs, chunks, prefetch, c);
    else
        multiply_wide(16, keys, bytes, pairs, chunks, prefetch, c);
}

/* Some rows of weights by 64 elements of values, of two panels. */
static inline void multiply_values(int rows, const char *a, int64_t a_bytes, const char *panel,
                                   int64_t panel_bytes, int chunks, prefetch_rows *prefetch,
                                   float *c) {
    const char *const panels[4] = {panel, panel + 1024, panel + panel_bytes,
                                   panel + panel_bytes + 1024};
    int r = 0;
    for (; r + VALUE_ROWS <= rows; r += VALUE_ROWS)
        multiply_some(VALUE_ROWS, 4, a + r * a_bytes, a_bytes, panels, chunks, c + r * 64, 64);
    for (; r < rows; r++)
        multiply_some(1, 4, a + r * a_bytes, a_bytes, panels, chunks, c + r * 64, 64);
    prefetch_lines(prefetch, 4 * LINES * chunks);
}

#define MATRIX_BEGIN() (void)0
#define MATRIX_BEGIN_KEYS(rows) (void)0
#define MATRIX_BEGIN_HEAD(q, rows, chunks, spare) repeat_queries(q, rows, chunks, spare)
#define MATRIX_BEGIN_VALUES(rows) (void)0
#define MATRIX_END() (void)0

#define MATRIX_MULTIPLY multiply
#define MATRIX_KEYS multiply_keys
#define MATRIX_VALUES multiply_values

#endif
