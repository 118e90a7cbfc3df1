/* The end of rows: division, rounding, sinks, lse. A thread has rows r and r + 8 of a warp's 16:
 * element i of 64 is column i / 4 * 8 + thread % 4 * 2 + i % 2 of row i / 2 % 2, as products leave
 * them. */
#ifndef ROPEKIT_GPU_ATTENTION_SM90_EPILOGUE_H
#define ROPEKIT_GPU_ATTENTION_SM90_EPILOGUE_H

#include "backends/gpu/attention/epilogue.h"
#include "backends/gpu/attention/sm90/nonfinite.h"

/* A thread's two rows: the maximum of scores, the sum of its share of weights, and the factor of
 * the next rescale. */
struct sm90_rows {
    float most[2], sum[2], rescale[2];
    int moves; /* where they are ORDERED: the warp has a rescale that is not 1 */
};

GPU_FN void sm90_begin(sm90_rows &rows, float lowest) {
    rows.most[0] = rows.most[1] = lowest;
    rows.sum[0] = rows.sum[1] = 0.0f;
}

/* The factor of a row's elements, and its lse; of a row that is not there, 0. */
GPU_FN float sm90_factor(const sm90_block &b, const sm90_tile *t, int row, float most, float sum,
                         float *lse) {
    float kept = 1.0f;
    sum = sum + __shfl_xor_sync(~0u, sum, 1);
    sum = sum + __shfl_xor_sync(~0u, sum, 2);
    most = most * b.schedule->unit;
    if (b.schedule->has_sinks && row < t->rows)
        kept = gpu_join_sink<false>(b.p->sink_dtype, b.call->sinks,
                                    t->head + (row & ((1 << b.schedule->pack) - 1)), &most, &sum);
    *lse = (most + sm90_log2(sum)) * GPU_LN_2;
    return sum == 0.0f || row >= t->rows ? 0.0f : kept * sm90_reciprocal(sum);
}

/* Behind the fence of a tile's results, which would wait for it. */
GPU_FN void sm90_store_lse(const sm90_block &b, const sm90_tile *t, int row, float lse) {
    const int pack = b.schedule->pack;
    if (threadIdx.x % 4 == 0 && t->lse && row < t->rows)
        t->lse[(row >> pack) * b.schedule->lse_stride[1] +
               (row & ((1 << pack) - 1)) * b.schedule->lse_stride[2]] = lse;
}

/* Element 0 of a row's result. */
GPU_FN char *sm90_result(const sm90_block &b, const sm90_tile *t, int row) {
    const int64_t *stride = b.call->out_stride;
    const int pack = b.schedule->pack;
    return (char *)b.call->out +
           2 * (t->q_row * stride[0] + (t->q_token + (row >> pack)) * stride[1] +
                (t->head + (row & ((1 << pack) - 1))) * stride[2]);
}

/* Rows of a consumer in shared memory, from there to where they go, one by one. */
template <class T>
GPU_FN void sm90_copy_rows(const sm90_block &b, const sm90_tile *t, int consumer) {
    const int thread = (int)threadIdx.x & 127;
    const int chunks = b.p->v_head_dim / 8;
    for (int i = thread; i < 64 * chunks; i += 128) {
        const int row = i / chunks, chunk = i % chunks, at = consumer * 64 + row;
        if (at >= t->rows)
            return;
        const uint4 eight = sm90_read(sm90_results<T>(b, consumer) + sm90_chunk(64, row, chunk));
        *(uint4 *)(void *)(sm90_result(b, t, at) + 16 * chunk) = eight;
    }
}

/* Divides and rounds elements of both rows in columns 8 j to 8 j + 15. */
template <class T>
GPU_FN void sm90_round(const float (&out)[T::ELEMENTS], const float (&factor)[2], int j,
                       uint32_t (&two)[4], uint32_t (&largest)[4]) {
#pragma unroll
    for (int k = 0; k < 4; k++)
        two[k] = sm90_join<T::DTYPE>(out[4 * j + 2 * k] * factor[k & 1],
                                     out[4 * j + 2 * k + 1] * factor[k & 1]);
#pragma unroll
    for (int k = 0; k < 4; k++)
        largest[k] = sm90_largest<T::DTYPE>(largest[k], two[k]);
}

