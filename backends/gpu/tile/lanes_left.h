/* Rows times columns as PTX lays out the fragments of mma.m16n8k16: a lane holds two rows of 16, of
 * each two elements of a part, which has 8 columns. */
#ifndef ROPEKIT_GPU_TILE_LANES_LEFT_H
#define ROPEKIT_GPU_TILE_LANES_LEFT_H

#include "backends/gpu/tile/shared.h"

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

/* Where a lane's row of 16 by 16 elements lies: of columns; of rows from a row on. */
template <int D> GPU_FN int gpu_operand_keys(int lane) {
    return gpu_swizzled<D>(lane % 8 + lane / 16 * 8, lane / 8 % 2);
}

template <int D> GPU_FN int gpu_operand_rows(int lane, int row = 0) {
    return gpu_swizzled<D>(row + lane % 16, lane / 16);
}

#endif
