/* Blocks that share tiles of keys: those of a cluster, 2, 4 or 8 of them. An address of shared
 * memory that is "far" is another block's. */
#ifndef ROPEKIT_GPU_ATTENTION_BACKWARD_SM90_CLUSTER_H
#define ROPEKIT_GPU_ATTENTION_BACKWARD_SM90_CLUSTER_H

#include "backends/gpu/attention_backward/sm90/box.h"

GPU_FN int sm90_cluster_rank(void) {
    uint32_t rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return (int)rank;
}

/* The power of 2 that is the number of its blocks. */
GPU_FN int sm90_cluster_steps(void) {
    uint32_t size;
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
    return 31 - __clz((int)size);
}

/* Of all threads of all blocks that have not ended: none writes to one that has not begun, or has
 * ended. */
GPU_FN void sm90_cluster_barrier(void) {
    asm volatile("barrier.cluster.arrive.release; barrier.cluster.wait.acquire;" ::: "memory");
}

GPU_FN uint32_t sm90_far(uint32_t address, int rank) {
    uint32_t far;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(far) : "r"(address), "r"(rank));
    return far;
}

GPU_FN void sm90_arrive_far(uint32_t barrier) {
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier)
                 : "memory");
}

/* Waits for what another block has read, or has sent. */
GPU_FN void sm90_wait_for_far(uint32_t barrier, uint32_t parity) {
    asm volatile("{ .reg .pred p; again: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 "
                 "p, [%0], %1; @p bra.uni done; bra.uni again; done: }" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
    sm90_dawdle();
}

/* Sends numbers whose bytes end on a far barrier. */
GPU_FN void sm90_send(uint32_t far, int x, uint32_t barrier) {
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(far),
        "r"(x), "r"(barrier)
        : "memory");
}

GPU_FN void sm90_send(uint32_t far, const float *x, uint32_t barrier) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, "
                 "%4}, [%5];" ::"r"(far),
                 "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]), "r"(barrier)
                 : "memory");
}

/* Sends numbers to the same thread of another block, by way of two boxes of its group that hold
 * nothing which products of its tile n still need. step: of the join. */
template <int N>
GPU_FN void sm90_send_sums(const sm90_backward_block &b, int n, int step, int consumer,
                           const uint32_t (&boxes)[2], const float (&x)[N]) {
    const int rank = b.rank ^ 1 << step;
    const uint32_t sent = sm90_far(SM90_BARRIER(b, sent[step], consumer), rank);
    sm90_wait_for_far(SM90_BARRIER(b, may_send[step], consumer), (uint32_t)n & 1);
#pragma unroll
    for (int i = 0; i < N / 4; i++)
        sm90_send(sm90_far(boxes[i / 8], rank) + threadIdx.x % 128 * 16 + (uint32_t)i % 8 * 2048,
                  x + 4 * i, sent);
}

/* Lets another block send. */
template <int N> GPU_FN void sm90_let_send(const sm90_backward_block &b, int step, int consumer) {
    sm90_group_barrier(consumer);
    if (threadIdx.x % 128 == 0) {
        sm90_expect(SM90_BARRIER(b, sent[step], consumer), N * 128 * sizeof(float));
        sm90_arrive_far(sm90_far(SM90_BARRIER(b, may_send[step], consumer), b.rank ^ 1 << step));
    }
}

/* Adds what it has sent. */
template <int N>
GPU_FN void sm90_add_sums(const sm90_backward_block &b, int n, int step, int consumer,
                          const uint32_t (&boxes)[2], float (&x)[N]) {
    sm90_wait_for_far(SM90_BARRIER(b, sent[step], consumer), (uint32_t)n & 1);
#pragma unroll
    for (int i = 0; i < N / 4; i++) {
        const uint4 y = sm90_read(boxes[i / 8] + threadIdx.x % 128 * 16 + (uint32_t)i % 8 * 2048);
        x[4 * i] += __uint_as_float(y.x);
        x[4 * i + 1] += __uint_as_float(y.y);
        x[4 * i + 2] += __uint_as_float(y.z);
        x[4 * i + 3] += __uint_as_float(y.w);
    }
}

/* Joins what blocks have of a group's keys: `kept` is dk or dv, `given` the other one. Ranks 0 and
 * 1 then have the sums of all, by a tree that does not depend on which block is done first. Whether
 * this block is one of those. */
template <int N>
GPU_FN int sm90_join(const sm90_backward_block &b, int n, int consumer, const uint32_t (&boxes)[2],
                     const float (&given)[N], float (&kept)[N]) {
    sm90_let_send<N>(b, 0, consumer);
    sm90_send_sums(b, n, 0, consumer, boxes, given);
    sm90_add_sums(b, n, 0, consumer, boxes, kept);
#pragma unroll 1
    for (int step = 1; step < b.steps; step++) {
        if (b.rank >> step & 1) {
            sm90_send_sums(b, n, step, consumer, boxes, kept);
            return 0;
        }
        sm90_let_send<N>(b, step, consumer);
        sm90_add_sums(b, n, step, consumer, boxes, kept);
    }
    return 1;
}

#endif
