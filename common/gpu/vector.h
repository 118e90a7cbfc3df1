/*
 * fp32 arithmetic on heads whose elements lie side by side. A thread owns two vectors of V elements
 * of a head, at element `lane V` and half a window further on, and thereby V whole pairs:
 *   half-split, V = 4   a a a a . . . . b b b b . . . .   pairs (a0,b0) (a1,b1) ...
 *   interleaved, V = 4  a a a a . . . . b b b b . . . .   pairs (a0,a1) (a2,a3) (b0,b1) (b2,b3)
 * so that in place is free of races and needs no shuffle.
 */
#ifndef ROPEKIT_GPU_VECTOR_H
#define ROPEKIT_GPU_VECTOR_H

#include "common/gpu/element.h"
#include "common/gpu/kernels.h"
#include "common/gpu/row.h"
#include "common/rotate.h"

/* What is compiled into a kernel. */
template <int DTYPE_, int INTERLEAVED_, int GEOMETRY_, int WIDTH_> struct gpu_shape {
    static constexpr int DTYPE = DTYPE_, INTERLEAVED = INTERLEAVED_;
    static constexpr int SIZE = DTYPE == ROPE_F32 ? 4 : 2;
    static constexpr int V = GEOMETRY_ == GPU_NARROW ? 2 : 16 / SIZE;
    static constexpr int HEADS = GEOMETRY_ == GPU_TWO_HEADS ? 2 : 1;
    static constexpr bool STREAM = GEOMETRY_ == GPU_WIDE;
    static constexpr int WIDTH = WIDTH_ == GPU_WIDTH_128 ? 128 : WIDTH_ == GPU_WIDTH_64 ? 64 : 0;
};

/* One head of one token: element 0 of its window. */
struct gpu_window {
    const char *in;
    char *out;
};

template <typename S>
GPU_FN gpu_window gpu_window_of(const rope_problem *p, const rope_call *call, int tensor,
                                int64_t batch, int64_t index, int64_t head) {
    const rope_operand &o = tensor ? call->tensor[1] : call->tensor[0];
    gpu_window w = {(const char *)o.in, (char *)o.out};
    int64_t offset = tensor ? p->rotary_offset[1] : p->rotary_offset[0];
    w.in += (batch * o.in_stride[0] + index * o.in_stride[1] + head * o.in_stride[2] + offset) *
            S::SIZE;
    w.out += (batch * o.out_stride[0] + index * o.out_stride[1] + head * o.out_stride[2] + offset) *
             S::SIZE;
    return w;
}

/* The two vectors of a thread. */
template <typename S> struct gpu_vectors { gpu_vector<S::DTYPE, S::V> a, b; };

template <typename S> GPU_FN gpu_vectors<S> gpu_load_vectors(const char *in, int pairs) {
    gpu_vectors<S> x;
    in += (int)threadIdx.x * S::V * S::SIZE;
    x.a = gpu_load<S::DTYPE, S::V, S::STREAM>(in);
    x.b = gpu_load<S::DTYPE, S::V, S::STREAM>(in + pairs * S::SIZE);
    return x;
}

template <typename S> GPU_FN void gpu_store_vectors(char *out, int pairs, const gpu_vectors<S> &y) {
    out += (int)threadIdx.x * S::V * S::SIZE;
    gpu_store<S::DTYPE, S::V, S::STREAM>(out, y.a);
    gpu_store<S::DTYPE, S::V, S::STREAM>(out + pairs * S::SIZE, y.b);
}

template <typename S>
GPU_FN void gpu_rotate_vectors(gpu_vectors<S> &x, const float c[S::V], const float s[S::V]) {
    constexpr int V = S::V;
    float a[V], b[V];
    gpu_unpack<S::DTYPE, V>(x.a, a);
    gpu_unpack<S::DTYPE, V>(x.b, b);
#pragma unroll
    for (int i = 0; i < V; i++) {
        float &x1 = !S::INTERLEAVED ? a[i] : i < V / 2 ? a[2 * i] : b[2 * i - V];
        float &x2 = !S::INTERLEAVED ? b[i] : i < V / 2 ? a[2 * i + 1] : b[2 * i + 1 - V];
        rope_pair y = rope_rotate({x1, x2}, {c[i], s[i], c[i], s[i]});
        x1 = y.x1;
        x2 = y.x2;
    }
    x.a = gpu_pack<S::DTYPE, V>(a);
    x.b = gpu_pack<S::DTYPE, V>(b);
}

