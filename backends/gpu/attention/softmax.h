/* The softmax of a tile of logits: running maximum, rescale, exponentials and sums, of a lane's
 * rows. */
#ifndef ROPEKIT_GPU_ATTENTION_SOFTMAX_H
#define ROPEKIT_GPU_ATTENTION_SOFTMAX_H

#include "backends/gpu/attention/products.h"

/* Of a thread's rows, largest logits in units of log 2 and sums of its own columns. They wait in
 * shared memory, as registers do not hold them beside a tile's products. */
template <int ROWS> struct gpu_tile_sums {
    float largest[gpu_row_blocks<ROWS>][GPU_LANE_ROWS], sum[gpu_row_blocks<ROWS>][GPU_LANE_ROWS];
};

/* cap * tanh(x / cap) of x = scale * s. */
template <int ROWS>
GPU_FN void gpu_tile_cap(float scale, float cap,
                         float s[gpu_row_blocks<ROWS>][gpu_key_parts<ROWS>][4]) {
    const float to_cap = scale / cap;
#pragma unroll
    for (int m = 0; m < gpu_row_blocks<ROWS>; m++)
#pragma unroll
        for (int n = 0; n < gpu_key_parts<ROWS>; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                s[m][n][e] = cap * gpu_tanh(s[m][n][e] * to_cap);
}

/* A row's largest logit stands for weights up to 2^this: it need not rise for every larger one. */
constexpr float GPU_RESCALE_SLACK = 8;

/* Of a row of a tile, a lane's largest logit. */
template <int N> GPU_FN float gpu_tile_most(const float s[N][4], int h) {
    float most[N];
#pragma unroll
    for (int n = 0; n < N; n++) {
        const float *x = s[n] + h * GPU_LANE_ELEMENTS;
        most[n] = fmaxf(x[0], x[1]);
#pragma unroll
        for (int e = 2; e < GPU_LANE_ELEMENTS; e += 2)
            most[n] = fmaxf(most[n], fmaxf(x[e], x[e + 1]));
    }
#pragma unroll
    for (int step = 1; step < N; step *= 2)
#pragma unroll
        for (int n = 0; n < N; n += 2 * step)
            most[n] = fmaxf(most[n], most[n + step]);
    return most[0];
}

/* One of each of a lane's rows. */
template <int ROWS> using gpu_lane_rows = float[gpu_row_blocks<ROWS>][GPU_LANE_ROWS];

/* Of a lane's rows the largest products. */
template <int ROWS>
GPU_FN void gpu_tile_largest(const float s[gpu_row_blocks<ROWS>][gpu_key_parts<ROWS>][4],
                             gpu_lane_rows<ROWS> &most) {
#pragma unroll
    for (int m = 0; m < gpu_row_blocks<ROWS>; m++)
#pragma unroll
        for (int h = 0; h < GPU_LANE_ROWS; h++)
            most[m][h] = gpu_tile_most<gpu_key_parts<ROWS>>(s[m], h);
#pragma unroll
    for (int step = 1; step < GPU_ROW_LANES; step *= 2)
#pragma unroll
        for (int m = 0; m < gpu_row_blocks<ROWS>; m++)
#pragma unroll
            for (int h = 0; h < GPU_LANE_ROWS; h++)
                most[m][h] = fmaxf(most[m][h], gpu_shuffle_xor(most[m][h], step * GPU_ROW_STEP));
}

/* Makes room in rows for larger logits, which are `unit` times what `most` has: log2 of e times
 * what a product is multiplied by. */
template <int DV, int ROWS>
GPU_FN void gpu_tile_rescale_to(float unit, gpu_lane_rows<ROWS> &most, gpu_tile_sums<ROWS> &sums,
                                gpu_tile_rows<DV, ROWS> &rows) {
    gpu_lane_rows<ROWS> kept;
    bool raised = false;
#pragma unroll
    for (int m = 0; m < gpu_row_blocks<ROWS>; m++)
#pragma unroll
        for (int h = 0; h < GPU_LANE_ROWS; h++) {
            most[m][h] *= unit;
            kept[m][h] = 1;
            raised |= most[m][h] > sums.largest[m][h] + GPU_RESCALE_SLACK;
        }
    if (!gpu_any(raised))
        return;
#pragma unroll
    for (int m = 0; m < gpu_row_blocks<ROWS>; m++)
#pragma unroll
        for (int h = 0; h < GPU_LANE_ROWS; h++) {
            const float before = sums.largest[m][h];
            if (most[m][h] > before + GPU_RESCALE_SLACK) {
                sums.largest[m][h] = most[m][h];
                kept[m][h] = gpu_exp2(before - most[m][h]);
            }
            sums.sum[m][h] *= kept[m][h];
#pragma unroll
            for (int n = 0; n < gpu_out_parts<DV>; n++)
#pragma unroll
                for (int e = h * GPU_LANE_ELEMENTS; e < (h + 1) * GPU_LANE_ELEMENTS; e++)
                    rows.out[m][n][e] *= kept[m][h];
        }
}

/* The same of a tile's products. */
template <int DV, int ROWS>
GPU_FN void gpu_tile_rescale(float unit,
                             const float s[gpu_row_blocks<ROWS>][gpu_key_parts<ROWS>][4],
                             gpu_tile_sums<ROWS> &sums, gpu_tile_rows<DV, ROWS> &rows) {
    gpu_lane_rows<ROWS> most;
    gpu_tile_largest<ROWS>(s, most);
    gpu_tile_rescale_to<DV, ROWS>(unit, most, sums, rows);
}

/* From products to weights, by largest logits that have room for them. */
template <int ROWS>
GPU_FN void gpu_tile_exponentiate(float unit, float s[gpu_row_blocks<ROWS>][gpu_key_parts<ROWS>][4],
                                  gpu_tile_sums<ROWS> &sums) {
#pragma unroll
    for (int m = 0; m < gpu_row_blocks<ROWS>; m++)
#pragma unroll
        for (int h = 0; h < GPU_LANE_ROWS; h++) {
            const float base = sums.largest[m][h] == -INFINITY ? 0 : sums.largest[m][h];
            float part[gpu_key_parts<ROWS>];
#pragma unroll
            for (int n = 0; n < gpu_key_parts<ROWS>; n++) {
                float *x = s[m][n] + h * GPU_LANE_ELEMENTS;
#pragma unroll
                for (int e = 0; e < GPU_LANE_ELEMENTS; e++)
                    x[e] = gpu_exp2(fmaf(x[e], unit, -base));
                part[n] = x[0] + x[1];
#pragma unroll
                for (int e = 2; e < GPU_LANE_ELEMENTS; e += 2)
                    part[n] += x[e] + x[e + 1];
            }
#pragma unroll
            for (int step = 1; step < gpu_key_parts<ROWS>; step *= 2)
#pragma unroll
                for (int n = 0; n < gpu_key_parts<ROWS>; n += 2 * step)
                    part[n] += part[n + step];
            sums.sum[m][h] += part[0];
        }
}

/* From products to weights. */
template <int DV, int ROWS>
GPU_FN void gpu_tile_softmax(float unit, float s[gpu_row_blocks<ROWS>][gpu_key_parts<ROWS>][4],
                             gpu_tile_sums<ROWS> &held, gpu_tile_rows<DV, ROWS> &rows) {
    gpu_tile_sums<ROWS> sums = held;
    gpu_tile_rescale<DV, ROWS>(unit, s, sums, rows);
    gpu_tile_exponentiate<ROWS>(unit, s, sums);
    held = sums;
}

/* The first of the lanes that share a row of a warp, from this one on. */
GPU_FN int gpu_row_lanes(int row) {
    return gpu_first_lane_of(row) - gpu_lane();
}

/* A number of each lane that shares a row: their sum, in the order of gpu_tile_sum(). */
GPU_FN float gpu_lanes_sum(float sum) {
#pragma unroll
    for (int step = 1; step < GPU_ROW_LANES; step *= 2)
        sum += gpu_shuffle_xor(sum, step * GPU_ROW_STEP);
    return sum;
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
