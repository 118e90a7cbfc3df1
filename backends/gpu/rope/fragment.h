/*
 * Heads whose elements lie side by side. A thread owns V pairs of a head and moves them as two
 * vectors of V elements on either side of the rotation:
 *   half-split, V = 4    a a a a . . . . b b b b . . . .   pairs (a0,b0) (a1,b1) ...
 *   interleaved, V = 4   a a a a . . . . b b b b . . . .   pairs (a0,a1) (a2,a3) (b0,b1) (b2,b3)
 *   interleaved where the other side is half-split         a a a a b b b b . . . . . . . .
 * Every thread of a block has loaded before one stores, so a call in place may change the pairing.
 */
#ifndef ROPEKIT_GPU_ROPE_FRAGMENT_H
#define ROPEKIT_GPU_ROPE_FRAGMENT_H

#include "backends/gpu/rope/cos_sin_row.h"
#include "backends/gpu/rope/kernels.h"
#include "backends/gpu/rope/rotate.h"

/* Numbers that a kernel is compiled with: V elements of a vector, HEADS of a thread. */
template <int DTYPE_, int PAIRING_, int GEOMETRY> struct gpu_shape {
    typedef typename gpu_element<DTYPE_>::real real;
    static constexpr int DTYPE = DTYPE_, PAIRING = PAIRING_;
    static constexpr int SIZE = (int)sizeof(typename gpu_element<DTYPE>::bits);
    static constexpr int V = SIZE == 2 && GEOMETRY != GPU_NARROW ? 4
                             : SIZE == 4 && GEOMETRY == GPU_WIDE ? 4
                                                                 : 2;
    static constexpr int HEADS = GEOMETRY == GPU_DEEP                ? 4
                                 : GEOMETRY == GPU_NARROW            ? 2
                                 : GEOMETRY == GPU_WIDE && SIZE == 2 ? 2
                                                                     : 1;
    static_assert(HEADS <= GPU_HEADS_MOST, "host code counts on it");
    static constexpr bool JOINED_IN = PAIRING == GPU_INTERLEAVED || PAIRING == GPU_TO_HALF_SPLIT;
    static constexpr bool JOINED_OUT = PAIRING == GPU_INTERLEAVED || PAIRING == GPU_TO_INTERLEAVED;
};

/* The two vectors of a thread. */
template <typename S> struct gpu_vectors { gpu_vector<S::DTYPE, S::V> a, b; };

/* Element of the window at which a thread's vectors start on one side. */
template <typename S, bool JOINED> GPU_FN int gpu_first_element() {
    bool adjacent = JOINED && S::JOINED_IN != S::JOINED_OUT;
    return (int)threadIdx.x * S::V * (adjacent ? 2 : 1);
}

/* Elements from a thread's first vector to its second on one side. */
template <typename S, bool JOINED> GPU_FN int gpu_between_vectors(int pairs) {
    bool adjacent = JOINED && S::JOINED_IN != S::JOINED_OUT;
    return adjacent ? S::V : pairs;
}

template <typename S> GPU_FN gpu_vectors<S> gpu_load_vectors(const char *in, int pairs) {
    gpu_vectors<S> x;
    in += gpu_first_element<S, S::JOINED_IN>() * S::SIZE;
    x.a = gpu_load<S::DTYPE, S::V>(in);
    x.b = gpu_load<S::DTYPE, S::V>(in + gpu_between_vectors<S, S::JOINED_IN>(pairs) * S::SIZE);
    return x;
}

template <typename S> GPU_FN void gpu_store_vectors(char *out, int pairs, const gpu_vectors<S> &y) {
    out += gpu_first_element<S, S::JOINED_OUT>() * S::SIZE;
    gpu_store<S::DTYPE, S::V>(out, y.a);
    gpu_store<S::DTYPE, S::V>(out + gpu_between_vectors<S, S::JOINED_OUT>(pairs) * S::SIZE, y.b);
}

/* The first of the thread's i-th pairs: one run of V, or two of V / 2 where both sides are
 * interleaved. */
template <typename S> GPU_FN int gpu_pair_of(int i, int pairs) {
    int lane = (int)threadIdx.x;
    if (S::PAIRING != GPU_INTERLEAVED)
        return lane * S::V + i;
    constexpr int RUN = S::V / 2;
    return i < RUN ? lane * RUN + i : pairs / 2 + lane * RUN + i - RUN;
}

/* N entries of a list from an address aligned to them, up to 16 bytes at a time. */
template <int N, typename T> GPU_FN void gpu_load_run(const T *list, T *run) {
    constexpr int BYTES = N * (int)sizeof(T) < 16 ? N * (int)sizeof(T) : 16;
    if constexpr (BYTES < 4) {
        run[0] = list[0];
    } else {
        typedef typename gpu_word_type<BYTES / 4>::type type;
#pragma unroll
        for (int i = 0; i < N; i += BYTES / (int)sizeof(T)) {
            type raw = *(const type *)(list + i);
            memcpy(run + i, &raw, sizeof raw);
        }
    }
}

/* A list's entries of the thread's pairs. */
template <typename S, typename T> GPU_FN void gpu_load_list(const T *list, int pairs, T run[S::V]) {
    if constexpr (S::PAIRING == GPU_INTERLEAVED) {
        gpu_load_run<S::V / 2>(list + gpu_pair_of<S>(0, pairs), run);
        gpu_load_run<S::V / 2>(list + gpu_pair_of<S>(S::V / 2, pairs), run + S::V / 2);
    } else {
        gpu_load_run<S::V>(list + gpu_pair_of<S>(0, pairs), run);
    }
}