/* Stores through shared memory; the copy is waited for at the end of the next rows. */
template <class T>
GPU_FN void sm90_store_tile(const sm90_block &b, sm90_tile *t, const CUtensorMap *map, int consumer,
                            const float (&factor)[2], const float (&out)[T::ELEMENTS]) {
    const int thread = (int)threadIdx.x & 127, lane = thread % 32, pack = b.schedule->pack,
              r = thread / 32 * 16 + lane % 16, c = lane / 16;
    uint32_t largest[4] = {};
    if (thread == 0)
        sm90_stores_read();
    sm90_group_barrier(consumer);
#pragma unroll
    for (int j = 0; j < T::V_DIM / 8; j += 2) {
        uint32_t two[4];
        sm90_round<T>(out, factor, j, two, largest);
        sm90_store_matrices(sm90_results<T>(b, consumer) + sm90_chunk(64, r, j + c), two[0], two[1],
                            two[2], two[3]);
    }
    sm90_writes_known();
    for (int k = 1; k < 4; k++)
        largest[0] = sm90_largest<T::DTYPE>(largest[0], largest[k]);
    sm90_tell_again(b, t, !sm90_nonfinite<T::DTYPE>(largest[0]));
    sm90_group_barrier(consumer);
    if (t->rows < SM90_ROWS) {
        sm90_copy_rows<T>(b, t, consumer);
        sm90_group_barrier(consumer);
    } else if (thread == 0) {
        sm90_store_heads(sm90_results<T>(b, consumer), map,
                         {t->head, t->q_token + (consumer * 64 >> pack), t->q_row}, T::V_DIM / 64,
                         64);
    }
}

/* Stores straight from registers. Lanes exchange pairs of two elements, so that four of them write
 * 32 bytes of a row that lie side by side. */
template <class T>
GPU_FN void sm90_store_pairs(const sm90_block &b, sm90_tile *t, int row, const float (&factor)[2],
                             const float (&out)[T::ELEMENTS]) {
    const int lane = (int)threadIdx.x % 4, odd = lane & 1;
    char *const to[2] = {sm90_result(b, t, row) + 4 * (lane + 3 * odd),
                         sm90_result(b, t, row + 8) + 4 * (lane + 3 * odd)};
    uint32_t largest[4] = {};
#pragma unroll
    for (int j = 0; j < T::V_DIM / 8; j += 2) {
        uint32_t two[4];
        sm90_round<T>(out, factor, j, two, largest);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint32_t kept = odd ? two[h + 2] : two[h],
                           got = __shfl_xor_sync(~0u, odd ? two[h] : two[h + 2], 1);
            if (row + 8 * h < t->rows && 8 * (j + odd) < b.p->v_head_dim)
                *(uint2 *)(void *)(to[h] + 16 * j) = odd ? uint2{got, kept} : uint2{kept, got};
        }
    }
    for (int k = 1; k < 4; k++)
        largest[0] = sm90_largest<T::DTYPE>(largest[0], largest[k]);
    sm90_tell_again(b, t, !sm90_nonfinite<T::DTYPE>(largest[0]));
}

/* Ends rows: divides, rounds and stores. */
template <class T>
GPU_FN void sm90_end(const sm90_block &b, sm90_tile *t, const CUtensorMap *map, int consumer,
                     const sm90_rows &rows, float (&out)[T::ELEMENTS]) {
    const int thread = (int)threadIdx.x & 127,
              row = consumer * 64 + thread / 32 * 16 + thread % 32 / 4;
    float factor[2], lse[2];
#pragma unroll
    for (int h = 0; h < 2; h++)
        factor[h] = sm90_factor(b, t, row + 8 * h, rows.most[h], rows.sum[h], &lse[h]);
    if (__any_sync(~0u, factor[0] == 0.0f || factor[1] == 0.0f))
#pragma unroll
        for (int i = 0; i < T::ELEMENTS; i++)
            out[i] = factor[i >> 1 & 1] == 0.0f ? 0.0f : out[i]; /* else -0, or NaN */
    if (T::QUERIES == 2)
        sm90_store_tile<T>(b, t, map, consumer, factor, out);
    else
        sm90_store_pairs<T>(b, t, row, factor, out);
    if (b.schedule->lse)
#pragma unroll
        for (int h = 0; h < 2; h++)
            sm90_store_lse(b, t, row + 8 * h, lse[h]);
}

#endif
