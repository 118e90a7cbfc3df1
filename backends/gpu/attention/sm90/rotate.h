/* The rotation of queries in shared memory, with the bits of rope_apply. */
#ifndef ROPEKIT_GPU_ATTENTION_SM90_ROTATE_H
#define ROPEKIT_GPU_ATTENTION_SM90_ROTATE_H

#include "backends/gpu/attention/sm90/norm.h"

/* Queries of a tile that are there. */
GPU_FN int sm90_queries_of(const sm90_block &b, const sm90_tile *t) {
    return ((t->rows - 1) >> b.schedule->pack) + 1;
}

/* Angles of the queries of a tile. */
GPU_FN const float4 *sm90_angles_of(const sm90_block &b, const sm90_tile *t) {
    const sm90_rotation &r = b.schedule->rotation;
    return (const float4 *)(const void *)r.angles +
           (int64_t)(r.pairs / 2) * (t->q_row * (int64_t)r.row_step + t->q_token);
}

/* Queries whose angles, 16 KB at most, are read together by so many threads. */
template <class T> constexpr int sm90_fetched = 4096 / T::DIM;
enum { SM90_FETCHERS = 64 };

/* Reads the angles of some queries of a tile, a line of 128 bytes a load, into the L1: otherwise
 * each row that is rotated waits for the L2. Those who ask for the result wait for its loads. */
template <class T>
GPU_FN float2 sm90_fetch_angles(const sm90_block &b, const sm90_tile *t, int first, int thread) {
    const int queries = sm90_queries_of(b, t), bytes = b.schedule->rotation.pairs * 8;
    const char *from = (const char *)sm90_angles_of(b, t) + (int64_t)first * bytes;
    const int size = (min(queries, first + sm90_fetched<T>) - first) * bytes, one = thread * 128,
              two = (thread + SM90_FETCHERS) * 128;
    float2 line = {};
    if (one < size)
        line.x = __ldg((const float *)(const void *)(from + one));
    if (two < size)
        line.y = __ldg((const float *)(const void *)(from + two));
    return line;
}

GPU_FN void sm90_await_angles(const float2 &line) {
    asm volatile("" ::"f"(line.x), "f"(line.y) : "memory");
}

/* Rotates 8 pairs of ROWS rows of a query; one, other: addresses of their elements in row 0 of 8.
 */
template <int DTYPE, int ROWS>
GPU_FN void sm90_rotate_pairs(const sm90_angles &m, uint32_t one, uint32_t other, int row) {
    uint4 x[ROWS], y[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        const uint32_t swizzle = (uint32_t)((row + i) & 7) * 16, at = (uint32_t)(row + i) * 128;
        x[i] = sm90_read((one ^ swizzle) + at);
        y[i] = sm90_read((other ^ swizzle) + at);
    }
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        sm90_rotate_eight<DTYPE>(m, x[i], y[i]);
    }
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        const uint32_t swizzle = (uint32_t)((row + i) & 7) * 16, at = (uint32_t)(row + i) * 128;
        sm90_write((one ^ swizzle) + at, x[i]);
        sm90_write((other ^ swizzle) + at, y[i]);
    }
}

/* Normalises and rotates those of one row. */
template <class T>
GPU_FN void sm90_change_row(const sm90_norm &norm, float reciprocal, const sm90_angles &m,
                            uint32_t one, uint32_t other, int row, int lane) {
    const uint32_t swizzle = (uint32_t)(row & 7) * 16, at = (uint32_t)row * 128;
    sm90_pairs x;
    x.one = sm90_read((one ^ swizzle) + at);
    x.other = sm90_read((other ^ swizzle) + at);
    sm90_normalise<T::DTYPE>(reciprocal, sm90_weights(norm, T::DIM / 16, lane), x.one, x.other);
    sm90_rotate_eight<T::DTYPE>(m, x.one, x.other);
    sm90_write((one ^ swizzle) + at, x.one);
    sm90_write((other ^ swizzle) + at, x.other);
}

/* The sum of squares of N times 8 elements of a row, in the order of norms. */
template <class T, int N> GPU_FN float sm90_sum_of(uint32_t queries, int row, int chunk) {
    if constexpr (N == 1)
        return sm90_squares<T::DTYPE>(sm90_read(queries + sm90_chunk(T::ROWS, row, chunk)));
    else
        return sm90_sum_of<T, N / 2>(queries, row, chunk) +
               sm90_sum_of<T, N / 2>(queries, row, chunk + N / 2);
}

