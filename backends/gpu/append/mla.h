/*
 * Multi-head latent attention: windows of q's heads that rotate in place, and one head of k whose
 * latent part is normalised beside a window that rotates, to a row of a cache of slots. The first
 * block of some tokens takes their k, 32 threads a token, among which the norm's sum is a tree;
 * the others take q. As in plain.h each thread has the coefficients of its pairs in registers.
 */
#ifndef ROPEKIT_GPU_APPEND_MLA_H
#define ROPEKIT_GPU_APPEND_MLA_H

#include "backends/gpu/append/plain.h"

/* A token's id and slot, and the frequencies of a thread's pairs. */
template <typename S> struct gpu_mla_token {
    gpu_id id, slot;
    uint64_t turns[S::V];
};

template <typename S>
GPU_FN void gpu_mla_read_ids(const gpu_append_plain_call &call, int n, bool key,
                             gpu_mla_token<S> *t) {
    t->id = gpu_read_id<false>(&call, n);
    if (key)
        t->slot = gpu_read_slot(call, n);
}

/* The sum of squares of the vectors of 32 threads, of which each has one or two. */
template <int DTYPE>
GPU_FN float gpu_mla_squares(const gpu_vector<DTYPE, GPU_APPEND_V> x[2], int vectors) {
    float a = gpu_vector_node<DTYPE>(GPU_NODE_SQUARES, x[0], 0),
          b = gpu_vector_node<DTYPE>(GPU_NODE_SQUARES, x[1], 0);
#pragma unroll
    for (int bit = 1; bit < 32; bit *= 2) {
        a = a + gpu_shuffle_xor(a, bit);
        b = b + gpu_shuffle_xor(b, bit);
    }
    return vectors == 1 ? a : a + b;
}

/* The reciprocal of an RMS norm over them. */
template <int DTYPE>
GPU_FN float gpu_mla_reciprocal(const gpu_append_mla_call &call,
                                const gpu_vector<DTYPE, GPU_APPEND_V> x[2]) {
    const float sum = gpu_mla_squares<DTYPE>(x, call.vectors);
    return 1.0f / sqrtf(sum * call.plain.share + call.plain.eps[ROPE_APPEND_K]);
}

/* k of row n; thread: among its 32, of which the first blockDim.x have pairs of the window. */
template <typename S>
GPU_FN void gpu_mla_key(const gpu_append_mla_call &call, int n, int thread, gpu_mla_token<S> t) {
    constexpr int V = GPU_APPEND_V;
    const gpu_append_plain_operand &o = call.plain.operand[ROPE_APPEND_K];
    const int pairs = (int)blockDim.x * S::V, at = call.latent + thread * 2 * V;
    const char *in = o.in + (int64_t)n * o.in_token;
    const char *weight = call.plain.weight[ROPE_APPEND_K] + thread * 2 * V;
    const bool window = thread < (int)blockDim.x;
    gpu_vector<S::DTYPE, V> x[2] = {}, w[2] = {};
    gpu_vectors<S> y = {};
#pragma unroll
    for (int i = 0; i < 2; i++)
        if (i < call.vectors) {
            x[i] = gpu_load<S::DTYPE, V>(in + at + i * 64 * V);
            w[i] = gpu_load<S::DTYPE, V>(weight + i * 64 * V);
        }
    if (window)
        y = gpu_load_vectors<S>(in + call.window, pairs);
    if (call.plain.flags & GPU_CALL_EARLY)
        gpu_let_next_start();
    const gpu_plain_place place = gpu_place_plain(call.plain, o, false, n, t.slot);
    const gpu_lane_row<S> row = gpu_exact_row<S, true>(&call.plain, t.turns, t.id);
    const float reciprocal = gpu_mla_reciprocal<S::DTYPE>(call, x);
    if (!place.stored) {
        if (place.fails && call.plain.position_flag)
            *call.plain.position_flag = 1;
        return;
    }
    char *to = o.store + place.at;
#pragma unroll
    for (int i = 0; i < 2; i++)
        if (i < call.vectors) {
            gpu_plain_normalize<S::DTYPE, V>(o.steps, reciprocal, w[i], x[i]);
            gpu_store<S::DTYPE, V>(to + at + i * 64 * V, x[i]);
        }
    gpu_rotate_vectors<S, false>(y, row, row);
    if (window)
        gpu_store_vectors<S>(to + call.window, pairs, y);
}

/* Windows of a thread's heads of q. Where the pairing changes, every thread of a block has loaded
 * before one stores. */
template <typename S, bool BEHIND_LOADS>
GPU_FN void gpu_mla_queries(const gpu_append_mla_call &call, int n, bool stores,
                            gpu_mla_token<S> t) {
    const gpu_append_plain_operand &o = call.plain.operand[ROPE_APPEND_Q];
    const int head = (int)((blockIdx.x - 1) * blockDim.y + threadIdx.y) * S::HEADS,
              pairs = (int)blockDim.x * S::V;
    char *at = o.store + (int64_t)head * o.store_head + (int64_t)n * o.store_slot;
    gpu_vectors<S> x[S::HEADS];
#pragma unroll
    for (int h = 0; h < S::HEADS; h++)
        x[h] = gpu_load_vectors<S>(at + (int64_t)h * o.store_head, pairs);
    if (call.plain.flags & GPU_CALL_EARLY)
        gpu_let_next_start();
    if (BEHIND_LOADS)
        gpu_mla_read_ids<S>(call.plain, n, false, &t);
    const gpu_lane_row<S> row = gpu_exact_row<S, true>(&call.plain, t.turns, t.id);
    if (S::JOINED_IN != S::JOINED_OUT)
        __syncthreads();
#pragma unroll
    for (int h = 0; h < S::HEADS; h++) {
        gpu_rotate_vectors<S, false>(x[h], row, row);
        if (stores)
            gpu_store_vectors<S>(at + (int64_t)h * o.store_head, pairs, x[h]);
    }
}

/* Threads without a row take the last one's and store nothing. */
template <int DTYPE, int PAIRING, int GEOMETRY>
__global__ void __launch_bounds__(GPU_MLA_THREADS, GPU_MLA_BLOCKS)
    gpu_append_mla(GPU_PARAMETER gpu_append_mla_call parameter) {
    typedef gpu_shape<DTYPE, PAIRING, GEOMETRY> shape;
    constexpr bool BEHIND_LOADS = GPU_LOADS_FIRST(GEOMETRY);
    const gpu_append_mla_call &call = *gpu_parameter<gpu_append_mla_call>(parameter);
    const int thread = (int)((threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x);
    const bool key = blockIdx.x == 0;
    const int index = key ? thread / 32 : (int)threadIdx.z;
    const int row = (int)(blockIdx.y * blockDim.z) + index;
    const int n = row < call.plain.rows ? row : call.plain.rows - 1;
    gpu_mla_token<shape> t;
    gpu_load_list<shape>(call.plain.turns, (int)blockDim.x * shape::V, t.turns);
    if (call.plain.flags & GPU_CALL_EARLY)
        gpu_wait_for_last();
    if (key || !BEHIND_LOADS)
        gpu_mla_read_ids<shape>(call.plain, n, key, &t);
    if (!key)
        gpu_mla_queries<shape, BEHIND_LOADS>(call, n, row < call.plain.rows, t);
    else if (index < (int)blockDim.z && row < call.plain.rows)
        gpu_mla_key<shape>(call, n, thread % 32, t);
}

#endif
