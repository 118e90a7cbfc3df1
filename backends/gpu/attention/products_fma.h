/* Products without matrix instructions, for products_right.h: each lane sums its own, in the
 * order of elements and of keys. */
#ifndef ROPEKIT_GPU_ATTENTION_PRODUCTS_FMA_H
#define ROPEKIT_GPU_ATTENTION_PRODUCTS_FMA_H

#include "backends/gpu/attention/tile_shape.h"

static_assert(GPU_TILE_LANES == 32, "a lane has 8 of 16 keys side by side");

/* Eight elements of a row of a tile as numbers. */
template <int DTYPE, int D>
GPU_FN void gpu_read_eight(const char *tile, int row, int chunk, float x[8]) {
    const gpu_vector<DTYPE, 8> eight = gpu_load<DTYPE, 8>(tile + gpu_swizzled<D>(row, chunk));
    gpu_unpack<DTYPE, 8>(eight, x);
}

template <int DTYPE, int D, int ROWS>
GPU_FN void gpu_tile_products(const char *queries, const char *keys, gpu_tile_scores<ROWS> &s) {
    enum { BLOCKS = gpu_row_blocks<ROWS> };
    const int lane = gpu_lane(), row = gpu_warp_row<ROWS>() + lane % 16,
              key = gpu_first_key_of(lane);
    gpu_for_each(s, [](float &x) { x = 0; });
#pragma unroll 1
    for (int chunk = 0; chunk < D / 8; chunk++) {
        float q[BLOCKS][8];
        gpu_repeat<BLOCKS>(
            [&](int m) { gpu_read_eight<DTYPE, D>(queries, row + 16 * m, chunk, q[m]); });
        gpu_repeat<4 * gpu_key_parts<ROWS>>([&](int n) {
            float x[8];
            gpu_read_eight<DTYPE, D>(keys, key + gpu_key_of(n / 4, n % 4), chunk, x);
            gpu_repeat<8 * BLOCKS>([&](int i) {
                float &sum = s[i / 8][n / 4][n % 4];
                sum = fmaf(x[i % 8], q[i / 8][i % 8], sum);
            });
        });
    }
}

/* Weights of a lane's row and 16 keys, two a word. */
template <int ROWS>
GPU_FN void gpu_row_weights(const gpu_tile_weights<ROWS> &w, int k, int m, uint32_t all[8]) {
    gpu_repeat<4>([&](int i) {
        uint32_t word = w.a[0][m][i];
#pragma unroll
        for (int n = 1; n < gpu_warp_keys<ROWS> / 16; n++)
            word = n == k ? w.a[n][m][i] : word;
        const uint32_t other = gpu_shuffle_xor(word, 16);
        const bool second = gpu_lane() >= 16;
        all[i] = second ? other : word;
        all[i + 4] = second ? word : other;
    });
}

/* Adds a key's values, weighed, to a lane's elements. */
template <int DTYPE, int D, int ROWS>
GPU_FN void gpu_add_key(const char *values, int key, const float (&weight)[gpu_row_blocks<ROWS>],
                        gpu_tile_rows<D, ROWS> &rows) {
    enum { RUN = gpu_run<D> };
    const int first = gpu_lane() / 16 * (D / 16);
    gpu_repeat<D / 16>([&](int chunk) {
        float x[8];
        gpu_read_eight<DTYPE, D>(values, key, first + chunk, x);
        gpu_repeat<8>([&](int i) {
            const int r = (8 * chunk + i) / RUN, at = (8 * chunk + i) % RUN;
            gpu_repeat<gpu_row_blocks<ROWS>>([&](int m) {
                float *sum = rows.out[m][gpu_run_part(r, at)] + gpu_run_place(r, 0, at);
                *sum = fmaf(x[i], weight[m], *sum);
            });
        });
    });
}

template <int DTYPE, int D, int ROWS>
GPU_FN void gpu_tile_add(const char *values, const gpu_tile_weights<ROWS> &w,
                         gpu_tile_rows<D, ROWS> &rows) {
    enum { BLOCKS = gpu_row_blocks<ROWS> };
#pragma unroll 1
    for (int k = 0; k < gpu_warp_keys<ROWS> / 16; k++) {
        uint32_t all[BLOCKS][8];
#pragma unroll /* by gpu_repeat() clang would keep weights in scratch memory */
        for (int m = 0; m < BLOCKS; m++)
            gpu_row_weights<ROWS>(w, k, m, all[m]);
        gpu_repeat<16>([&](int n) {
            float weight[BLOCKS];
            gpu_repeat<BLOCKS>([&](int m) {
                const float2 two = gpu_split<DTYPE>(all[m][n / 2]);
                weight[m] = n % 2 ? two.y : two.x;
            });
            gpu_add_key<DTYPE, D, ROWS>(values, 16 * k + n, weight, rows);
        });
    }
}

#endif
