/*
 * Whole heads of a cache that rotate where they lie, by exact angles of one distance or of a
 * token's own. A block has some tokens: its threads find their places and fill rows of cos and sin,
 * meet once, and then each takes its pairs of all heads of a token, whose coefficients it has in
 * registers.
 */
#ifndef ROPEKIT_GPU_APPEND_REROTATE_H
#define ROPEKIT_GPU_APPEND_REROTATE_H

#include "backends/gpu/append/vector.h"

/* Significant digits of what lies between two neighbours of a type of 8 bits, at most. */
GPU_FN int gpu_digits_between(int32_t dtype) {
    return dtype == ROPE_I8 ? 8 : dtype == ROPE_F8E5M2 ? 4 : 5;
}

/*
 * Whether there are numbers of DTYPE whose products by the reciprocal of a scale are not the 8 bits
 * that quotients by it are: tried with every significand, by the block's threads. A product serves
 * that lies on the same side of all that lies between neighbours, or on it, as the quotient does.
 */
template <int DTYPE> GPU_FN bool gpu_needs_quotients(int32_t dtype, float scale) {
    constexpr int DIGITS = DTYPE == ROPE_BF16 ? 7 : 10;
    const uint32_t one = 0x3f800000u, below = (1u << (24 - gpu_digits_between(dtype))) - 1;
    const gpu_scale s = gpu_scale_from(rope_bits_float((rope_float_bits(scale) & 0x7fffffu) | one));
    bool needs = !(scale >= 0x1p-60f && scale <= 0x1p60f);
    for (int i = (int)(threadIdx.y * blockDim.x + threadIdx.x); i < 1 << DIGITS;
         i += (int)(blockDim.x * blockDim.y)) {
        const float x = rope_bits_float(one | (uint32_t)i << (23 - DIGITS));
        const uint32_t product = rope_float_bits(x * s.reciprocal),
                       quotient = rope_float_bits(gpu_divided(x, s));
        needs |= (product | below) != (quotient | below) ||
                 ((product & below) == 0) != ((quotient & below) == 0);
    }
    return needs;
}

/* A vector as STORE has it to numbers of DTYPE. */
template <int DTYPE, int STORE>
GPU_FN gpu_vector<DTYPE, GPU_APPEND_V> gpu_from_moved(float scale,
                                                      const gpu_vector<DTYPE, GPU_APPEND_V> &x) {
    if constexpr (STORE == DTYPE)
        return x;
    else
        return gpu_dequantize<DTYPE>(STORE, scale, x);
}

/* And back; of 8 bits by quotients, or by products that serve as well. */
template <int DTYPE, int STORE, bool QUOTIENTS>
GPU_FN void gpu_store_moved(char *to, gpu_scale s, const gpu_vector<DTYPE, GPU_APPEND_V> &x) {
    if constexpr (STORE == DTYPE) {
        gpu_store<DTYPE, GPU_APPEND_V>(to, x);
    } else if constexpr (QUOTIENTS) {
        *(uint2 *)to = gpu_quantize<DTYPE>(STORE, x, s);
    } else {
        float q[GPU_APPEND_V];
        gpu_unpack<DTYPE, GPU_APPEND_V>(x, q);
#pragma unroll
        for (int i = 0; i < GPU_APPEND_V; i++)
            q[i] = q[i] * s.reciprocal;
        *(uint2 *)to = {gpu_four_8bit(STORE, q), gpu_four_8bit(STORE, q + 4)};
    }
}

/* A thread's pairs of `count` heads from `at` on, of which it loads HEADS before it stores one. */
template <typename S, int STORE, bool QUOTIENTS, int HEADS>
GPU_FN void gpu_move_heads(const gpu_append_tensor &v, char *at, int count, float scale,
                           const gpu_lane_row<S> &row) {
    const int between = v.width / 2 * (STORE == S::DTYPE ? 2 : 1);
    const gpu_scale s = gpu_scale_from(scale);
#pragma unroll 1
    for (; count > 0; count -= HEADS) {
        gpu_vectors<S> x[HEADS];
#pragma unroll
        for (int h = 0; h < HEADS; h++)
            if (h < count) {
                const char *from = at + (int64_t)h * v.store_head;
                x[h].a = gpu_load_vector_as<S::DTYPE>(STORE, from);
                x[h].b = gpu_load_vector_as<S::DTYPE>(STORE, from + between);
            }
#pragma unroll
        for (int h = 0; h < HEADS; h++)
            if (h < count) {
                char *to = at + (int64_t)h * v.store_head;
                x[h] = {gpu_from_moved<S::DTYPE, STORE>(scale, x[h].a),
                        gpu_from_moved<S::DTYPE, STORE>(scale, x[h].b)};
                gpu_rotate_vectors<S, false>(x[h], row, row);
                gpu_store_moved<S::DTYPE, STORE, QUOTIENTS>(to, s, x[h].a);
                gpu_store_moved<S::DTYPE, STORE, QUOTIENTS>(to + between, s, x[h].b);
            }
        at += (int64_t)HEADS * v.store_head;
    }
}

