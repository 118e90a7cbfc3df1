/*
 * Keys times queries, values times weights, both transposed: a lane holds one row of 16, the column
 * lane % 16 of a product. tile/mma.h says which keys it holds of it, by gpu_first_key_of() and
 * gpu_key_of(). Sums of keys by queries are then weights as they are multiplied by values, and
 * a lane's row of a product of values is any element: it takes DV / 16 that lie side by side.
 */
#ifndef ROPEKIT_GPU_ATTENTION_QUERIES_RIGHT_H
#define ROPEKIT_GPU_ATTENTION_QUERIES_RIGHT_H

#include "backends/gpu/attention/fragments.h"

/* As in queries_left.h. */
enum {
    GPU_LANE_ROWS = 1,
    GPU_LANE_ELEMENTS = 4,
    GPU_ROW_LANES = GPU_TILE_LANES / 16,
    GPU_ROW_STEP = 16
};

GPU_FN int gpu_row_of(int lane, int h) {
    return (void)h, lane % 16;
}

GPU_FN int gpu_first_lane_of(int row) {
    return row % 16;
}

GPU_FN int gpu_held_row(int row) {
    return (void)row, 0;
}

/* Row r of a product that a lane holds is run r, and element i of it in the i-th product. */
template <int DV> constexpr int gpu_run = DV / 16;
template <int DV> constexpr int gpu_runs = 4 * GPU_PARTS;

template <int DV> GPU_FN int gpu_run_first(int lane, int r) {
    return gpu_run<DV> * (gpu_first_key_of(lane) + gpu_key_of(r / 4, r % 4));
}

GPU_FN constexpr int gpu_run_part(int r, int i) {
    return GPU_PARTS * i + r / 4;
}

GPU_FN constexpr int gpu_run_place(int r, int h, int i) {
    return (void)h, (void)i, r % 4;
}

#ifdef GPU_TILE_FMA
#include "backends/gpu/attention/products_fma.h"
#else

/* Words of an operand; of a row of keys or queries that a lane reads at a time, for the elements of
 * one operand or of two; and elements of a row that all lanes read then. With as many words as 16
 * elements the halves of a warp hold the same. */
enum {
    GPU_OPERAND_WORDS = 2 * GPU_PARTS * GPU_OPERAND_COPIES,
    GPU_READ_WORDS = GPU_OPERAND_WORDS < 4 ? 4 : GPU_OPERAND_WORDS,
    GPU_READ_ELEMENTS = 2 * GPU_READ_WORDS * GPU_TILE_LANES / 16 / GPU_OPERAND_COPIES
};

/* Where a lane's row of a tile begins. */
template <int D> GPU_FN int gpu_operand_row(int row, int lane) {
    return gpu_swizzled<D>(row + lane % 16, GPU_OPERAND_COPIES > 1 ? 0 : lane / 16);
}

/* The k-th words of it, `down` 16s of rows further. */
template <int D>
GPU_FN void gpu_read_operand(uint32_t w[GPU_READ_WORDS], const char *tile, int at, int down,
                             int k) {
#pragma unroll
    for (int i = 0; i < GPU_READ_WORDS / 4; i++) {
        const uint4 four =
            *(const uint4 *)(const void *)(tile +
                                           (gpu_moved<D>(at, down, k * GPU_READ_ELEMENTS / 16) ^
                                            16 * i));
        w[4 * i] = four.x, w[4 * i + 1] = four.y, w[4 * i + 2] = four.z, w[4 * i + 3] = four.w;
    }
}

template <int DTYPE, int D, int ROWS>
GPU_FN void gpu_tile_products(const char *queries, const char *keys,
                              float s[gpu_row_blocks<ROWS>][gpu_key_parts<ROWS>][4]) {
    const int lane = gpu_lane(), right = gpu_operand_row<D>(gpu_warp_row<ROWS>(), lane),
              left = gpu_operand_row<D>(0, lane);
#pragma unroll
    for (int m = 0; m < gpu_row_blocks<ROWS>; m++)
#pragma unroll
        for (int n = 0; n < gpu_key_parts<ROWS>; n++)
            s[m][n][0] = s[m][n][1] = s[m][n][2] = s[m][n][3] = 0;
#pragma unroll
    for (int k = 0; k < D / GPU_READ_ELEMENTS; k++) {
        uint32_t b[gpu_row_blocks<ROWS>][GPU_READ_WORDS];
#pragma unroll
        for (int m = 0; m < gpu_row_blocks<ROWS>; m++)
            gpu_read_operand<D>(b[m], queries, right, m, k);
#pragma unroll
        for (int n = 0; n < gpu_warp_keys<ROWS> / 16; n++) {
            uint32_t a[GPU_READ_WORDS];
            gpu_read_operand<D>(a, keys, left, n, k);
#pragma unroll
            for (int i = 0; i < GPU_READ_WORDS; i += GPU_OPERAND_WORDS)
#pragma unroll
                for (int m = 0; m < gpu_row_blocks<ROWS>; m++)
                    gpu_mma<DTYPE>(s[m] + GPU_PARTS * n, a + i, b[m] + i);
        }
        gpu_reads_stay();
    }
}

