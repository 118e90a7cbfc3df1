/* The softmax of a tile of logits: running maximum, rescale, exponentials and sums, of a lane's
 * rows. */
#ifndef ROPEKIT_GPU_ATTENTION_SOFTMAX_H
#define ROPEKIT_GPU_ATTENTION_SOFTMAX_H

#include "backends/gpu/attention/products.h"

/* Largest logits of a thread's rows in units of log 2, and sums of its own columns. They wait in
 * shared memory, as registers do not hold them beside a tile's products. */
template <int ROWS> struct gpu_tile_sums {
    float largest[gpu_row_blocks<ROWS>][GPU_LANE_ROWS], sum[gpu_row_blocks<ROWS>][GPU_LANE_ROWS];
};

/* No row has a key yet. */
template <int ROWS> GPU_FN gpu_tile_sums<ROWS> gpu_no_sums(void) {
    gpu_tile_sums<ROWS> none = {};
    gpu_for_each_row<gpu_row_blocks<ROWS>>([&](int m, int h) { none.largest[m][h] = -INFINITY; });
    return none;
}

/* Caps products by cap * tanh(scale * s / cap), where there is a cap; returns what makes logits in
 * units of log 2 of them. */
template <int ROWS> GPU_FN float gpu_tile_cap(float scale, float cap, gpu_tile_scores<ROWS> &s) {
    if (cap > 0) {
        const float to_cap = scale / cap;
        gpu_for_each(s, [&](float &x) { x = cap * gpu_tanh(x * to_cap); });
    }
    return GPU_LOG2_E * (cap > 0 ? 1 : scale);
}

/* A row's largest logit stands for weights up to 2^this: it need not rise for every larger one. */
constexpr float GPU_RESCALE_SLACK = 8;

/* Makes room in rows for larger logits, which are `unit` times what `most` has: log2 of e times
 * what a product is multiplied by. */
template <int D, int ROWS>
GPU_FN void gpu_tile_rescale(float unit, gpu_lane_rows<ROWS> &most, gpu_tile_sums<ROWS> &sums,
                             gpu_tile_rows<D, ROWS> &rows) {
    enum { BLOCKS = gpu_row_blocks<ROWS> };
    bool raised = false;
    gpu_for_each_row<BLOCKS>([&](int m, int h) {
        most[m][h] *= unit;
        raised |= most[m][h] > sums.largest[m][h] + GPU_RESCALE_SLACK;
    });
    if (!gpu_any(raised))
        return;
    gpu_for_each_row<BLOCKS>([&](int m, int h) {
        const float before = sums.largest[m][h];
        float kept = 1;
        if (most[m][h] > before + GPU_RESCALE_SLACK) {
            sums.largest[m][h] = most[m][h];
            kept = gpu_exp2(before - most[m][h]);
        }
        sums.sum[m][h] *= kept;
        gpu_scale_row(rows.out[m], h, kept);
    });
}

/* From products to weights, by largest logits that have room for them. */
template <int ROWS>
GPU_FN void gpu_tile_exponentiate(float unit, gpu_tile_scores<ROWS> &s, gpu_tile_sums<ROWS> &sums) {
    gpu_for_each_row<gpu_row_blocks<ROWS>>([&](int m, int h) {
        const float base = sums.largest[m][h] == -INFINITY ? 0 : sums.largest[m][h];
        gpu_for_each_key(s[m], h, [&](int, float &x) { x = gpu_exp2(fmaf(x, unit, -base)); });
        sums.sum[m][h] += gpu_row_sum(s[m], h);
    });
}

/* From products to weights as operands. between() runs behind the rescaling of rows. */
template <int DTYPE, int D, int ROWS, typename F>
GPU_FN void gpu_tile_weigh(float unit, gpu_tile_scores<ROWS> &s, gpu_tile_sums<ROWS> &sums,
                           gpu_tile_weights<ROWS> &w, gpu_tile_rows<D, ROWS> &rows, F between) {
    gpu_lane_rows<ROWS> most;
    gpu_row_max(s, most);
    gpu_tile_rescale<D, ROWS>(unit, most, sums, rows);
    between();
    gpu_tile_exponentiate<ROWS>(unit, s, sums);
    gpu_tile_round<DTYPE, ROWS>(s, w);
}

/* The first of the lanes that share a row of a warp, from this one on. */
GPU_FN int gpu_row_lanes(int row) {
    return gpu_first_lane_of(row) - gpu_lane();
}

/* The sum of a row of a warp; sums: the thread's own, among those of all. */
template <int ROWS, typename SUMS> GPU_FN float gpu_tile_sum(const SUMS *sums, int row) {
    const int first = gpu_row_lanes(row), m = row / 16, h = gpu_held_row(row);
    float sum[GPU_ROW_LANES];
#pragma unroll
    for (int i = 0; i < GPU_ROW_LANES; i++)
        sum[i] = ((const gpu_tile_sums<ROWS> *)(const void *)(sums + first + i * GPU_ROW_STEP))
                     ->sum[m][h];
    return GPU_ROW_LANES == 2
               ? sum[0] + sum[1]
               : (sum[0] + sum[1]) + (sum[GPU_ROW_LANES - 2] + sum[GPU_ROW_LANES - 1]);
}

#endif
