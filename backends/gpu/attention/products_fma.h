/* Products without matrix instructions, for queries_right.h, which includes this behind what it
 * says of lanes: each lane sums its own, in the order of elements and of keys. */
#ifndef ROPEKIT_GPU_ATTENTION_PRODUCTS_FMA_H
#define ROPEKIT_GPU_ATTENTION_PRODUCTS_FMA_H

#include "backends/gpu/attention/fragments.h"

static_assert(GPU_TILE_LANES == 32, "a lane has 8 of 16 keys side by side");

/* Eight elements of a row of a tile as numbers. */
template <int DTYPE, int D>
GPU_FN void gpu_read_eight(const char *tile, int row, int chunk, float x[8]) {
    const gpu_vector<DTYPE, 8> eight = gpu_load<DTYPE, 8>(tile + gpu_swizzled<D>(row, chunk));
    gpu_unpack<DTYPE, 8>(eight, x);
}

template <int DTYPE, int D, int ROWS>
GPU_FN void gpu_tile_products(const char *queries, const char *keys,
                              float s[gpu_row_blocks<ROWS>][gpu_key_parts<ROWS>][4]) {
    const int lane = gpu_lane(), row = gpu_warp_row<ROWS>() + lane % 16,
              key = gpu_first_key_of(lane);
#pragma unroll
    for (int m = 0; m < gpu_row_blocks<ROWS>; m++)
#pragma unroll
        for (int n = 0; n < gpu_key_parts<ROWS>; n++)
            s[m][n][0] = s[m][n][1] = s[m][n][2] = s[m][n][3] = 0;
#pragma unroll 1
    for (int chunk = 0; chunk < D / 8; chunk++) {
        float q[gpu_row_blocks<ROWS>][8];
#pragma unroll
        for (int m = 0; m < gpu_row_blocks<ROWS>; m++)
            gpu_read_eight<DTYPE, D>(queries, row + 16 * m, chunk, q[m]);
#pragma unroll
        for (int n = 0; n < 4 * gpu_key_parts<ROWS>; n++) {
            float x[8];
            gpu_read_eight<DTYPE, D>(keys, key + gpu_key_of(n / 4, n % 4), chunk, x);
#pragma unroll
            for (int m = 0; m < gpu_row_blocks<ROWS>; m++)
#pragma unroll
                for (int i = 0; i < 8; i++)
                    s[m][n / 4][n % 4] = fmaf(x[i], q[m][i], s[m][n / 4][n % 4]);
        }
    }
}

/* Weights of a lane's row and 16 keys, two a word. */
template <int ROWS>
GPU_FN void gpu_row_weights(const gpu_tile_weights<ROWS> &w, int k, int m, uint32_t all[8]) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t word = w.a[0][m][i];
#pragma unroll
        for (int n = 1; n < gpu_warp_keys<ROWS> / 16; n++)
            word = n == k ? w.a[n][m][i] : word;
        const uint32_t other = gpu_shuffle_xor(word, 16);
        const bool second = gpu_lane() >= 16;
        all[i] = second ? other : word;
        all[i + 4] = second ? word : other;
    }
}

/* Adds a key's values, weighed, to a lane's elements. */
template <int DTYPE, int DV, int ROWS>
GPU_FN void gpu_add_key(const char *values, int key, const float weight[gpu_row_blocks<ROWS>],
                        gpu_tile_rows<DV, ROWS> &rows) {
    enum { RUN = gpu_run<DV> };
    const int first = gpu_lane() / 16 * (DV / 16);
#pragma unroll
    for (int chunk = 0; chunk < DV / 16; chunk++) {
        float x[8];
        gpu_read_eight<DTYPE, DV>(values, key, first + chunk, x);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int r = (8 * chunk + i) / RUN, at = (8 * chunk + i) % RUN;
#pragma unroll
            for (int m = 0; m < gpu_row_blocks<ROWS>; m++) {
                float *sum = rows.out[m][gpu_run_part(r, at)] + gpu_run_place(r, 0, at);
                *sum = fmaf(x[i], weight[m], *sum);
            }
        }
    }
}

template <int DTYPE, int DV, int ROWS>
GPU_FN void gpu_tile_add(const char *values, const gpu_tile_weights<ROWS> &w,
                         gpu_tile_rows<DV, ROWS> &rows) {
#pragma unroll 1
    for (int k = 0; k < gpu_warp_keys<ROWS> / 16; k++) {
        uint32_t all[gpu_row_blocks<ROWS>][8];
#pragma unroll
        for (int m = 0; m < gpu_row_blocks<ROWS>; m++)
            gpu_row_weights<ROWS>(w, k, m, all[m]);
#pragma unroll
        for (int n = 0; n < 16; n++) {
            float weight[gpu_row_blocks<ROWS>];
#pragma unroll
            for (int m = 0; m < gpu_row_blocks<ROWS>; m++) {
                const float2 two = gpu_split<DTYPE>(all[m][n / 2]);
                weight[m] = n % 2 ? two.y : two.x;
            }
            gpu_add_key<DTYPE, DV, ROWS>(values, 16 * k + n, weight, rows);
        }
    }
}

#endif
