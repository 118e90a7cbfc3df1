/* Products of tiles in the order of this device's matrix instructions, and what is made of them. */
#ifndef ROPEKIT_GPU_ATTENTION_PRODUCTS_H
#define ROPEKIT_GPU_ATTENTION_PRODUCTS_H

#include "common/gpu/attention/fragments.h"

#ifdef GPU_QUERIES_LEFT
#include "common/gpu/attention/queries_left.h"
#else
#include "common/gpu/attention/queries_right.h"
#endif

/* Weights as operands. */
template <int DTYPE, int ROWS>
GPU_FN void gpu_tile_round(const float s[gpu_row_blocks<ROWS>][gpu_key_parts<ROWS>][4],
                           gpu_tile_weights<ROWS> &w) {
#pragma unroll
    for (int k = 0; k < gpu_warp_keys<ROWS> / 16; k++)
#pragma unroll
        for (int m = 0; m < gpu_row_blocks<ROWS>; m++)
#pragma unroll
            for (int i = 0; i < 2 * GPU_PARTS; i++) {
                const float *two = s[m][GPU_PARTS * k + i / 2] + i % 2 * 2;
                w.a[k][m][i] = (uint32_t)gpu_opaque((int)gpu_join<DTYPE>(two[0], two[1]));
            }
}

/* Element `at` of run r of a row of a thread's. */
template <int DV, int ROWS>
GPU_FN float gpu_run_element(const gpu_tile_rows<DV, ROWS> &rows, int m, int r, int h, int at) {
    return rows.out[m][gpu_run_part(r, at)][gpu_run_place(r, h, at)];
}

#endif
