/*
 * Whole, contiguous heads of 64 or 128 with one position a token: what most calls are, with
 * addresses and parameters cut down to it. Threads own what they own in vector.h.
 */
#ifndef ROPEKIT_GPU_PLAIN_H
#define ROPEKIT_GPU_PLAIN_H

#include "common/gpu/vector.h"

GPU_FN int64_t gpu_plain_position(const gpu_plain_call *call, int64_t n) {
    int64_t batch, index, position;
    gpu_split_token(call->rows, call->tokens, n, &batch, &index);
    position = index;
    if (call->ids) {
        int64_t at = batch * call->id_batch + index * call->id_token;
        position = call->wide ? ((const int64_t *)call->ids)[at] : ((const int32_t *)call->ids)[at];
    }
    return rope_sum(position, call->offset);
}

/* cos and sin of the thread's pairs, as rope_computed() gives them. */
template <typename S>
GPU_FN void gpu_plain_row(const gpu_plain_call *call, int64_t n, float c[S::V], float s[S::V]) {
    if (call->f32_angles) {
        float inv_freq[S::V];
        gpu_load_list<S>((const float *)call->list, S::WIDTH / 2, inv_freq);
        float position = (float)gpu_plain_position(call, n);
#pragma unroll
        for (int i = 0; i < S::V; i++) {
            rope_cos_sin a = rope_cos_sin_radians(position * inv_freq[i]);
            c[i] = a.c;
            s[i] = a.s;
        }
    } else {
        uint64_t turns[S::V];
        gpu_load_list<S>((const uint64_t *)call->list, S::WIDTH / 2, turns);
        uint64_t position = (uint64_t)gpu_plain_position(call, n);
#pragma unroll
        for (int i = 0; i < S::V; i++) {
            rope_cos_sin a = rope_cos_sin_turns(position * turns[i]);
            c[i] = a.c;
            s[i] = a.s;
        }
    }
#pragma unroll
    for (int i = 0; i < S::V; i++) {
        c[i] = c[i] * call->factor;
        s[i] = s[i] * call->factor;
        if (call->negate)
            s[i] = -s[i];
    }
}

template <typename S>
GPU_FN void gpu_plain_token(const gpu_plain_call *call, int tensor, int first_head, int64_t n) {
    const int heads = tensor ? call->heads[1] : call->heads[0];
    const char *in = tensor ? call->in[1] : call->in[0];
    char *out = tensor ? call->out[1] : call->out[0];
    int64_t at = (n * heads + first_head) * S::WIDTH * S::SIZE;
    const int step = (int)blockDim.y * S::WIDTH * S::SIZE;
    gpu_vectors<S> x[S::HEADS];
#pragma unroll
    for (int h = 0; h < S::HEADS; h++)
        if (first_head + h * (int)blockDim.y < heads)
            x[h] = gpu_load_vectors<S>(in + at + h * step, S::WIDTH / 2);
    float c[S::V], s[S::V];
    gpu_plain_row<S>(call, n, c, s);
#pragma unroll
    for (int h = 0; h < S::HEADS; h++)
        if (first_head + h * (int)blockDim.y < heads) {
            gpu_rotate_vectors<S>(x[h], c, s);
            gpu_store_vectors<S>(out + at + h * step, S::WIDTH / 2, x[h]);
        }
}

template <int DTYPE, int INTERLEAVED, int GEOMETRY, int WIDTH>
__global__ void __launch_bounds__(GPU_MAX_THREADS)
    gpu_plain_kernel(GPU_PARAMETER gpu_plain_call call) {
    typedef gpu_shape<DTYPE, INTERLEAVED, GEOMETRY, WIDTH> shape;
    int tensor = (int)blockIdx.x >= call.q_blocks;
    int block = (int)blockIdx.x - (tensor ? call.q_blocks : 0);
    int head = block * shape::HEADS * (int)blockDim.y + (int)threadIdx.y;
    for (int64_t n = (int64_t)blockIdx.y * blockDim.z + threadIdx.z; n < call.rows;
         n += (int64_t)gridDim.y * blockDim.z)
        gpu_plain_token<shape>(&call, tensor, head, n);
}

/* The kernels of a dtype, as gpu_rotate_kernels lists them. */
/* clang-format off */
#define GPU_ANY(DTYPE, GEOMETRY)                                                                   \
    {(const void *)gpu_vector_kernel<DTYPE, 0, GEOMETRY>,                                          \
     (const void *)gpu_vector_kernel<DTYPE, 1, GEOMETRY>}
#define GPU_PLAIN(DTYPE, GEOMETRY, WIDTH)                                                          \
    {(const void *)gpu_plain_kernel<DTYPE, 0, GEOMETRY, WIDTH>,                                    \
     (const void *)gpu_plain_kernel<DTYPE, 1, GEOMETRY, WIDTH>}
#define GPU_VECTOR_KERNELS(DTYPE)                                                                  \
    {{GPU_ANY(DTYPE, GPU_NARROW), {}, GPU_PLAIN(DTYPE, GPU_NARROW, GPU_WIDTH_128)},                \
     {GPU_ANY(DTYPE, GPU_WIDE),                                                                    \
      GPU_PLAIN(DTYPE, GPU_WIDE, GPU_WIDTH_64),                                                    \
      GPU_PLAIN(DTYPE, GPU_WIDE, GPU_WIDTH_128)},                                                  \
     {GPU_ANY(DTYPE, GPU_TWO_HEADS), {}, GPU_PLAIN(DTYPE, GPU_TWO_HEADS, GPU_WIDTH_128)}}
/* clang-format on */

#endif
