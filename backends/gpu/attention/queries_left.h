/* Queries times keys, weights times values: a lane holds two rows of 16. Fragments as PTX lays out
 * mma.m16n8k16. */
#ifndef ROPEKIT_GPU_ATTENTION_QUERIES_LEFT_H
#define ROPEKIT_GPU_ATTENTION_QUERIES_LEFT_H

#include "backends/gpu/attention/fragments.h"

/* Rows of 16 that a lane holds, each by so many elements of a part: row h those from h times as
 * many on. Lanes that share a row, and how far apart they are. */
enum { GPU_LANE_ROWS = 2, GPU_LANE_ELEMENTS = 2, GPU_ROW_LANES = 4, GPU_ROW_STEP = 1 };

GPU_FN int gpu_row_of(int lane, int h) {
    return 8 * h + lane / 4;
}

GPU_FN int gpu_first_lane_of(int row) {
    return row % 8 * 4;
}

/* Which of a lane's rows it is. */
GPU_FN int gpu_held_row(int row) {
    return row / 8 % 2;
}

/* The key of a product: a lane's first, and from there to element e of part n. */
GPU_FN int gpu_first_key_of(int lane) {
    return lane % 4 * 2;
}

GPU_FN constexpr int gpu_key_of(int n, int e) {
    return 8 * n + e % 2;
}

/* Elements of a row of out in runs: so many side by side, so many of a row in a lane; run r of row
 * h begins with which element of out, and its element i is in this part and place. */
template <int DV> constexpr int gpu_run = 2;
template <int DV> constexpr int gpu_runs = DV / 8;

template <int DV> GPU_FN int gpu_run_first(int lane, int r) {
    return 8 * r + lane % 4 * 2;
}

GPU_FN constexpr int gpu_run_part(int r, int i) {
    return (void)i, r;
}

GPU_FN constexpr int gpu_run_place(int r, int h, int i) {
    return (void)r, 2 * h + i;
}

/* Where a lane's row of 16 by 16 elements lies: of keys; of queries from a row on, or of values. */
template <int D> GPU_FN int gpu_operand_keys(void) {
    const int lane = gpu_lane();
    return gpu_swizzled<D>(lane % 8 + lane / 16 * 8, lane / 8 % 2);
}

template <int D> GPU_FN int gpu_operand_rows(int row = 0) {
    const int lane = gpu_lane();
    return gpu_swizzled<D>(row + lane % 16, lane / 16);
}

/* left: gpu_operand_rows() of the warp's queries; right: gpu_operand_keys(). USED: elements behind
 * are 0. */
template <int DTYPE, int D, int ROWS, int USED = D>
GPU_FN void gpu_tile_products_at(const char *queries, int left, const char *keys, int right,
                                 float s[gpu_row_blocks<ROWS>][gpu_key_parts<ROWS>][4]) {
#pragma unroll
    for (int m = 0; m < gpu_row_blocks<ROWS>; m++)
#pragma unroll
        for (int n = 0; n < gpu_key_parts<ROWS>; n++)
            s[m][n][0] = s[m][n][1] = s[m][n][2] = s[m][n][3] = 0;
#pragma unroll
    for (int k = 0; k < USED / 16; k++) {
        uint32_t a[gpu_row_blocks<ROWS>][4];
#pragma unroll
        for (int m = 0; m < gpu_row_blocks<ROWS>; m++)
            gpu_load_matrices(a[m], queries, gpu_moved<D>(left, m, k));
#pragma unroll
        for (int n = 0; n < gpu_warp_keys<ROWS> / 16; n++) {
            uint32_t b[4];
            gpu_load_matrices(b, keys, gpu_moved<D>(right, n, k));
#pragma unroll
            for (int m = 0; m < gpu_row_blocks<ROWS>; m++) {
                gpu_mma<DTYPE>(s[m][2 * n], a[m], b);
                gpu_mma<DTYPE>(s[m][2 * n + 1], a[m], b + 2);
            }
        }
    }
}

template <int DTYPE, int D, int ROWS, int USED = D>
GPU_FN void gpu_tile_products(const char *queries, const char *keys,
                              float s[gpu_row_blocks<ROWS>][gpu_key_parts<ROWS>][4]) {
    gpu_tile_products_at<DTYPE, D, ROWS, USED>(queries, gpu_operand_rows<D>(gpu_warp_row<ROWS>()),
                                               keys, gpu_operand_keys<D>(), s);
}

template <int DTYPE, int DV, int ROWS, int USED = DV>
GPU_FN void gpu_tile_add_at(const char *values, int right, const gpu_tile_weights<ROWS> &w,
                            gpu_tile_rows<DV, ROWS> &rows) {
#pragma unroll
    for (int k = 0; k < gpu_warp_keys<ROWS> / 16; k++) {
#pragma unroll
        for (int n = 0; n < USED / 16; n++) {
            uint32_t b[4];
            gpu_load_transposed(b, values, gpu_moved_by_groups<DV>(right, k, n));
#pragma unroll
            for (int m = 0; m < gpu_row_blocks<ROWS>; m++) {
                gpu_mma<DTYPE>(rows.out[m][2 * n], w.a[k][m], b);
                gpu_mma<DTYPE>(rows.out[m][2 * n + 1], w.a[k][m], b + 2);
            }
        }
    }
}

template <int DTYPE, int DV, int ROWS, int USED = DV>
GPU_FN void gpu_tile_add(const char *values, const gpu_tile_weights<ROWS> &w,
                         gpu_tile_rows<DV, ROWS> &rows) {
    gpu_tile_add_at<DTYPE, DV, ROWS, USED>(values, gpu_operand_rows<DV>(), w, rows);
}

#endif