/* Reciprocals of rows first to end - 1, for those who rotate them. */
template <class T>
GPU_FN void sm90_find_norms(const sm90_block &b, float *norms, uint32_t queries, int first, int end,
                            int thread, int threads) {
#pragma unroll 1
    for (int row = first + thread; row < end; row += threads) {
        const float sum = sm90_sum_of<T, T::DIM / 8>(queries, row, 0);
        norms[row] = sm90_norm_reciprocal(sum, T::DIM, b.norm->eps);
    }
}

/* Rotates queries first to end - 1 of a tile. A thread has 8 pairs of some of them. norms: of
 * sm90_find_norms(), where there are some. */
template <class T>
GPU_FN void sm90_rotate(const sm90_block &b, const sm90_tile *t, uint32_t queries, int first,
                        int end, int thread, int threads, const float *norms) {
    const sm90_rotation &r = b.schedule->rotation;
    const int pack = b.schedule->pack, eights = r.pairs / 8, group = thread / eights,
              groups = threads / eights, at = r.from + thread % eights * 8;
    const uint32_t one = queries + sm90_chunk(T::ROWS, 0, at / 8),
                   other = queries + sm90_chunk(T::ROWS, 0, (at + r.pairs) / 8);
    const float4 *angles = sm90_angles_of(b, t) + thread % eights * 2;
#pragma unroll 1
    for (int query = first + group; group < groups && query < end; query += groups) {
        const float4 *from = angles + query * (r.pairs / 2);
        if constexpr (T::NORMS) { /* as many rows as registers hold */
            const sm90_angles m = sm90_read_angles(from, r.pairs);
#pragma unroll 1
            for (int row = query << pack; row < (query + 1) << pack; row++)
                sm90_change_row<T>(*b.norm, norms[row], m, one, other, row, thread % eights);
            continue;
        }
        const sm90_angles m = {{__ldg(from), __ldg(from + 1)},
                               {__ldg(from + r.pairs / 4), __ldg(from + r.pairs / 4 + 1)}};
        if (pack == 0)
            sm90_rotate_pairs<T::DTYPE, 1>(m, one, other, query);
#pragma unroll 1
        for (int i = 0; i < (1 << pack) - 1; i += 2)
            sm90_rotate_pairs<T::DTYPE, 2>(m, one, other, (query << pack) + i);
    }
    sm90_writes_known();
}

/* Writes rotated rows first to end - 1 of a tile to where the caller wants them. */
template <class T>
GPU_FN void sm90_write_queries(const sm90_block &b, const sm90_tile *t, uint32_t queries, int first,
                               int end, int thread, int threads) {
    const sm90_rotation &r = b.schedule->rotation;
    thread = gpu_opaque(thread);
    const int pack = b.schedule->pack, chunk = thread % (T::DIM / 8);
    char *const to = (char *)r.out + 2 * (t->q_row * r.out_stride[0] +
                                          t->q_token * r.out_stride[1] + t->head * r.out_stride[2]);
    if (chunk * 4 >= r.pairs)
        return;
#pragma unroll 2
    for (int row = first + thread / (T::DIM / 8); row < end; row += threads / (T::DIM / 8))
        *(uint4 *)(void *)(to +
                           2 * ((row >> pack) * r.out_stride[1] +
                                (row & ((1 << pack) - 1)) * r.out_stride[2]) +
                           16 * chunk) = sm90_read(queries + sm90_chunk(T::ROWS, row, chunk));
}

/* Rotates this consumer's rows of a block's first tile, when nobody else has something to do. */
template <class T> GPU_FN void sm90_rotate_first(const sm90_block &b, int tile, int consumer) {
    const sm90_tile *t = &b.header->tile[tile % SM90_KNOWN];
    const int pack = b.schedule->pack, first = consumer * 64 >> pack;
    float *norms = NULL;
    if constexpr (T::NORMS) { /* where results will lie */
        norms = (float *)(void *)((char *)b.header + SM90_HEADER +
                                  (sm90_results<T>(b, consumer) - b.memory)) -
                consumer * 64;
        sm90_find_norms<T>(b, norms, sm90_queries<T>(b, tile & 1), consumer * 64,
                           min(consumer * 64 + 64, t->rows), (int)threadIdx.x & 127, 128);
        sm90_group_barrier<T>(consumer);
    }
    sm90_rotate<T>(b, t, sm90_queries<T>(b, tile & 1), first,
                   min(first + (64 >> pack), sm90_queries_of(b, t)), (int)threadIdx.x & 127, 128,
                   norms);
    sm90_group_barrier<T>(consumer);
    if (!T::NORMS && b.schedule->rotation.out)
        sm90_write_queries<T>(b, t, sm90_queries<T>(b, tile & 1), consumer * 64,
                              min(consumer * 64 + 64, t->rows), (int)threadIdx.x & 127, 128);
}

#endif
