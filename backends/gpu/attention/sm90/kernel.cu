/* Attention by the matrix products of sm_90a. Keys were rotated before.
 */
#include "backends/gpu/attention/sm90/ahead.h"
#include "backends/gpu/attention/sm90/consumer.h"
#include "backends/gpu/attention/sm90/producer.h"

/* Registers of a thread that loads, and of one that multiplies. */
template <class T> constexpr int sm90_few = T::TALL ? 80 : T::DIM > 192 ? 56 : 72;
template <class T> constexpr int sm90_many = T::TALL ? 144 : T::DIM > 192 ? 224 : 216;

/* Barriers wait for a copy's bytes, consumers, or one thread. */
template <class T> GPU_FN void sm90_start(const sm90_block &b) {
    for (int i = 0; i < 2; i++) {
        sm90_barrier_init(SM90_BARRIER(b, keys_full, i), 1);
        sm90_barrier_init(SM90_BARRIER(b, keys_free, i), T::CONSUMERS);
        sm90_barrier_init(SM90_BARRIER(b, values_full, i), 1);
        sm90_barrier_init(SM90_BARRIER(b, values_free, i), T::CONSUMERS);
        sm90_barrier_init(SM90_BARRIER(b, queries_full, i), 1);
        sm90_barrier_init(SM90_BARRIER(b, queries_free, i), T::CONSUMERS + 1);
        sm90_barrier_init(SM90_BARRIER(b, tile_wanted, i), 1);
        sm90_barrier_init(SM90_BARRIER(b, values_sent, i), 1);
        sm90_barrier_init(SM90_BARRIER(b, queries_sent, i), 1);
    }
    for (int i = 0; i < SM90_KNOWN; i++)
        sm90_barrier_init(SM90_BARRIER(b, tile_known, i), 1);
    sm90_barrier_init(SM90_BARRIER(b, all_ended, 0), T::CONSUMERS);
    b.header->again_count = 0;
    b.header->told = 0;
    for (int i = 0; i < SM90_KNOWN; i++)
        b.header->tile[i].told = 0;
    sm90_barriers_begun();
}

/* The group that loads: all tiles, then those that are computed again. */
template <class T> GPU_FN void sm90_load_all(const sm90_block &b, const sm90_maps &maps) {
    int n = 0, sent = 0, cleaned = 0;
#pragma unroll 1
    for (;;) {
        /* Anew each time, where registers are few. */
        const int thread = T::TWO_SENDERS ? gpu_opaque((int)threadIdx.x) : (int)threadIdx.x;
        if (thread == 0 || (thread < 32 && b.schedule->page))
            n = sm90_send<T>(b, maps, n, sent, cleaned);
        else if (thread >= 64)
            n = sm90_help<T>(b, n, sent, cleaned);
        else if (thread == 32 || (thread > 32 && sm90_has_two_senders<T>(b)))
            n = sm90_find<T>(b, maps, n, sent, cleaned);
        n++;
        if (n > SM90_SECOND_PASS || !sm90_ends_again(b))
            return;
        n += SM90_SECOND_PASS;
    }
}

/* What some kernels have, or NULL. */
struct sm90_more {
    const sm90_cap *cap;
    const sm90_norm *norm;
    const sm90_spans *spans;
};

GPU_FN sm90_more sm90_more_of(void) {
    return {};
}
GPU_FN sm90_more sm90_more_of(const sm90_simple &) {
    return {};
}
GPU_FN sm90_more sm90_more_of(const sm90_cap &cap) {
    return {&cap, NULL, NULL};
}
GPU_FN sm90_more sm90_more_of(const sm90_norm &norm) {
    return {NULL, &norm, NULL};
}
GPU_FN sm90_more sm90_more_of(const sm90_spans &spans) {
    return {NULL, NULL, &spans};
}

template <class A, class... B> constexpr int sm90_has = 0;
template <class A> constexpr int sm90_has<A, A> = 1;

