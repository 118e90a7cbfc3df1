/* How rows of latent attention are joined of their splits, in the order of those. */
#ifndef ROPEKIT_GPU_ATTENTION_SM90_LATENT_JOIN_H
#define ROPEKIT_GPU_ATTENTION_SM90_LATENT_JOIN_H

#include "backends/gpu/attention/sm90/latent_work.h"

/* A row's weights of its parts, by one warp; what their sum is multiplied by, where it is kept.
 * Parts are read from the L2: blocks of the same launch may have written them. */
struct sm90_latent_joined {
    float weight[2 * 32], factor;
    int32_t count; /* 0: nothing is joined */
};

/* Parts are at most as many as weights. */
template <typename PART>
GPU_FN void sm90_latent_weights(const rope_attention_problem *p, const rope_attention_call *call,
                                const rope_attention_sequence *s, int query, int head, PART parts,
                                int count, sm90_latent_joined *to) {
    const int lane = (int)threadIdx.x % 32;
    float top[2], sum[2], most, all = 0;
    bool left_out = false;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const bool there = lane + 32 * i < count;
        const auto at =
            parts + (lane + 32 * i) * (SM90_LATENT_VALUE_DIM + 2) + SM90_LATENT_VALUE_DIM;
        top[i] = there ? __ldcg(at) : -INFINITY;
        sum[i] = there ? __ldcg(at + 1) : 0;
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

/* Joins a row, of which one of GPU_ATTENTION_THREADS threads has four elements. */
template <int DTYPE, typename PART>
GPU_FN void sm90_latent_join_row(const rope_attention_call *call, const rope_attention_sequence *s,
                                 int query, int head, PART parts, const sm90_latent_joined &row,
                                 int thread) {
    enum { MANY = 16, HALF = SM90_LATENT_VALUE_DIM / 2 };
    const int count = row.count, first = 2 * thread;
    float2 sum[2] = {};
#pragma unroll 1
    for (int n = 0; n < count; n += MANY) {
        float2 x[MANY][2];
#pragma unroll
        for (int i = 0; i < 2 * MANY; i++)
            x[i / 2][i % 2] =
                n + i / 2 < count
                    ? __ldcg(
                          (const float2 *)(const void *)(parts + first + i % 2 * HALF +
                                                         (n + i / 2) * (SM90_LATENT_VALUE_DIM + 2)))
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
    uint16_t *to = gpu_attention_out<DTYPE>(call, s, query, head) + first;
#pragma unroll
    for (int i = 0; i < 2; i++)
        *(uint32_t *)(void *)(to + i * HALF) = gpu_end_pair<DTYPE>(sum[i].x, sum[i].y, row.factor);
}

#endif
