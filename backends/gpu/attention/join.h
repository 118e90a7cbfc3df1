/* The kernel that joins the results of splits. */
#ifndef ROPEKIT_GPU_ATTENTION_JOIN_H
#define ROPEKIT_GPU_ATTENTION_JOIN_H

#include "backends/gpu/attention/split_keys.h"

/* Joins a row's parts; threads of all blocks of its grid y have two elements each. */
template <int DTYPE>
GPU_FN void gpu_join_query(const rope_attention_problem *p, const rope_attention_call *call,
                           const gpu_attention_parts &parts, const rope_attention_sequence *s,
                           int64_t query, int count) {
    enum { N = 2 };
    const int64_t heads = call->rope.tensor[0].heads;
    const int dv = p->v_head_dim, step = (dv + N - 1) / N;
#pragma unroll 1
    for (int64_t e = blockIdx.y * GPU_ATTENTION_THREADS + threadIdx.x; e < heads * step;
         e += gridDim.y * GPU_ATTENTION_THREADS) {
        const int64_t head = e / step;
        const int first = (int)(e - head * step);
        const gpu_joined<N> row = gpu_join<N>(gpu_part(parts, s->index, query, head, heads, 0, dv),
                                              first, step, dv, count);
        if (row.sum == GPU_PART_LEFT_OUT)
            continue;
        gpu_repeat<N>([&](int n) {
            const int i = first + n * step;
            if (i < dv)
                gpu_split_store<DTYPE>(p, call, s, query, head, i, row.out[n], row.largest,
                                       row.sum);
        });
    }
}

/* Grid x strides over sequences, or where they are not packed over their queries, y over elements
 * of all heads. */
template <int DTYPE>
__global__ void __launch_bounds__(GPU_ATTENTION_THREADS, 4)
    gpu_attention_join(GPU_PARAMETER rope_attention_problem problem,
                       GPU_PARAMETER rope_attention_call given, gpu_attention_parts parts) {
    const rope_attention_problem &p = *gpu_parameter<rope_attention_problem>(problem);
    const rope_attention_call &call =
        *gpu_parameter<rope_attention_call, rope_attention_problem>(given);
    const int64_t every = call.rope.position.cu_seqlens ? 1 : parts.queries;
    gpu_wait_for_last();
    gpu_let_next_start();
    for (int64_t n = blockIdx.x; n < rope_attention_sequences(&call) * every; n += gridDim.x) {
        const rope_attention_sequence s =
            rope_attention_sequence_of(gpu_reread(&p), gpu_reread(&call), gpu_own(n / every));
        if (s.fails || !gpu_is_split(parts, &s))
            continue;
        const rope_key_range used = gpu_splits_used(gpu_reread(&p), &s);
        const int count = (int)(used.end - used.begin);
        for (int64_t query = n % every; count > 1 && query < s.q_count; query += every)
            gpu_join_query<DTYPE>(gpu_reread(&p), gpu_reread(&call), parts, &s, query, count);
    }
}

#endif