/* cos and sin of the thread's pairs, of their first elements or of their second. */
template <typename S> struct gpu_lane_row { typename S::real c[S::V], s[S::V]; };

template <typename S, bool MODEL>
GPU_FN typename gpu_element<S::DTYPE>::pair gpu_rotate_pair(typename gpu_element<S::DTYPE>::pair x,
                                                            const gpu_lane_row<S> &first,
                                                            const gpu_lane_row<S> &second, int i) {
    typename gpu_element<S::DTYPE>::coefficients m = {first.c[i], first.s[i], second.c[i],
                                                      second.s[i]};
    if constexpr (MODEL)
        return gpu_rotate_model<S::DTYPE>(x, m);
    else
        return gpu_rotate(x, m);
}

/* Rotates two pairs at a time, which two pieces of two elements hold on either side. */
template <typename S, bool MODEL>
GPU_FN void gpu_rotate_vectors(gpu_vectors<S> &x, const gpu_lane_row<S> &first,
                               const gpu_lane_row<S> &second) {
    typedef typename gpu_element<S::DTYPE>::pair pair;
    gpu_vector<S::DTYPE, 2> in[S::V], out[S::V];
    memcpy(in, &x, sizeof x);
#pragma unroll
    for (int j = 0; j < S::V / 2; j++) {
        typename S::real a[2], b[2];
        gpu_unpack<S::DTYPE, 2>(in[S::JOINED_IN ? 2 * j : j], a);
        gpu_unpack<S::DTYPE, 2>(in[S::JOINED_IN ? 2 * j + 1 : S::V / 2 + j], b);
        pair one = {a[0], S::JOINED_IN ? a[1] : b[0]}, two = {S::JOINED_IN ? b[0] : a[1], b[1]};
        one = gpu_rotate_pair<S, MODEL>(one, first, second, 2 * j);
        two = gpu_rotate_pair<S, MODEL>(two, first, second, 2 * j + 1);
        a[0] = one.x1;
        a[1] = S::JOINED_OUT ? one.x2 : two.x1;
        b[0] = S::JOINED_OUT ? two.x1 : one.x2;
        b[1] = two.x2;
        out[S::JOINED_OUT ? 2 * j : j] = gpu_pack<S::DTYPE, 2>(a);
        out[S::JOINED_OUT ? 2 * j + 1 : S::V / 2 + j] = gpu_pack<S::DTYPE, 2>(b);
    }
    memcpy(&x, out, sizeof x);
}

/* Moves pairs without a rotation: bits, since a number's NaN would not survive. */
template <typename S> GPU_FN void gpu_pass_vectors(gpu_vectors<S> &x) {
    if constexpr (S::JOINED_IN != S::JOINED_OUT) {
        constexpr int V = S::V;
        typename gpu_element<S::DTYPE>::bits in[2 * V], out[2 * V];
        memcpy(in, &x, sizeof x);
#pragma unroll
        for (int i = 0; i < V; i++) {
            out[S::JOINED_OUT ? 2 * i : i] = in[S::JOINED_IN ? 2 * i : i];
            out[S::JOINED_OUT ? 2 * i + 1 : i + V] = in[S::JOINED_IN ? 2 * i + 1 : i + V];
        }
        memcpy(&x, out, sizeof x);
    }
}

/* A thread's unit: `count` heads of a tensor from `head` on, of which it takes at most HEADS. */
struct gpu_unit {
    int tensor, head, count;
};

template <typename S> GPU_FN gpu_unit gpu_unit_of(const gpu_operands *o) {
    int unit = (int)(blockIdx.x * blockDim.y + threadIdx.y);
    int tensor = unit >= o->q_units;
    int head = (tensor ? unit - o->q_units : unit) * S::HEADS;
    return {tensor, head, (tensor ? o->heads[1] : o->heads[0]) - head};
}

/* Where the window of a head of token n lies, batch rows in line. */
GPU_FN const char *gpu_in_of(const gpu_operands *o, int tensor, int head, int64_t n) {
    return (tensor ? o->in[1] : o->in[0]) + head * (tensor ? o->in_head[1] : o->in_head[0]) +
           n * (tensor ? o->in_token[1] : o->in_token[0]);
}

GPU_FN char *gpu_out_of(const gpu_operands *o, int tensor, int head, int64_t n) {
    return (tensor ? o->out[1] : o->out[0]) + head * (tensor ? o->out_head[1] : o->out_head[0]) +
           n * (tensor ? o->out_token[1] : o->out_token[0]);
}

/* Heads of a thread. */
template <typename S>
GPU_FN void gpu_load_heads(const char *in, int64_t stride, int pairs, int count,
                           gpu_vectors<S> x[S::HEADS]) {
#pragma unroll
    for (int h = 0; h < S::HEADS; h++)
        if (h < count)
            x[h] = gpu_load_vectors<S>(in + h * stride, pairs);
}

/* The thread's token, or index of some: blocks of tokens lie along y and z. */
GPU_FN int64_t gpu_token_of_thread() {
    return ((int64_t)blockIdx.z * gridDim.y + blockIdx.y) * blockDim.z + threadIdx.z;
}

#endif
