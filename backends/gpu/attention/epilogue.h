/* The end of a block's rows: sink, lse, division and store. */
#ifndef ROPEKIT_GPU_ATTENTION_EPILOGUE_H
#define ROPEKIT_GPU_ATTENTION_EPILOGUE_H

#include "backends/gpu/attention/query.h"

/* Ends a row, one a lane: what its elements are multiplied by, and where they go. */
template <int ROWS> GPU_FN void gpu_tile_end_row(const gpu_tile_call &t) {
    const int lane = gpu_lane(), row = gpu_warp_row<ROWS>() + lane;
    const rope_attention_sequence *s = &t.b->tile.s;
    int64_t query, head;
    gpu_tile_end *end = t.b->ends + gpu_thread();
    end->out = GPU_TILE_NOWHERE;
    if (lane >= 16 * gpu_row_blocks<ROWS> || !gpu_tile_query(t, row, &query, &head) ||
        t.b->first[row] == INT32_MAX)
        return;
    float largest =
              gpu_sums_of<ROWS>(t, gpu_row_lanes(lane)).largest[lane / 16][gpu_held_row(lane)],
          sum = gpu_tile_sum<ROWS>(t.b->sums + gpu_thread(), lane), kept = 1;
    if (gpu_reread(t.p)->sink_dtype) {
        float one;
        const float sink = GPU_LOG2_E * gpu_attention_sink(gpu_reread(t.p)->sink_dtype,
                                                           gpu_reread(t.call)->sinks, head, &one),
                    now = fmaxf(largest, sink), base = now == -INFINITY ? 0 : now;
        kept = gpu_exp2(largest - base);
        sum = fmaf(sum, kept, one * gpu_exp2(sink - base));
        largest = now;
    }
    const int64_t *out = gpu_reread(t.call)->out_stride;
    end->factor = sum == 0 ? 0 : kept / sum;
    end->none = sum == 0;
    end->out = s->q_row * out[0] + (s->q_first + query) * out[1] + head * out[2];
    gpu_attention_store_lse(gpu_reread(t.call), s, query, head, largest, sum);
}

/* Elements of a row of a thread's to out. */
template <int DTYPE, int DV, int ROWS>
GPU_FN void gpu_tile_store(const gpu_tile_call &t, int m, int h,
                           const gpu_tile_rows<DV, ROWS> &rows) {
    const int lane = gpu_lane();
    const gpu_tile_end end = t.b->ends[gpu_thread() - lane + 16 * m + gpu_row_of(lane, h)];
    if (end.out == GPU_TILE_NOWHERE)
        return;
    uint16_t *out = (uint16_t *)gpu_reread(t.call)->out + end.out;
#pragma unroll
    for (int r = 0; r < gpu_runs<DV>; r++) {
#pragma unroll
        for (int at = 0; at < gpu_run<DV>; at += 2) {
            const int i = gpu_run_first<DV>(lane, r) + at;
            uint32_t two = gpu_join<DTYPE>(
                fmaf(gpu_run_element<DV, ROWS>(rows, m, r, h, at), end.factor, 0.0f),
                fmaf(gpu_run_element<DV, ROWS>(rows, m, r, h, at + 1), end.factor, 0.0f));
            two = end.none ? 0 : two;
            if (gpu_fits(t, GPU_TILE_OUT)) {
                *(uint32_t *)(out + i) = two;
            } else if (i < gpu_reread(t.p)->v_head_dim) {
                const int64_t stride = gpu_reread(t.call)->out_stride[3];
                out[i * stride] = (uint16_t)two;
                out[(i + 1) * stride] = (uint16_t)(two >> 16);
            }
        }
    }
}

template <int DTYPE, int DV, int ROWS>
GPU_FN void gpu_tile_finish(const gpu_tile_call &t, const gpu_tile_rows<DV, ROWS> &rows) {
    gpu_tile_end_row<ROWS>(t);
    gpu_warp_barrier();
#pragma unroll
    for (int m = 0; m < gpu_row_blocks<ROWS>; m++)
#pragma unroll
        for (int h = 0; h < GPU_LANE_ROWS; h++)
            gpu_tile_store<DTYPE, DV, ROWS>(t, m, h, rows);
}

#endif