/* Moves heads of a type of 8 bits. */
template <typename S>
GPU_FN void gpu_move_8bit(const gpu_append_tensor &v, char *at, int count, float scale,
                          bool quotients, const gpu_lane_row<S> &row) {
    constexpr int HEADS = GPU_REROTATE_HEADS(1);
    const int32_t dtype = v.steps.store_dtype;
    if (dtype == ROPE_F8E4M3 && !quotients)
        gpu_move_heads<S, ROPE_F8E4M3, false, HEADS>(v, at, count, scale, row);
    else if (dtype == ROPE_F8E4M3)
        gpu_move_heads<S, ROPE_F8E4M3, true, HEADS>(v, at, count, scale, row);
    else if (dtype == ROPE_F8E5M2 && !quotients)
        gpu_move_heads<S, ROPE_F8E5M2, false, HEADS>(v, at, count, scale, row);
    else if (dtype == ROPE_F8E5M2)
        gpu_move_heads<S, ROPE_F8E5M2, true, HEADS>(v, at, count, scale, row);
    else if (dtype == ROPE_I8 && !quotients)
        gpu_move_heads<S, ROPE_I8, false, 2>(v, at, count, scale, row);
    else if (dtype == ROPE_I8)
        gpu_move_heads<S, ROPE_I8, true, 1>(v, at, count, scale, row);
    else
        gpu_move_heads<S, ROPE_F8E4M3FNUZ, true, 1>(v, at, count, scale, row);
}

/* Rows of the block's tokens, or one for all, by the threads that will read them. */
template <int DTYPE> GPU_FN void gpu_fill_moved(const gpu_append_vectors &call, int n, void *rows) {
    const bool one = call.flags & GPU_APPEND_ONE_ID;
    const int lane = (int)threadIdx.x, lanes = (int)blockDim.x, token = (int)threadIdx.y;
    const gpu_row<DTYPE> row = gpu_row_of<DTYPE>(rows, one ? 0 : token, call.pairs, false);
#pragma unroll 1
    for (int pair = one ? token * lanes + lane : lane; pair < call.pairs;
         pair += one ? lanes * (int)blockDim.y : lanes)
        gpu_exact_entry<DTYPE>(call, n, pair, row);
}

/* EIGHT: store_dtype is of 8 bits, else dtype. */
template <int DTYPE, int PAIRING, int EIGHT>
__global__ void __launch_bounds__(GPU_APPEND_THREADS, GPU_APPEND_BLOCKS)
    gpu_append_rerotate(GPU_PARAMETER gpu_append_vectors units,
                        GPU_PARAMETER rope_append_problem problem,
                        GPU_PARAMETER rope_append_call given) {
    const gpu_append_vectors &vectors = *gpu_parameter<gpu_append_vectors>(units);
    const rope_append_problem &p = *gpu_parameter<rope_append_problem, gpu_append_vectors>(problem);
    const rope_append_call &call =
        *gpu_parameter<rope_append_call, gpu_append_vectors, rope_append_problem>(given);
    typedef gpu_append_shape<DTYPE, PAIRING> shape;
    extern __shared__ uint4 memory[];
    __shared__ gpu_append_site sites[GPU_APPEND_REROTATE_TOKENS];
    __shared__ int quotients;
    const gpu_append_tensor &v = vectors.tensor[ROPE_APPEND_K];
    const int lane = (int)threadIdx.x, token = (int)threadIdx.y, tokens = (int)blockDim.y;
    const int last = (int)blockDim.x * tokens - 1 - (token * (int)blockDim.x + lane);
    const int first = (int)blockIdx.x * tokens, n = first + token;
    float scale = 1;
    if (EIGHT && last == 0)
        quotients = 0;
    gpu_wait_for_last();
    if (last < tokens && first + last < vectors.rows)
        sites[last] = gpu_append_site_of(vectors, &p, &call, v, ROPE_APPEND_K, first + last);
    if (n < vectors.rows || vectors.flags & GPU_APPEND_ONE_ID)
        gpu_fill_moved<DTYPE>(vectors, n, memory);
    if (EIGHT) {
        scale = v.steps.scale ? *v.scale : 1.0f;
        __syncthreads();
        if (gpu_needs_quotients<DTYPE>(v.steps.store_dtype, scale))
            quotients = 1;
    }
    gpu_let_next_start();
    __syncthreads();
    if (n >= vectors.rows || !sites[token].stored)
        return;
    if (!gpu_is_scale(scale)) {
        gpu_append_flag(&call);
        return;
    }
    const int head = (int)blockIdx.y * v.thread_heads, left = v.heads - head,
              count = left < v.thread_heads ? left : v.thread_heads;
    char *at = gpu_stored_head(v, sites[token], head) + lane * (EIGHT ? shape::V : 2 * shape::V);
    const gpu_row<DTYPE> list = gpu_row_of<DTYPE>(
        memory, vectors.flags & GPU_APPEND_ONE_ID ? 0 : token, vectors.pairs, false);
    gpu_lane_row<shape> row;
    gpu_load_entries<shape>(list.c1, lane, vectors.pairs, row.c);
    gpu_load_entries<shape>(list.s1, lane, vectors.pairs, row.s);
    if (EIGHT)
        gpu_move_8bit<shape>(v, at, count, scale, quotients, row);
    else
        gpu_move_heads<shape, DTYPE, false, GPU_REROTATE_HEADS(2)>(v, at, count, 1, row);
}

#endif
