/*
 * What a warp's threads hold of a product, and verbs over it. A warp is what multiplies together:
 * GPU_TILE_LANES threads. A fragment is M blocks of 16 rows by N parts, float[M][N][4]: element e
 * of part n. A lane's rows are row h of block m; columns of a part are keys, or elements of out.
 */
#ifndef ROPEKIT_GPU_TILE_FRAGMENTS_H
#define ROPEKIT_GPU_TILE_FRAGMENTS_H

#include "backends/gpu/tile/mma.h"
#include "backends/gpu/tile/repeat.h"

#ifdef GPU_QUERIES_LEFT
#include "backends/gpu/tile/lanes_left.h"
#else
#include "backends/gpu/tile/lanes_right.h"
#endif

/* Parts of 16 rows by 16 columns. */
enum { GPU_PARTS = 64 / GPU_TILE_LANES };

/* A thread of its block, and of its warp; what is computed of it is computed where it is used. */
GPU_FN int gpu_thread(void) {
    return gpu_opaque((int)threadIdx.x);
}

GPU_FN int gpu_lane(void) {
    return gpu_thread() % GPU_TILE_LANES;
}

/* --- for each --- */

/* f(m, h) for each of a lane's rows. */
template <int M, typename F> GPU_FN void gpu_for_each_row(F f) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int h = 0; h < GPU_LANE_ROWS; h++)
            f(m, h);
}

/* f(x) for each number of a fragment. */
template <int M, int N, typename F> GPU_FN void gpu_for_each(float (&x)[M][N][4], F f) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                f(x[m][n][e]);
}

/* f(key, x) for each number of row h of a block: keys are counted from the lane's first. */
template <int N, typename F> GPU_FN void gpu_for_each_key(float (&x)[N][4], int h, F f) {
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = h * GPU_LANE_ELEMENTS; e < (h + 1) * GPU_LANE_ELEMENTS; e++)
            f(gpu_key_of(n, e), x[n][e]);
}

/* f(i, x, y) for each two numbers of row h of a block of out that lie side by side, elements i and
 * i + 1 of D. */
template <int D, int N, typename F> GPU_FN void gpu_for_each_pair(float (&x)[N][4], int h, F f) {
    const int lane = gpu_lane();
#pragma unroll
    for (int r = 0; r < gpu_runs<D>; r++)
#pragma unroll
        for (int i = 0; i < gpu_run<D>; i += 2)
            f(gpu_run_first<D>(lane, r) + i, x[gpu_run_part(r, i)][gpu_run_place(r, h, i)],
              x[gpu_run_part(r, i + 1)][gpu_run_place(r, h, i + 1)]);
}

/* --- rows --- */

/* One number of each of a lane's rows. */
template <int M> using gpu_row_numbers = float[M][GPU_LANE_ROWS];

/* Joins a number of each lane that shares a row. */
template <typename T, typename F> GPU_FN T gpu_join_lanes(T x, F f) {
#pragma unroll
    for (int step = 1; step < GPU_ROW_LANES; step *= 2)
        x = f(x, gpu_shuffle_xor(x, step * GPU_ROW_STEP));
    return x;
}

GPU_FN float gpu_lanes_sum(float x) {
    return gpu_join_lanes(x, [](float a, float b) { return a + b; });
}

GPU_FN uint32_t gpu_lanes_or(uint32_t x) {
    return gpu_join_lanes(x, [](uint32_t a, uint32_t b) { return a | b; });
}

/* Joins N numbers, neighbours first: x[0] has them all. */
template <int N, typename F> GPU_FN float gpu_tree(float (&x)[N], F f) {
#pragma unroll
    for (int step = 1; step < N; step *= 2)
#pragma unroll
        for (int n = 0; n < N; n += 2 * step)
            x[n] = f(x[n], x[n + step]);
    return x[0];
}

/* Joins a lane's numbers of row h of a block: those of a part, then parts. */
template <int N, typename F> GPU_FN float gpu_join_row(const float (&x)[N][4], int h, F f) {
    float part[N];
#pragma unroll
    for (int n = 0; n < N; n++) {
        const float *of = x[n] + h * GPU_LANE_ELEMENTS;
        part[n] = f(of[0], of[1]);
        if constexpr (GPU_LANE_ELEMENTS > 2)
            part[n] = f(part[n], f(of[2], of[3]));
    }
    return gpu_tree(part, f);
}

/* The largest numbers of rows, of all lanes that share them. */
template <int M, int N>
GPU_FN void gpu_row_max(const float (&x)[M][N][4], gpu_row_numbers<M> &most) {
    gpu_for_each_row<M>([&](int m, int h) {
        most[m][h] = gpu_join_row(x[m], h, [](float a, float b) { return fmaxf(a, b); });
    });
    gpu_for_each_row<M>([&](int m, int h) {
        most[m][h] = gpu_join_lanes(most[m][h], [](float a, float b) { return fmaxf(a, b); });
    });
}

/* The sum of a lane's numbers of row h of a block. */
template <int N> GPU_FN float gpu_row_sum(const float (&x)[N][4], int h) {
    return gpu_join_row(x, h, [](float a, float b) { return a + b; });
}

/* Multiplies row h of a block. */
template <int N> GPU_FN void gpu_scale_row(float (&x)[N][4], int h, float by) {
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = h * GPU_LANE_ELEMENTS; e < (h + 1) * GPU_LANE_ELEMENTS; e++)
            x[n][e] *= by;
}

/* -infinity for keys that a row does not see: row(m, h) answers for row h of block m, and what it
 * returns for a key, counted from the lane's first. */
template <int M, int N, typename F> GPU_FN void gpu_mask(float (&x)[M][N][4], F row) {
    gpu_for_each_row<M>([&](int m, int h) {
        const auto sees = row(m, h);
        gpu_for_each_key(x[m], h, [&](int key, float &one) { one = sees(key) ? one : -INFINITY; });
    });
}

#ifdef GPU_QUERIES_LEFT
/* --- products --- */

/* M blocks of 16 rows, 16 columns of each, as left operands; at: gpu_operand_rows() of the first.
 */
template <int D, int M>
GPU_FN void gpu_load_rows(uint32_t (&a)[M][4], const char *tile, int at, int across) {
#pragma unroll
    for (int m = 0; m < M; m++)
        gpu_load_matrices(a[m], tile, gpu_moved<D>(at, m, across));
}

/* Columns 16 n.. of a product += rows by 16 columns. */
template <int DTYPE, int M, int N>
GPU_FN void gpu_mma_rows(float (&c)[M][N][4], int n, const uint32_t (&a)[M][4],
                         const uint32_t (&b)[4]) {
#pragma unroll
    for (int m = 0; m < M; m++) {
        gpu_mma<DTYPE>(c[m][2 * n], a[m], b);
        gpu_mma<DTYPE>(c[m][2 * n + 1], a[m], b + 2);
    }
}

#endif

#endif
