/* The kernel that decodes latents in one launch. */
#include "backends/gpu/decode/sm90/latent_join.h"

/* Whether the block caches the key of its query's token: that of the last split, whose first rows
 * it has. A sequence of more tokens than a call may have is left out. */
GPU_FN bool decode_latent_appends(const sm90_latent_block &b, const sm90_latent_item &at) {
    const rope_attention_sequence *s = &b.header->s;
    if (!gpu_is_split(*b.parts, s)) {
        gpu_attention_flag(b.call);
        return false;
    }
    return at.query < s->q_count && at.part == max(at.parts - 1, 0) &&
           at.head == at.key_head * (int)gpu_attention_group(b.call);
}

GPU_FN void decode_latent_find(const sm90_latent_block &b, const decode_latent &d) {
    const sm90_latent_item found = sm90_latent_take(b, NULL);
    if (threadIdx.x % 32 == 0) {
        b.header->item = found;
        d.header->appends = decode_latent_appends(b, found);
    }
}

/* The loader and those who wait for what it has found. */
GPU_FN void decode_latent_has_found(void) {
    asm volatile("bar.arrive 7, %0;" ::"n"((int)SM90_LATENT_THREADS) : "memory");
}

GPU_FN void decode_latent_await_found(void) {
    asm volatile("bar.sync 7, %0;" ::"n"((int)SM90_LATENT_THREADS) : "memory");
}

/* The groups that add values. joins: the launch joins splits. */
template <int DTYPE>
GPU_FN void decode_latent_sum(const sm90_latent_block &b, const decode_latent &d,
                              const decode_latent_made<DTYPE> &made, int group, int joins) {
    const bool is_joined = joins && b.at.parts > 1,
               counts = group == 1 && threadIdx.x % 128 == 0 && is_joined;
    unsigned long long *counter = counts ? decode_latent_counter(b, d) : NULL;
    if (counts)
        decode_latent_begin(counter);
    if (group == 0) {
        decode_latent_append<DTYPE>(b, d, made);
        __syncwarp();
        sm90_arrive_if(SM90_BARRIER(d, fresh, 0), threadIdx.x % 32 == 0);
    }
    if (b.at.found)
        sm90_latent_sum<DTYPE>(b, group);
    if (is_joined)
        decode_latent_join<DTYPE>(b, d, (int)threadIdx.x - 128, counter);
}

template <int DTYPE>
__global__ void __launch_bounds__(SM90_LATENT_THREADS, 1) gpu_decode_latent(
    const __grid_constant__ CUtensorMap queries, const __grid_constant__ CUtensorMap keys, int box,
    GPU_PARAMETER rope_attention_problem problem, GPU_PARAMETER rope_attention_call call,
    GPU_PARAMETER gpu_attention_parts parts, GPU_PARAMETER rope_append_problem append,
    GPU_PARAMETER rope_append_call tokens, unsigned long long *counters, int joins) {
    extern __shared__ __align__(1024) char sm90_memory[];
    sm90_latent_block b = sm90_latent_block_of(&problem, &call, &parts, box, sm90_memory);
    const decode_latent d = decode_latent_of(b, &append, &tokens, counters);
    const int group = __shfl_sync(~0u, (int)threadIdx.x / 128, 0);
    decode_latent_made<DTYPE> made;
    if (threadIdx.x == 0) {
        sm90_prefetch_map(&queries);
        sm90_prefetch_map(&keys);
        sm90_barrier_init(SM90_BARRIER(d, fresh, 0), GPU_LATENT_QUERIES);
        sm90_latent_start(b);
    }
    __syncthreads();
    gpu_wait_for_last();
    gpu_let_next_start();
    if (threadIdx.x / 32 == SM90_LATENT_LOADER) {
        decode_latent_find(b, d);
        __syncwarp();
        decode_latent_has_found();
    } else {
        if (group < 2)
            made = decode_latent_prepare<DTYPE>(b, d, group);
        decode_latent_await_found();
    }
    b.at = b.header->item;
    if (!b.at.found && !d.header->appends && (b.at.parts < 2 || !joins))
        return;
    if (group == 0) {
        sm90_registers_fewer<112>();
        if (b.at.found)
            sm90_latent_rate<DTYPE>(b, decode_latent_copied<DTYPE>{d, made.pairs});
    } else if (group < 3) {
        sm90_registers_more<176>();
        decode_latent_sum<DTYPE>(b, d, made, group - 1, joins);
    } else {
        sm90_registers_fewer<40>();
        if (threadIdx.x / 32 == SM90_LATENT_LOADER && b.at.found)
            sm90_latent_load(b, &queries, &keys);
    }
}

const void *const gpu_decode_latent_kernels[2] = {GPU_KERNEL(gpu_decode_latent<GPU_SM90_F16>),
                                                  GPU_KERNEL(gpu_decode_latent<GPU_SM90_BF16>)};