/* What of a head lies outside the window, as far as this thread copies it. */
template <typename S> GPU_FN void gpu_copy_outside(gpu_window w, int before, int after, int pairs) {
    constexpr int BYTES = S::V * S::SIZE;
    for (int i = (int)threadIdx.x - before; i < after; i += (int)blockDim.x) {
        int64_t at = (int64_t)i * BYTES + (i < 0 ? 0 : 2 * pairs * S::SIZE);
        gpu_store<S::DTYPE, S::V, S::STREAM>(w.out + at,
                                             gpu_load<S::DTYPE, S::V, S::STREAM>(w.in + at));
    }
}

/* A token in three steps: load, compute the row while the loads are under way, store. */
template <typename S>
GPU_FN void gpu_vector_token(const rope_problem *p, const rope_call *call,
                             const gpu_vector_layout *layout, int tensor, int64_t first_head,
                             int64_t batch, int64_t index) {
    const int pairs = p->pairs;
    const int64_t heads = tensor ? call->tensor[1].heads : call->tensor[0].heads;
    gpu_window w[S::HEADS];
    gpu_vectors<S> x[S::HEADS];
    bool present[S::HEADS];
#pragma unroll
    for (int h = 0; h < S::HEADS; h++) {
        int64_t head = first_head + h * blockDim.y;
        present[h] = head < heads;
        w[h] = gpu_window_of<S>(p, call, tensor, batch, index, head);
        if (present[h])
            x[h] = gpu_load_vectors<S>(w[h].in, pairs);
    }
    float c[S::V], s[S::V];
    int fate = gpu_row<S>(p, call, batch, index, pairs, c, s);
    if (fate == ROPE_TOKEN_FAILS) {
        if (call->position_flag)
            *call->position_flag = 1;
        return;
    }
#pragma unroll
    for (int h = 0; h < S::HEADS; h++) {
        if (!present[h])
            continue;
        if (w[h].in != w[h].out)
            gpu_copy_outside<S>(w[h], tensor ? layout->before[1] : layout->before[0],
                                tensor ? layout->after[1] : layout->after[0], pairs);
        if (fate == ROPE_TOKEN_ROTATES)
            gpu_rotate_vectors<S>(x[h], c, s);
        gpu_store_vectors<S>(w[h].out, pairs, x[h]);
    }
}

/* Batch row and token of the n-th of `rows`; a 64-bit division only where nothing less will do. */
GPU_FN void gpu_split_token(int64_t rows, int64_t tokens, int64_t n, int64_t *batch,
                            int64_t *index) {
    *batch = 0;
    if (rows != tokens)
        *batch = tokens == 1                    ? n
                 : (uint64_t)(n | tokens) >> 32 ? n / tokens
                                                : (uint32_t)n / (uint32_t)tokens;
    *index = n - *batch * tokens;
}

template <typename S>
GPU_FN void gpu_vector_block(const rope_problem *p, const rope_call *call,
                             const gpu_vector_layout *layout) {
    int tensor = (int)blockIdx.x >= layout->q_blocks;
    int block = (int)blockIdx.x - (tensor ? layout->q_blocks : 0);
    int64_t head = (int64_t)block * S::HEADS * blockDim.y + threadIdx.y;
    const int64_t rows = call->batch * call->tokens;
    for (int64_t n = (int64_t)blockIdx.y * blockDim.z + threadIdx.z; n < rows;
         n += (int64_t)gridDim.y * blockDim.z) {
        int64_t batch, index;
        gpu_split_token(rows, call->tokens, n, &batch, &index);
        gpu_vector_token<S>(p, call, layout, tensor, head, batch, index);
    }
}

template <int DTYPE, int INTERLEAVED, int GEOMETRY>
__global__ void __launch_bounds__(GPU_MAX_THREADS, 1)
    gpu_vector_kernel(GPU_PARAMETER rope_problem p, GPU_PARAMETER rope_call call,
                      GPU_PARAMETER gpu_vector_layout layout) {
    gpu_vector_block<gpu_shape<DTYPE, INTERLEAVED, GEOMETRY, GPU_ANY_WIDTH>>(&p, &call, &layout);
}

#endif