/* Keys of 16 by which a lane's operand of values goes, and words of each that it reads at a time.
 */
enum { GPU_OPERAND_KEYS = 2 * GPU_OPERAND_WORDS };
template <int DV>
constexpr int gpu_value_words = DV / 32 * GPU_OPERAND_KEYS > 32 ? 32 / GPU_OPERAND_KEYS : DV / 32;

/* A lane's values: words of elements DV / 16 * (lane % 16) + first and on, of each of its keys. */
template <int DV>
GPU_FN void gpu_read_values(uint32_t x[GPU_OPERAND_KEYS][gpu_value_words<DV>], const char *values,
                            int first) {
    enum { WORDS = gpu_value_words<DV> };
    typedef typename gpu_word_type<WORDS>::type type;
    const int lane = gpu_lane(), i = DV / 16 * (lane % 16) + first;
    const int at =
        gpu_swizzled<DV>(GPU_OPERAND_COPIES > 1 ? 0 : gpu_first_key_of(lane), i / 8) + i % 8 * 2;
#pragma unroll
    for (int n = 0; n < GPU_OPERAND_KEYS; n++) {
        /* a lane's first key is a multiple of so many */
        const int key = GPU_OPERAND_COPIES > 1 ? n % 8 * 2 + n / 8 : n;
        const type raw =
            *(const type *)(const void *)(values + (at ^ 16 * (key % 8)) + key * DV * 2);
        memcpy(x[n], &raw, sizeof raw);
    }
}

/* Weights of 16 keys as the right operand: in two halves each has those of both. */
GPU_FN void gpu_operand_weights(const uint32_t w[2 * GPU_PARTS], uint32_t b[GPU_OPERAND_WORDS]) {
#pragma unroll
    for (int i = 0; i < 2 * GPU_PARTS; i++) {
        b[i] = w[i];
        if (GPU_OPERAND_COPIES > 1) {
            const uint32_t other = gpu_other_half(w[i]);
            const bool second = gpu_lane() >= 16;
            b[i] = second ? other : w[i];
            b[i + 2 * GPU_PARTS * (GPU_OPERAND_COPIES - 1)] = second ? w[i] : other;
        }
    }
}

/* Element `at` of the words of a lane's keys as the left operand. */
template <int WORDS>
GPU_FN void gpu_operand_values(const uint32_t x[GPU_OPERAND_KEYS][WORDS], int at,
                               uint32_t a[GPU_OPERAND_WORDS]) {
#pragma unroll
    for (int i = 0; i < GPU_OPERAND_WORDS; i++) {
        const uint32_t one = x[2 * i][at / 2], two = x[2 * i + 1][at / 2];
        a[i] = at % 2 ? one >> 16 | (two & 0xffff0000u) : (one & 0xffffu) | two << 16;
    }
}

template <int DTYPE, int DV, int ROWS>
GPU_FN void gpu_tile_add(const char *values, const gpu_tile_weights<ROWS> &w,
                         gpu_tile_rows<DV, ROWS> &rows) {
    enum { WORDS = gpu_value_words<DV> };
#pragma unroll
    for (int k = 0; k < gpu_warp_keys<ROWS> / 16; k++) {
        uint32_t b[gpu_row_blocks<ROWS>][GPU_OPERAND_WORDS];
#pragma unroll
        for (int m = 0; m < gpu_row_blocks<ROWS>; m++)
            gpu_operand_weights(w.a[k][m], b[m]);
#pragma unroll
        for (int first = 0; first < gpu_run<DV>; first += 2 * WORDS) {
            uint32_t x[GPU_OPERAND_KEYS][WORDS], a[GPU_OPERAND_WORDS];
            gpu_read_values<DV>(x, values + k * 32 * DV, first);
#pragma unroll
            for (int at = 0; at < 2 * WORDS; at++) {
                gpu_operand_values<WORDS>(x, at, a);
#pragma unroll
                for (int m = 0; m < gpu_row_blocks<ROWS>; m++)
                    gpu_mma<DTYPE>(rows.out[m] + GPU_PARTS * (first + at), a, b[m]);
            }
            gpu_reads_stay();
        }
    }
}

#endif
#endif
