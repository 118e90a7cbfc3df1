/*
 * Values that are not finite, which rows that do not see them may not meet: they are taken out of a
 * tile, and added to the rows that see their keys.
 */
#ifndef ROPEKIT_GPU_ATTENTION_NONFINITE_H
#define ROPEKIT_GPU_ATTENTION_NONFINITE_H

#include "backends/gpu/attention/mask.h"

/* Of eight elements, 1 for each that is an infinity of a sign or NaN. */
template <int DTYPE> GPU_FN uint32_t gpu_nonfinite_of(uint4 eight, uint32_t sign) {
    const uint32_t infinity = DTYPE == ROPE_BF16 ? 0x7f80u : 0x7c00u,
                   words[4] = {eight.x, eight.y, eight.z, eight.w};
    uint32_t found = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const uint32_t x = words[i / 2] >> 16 * (i % 2) & 0xffffu;
        found |= (uint32_t)((x & infinity) == infinity && x != (infinity | (sign ^ 0x8000u))) << i;
    }
    return found;
}

/* Takes such values out of a tile; whether it had any. A barrier is behind it. */
template <int DTYPE, int DV, int ROWS>
GPU_FN bool gpu_nonfinite_remove(const gpu_tile_call &t, int first, char *values) {
    auto &signs = gpu_block_of<DV, ROWS>(t).signs;
    bool found = false;
#pragma unroll 1
    for (int e = gpu_thread(); e < gpu_block_keys<ROWS> * DV / 8; e += GPU_ATTENTION_THREADS) {
        const int key = e / (DV / 8), chunk = e % (DV / 8);
        uint4 *eight = (uint4 *)(void *)(values + gpu_swizzled<DV>(key, chunk));
        const uint32_t above = gpu_nonfinite_of<DTYPE>(*eight, 0),
                       below = gpu_nonfinite_of<DTYPE>(*eight, 0x8000u);
        signs[0][key][chunk] = (uint8_t)above;
        signs[1][key][chunk] = (uint8_t)below;
        for (int i = 0; i < 8; i++)
            if ((above | below) >> i & 1)
                ((uint16_t *)(void *)eight)[i] = 0;
        found |= above | below;
    }
    if (found)
        t.b->nonfinite_tile = first + 1;
    __syncthreads();
    return t.b->nonfinite_tile == first + 1;
}

/* Which keys of a tile have a weight in a row, one of a thread's. */
template <int ROWS>
GPU_FN uint64_t gpu_weighted_keys(const gpu_tile_weights<ROWS> &w, int m, int h) {
    const int lane = gpu_lane();
    uint32_t keys[2] = {};
#pragma unroll
    for (int n = 0; n < gpu_key_parts<ROWS>; n++)
#pragma unroll
        for (int e = h * GPU_LANE_ELEMENTS; e < (h + 1) * GPU_LANE_ELEMENTS; e += 2) {
            const uint32_t two = w.a[n / GPU_PARTS][m][n % GPU_PARTS * 2 + e / 2];
            keys[gpu_key_of(n, e) / 32] |=
                (two & 0x7fffu ? 1u << gpu_key_of(n, e) % 32 : 0) |
                (two & 0x7fff0000u ? 1u << gpu_key_of(n, e + 1) % 32 : 0);
        }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        keys[i] <<= gpu_first_key_of(lane);
#pragma unroll
        for (int step = 1; step < GPU_ROW_LANES; step *= 2)
            keys[i] |= gpu_shuffle_xor(keys[i], step * GPU_ROW_STEP);
    }
    return keys[0] | (uint64_t)keys[1] << 32;
}

/* What was taken out reaches the rows that see its key, as a product with their weight does: a
 * weight of 0 makes NaN of it. The tile's keys begin at `first` of the block's, a warp's `at`
 * behind. */
template <int DV, int ROWS>
GPU_FN void gpu_nonfinite_gather(const gpu_tile_call &t, int first, int at,
                                 const gpu_tile_weights<ROWS> &w) {
    const int thread = gpu_thread(), lane = gpu_lane();
    uint64_t *rows = t.b->sees + (thread - lane);
#pragma unroll
    for (int m = 0; m < gpu_row_blocks<ROWS>; m++)
#pragma unroll
        for (int h = 0; h < GPU_LANE_ROWS; h++)
            rows[16 * m + gpu_row_of(lane, h)] = gpu_weighted_keys<ROWS>(w, m, h);
    gpu_warp_barrier();
    const auto &signs = gpu_block_of<DV, ROWS>(t).signs;
    const int of_warp = lane % (16 * gpu_row_blocks<ROWS>), row = gpu_warp_row<ROWS>() + of_warp;
    gpu_nonfinite_signs<DV> &special = gpu_nonfinite_row<DV, ROWS>(t, of_warp);
    const uint64_t sees = gpu_tile_sees(t, row, first + at);
#pragma unroll 1
    for (int n = 0; n < gpu_warp_keys<ROWS> && lane < 16 * gpu_row_blocks<ROWS>; n++) {
        if (!(sees >> n & 1))
            continue;
        const uint32_t none = rows[lane] >> n & 1 ? 0 : 0xffffffffu;
        for (int i = 0; i < DV / 32; i++) {
            const uint32_t above = ((const uint32_t *)(const void *)signs[0][at + n])[i],
                           below = ((const uint32_t *)(const void *)signs[1][at + n])[i];
            special.above[i] |= above | (below & none);
            special.below[i] |= below | (above & none);
        }
    }
    t.b->has_nonfinite = 1;
    gpu_warp_barrier();
}

/* Element i of a row of a warp with what was taken out of it. */
template <int DV, int ROWS>
GPU_FN float gpu_nonfinite_added(const gpu_tile_call &t, int row, int i, float x) {
    const gpu_nonfinite_signs<DV> &signs = gpu_nonfinite_row<DV, ROWS>(t, row);
    if (signs.above[i / 32] >> i % 32 & 1)
        x += INFINITY;
    if (signs.below[i / 32] >> i % 32 & 1)
        x -= INFINITY;
    return x;
}

/* The same of all elements of a thread's rows. */
template <int DV, int ROWS>
GPU_FN void gpu_nonfinite_restore(const gpu_tile_call &t, gpu_tile_rows<DV, ROWS> &rows) {
    if (!t.b->has_nonfinite)
        return;
    const int lane = gpu_lane();
#pragma unroll
    for (int r = 0; r < gpu_runs<DV>; r++)
#pragma unroll
        for (int i = 0; i < GPU_LANE_ROWS * gpu_run<DV>; i++)
#pragma unroll
            for (int m = 0; m < gpu_row_blocks<ROWS>; m++) {
                const int h = i / gpu_run<DV>, at = i % gpu_run<DV>;
                float *x = rows.out[m][gpu_run_part(r, at)] + gpu_run_place(r, h, at);
                *x = gpu_nonfinite_added<DV, ROWS>(t, 16 * m + gpu_row_of(lane, h),
                                                   gpu_run_first<DV>(lane, r) + at, *x);
            }
}

#endif
