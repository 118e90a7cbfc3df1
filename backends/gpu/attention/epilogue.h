/* The end of a block's rows: sink, lse, division and store. */
#ifndef ROPEKIT_GPU_ATTENTION_EPILOGUE_H
#define ROPEKIT_GPU_ATTENTION_EPILOGUE_H

#include "backends/gpu/attention/query.h"

/* Element 0 of a row of out. */
template <int DTYPE>
GPU_FN typename gpu_element<DTYPE>::bits *gpu_attention_out(const rope_attention_call *call,
                                                            const rope_attention_sequence *s,
                                                            int64_t query, int64_t head) {
    const int64_t *stride = call->out_stride;
    return (typename gpu_element<DTYPE>::bits *)call->out + s->q_row * stride[0] +
           (s->q_first + query) * stride[1] + head * stride[2];
}

/* The lse of a row whose largest logit is in units of log 2. */
GPU_FN float gpu_lse(float largest, float sum) {
    return sum == 0 ? -INFINITY : fmaf(largest, GPU_LN_2, logf(sum));
}

/* Where a row's lse goes, NULL where the caller has no room for it. */
GPU_FN float *gpu_attention_lse(const rope_attention_call *call, const rope_attention_sequence *s,
                                int64_t query, int64_t head) {
    const int64_t *stride = call->lse_stride;
    return call->lse ? call->lse + s->q_row * stride[0] + (s->q_first + query) * stride[1] +
                           head * stride[2]
                     : NULL;
}

GPU_FN void gpu_attention_store_lse(const rope_attention_call *call,
                                    const rope_attention_sequence *s, int64_t query, int64_t head,
                                    float largest, float sum) {
    float *lse = gpu_attention_lse(call, s, query, head);
    if (lse)
        *gpu_global(lse) = gpu_lse(largest, sum);
}

/* As rope_table_entry(), of a list in global memory. */
GPU_FN float gpu_sink(int32_t dtype, const void *sinks, int64_t head) {
    const auto bits = gpu_global((const uint16_t *)sinks) + head;
    return dtype == ROPE_F32    ? gpu_global((const float *)sinks)[head]
           : dtype == ROPE_BF16 ? rope_from_bf16(*bits)
                                : rope_from_f16(*bits);
}

/* A head's sink joins a row's sum; returns what the row's elements are multiplied by. EXACT: by
 * exp2f, as results of splits are joined, else as a tile's weights. */
template <bool EXACT>
GPU_FN float gpu_join_sink(int32_t dtype, const void *sinks, int64_t head, float *largest,
                           float *sum) {
    if (!dtype)
        return 1;
    const float logit = gpu_sink(dtype, sinks, head), sink = GPU_LOG2_E * logit,
                one = logit == -INFINITY ? 0
                      : logit == logit   ? 1
                                         : logit,
                before = *largest, now = fmaxf(before, sink), base = now == -INFINITY ? 0 : now,
                kept = EXACT ? exp2f(before - base) : gpu_exp2(before - base),
                weight = EXACT ? exp2f(sink - base) : gpu_exp2(sink - base);
    *sum = fmaf(*sum, kept, one * weight);
    *largest = now;
    return kept;
}

/* Ends a row: stores its lse; what its elements are multiplied by, below 0 where it saw no key. */
template <bool EXACT>
GPU_FN float gpu_end_row(const rope_attention_problem *p, const rope_attention_call *call,
                         const rope_attention_sequence *s, int64_t query, int64_t head,
                         float largest, float sum) {
    const float kept = gpu_join_sink<EXACT>(p->sink_dtype, call->sinks, head, &largest, &sum);
    gpu_attention_store_lse(call, s, query, head, largest, sum);
    return sum == 0 ? -1 : kept / sum;
}

/* Two elements of such a row as they are stored. */
template <int DTYPE> GPU_FN uint32_t gpu_end_pair(float x, float y, float factor) {
    const uint32_t two = gpu_join<DTYPE>(fmaf(x, factor, 0.0f), fmaf(y, factor, 0.0f));
    return factor < 0 ? 0 : two;
}

/* Ends a row, one a lane: what its elements are multiplied by, and where they go. */
template <int ROWS> GPU_FN void gpu_tile_end_row(const gpu_tile_call &t) {
    const int lane = gpu_lane(), row = gpu_warp_row<ROWS>() + lane;
    const rope_attention_sequence *s = &t.b->tile.s;
    int64_t query, head;
    gpu_tile_end *end = t.b->ends + gpu_thread();
    end->out = GPU_TILE_NOWHERE;
    if (lane >= 16 * gpu_row_blocks<ROWS> || !gpu_tile_query(t, row, &query, &head) ||
        t.b->begin[row] == INT32_MAX)
        return;
    const int64_t *out = gpu_reread(t.call)->out_stride;
    end->out = s->q_row * out[0] + (s->q_first + query) * out[1] + head * out[2];
    end->factor = gpu_end_row<false>(
        gpu_reread(t.p), gpu_reread(t.call), s, query, head,
        gpu_sums_of<ROWS>(t, gpu_row_lanes(lane)).largest[lane / 16][gpu_held_row(lane)],
        gpu_tile_sum<ROWS>(t.b->sums + gpu_thread(), lane));
}

/* Elements of a row of a thread's to out. */
template <int DTYPE, int D, int ROWS>
GPU_FN void gpu_tile_store(const gpu_tile_call &t, int m, int h, gpu_tile_rows<D, ROWS> &rows) {
    const int lane = gpu_lane();
    const gpu_tile_end end = t.b->ends[gpu_thread() - lane + 16 * m + gpu_row_of(lane, h)];
    if (end.out == GPU_TILE_NOWHERE)
        return;
    uint16_t *out = (uint16_t *)gpu_reread(t.call)->out + end.out;
    gpu_for_each_pair<D>(rows.out[m], h, [&](int i, float x, float y) {
        const uint32_t two = gpu_end_pair<DTYPE>(x, y, end.factor);
        if (gpu_fits(t, GPU_TILE_OUT)) {
            *(uint32_t *)(out + i) = two;
        } else if (i < gpu_reread(t.p)->v_head_dim) {
            const int64_t stride = gpu_reread(t.call)->out_stride[3];
            out[i * stride] = (uint16_t)two;
            out[(i + 1) * stride] = (uint16_t)(two >> 16);
        }
    });
}

template <int DTYPE, int D, int ROWS>
GPU_FN void gpu_tile_finish(const gpu_tile_call &t, gpu_tile_rows<D, ROWS> &rows) {
    gpu_tile_end_row<ROWS>(t);
    gpu_warp_barrier();
    gpu_for_each_row<gpu_row_blocks<ROWS>>(
        [&](int m, int h) { gpu_tile_store<DTYPE, D, ROWS>(t, m, h, rows); });
}

#endif
