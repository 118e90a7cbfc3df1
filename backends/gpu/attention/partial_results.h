/* Results of splits of a sequence's keys, and how they are joined, in the order of splits. */
#ifndef ROPEKIT_GPU_ATTENTION_PARTIAL_RESULTS_H
#define ROPEKIT_GPU_ATTENTION_PARTIAL_RESULTS_H

#include "backends/gpu/attention/epilogue.h"

/* A partial result of a row: `dv` elements of out, not divided, the largest logit in units of log
 * 2, and the sum. */
GPU_FN auto gpu_part(const gpu_attention_parts &parts, int64_t sequence, int64_t query,
                     int64_t head, int64_t heads, int64_t split, int dv) {
    return gpu_global(parts.at) +
           (((sequence * parts.queries + query) * heads + head) * parts.splits + split) * (dv + 2);
}

/* The sum of a part whose row is left out. */
constexpr float GPU_PART_LEFT_OUT = -1;

/* Writes element i of it, and what belongs to the row. */
template <typename PART>
GPU_FN void gpu_store_part(PART part, int dv, int i, float out, float largest, float sum) {
    part[i] = out;
    if (i == 0) {
        part[dv] = largest;
        part[dv + 1] = sum;
    }
}

/* N elements of a row, not divided, and the row's largest logit and sum, GPU_PART_LEFT_OUT where a
 * part's is. */
template <int N> struct gpu_joined { float out[N], largest, sum; };

template <int N>
GPU_FN void gpu_join_part(gpu_joined<N> &row, float largest, float sum, const float out[N]) {
    const float weight = exp2f(largest - (row.largest == -INFINITY ? 0 : row.largest));
    row.sum = fmaf(weight, sum, row.sum);
    gpu_repeat<N>([&](int n) { row.out[n] = fmaf(weight, out[n], row.out[n]); });
}

/* Joins elements i, i + step... of parts, which have dv elements and two more and are asked for
 * many at a time. */
template <int N, typename PART>
GPU_FN gpu_joined<N> gpu_join(PART part, int i, int step, int dv, int count) {
    enum { MANY = 16 };
    gpu_joined<N> row = {{}, -INFINITY, 0};
    bool left_out = false;
#pragma unroll 1
    for (int first = 0; first < count; first += MANY) {
        float largest[MANY];
        gpu_repeat<MANY>([&](int m) {
            largest[m] = first + m < count ? part[(first + m) * (dv + 2) + dv] : -INFINITY;
        });
        gpu_repeat<MANY>([&](int m) { row.largest = fmaxf(row.largest, largest[m]); });
    }
#pragma unroll 1
    for (int first = 0; first < count; first += MANY) {
        float largest[MANY], sum[MANY], out[MANY][N];
        gpu_repeat<MANY>([&](int m) {
            const auto at = part + (first + m) * (dv + 2);
            const bool there = first + m < count;
            largest[m] = there ? at[dv] : -INFINITY;
            sum[m] = there ? at[dv + 1] : 0;
            gpu_repeat<N>([&](int n) { out[m][n] = there ? at[i + n * step] : -0.0f; });
        });
        gpu_repeat<MANY>([&](int m) {
            left_out |= sum[m] == GPU_PART_LEFT_OUT;
            gpu_join_part<N>(row, largest[m], sum[m], out[m]);
        });
    }
    row.sum = left_out ? GPU_PART_LEFT_OUT : row.sum;
    return row;
}

/* Ends element i of a row whose results are joined; lse: the row's, or NULL. */
template <int DTYPE>
GPU_FN void gpu_end_joined(int32_t sink_dtype, const void *sinks, int64_t head, int i, float out,
                           float largest, float sum, typename gpu_element<DTYPE>::bits *to,
                           float *lse) {
    out *= gpu_join_sink<true>(sink_dtype, sinks, head, &largest, &sum);
    *gpu_global(to) = gpu_narrow<DTYPE>(sum == 0 ? 0 : out / sum);
    if (lse && i == 0)
        *gpu_global(lse) = gpu_lse(largest, sum);
}

template <int DTYPE>
GPU_FN void gpu_split_store(const rope_attention_problem *p, const rope_attention_call *call,
                            const rope_attention_sequence *s, int64_t query, int64_t head, int i,
                            float out, float largest, float sum) {
    gpu_end_joined<DTYPE>(p->sink_dtype, call->sinks, head, i, out, largest, sum,
                          gpu_attention_out<DTYPE>(call, s, query, head) + i * call->out_stride[3],
                          gpu_attention_lse(call, s, query, head));
}

#endif
