/* Products of tiles in the order of this device's matrix instructions, and what is made of them. */
#ifndef ROPEKIT_GPU_ATTENTION_PRODUCTS_H
#define ROPEKIT_GPU_ATTENTION_PRODUCTS_H

#include "backends/gpu/attention/tile_shape.h"

#ifdef GPU_QUERIES_LEFT
#include "backends/gpu/attention/products_left.h"
#else
#include "backends/gpu/attention/products_right.h"
#endif

/* Weights as operands. */
template <int DTYPE, int ROWS>
GPU_FN void gpu_tile_round(const gpu_tile_scores<ROWS> &s, gpu_tile_weights<ROWS> &w) {
    gpu_repeat<gpu_warp_keys<ROWS> / 16>([&](int k) {
        gpu_repeat<gpu_row_blocks<ROWS>>([&](int m) {
            gpu_repeat<2 * GPU_PARTS>([&](int i) {
                const float *two = s[m][GPU_PARTS * k + i / 2] + i % 2 * 2;
                w.a[k][m][i] = (uint32_t)gpu_opaque((int)gpu_join<DTYPE>(two[0], two[1]));
            });
        });
    });
}

/* A polynomial near 0, where 1 - 2 / (e^2x + 1) has no digits left. */
GPU_FN float gpu_tanh(float x) {
    const float far = fmaf(-2, gpu_reciprocal(gpu_exp2(x * (2 * GPU_LOG2_E)) + 1), 1), z = x * x;
    float p = fmaf(z, -0x1.76abf6p-8f, 0x1.5256cep-6f);
    p = fmaf(z, p, -0x1.b84448p-5f);
    p = fmaf(z, p, 0x1.110768p-3f);
    p = fmaf(z, p, -0x1.555534p-2f);
    return fabsf(x) < 0.625f ? fmaf(x * z, p, x) : far;
}

/* Element `at` of run r of a row of a thread's. */
template <int DV, int ROWS>
GPU_FN float gpu_run_element(const gpu_tile_rows<DV, ROWS> &rows, int m, int r, int h, int at) {
    return rows.out[m][gpu_run_part(r, at)][gpu_run_place(r, h, at)];
}

#endif
