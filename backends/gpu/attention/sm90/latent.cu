/* Latent attention by the matrix products of sm_90a. */
#include "backends/gpu/attention/sm90/latent_work.h"

/* ROWS: keys are gathered. */
template <int DTYPE, bool ROWS>
__global__ void __launch_bounds__(SM90_LATENT_THREADS, 1)
    gpu_attention_latent(const __grid_constant__ CUtensorMap queries,
                         const __grid_constant__ CUtensorMap keys, int box,
                         GPU_PARAMETER rope_attention_problem problem,
                         GPU_PARAMETER rope_attention_call call, const int32_t *failed,
                         GPU_PARAMETER gpu_attention_parts parts) {
    extern __shared__ __align__(1024) char sm90_memory[];
    sm90_latent_block b = sm90_latent_block_of(&problem, &call, &parts, box, sm90_memory);
    const int group = __shfl_sync(~0u, (int)threadIdx.x / 128, 0);
    if (threadIdx.x == 0) {
        sm90_prefetch_map(&queries);
        sm90_prefetch_map(&keys);
        sm90_latent_start(b);
    }
    gpu_wait_for_last();
    gpu_let_next_start();
    if (threadIdx.x / 32 == SM90_LATENT_LOADER) {
        const sm90_latent_item found = sm90_latent_take(b, failed);
        if (threadIdx.x % 32 == 0)
            b.header->item = found;
    }
    __syncthreads();
    b.at = b.header->item;
    if (!b.at.found)
        return;
    if (group == 0) {
        sm90_registers_fewer<112>();
        sm90_latent_rate<DTYPE>(b, sm90_latent_plain{});
    } else if (group < 3) {
        sm90_registers_more<176>();
        sm90_latent_sum<DTYPE>(b, group - 1);
    } else {
        sm90_registers_fewer<40>();
        if (threadIdx.x / 32 == SM90_LATENT_LOADER)
            sm90_latent_load<ROWS>(b, &queries, &keys);
    }
}

/* --- the join --- */

/* A row's weights of its parts, by one warp; what their sum is multiplied by, where it is kept. */
struct sm90_latent_joined {
    float weight[2 * 32], factor;
    int32_t count; /* 0: nothing is joined */
};

/* Parts are at most as many as weights. */
template <typename PART>
GPU_FN void sm90_latent_weights(const rope_attention_problem *p, const rope_attention_call *call,
                                const rope_attention_sequence *s, int query, int head, PART parts,
                                int count, sm90_latent_joined *to) {
    const int lane = (int)threadIdx.x;
    float top[2], sum[2], most, all = 0;
    bool left_out = false;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const bool there = lane + 32 * i < count;
        const auto at =
            parts + (lane + 32 * i) * (SM90_LATENT_VALUE_DIM + 2) + SM90_LATENT_VALUE_DIM;
        top[i] = there ? at[0] : -INFINITY;
        sum[i] = there ? at[1] : 0;
        left_out |= sum[i] == GPU_PART_LEFT_OUT;
    }
    most = fmaxf(top[0], top[1]);
    for (int d = 16; d > 0; d /= 2)
        most = fmaxf(most, __shfl_xor_sync(~0u, most, d));
#pragma unroll
    for (int i = 0; i < 2; i++) {
        to->weight[lane + 32 * i] = exp2f(top[i] - (most == -INFINITY ? 0 : most));
        all = fmaf(to->weight[lane + 32 * i], sum[i], all);
    }
    for (int d = 16; d > 0; d /= 2)
        all += __shfl_xor_sync(~0u, all, d);
    left_out = __any_sync(~0u, left_out);
    if (lane > 0)
        return;
    to->count = left_out ? 0 : count;
    if (!left_out)
        to->factor = gpu_end_row<true>(p, call, s, query, head, most, all);
}

/* A block has a head of a query, a thread four elements. */
template <int DTYPE>
__global__ void __launch_bounds__(GPU_ATTENTION_THREADS)
    gpu_attention_latent_join(GPU_PARAMETER rope_attention_problem problem,
                              GPU_PARAMETER rope_attention_call call,
                              GPU_PARAMETER gpu_attention_parts parts) {
    enum { MANY = 16, HALF = SM90_LATENT_VALUE_DIM / 2 };
    __shared__ sm90_latent_joined row;
    __shared__ rope_attention_sequence s;
    const int query = (int)(blockIdx.x % parts.queries), head = (int)blockIdx.y,
              sequence = (int)(blockIdx.x / parts.queries), first = 2 * (int)threadIdx.x;
    const auto part =
        gpu_part(parts, sequence, query, head, call.rope.tensor[0].heads, 0, SM90_LATENT_VALUE_DIM);
    int splits = 0;
    if (threadIdx.x < 32) { /* of what was there before the launch that made parts */
        const rope_attention_sequence own = rope_attention_sequence_of(&problem, &call, sequence);
        if (!own.fails && query < own.q_count && gpu_is_split(parts, &own))
            splits = sm90_latent_split(&problem, &own).count;
        if (threadIdx.x == 0) {
            s = own;
            row.count = 0;
        }
    }
    gpu_wait_for_last();
    gpu_let_next_start();
    __syncthreads();
    if (splits > 1)
        sm90_latent_weights(&problem, &call, &s, query, head, part, splits, &row);
    __syncthreads();
    const int count = row.count;
    float2 sum[2] = {};
#pragma unroll 1
    for (int n = 0; n < count; n += MANY) {
        float2 x[MANY][2];
#pragma unroll
        for (int i = 0; i < 2 * MANY; i++)
            x[i / 2][i % 2] =
                n + i / 2 < count
                    ? *(const float2 *)(const void *)(part + first + i % 2 * HALF +
                                                      (n + i / 2) * (SM90_LATENT_VALUE_DIM + 2))
                    : float2{0, 0};
#pragma unroll
        for (int i = 0; i < 2 * MANY; i++) {
            const float weight = row.weight[n + i / 2];
            sum[i % 2].x = fmaf(weight, x[i / 2][i % 2].x, sum[i % 2].x);
            sum[i % 2].y = fmaf(weight, x[i / 2][i % 2].y, sum[i % 2].y);
        }
    }
    if (count == 0)
        return;
    uint16_t *to = gpu_attention_out<DTYPE>(&call, &s, query, head) + first;
#pragma unroll
    for (int i = 0; i < 2; i++)
        *(uint32_t *)(void *)(to + i * HALF) = gpu_end_pair<DTYPE>(sum[i].x, sum[i].y, row.factor);
}

#define KERNELS(dtype, rows)                                                                       \
    {                                                                                              \
        GPU_KERNEL((gpu_attention_latent<dtype, rows>)),                                           \
            GPU_KERNEL(gpu_attention_latent_join<dtype>)                                           \
    }
const void *const gpu_attention_sm90_latent_kernels[2][2][2] = {
    {KERNELS(GPU_SM90_F16, false), KERNELS(GPU_SM90_F16, true)},
    {KERNELS(GPU_SM90_BF16, false), KERNELS(GPU_SM90_BF16, true)}};
