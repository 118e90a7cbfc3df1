/*
 * Rows times columns, transposed, as AMD's matrix instructions have them: a lane holds one row of
 * 16, the column lane % 16 of a product. mma_hip.h says which keys it holds of it, by
 * gpu_first_key_of() and gpu_key_of().
 */
#ifndef ROPEKIT_GPU_TILE_LANES_RIGHT_H
#define ROPEKIT_GPU_TILE_LANES_RIGHT_H

#include "backends/gpu/tile/shared.h"

/* These are as in lanes_left.h. */
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
template <int DV> constexpr int gpu_runs = 64 / GPU_TILE_LANES * 4;

template <int DV> GPU_FN int gpu_run_first(int lane, int r) {
    return gpu_run<DV> * (gpu_first_key_of(lane) + gpu_key_of(r / 4, r % 4));
}

GPU_FN constexpr int gpu_run_part(int r, int i) {
    return 64 / GPU_TILE_LANES * i + r / 4;
}

GPU_FN constexpr int gpu_run_place(int r, int h, int i) {
    return (void)h, (void)i, r % 4;
}

#endif
