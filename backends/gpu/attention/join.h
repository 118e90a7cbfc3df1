/* The kernel that joins the results of splits. */
#ifndef ROPEKIT_GPU_ATTENTION_JOIN_H
#define ROPEKIT_GPU_ATTENTION_JOIN_H

#include "backends/gpu/attention/split_keys.h"

/* Largest logits, sums and weights of a row's parts, and the row's own. */
enum { GPU_PARTS_MOST = 64 };
static_assert((int)GPU_SPLITS_MOST <= (int)GPU_PARTS_MOST, "parts of a row");
struct gpu_row_parts {
    float part_largest[GPU_PARTS_MOST], part_sum[GPU_PARTS_MOST], weight[GPU_PARTS_MOST];
    float largest, sum;
};

/* Weighs parts; of all threads, with a barrier before and behind. */
GPU_FN void gpu_parts_weigh(gpu_row_parts *j, int count) {
    const int part = (int)threadIdx.x;
    __syncthreads();
    if (part < count) {
        float most = -INFINITY;
#pragma unroll 8
        for (int n = 0; n < count; n++)
            most = fmaxf(most, j->part_largest[n]);
        j->weight[part] = exp2f(j->part_largest[part] - (most == -INFINITY ? 0 : most));
        if (part == 0)
            j->largest = most;
    }
    __syncthreads();
    if (part == 0) {
        float sum = 0;
        bool left_out = false;
#pragma unroll 8
        for (int n = 0; n < count; n++) {
            left_out |= j->part_sum[n] == GPU_PART_LEFT_OUT;
            sum = fmaf(j->weight[n], j->part_sum[n], sum);
        }
        j->sum = left_out ? GPU_PART_LEFT_OUT : sum;
    }
    __syncthreads();
}

/* An element of a row from those of its parts. */
template <typename PART>
GPU_FN float gpu_parts_joined(const float *weight, PART part, int count, int64_t stride) {
    float out = 0;
#pragma unroll 16
    for (int n = 0; n < count; n++)
        out = fmaf(weight[n], part[n * stride], out);
    return out;
}

/* Grid x strides over sequences and their queries, y over heads. */
template <int DTYPE>
__global__ void __launch_bounds__(GPU_ATTENTION_THREADS, 1)
    gpu_attention_join(GPU_PARAMETER rope_attention_problem problem,
                       GPU_PARAMETER rope_attention_call given, gpu_attention_parts parts) {
    const rope_attention_problem &p = *gpu_parameter<rope_attention_problem>(problem);
    const rope_attention_call &call =
        *gpu_parameter<rope_attention_call, rope_attention_problem>(given);
    __shared__ gpu_row_parts j;
    gpu_wait_for_last();
    gpu_let_next_start();
    const int64_t heads = call.rope.tensor[0].heads;
    const int dv = p.v_head_dim;
    for (int64_t n = blockIdx.x; n < rope_attention_sequences(&call) * parts.queries;
         n += gridDim.x) {
        const int64_t query = n % parts.queries;
        const rope_attention_sequence s = rope_attention_sequence_of(
            gpu_reread(&p), gpu_reread(&call), gpu_own(n / parts.queries));
        if (s.fails || query >= s.q_count || !gpu_is_split(parts, &s))
            continue;
        const rope_key_range used = gpu_splits_used(gpu_reread(&p), &s);
        const int count = (int)(used.end - used.begin), thread = (int)threadIdx.x;
        if (count <= 1)
            continue;
        for (int64_t head = blockIdx.y; head < heads; head += gridDim.y) {
            const auto part = gpu_part(parts, s.index, query, head, heads, 0, dv);
            __syncthreads();
            if (thread < count) {
                j.part_largest[thread] = part[thread * (dv + 2) + dv];
                j.part_sum[thread] = part[thread * (dv + 2) + dv + 1];
            }
            gpu_parts_weigh(&j, count);
            for (int i = thread; i < dv && j.sum != GPU_PART_LEFT_OUT; i += GPU_ATTENTION_THREADS)
                gpu_split_store<DTYPE>(gpu_reread(&p), gpu_reread(&call), &s, query, head, i,
                                       gpu_parts_joined(j.weight, part + i, count, dv + 2),
                                       j.largest, j.sum);
        }
    }
}

#endif
