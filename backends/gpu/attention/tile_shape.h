/* Rows and keys of a block and of its warps, and what a thread holds of them. */
#ifndef ROPEKIT_GPU_ATTENTION_TILE_SHAPE_H
#define ROPEKIT_GPU_ATTENTION_TILE_SHAPE_H

#include "backends/gpu/attention/kernels.h"
#include "backends/gpu/tile/fragments.h"

enum { GPU_TILE_WARPS = GPU_ATTENTION_THREADS / GPU_TILE_LANES };

/* A block's rows, ROWS below, are a number of them, of which each warp has its part and all keys of
 * a tile: GPU_TILE_KEYS, or KEYS of GPU_TILE_SHAPE(rows, KEYS). All warps have those of splits and
 * of latents, and a part of each tile of keys. */
#define GPU_TILE_SHAPE(rows, keys) ((rows) | (keys) << 16)

/* The shape of a kernel with room for D elements. */
template <int D>
constexpr int gpu_tiles_shape = D > GPU_TILE_NARROW ? GPU_TILE_SHAPE(GPU_WIDE_ROWS, GPU_WIDE_KEYS)
                                                    : GPU_TILE_ROWS;

/* Tiles of keys that it copies ahead. */
template <int D, int ROWS>
constexpr int gpu_tiles_ahead = (D > GPU_TILE_NARROW && ROWS == GPU_SPLIT_ROWS) ? 0
                                                                                : GPU_TILE_AHEAD;

/* Rows of a block, and keys of a tile. */
template <int ROWS> constexpr int gpu_block_rows = ROWS & 0xffff;
template <int ROWS> constexpr int gpu_block_keys = ROWS >> 16 ? ROWS >> 16 : (int)GPU_TILE_KEYS;

/* Whether all warps have all rows. */
template <int ROWS>
constexpr bool gpu_shares_rows = (int)ROWS == (int)GPU_SPLIT_ROWS ||
                                 (int)ROWS == (int)GPU_LATENT_ROWS;

/* How many 16 rows a warp has. */
template <int ROWS>
constexpr int gpu_row_blocks = gpu_block_rows<ROWS> / 16 /
                               (gpu_shares_rows<ROWS> ? 1 : GPU_TILE_WARPS);

/* Keys of a tile that a warp takes. */
template <int ROWS>
constexpr int gpu_warp_keys = gpu_block_keys<ROWS> / (gpu_shares_rows<ROWS> ? GPU_TILE_WARPS : 1);

/* The first of them, and the first row of a warp. */
template <int ROWS> GPU_FN int gpu_warp_key(void) {
    return gpu_shares_rows<ROWS> ? gpu_thread() / GPU_TILE_LANES * gpu_warp_keys<ROWS> : 0;
}

template <int ROWS> GPU_FN int gpu_warp_row(void) {
    return gpu_shares_rows<ROWS> ? 0 : gpu_thread() / GPU_TILE_LANES * 16 * gpu_row_blocks<ROWS>;
}

/* Parts of 16 rows by a warp's keys, and by DV elements of values. */
template <int ROWS> constexpr int gpu_key_parts = gpu_warp_keys<ROWS> / 16 * GPU_PARTS;
template <int DV> constexpr int gpu_out_parts = DV / 16 * GPU_PARTS;

/* A thread's rows: elements of out. */
template <int DV, int ROWS> struct gpu_tile_rows {
    float out[gpu_row_blocks<ROWS>][gpu_out_parts<DV>][4];
};

/* Weights of a warp's keys as operands of products with values, 16 keys each. */
template <int ROWS> struct gpu_tile_weights {
    uint32_t a[gpu_warp_keys<ROWS> / 16][gpu_row_blocks<ROWS>][2 * GPU_PARTS];
};

/* Products of a warp's rows and keys. */
template <int ROWS> using gpu_tile_scores = float[gpu_row_blocks<ROWS>][gpu_key_parts<ROWS>][4];

/* A number of each of a lane's rows. */
template <int ROWS> using gpu_lane_rows = float[gpu_row_blocks<ROWS>][GPU_LANE_ROWS];

/* f(m, h, row) for each of a lane's rows, a row of its block. */
template <int ROWS, typename F> GPU_FN void gpu_for_each_block_row(F f) {
    const int first = gpu_warp_row<ROWS>(), lane = gpu_lane();
    gpu_for_each_row<gpu_row_blocks<ROWS>>(
        [&](int m, int h) { f(m, h, first + 16 * m + gpu_row_of(lane, h)); });
}

#endif
