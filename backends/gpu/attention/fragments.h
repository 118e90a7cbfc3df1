/*
 * A block's warps, what a thread holds of their products, and where rows lie in shared memory. A
 * warp is what multiplies together: GPU_TILE_LANES threads. Sums are in fours: element e of part n.
 */
#ifndef ROPEKIT_GPU_ATTENTION_FRAGMENTS_H
#define ROPEKIT_GPU_ATTENTION_FRAGMENTS_H

#include "backends/gpu/attention/kernels.h"

#include "backends/gpu/tile/mma.h"

enum { GPU_TILE_WARPS = GPU_ATTENTION_THREADS / GPU_TILE_LANES };

/* Of its block; what is computed of it is computed where it is used. */
GPU_FN int gpu_thread(void) {
    return gpu_opaque((int)threadIdx.x);
}

GPU_FN int gpu_lane(void) {
    return gpu_thread() % GPU_TILE_LANES;
}

/* A block's rows, ROWS below, are a number of them, of which each warp has its part and all keys of
 * a tile: GPU_TILE_KEYS, or KEYS of GPU_TILE_SHAPE(rows, KEYS). All warps have those of splits and
 * of latents, and a part of each tile of keys. */
#define GPU_TILE_SHAPE(rows, keys) ((rows) | (keys) << 16)

/* What a kernel with room for D elements has. */
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

/* Parts of 16 rows by 16 keys, by a warp's keys, and by DV elements of values. */
enum { GPU_PARTS = 64 / GPU_TILE_LANES };
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

/* Where 16 bytes of a row lie: eight rows of a column are in different banks. */
template <int D> GPU_FN int gpu_swizzled(int row, int chunk) {
    static_assert(D % 64 == 0, "a row has a multiple of eight chunks");
    return row * (D * 2) + (chunk ^ (row & 7)) * 16;
}

/* From where 16 bytes of one of the first rows lie to those `down` rows below: a multiple of four,
 * from one of the first four, or of eight. */
template <int D> GPU_FN int gpu_swizzled_further(int at, int down) {
    return (at ^ (down & 7) * 16) + down * D * 2;
}

/* From where a lane's row of a matrix of 16 by 16 lies to that of one some rows down and some
 * columns across, both in 16s. By four addresses and what is added to them: */
template <int D> GPU_FN int gpu_moved_by_groups(int at, int down, int across) {
    return (at ^ across % 4 * 32) + across / 4 * 128 + down * 32 * D;
}

/* The same, where a row's chunks are bits of their own by one address. */
template <int D> GPU_FN int gpu_moved(int at, int down, int across) {
    return D & (D - 1) ? gpu_moved_by_groups<D>(at, down, across)
                       : (at ^ 32 * across) + down * 32 * D;
}

template <int D> GPU_FN uint16_t *gpu_swizzled_element(char *tile, int row, int i) {
    return (uint16_t *)(tile + gpu_swizzled<D>(row, i / 8)) + i % 8;
}

#endif
