/* The end of rows: division, rounding, sinks, lse. A thread has rows r and r + 8 of a warp's 16:
 * element i of 64 is column i / 4 * 8 + thread % 4 * 2 + i % 2 of row i / 2 % 2, as products leave
 * them. */
#ifndef ROPEKIT_GPU_ATTENTION_SM90_EPILOGUE_H
#define ROPEKIT_GPU_ATTENTION_SM90_EPILOGUE_H

#include "backends/gpu/attention/epilogue.h"
#include "backends/gpu/attention/sm90/nonfinite.h"
#include "backends/gpu/attention/sm90/spans.h"

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

/* Takes a row's sink into its factor, and stores its lse. */
GPU_FN void sm90_end_row(const sm90_block &b, const sm90_tile *t, int row, float most, float sum,
                         float *factor) {
    row = gpu_opaque(row);
    const int pack = b.schedule->pack, head = row & ((1 << pack) - 1);
    if (row >= t->rows)
        return;
    if (b.schedule->has_sinks)
        *factor =
            gpu_join_sink<false>(b.p->sink_dtype, b.call->sinks, t->head + head, &most, &sum) *
            (sum == 0.0f ? 0.0f : sm90_reciprocal(sum));
    if (threadIdx.x % 4 == 0 && t->lse)
        t->lse[(row >> pack) * b.schedule->lse_stride[1] + head * b.schedule->lse_stride[2]] =
            (most + sm90_log2(sum)) * GPU_LN_2;
}

GPU_FN sm90_ended sm90_sum_rows(const sm90_block &b, const sm90_rows &rows) {
    sm90_ended ended;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float sum = rows.sum[h] + __shfl_xor_sync(~0u, rows.sum[h], 1);
        sum = sum + __shfl_xor_sync(~0u, sum, 2);
        ended.most[h] = rows.most[h] * b.schedule->unit;
        ended.sum[h] = sum;
        ended.factor[h] = sum == 0.0f ? 0.0f : sm90_reciprocal(sum);
    }
    return ended;
}

/* Takes in sinks, and stores lse. row: the thread's first. */
GPU_FN void sm90_end_rows(const sm90_block &b, const sm90_tile *t, int row, sm90_ended &ended) {
#pragma unroll
    for (int h = 0; h < 2; h++)
        sm90_end_row(b, t, row + 8 * h, ended.most[h], ended.sum[h], &ended.factor[h]);
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

/* Divides and rounds elements of both rows in columns 8 j to 8 j + 15; a row without keys has 0,
 * not -0. */
template <class T>
GPU_FN void sm90_round(const float (&out)[T::ELEMENTS], const float (&factor)[2], int j,
                       uint32_t (&two)[4]) {
#pragma unroll
    for (int k = 0; k < 4; k++)
        two[k] = sm90_join<T::DTYPE>(fmaf(out[4 * j + 2 * k], factor[k & 1], 0.0f),
                                     fmaf(out[4 * j + 2 * k + 1], factor[k & 1], 0.0f));
}

/* Stores through shared memory; the copy is waited for at the end of the next rows. */
template <class T>
GPU_FN void sm90_store_tile(const sm90_block &b, sm90_tile *t, const CUtensorMap *map, int consumer,
                            int whole, const float (&factor)[2], const float (&out)[T::ELEMENTS]) {
    const int own = (int)threadIdx.x & 127, thread = T::TALL || T::SPANS ? gpu_opaque(own) : own,
              lane = thread % 32, pack = b.schedule->pack, r = thread / 32 * 16 + lane % 16,
              c = lane / 16;
    if (thread == 0)
        sm90_stores_read();
    sm90_group_barrier<T>(consumer);
#pragma unroll
    for (int j = 0; j < T::V_DIM / 8; j += 2) {
        uint32_t two[4];
        sm90_round<T>(out, factor, j, two);
        sm90_store_matrices(sm90_results<T>(b, consumer) + sm90_chunk(64, r, j + c), two[0], two[1],
                            two[2], two[3]);
    }
    sm90_writes_known();
    sm90_group_barrier<T>(consumer);
    sm90_tell_by_row<T>(b, t, consumer);
    if (!T::SIMPLE && !whole) {
        sm90_copy_rows<T>(b, t, consumer);
        sm90_group_barrier<T>(consumer);
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
    uint32_t nothing = 0;
#pragma unroll
    for (int j = 0; j < T::V_DIM / 8; j += 2) {
        uint32_t two[4];
        sm90_round<T>(out, factor, j, two);
        nothing = sm90_add_nothing<T::DTYPE>(sm90_add_nothing<T::DTYPE>(nothing, two[0]), two[2]);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint32_t kept = odd ? two[h + 2] : two[h],
                           got = __shfl_xor_sync(~0u, odd ? two[h] : two[h + 2], 1);
            if (row + 8 * h < t->rows && 8 * (j + odd) < b.p->v_head_dim)
                *(uint2 *)(void *)(to[h] + 16 * j) = odd ? uint2{got, kept} : uint2{kept, got};
        }
    }
    sm90_tell(b, t, row, nothing);
}

/* Divides, rounds and stores rows. whole: a copy stores all that lie in the tensor. */
template <class T>
GPU_FN void sm90_store(const sm90_block &b, sm90_tile *t, const CUtensorMap *map, int consumer,
                       int row, int whole, const float (&factor)[2],
                       const float (&out)[T::ELEMENTS]) {
    if (T::QUERIES == 2)
        sm90_store_tile<T>(b, t, map, consumer, whole, factor, out);
    else
        sm90_store_pairs<T>(b, t, row, factor, out);
}

/* Ends rows, or a span of theirs. */
template <class T>
GPU_FN void sm90_end(const sm90_block &b, sm90_tile *t, const CUtensorMap *map, int consumer,
                     int row, int whole, const sm90_rows &rows, float (&out)[T::ELEMENTS]) {
    sm90_ended ended = sm90_sum_rows(b, rows);
    if (T::SPANS && !sm90_join_spans<T>(b, t, consumer, ended, out))
        return;
    if (!T::SIMPLE && !b.schedule->simple)
        sm90_end_rows(b, t, row, ended);
    sm90_store<T>(b, t, map, consumer, row, whole, ended.factor, out);
}

#endif
