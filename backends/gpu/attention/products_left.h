/* Queries times keys, weights times values: rows are left operands, as lanes_left.h has them. */
#ifndef ROPEKIT_GPU_ATTENTION_PRODUCTS_LEFT_H
#define ROPEKIT_GPU_ATTENTION_PRODUCTS_LEFT_H

#include "backends/gpu/attention/tile_shape.h"

/* rows_at: gpu_operand_rows() of the warp's queries; keys_at: gpu_operand_keys(). USED: elements
 * behind are 0. */
template <int DTYPE, int D, int ROWS, int USED = D>
GPU_FN void gpu_tile_products_at(const char *queries, int rows_at, const char *keys, int keys_at,
                                 gpu_tile_scores<ROWS> &s) {
    gpu_for_each(s, [](float &x) { x = 0; });
    gpu_repeat<USED / 16>([&](int k) {
        uint32_t a[gpu_row_blocks<ROWS>][4];
        gpu_load_rows<D>(a, queries, rows_at, k);
        gpu_repeat<gpu_warp_keys<ROWS> / 16>([&](int n) {
            uint32_t b[4];
            gpu_load_matrices(b, keys, gpu_moved<D>(keys_at, n, k));
            gpu_mma_rows<DTYPE>(s, n, a, b);
        });
    });
}

template <int DTYPE, int D, int ROWS, int USED = D>
GPU_FN void gpu_tile_products(const char *queries, const char *keys, gpu_tile_scores<ROWS> &s) {
    const int lane = gpu_lane();
    gpu_tile_products_at<DTYPE, D, ROWS, USED>(queries,
                                               gpu_operand_rows<D>(lane, gpu_warp_row<ROWS>()),
                                               keys, gpu_operand_keys<D>(lane), s);
}

/* values_at: gpu_operand_rows(). USED: elements behind are left out. */
template <int DTYPE, int D, int ROWS, int USED = D>
GPU_FN void gpu_tile_add_at(const char *values, int values_at, const gpu_tile_weights<ROWS> &w,
                            gpu_tile_rows<D, ROWS> &rows) {
    gpu_repeat<gpu_warp_keys<ROWS> / 16>([&](int k) {
        gpu_repeat<USED / 16>([&](int n) {
            uint32_t b[4];
            gpu_load_transposed(b, values, gpu_moved_by_groups<D>(values_at, k, n));
            gpu_mma_rows<DTYPE>(rows.out, n, w.a[k], b);
        });
    });
}

template <int DTYPE, int D, int ROWS, int USED = D>
GPU_FN void gpu_tile_add(const char *values, const gpu_tile_weights<ROWS> &w,
                         gpu_tile_rows<D, ROWS> &rows) {
    gpu_tile_add_at<DTYPE, D, ROWS, USED>(values, gpu_operand_rows<D>(gpu_lane()), w, rows);
}

#endif