/* MORE: sm90_cap, sm90_norm, sm90_simple, sm90_spans, or nothing. */
template <int DTYPE, int DIM, int V_DIM, int ROWS, class... MORE>
__global__ void __launch_bounds__(128 + 2 * ROWS, 1)
    gpu_attention_sm90(const __grid_constant__ CUtensorMap q, const __grid_constant__ CUtensorMap k,
                       const __grid_constant__ CUtensorMap v,
                       const __grid_constant__ CUtensorMap out,
                       GPU_PARAMETER sm90_schedule schedule,
                       GPU_PARAMETER rope_attention_problem problem,
                       GPU_PARAMETER rope_attention_call call, const int32_t *failed,
                       GPU_PARAMETER MORE... more) {
    typedef sm90_type<DTYPE, DIM, V_DIM, ROWS, sm90_has<sm90_cap, MORE...>,
                      sm90_has<sm90_norm, MORE...>, sm90_has<sm90_simple, MORE...>,
                      sm90_has<sm90_spans, MORE...>>
        T;
    extern __shared__ __align__(1024) char sm90_memory[];
    sm90_block b = {&problem,
                    &call,
                    failed,
                    &schedule,
                    (sm90_header *)(void *)sm90_memory,
                    (uint32_t)__cvta_generic_to_shared(sm90_memory) + SM90_HEADER,
                    sm90_more_of(more...).cap,
                    sm90_more_of(more...).norm,
                    sm90_more_of(more...).spans,
                    schedule.each,
                    schedule.tiles,
                    schedule.chunk};
    const int group = (int)threadIdx.x / 128;
    sm90_poison(sm90_memory);
    /* The kernel of other tiles does without: each of its tiles would take 1 % longer. */
    if (T::TALL && schedule.behind && !sm90_may_have<T>(b)) {
        if (blockIdx.x == 0)
            gpu_wait_for_last(); /* as below */
        return;
    }
    if (threadIdx.x == 32) {
        sm90_prefetch_map(&q);
        sm90_prefetch_map(&k);
        sm90_prefetch_map(&v);
        sm90_prefetch_map(&out);
    }
    if (threadIdx.x == 0)
        sm90_start<T>(b);
    if (T::ORDERED && schedule.tokens < 0) {
        if (!schedule.ahead)
            sm90_wait_for_last<T>(b);
        sm90_look<T>(b);
        if (b.tiles == 0) {
            if (blockIdx.x == 0)
                gpu_wait_for_last(); /* as below */
            return;
        }
    }
    __syncthreads();
    if (group == 0) {
        sm90_registers_fewer<sm90_few<T>>();
        /* Warp 1 finds the first tile meanwhile, by lengths that are older than a launch ahead. */
        if (threadIdx.x / 32 != 1 || (schedule.tokens < 0 && !schedule.ahead)) {
            sm90_wait_for_last<T>(b);
            gpu_let_next_start();
        }
        sm90_load_all<T>(b, {&q, &k, &v, &out});
        if (T::ORDERED && schedule.behind && blockIdx.x == 0)
            gpu_wait_for_last(); /* whatever follows waits for this launch alone */
    } else {
        sm90_registers_more<sm90_many<T>>();
        sm90_wait_for_last<T>(b);
        sm90_consume<T>(b, &out, __shfl_sync(~0u, group, 0) - 1);
    }
}

#define SM90_KERNELS(...)                                                                          \
    {                                                                                              \
        GPU_KERNEL((gpu_attention_sm90<GPU_SM90_F16, __VA_ARGS__>)),                               \
            GPU_KERNEL((gpu_attention_sm90<GPU_SM90_BF16, __VA_ARGS__>))                           \
    }
const void *const gpu_attention_sm90_kernels[SM90_HEADS][2] = {
    SM90_KERNELS(64, 64, SM90_ROWS), SM90_KERNELS(128, 128, SM90_ROWS),
    SM90_KERNELS(192, 128, SM90_ROWS), SM90_KERNELS(256, 256, SM90_ROWS)};
const void *const gpu_attention_sm90_tall_kernels[2] = SM90_KERNELS(64, 64, SM90_TALL_ROWS);
const void *const gpu_attention_sm90_cap_kernels[SM90_HEADS][2] = {
    SM90_KERNELS(64, 64, SM90_ROWS, sm90_cap), SM90_KERNELS(128, 128, SM90_ROWS, sm90_cap),
    SM90_KERNELS(192, 128, SM90_ROWS, sm90_cap), SM90_KERNELS(256, 256, SM90_ROWS, sm90_cap)};
const void *const gpu_attention_sm90_simple_kernels[2] =
    SM90_KERNELS(128, 128, SM90_ROWS, sm90_simple);
const void *const gpu_attention_sm90_span_kernels[SM90_192][2] = {
    SM90_KERNELS(64, 64, SM90_ROWS, sm90_spans), SM90_KERNELS(128, 128, SM90_ROWS, sm90_spans)};
const void *const gpu_attention_sm90_norm_kernels[2] = SM90_KERNELS(128, 128, SM90_ROWS, sm90_norm);
const void *const gpu_attention_sm90_keys_kernels[2] = {
    GPU_KERNEL(gpu_attention_sm90_keys<GPU_SM90_F16>),
    GPU_KERNEL(gpu_attention_sm90_keys<GPU_SM90_BF16>)};
const void *const gpu_attention_sm90_ahead_kernel = GPU_KERNEL(gpu_attention_sm90_ahead);
