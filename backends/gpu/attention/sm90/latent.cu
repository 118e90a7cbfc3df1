/* Latent attention by the matrix products of sm_90a. */
#include "backends/gpu/attention/sm90/latent_join.h"

template <int DTYPE>
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
            sm90_latent_load(b, &queries, &keys);
    }
}

/* A block has a head of a query, a thread four elements. */
template <int DTYPE>
__global__ void __launch_bounds__(GPU_ATTENTION_THREADS)
    gpu_attention_latent_join(GPU_PARAMETER rope_attention_problem problem,
                              GPU_PARAMETER rope_attention_call call,
                              GPU_PARAMETER gpu_attention_parts parts) {
    __shared__ sm90_latent_joined row;
    __shared__ rope_attention_sequence s;
    const int query = (int)(blockIdx.x % parts.queries), head = (int)blockIdx.y,
              sequence = (int)(blockIdx.x / parts.queries);
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
    sm90_latent_join_row<DTYPE>(&call, &s, query, head, part, row, (int)threadIdx.x);
}

#define KERNELS(dtype)                                                                             \
    { GPU_KERNEL(gpu_attention_latent<dtype>), GPU_KERNEL(gpu_attention_latent_join<dtype>) }
const void *const gpu_attention_sm90_latent_kernels[2][2] = {KERNELS(GPU_SM90_F16),
                                                             KERNELS(GPU_SM90_BF16)};
