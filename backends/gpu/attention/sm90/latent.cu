/* Latent attention by the matrix products of sm_90a. */
#include "backends/gpu/attention/sm90/latent.h"

GPU_FN void sm90_latent_start(const sm90_latent_block &b) {
    sm90_barrier_init(SM90_BARRIER(b, queries, 0), 1);
    for (int i = 0; i < 2; i++) {
        sm90_barrier_init(SM90_BARRIER(b, full, i), 1);
        sm90_barrier_init(SM90_BARRIER(b, weighed, i), 128);
        sm90_barrier_init(SM90_BARRIER(b, empty, i), 8); /* warps that add values */
    }
    sm90_barriers_begun();
}

/* Finds the block's work, as gpu_latent_find() does: of [split of a sequence, query, heads]. */
GPU_FN bool sm90_latent_take(sm90_latent_block &b, const int32_t *failed) {
    gpu_attention_tile *tile = &b.header->tile;
    const int64_t group = gpu_attention_group(b.call), blocks = GPU_SM90_LATENT_BLOCKS(group),
                  n = blockIdx.x, first = n % blocks;
    gpu_split_work w = {};
    if (!gpu_split_find<true>(b.p, b.call, failed, *b.parts, SM90_LATENT_VALUE_DIM,
                              n / (b.parts->queries * blocks), tile, &w))
        return false;
    b.query = n % (b.parts->queries * blocks) / blocks;
    if (!w.valid || b.query >= tile->s.q_count)
        return false;
    const rope_key_range seen =
        gpu_within(rope_keys_seen(b.p, &tile->s, rope_query_index(&tile->s, b.query)),
                   gpu_split_of(b.p, &tile->s, w.split, b.parts->longer));
    const int64_t base = seen.begin / SM90_LATENT_KEYS * SM90_LATENT_KEYS,
                  head = first * SM90_LATENT_ROWS;
    b.base = (int)base;
    b.begin = (int)(seen.begin - base);
    b.end = (int)(seen.end - base);
    b.key_head = w.head;
    b.head = w.head * group + head;
    b.rows = (int)(group - head < SM90_LATENT_ROWS ? group - head : (int64_t)SM90_LATENT_ROWS);
    b.part = w.part;
    b.alone = w.alone;
    return true;
}

template <int DTYPE>
__global__ void __launch_bounds__(SM90_LATENT_THREADS, 1)
    gpu_attention_latent(const __grid_constant__ CUtensorMap queries,
                         const __grid_constant__ CUtensorMap keys, int box,
                         GPU_PARAMETER rope_attention_problem problem,
                         GPU_PARAMETER rope_attention_call call, const int32_t *failed,
                         GPU_PARAMETER gpu_attention_parts parts) {
    extern __shared__ __align__(1024) char sm90_memory[];
    const uint32_t memory = (uint32_t)__cvta_generic_to_shared(sm90_memory) + SM90_HEADER;
    sm90_latent_block b = {&problem, &call,
                           &parts,   (sm90_latent_header *)(void *)sm90_memory,
                           memory,   memory + SM90_LATENT_TILE};
    b.box = box;
    if (threadIdx.x == 0) {
        sm90_prefetch_map(&queries);
        sm90_prefetch_map(&keys);
        sm90_latent_start(b);
    }
    gpu_wait_for_last();
    gpu_let_next_start();
    if (!sm90_latent_take(b, failed))
        return;
    __syncthreads();
    const int group = __shfl_sync(~0u, (int)threadIdx.x / 128, 0);
    if (group == 0) {
        sm90_registers_fewer<112>();
        sm90_latent_rate<DTYPE>(b);
    } else if (group < 3) {
        sm90_registers_more<176>();
        sm90_latent_sum<DTYPE>(b, group - 1);
    } else {
        sm90_registers_fewer<40>();
        if (threadIdx.x % 128 < 32)
            sm90_latent_load(b, &queries, &keys);
    }
}

const void *const gpu_attention_sm90_latent_kernels[2] = {
    GPU_KERNEL(gpu_attention_latent<ROPE_F16>), GPU_KERNEL(gpu_attention_latent<ROPE_BF16>)};
