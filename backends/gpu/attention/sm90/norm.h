/* Norms of heads that rotate as a whole, with the bits of rope_append. */
#ifndef ROPEKIT_GPU_ATTENTION_SM90_NORM_H
#define ROPEKIT_GPU_ATTENTION_SM90_NORM_H

#include "backends/gpu/attention/sm90/angles.h"
#include "backends/gpu/attention/sm90/tile.h"
#include "common/math/angle.h"
#include "common/math/norm.h"

/* Elements of 8 pairs side by side: the first of all, and the others. */
struct sm90_pairs {
    uint4 one, other;
};

/* --- norms --- */

template <int DTYPE> GPU_FN float sm90_squares(uint32_t word) {
    const float2 x = gpu_split<DTYPE>(word);
    return rope_norm_squares(x.x, x.y);
}

/* The sum of 8 elements' squares, in the order of norms. */
template <int DTYPE> GPU_FN float sm90_squares(const uint4 &x) {
    return (sm90_squares<DTYPE>(x.x) + sm90_squares<DTYPE>(x.y)) +
           (sm90_squares<DTYPE>(x.z) + sm90_squares<DTYPE>(x.w));
}

/* Rounded twice, as rope_normalized() with ROPE_NORM_ROUND_TWICE. */
template <int DTYPE>
GPU_FN void sm90_normalise_two(float reciprocal, uint32_t weight, uint32_t &x) {
    const float2 two = gpu_split<DTYPE>(x);
    const uint32_t once = gpu_join<DTYPE>(two.x * reciprocal, two.y * reciprocal);
    x = DTYPE == ROPE_F16 ? gpu_multiply_f16(once, weight) : gpu_multiply_bf16(once, weight);
}

template <int DTYPE>
GPU_FN void sm90_normalise_eight(float reciprocal, const uint4 &weight, uint4 &x) {
    sm90_normalise_two<DTYPE>(reciprocal, weight.x, x.x);
    sm90_normalise_two<DTYPE>(reciprocal, weight.y, x.y);
    sm90_normalise_two<DTYPE>(reciprocal, weight.z, x.z);
    sm90_normalise_two<DTYPE>(reciprocal, weight.w, x.w);
}

/* rope_norm_reciprocal() of a sum of squares, without the branches that the compiler's root and
 * quotient have: numbers whose root would not be exact in these steps are multiplied before. */
GPU_FN float sm90_norm_reciprocal(float squares, int n, float eps) {
    const float given = rope_norm_mean(squares, n) + eps;
    const bool small = given < 0x1p-100f;
    const float x = small ? given * 0x1p104f : given, y = sm90_root_reciprocal(x), g = x * y,
                root = fmaf(fmaf(-g, g, x), 0.5f * y, g), z = sm90_reciprocal(root),
                result = fmaf(z, fmaf(-root, z, 1.0f), z);
    return given == 0 ? INFINITY : given == INFINITY ? 0 : small ? result * 0x1p52f : result;
}

/* 8 pairs of a head that has this reciprocal. */
template <int DTYPE>
GPU_FN void sm90_normalise(float reciprocal, const sm90_pairs &weight, uint4 &x, uint4 &y) {
    sm90_normalise_eight<DTYPE>(reciprocal, weight.one, x);
    sm90_normalise_eight<DTYPE>(reciprocal, weight.other, y);
}

/* Not kept in registers, of which there are few. */
GPU_FN uint4 sm90_read_again(const uint4 *from) {
    uint4 x;
    asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(from));
    return x;
}

GPU_FN sm90_pairs sm90_weights(const sm90_norm &norm, int lanes, int lane) {
    const uint4 *weight = (const uint4 *)norm.weight + lane;
    return {sm90_read_again(weight), sm90_read_again(weight + lanes)};
}

/* --- keys --- */

/* Of a token whose index does not depend on lengths. */
GPU_FN int64_t sm90_given_position(const sm90_positions &p, int64_t row, int64_t token) {
    const int64_t at = row * p.id_row + token * p.id_token;
    return rope_sum(!p.ids   ? token
                    : p.wide ? ((const int64_t *)p.ids)[at]
                             : ((const int32_t *)p.ids)[at],
                    p.offset);
}

/* Cosines and sines of the n-th four pairs. */
GPU_FN void sm90_angles_of_four(const sm90_positions &p, int64_t position, int n, float4 &cosines,
                                float4 &sines) {
    float c[4], s[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const rope_cos_sin a = rope_cos_sin_turns((uint64_t)position * p.turns[n * 4 + i]);
        c[i] = a.c * p.factor;
        s[i] = p.negative ? -(a.s * p.factor) : a.s * p.factor;
    }
    cosines = {c[0], c[1], c[2], c[3]};
    sines = {s[0], s[1], s[2], s[3]};
}

/* By a block. */
GPU_FN void sm90_reset_tickets(uint32_t *tickets) {
    for (int i = (int)threadIdx.x; tickets && i < SM90_TICKETS; i += (int)blockDim.x)
        if (i != SM90_NONE_TICKET)
            tickets[i] = 0;
}

/* Normalises 8 pairs of each of some heads, which `lanes` threads share. */
template <int DTYPE>
GPU_FN void sm90_normalise_heads(const sm90_norm &norm, int lanes, int lane,
                                 sm90_pairs (&x)[SM90_HEADS_AHEAD]) {
    const sm90_pairs weight = sm90_weights(norm, lanes, lane);
#pragma unroll
    for (int i = 0; i < SM90_HEADS_AHEAD; i++) {
        float one = sm90_squares<DTYPE>(x[i].one), other = sm90_squares<DTYPE>(x[i].other);
        for (int bit = 1; bit < lanes; bit *= 2) {
            one = one + __shfl_xor_sync(~0u, one, bit);
            other = other + __shfl_xor_sync(~0u, other, bit);
        }
        sm90_normalise<DTYPE>(sm90_norm_reciprocal(one + other, 16 * lanes, norm.eps), weight,
                              x[i].one, x[i].other);
    }
}

/* Keys rotate by the angles of queries that stand where they do, which are kept for these. */
template <int DTYPE>
__global__ void __launch_bounds__(SM90_KEY_THREADS)
    gpu_attention_sm90_keys(GPU_PARAMETER sm90_keys_ahead k, GPU_PARAMETER sm90_positions p,
                            GPU_PARAMETER sm90_norm norm) {
    typedef typename gpu_element<DTYPE>::bits bits;
    const int lanes = p.fours / 2, pairs = p.fours * 4, first = (int)blockIdx.y * SM90_HEADS_AHEAD;
    const int64_t thread = (int64_t)blockIdx.x * SM90_KEY_THREADS + threadIdx.x,
                  number = thread / lanes, n = min(number, k.count - 1), row = n / k.tokens,
                  token = n % k.tokens;
    const int lane = (int)(thread - number * lanes); /* a block may begin within a token */
    const bits *in = (const bits *)k.in + row * k.in_stride[0] + token * k.in_stride[1] + lane * 8;
    bits *out = (bits *)k.out + row * k.out_stride[0] + token * k.out_stride[1] + lane * 8;
    gpu_wait_for_last();
    gpu_let_next_start();
    sm90_pairs x[SM90_HEADS_AHEAD];
#pragma unroll
    for (int i = 0; i < SM90_HEADS_AHEAD; i++) {
        const bits *from = in + min(first + i, k.heads - 1) * k.in_stride[2];
        x[i] = {*(const uint4 *)(const void *)from, *(const uint4 *)(const void *)(from + pairs)};
    }
    const int64_t position = sm90_given_position(p, row, token);
    sm90_angles m;
#pragma unroll
    for (int i = 0; i < 2; i++)
        sm90_angles_of_four(p, position, lane * 2 + i, m.c[i], m.s[i]);
    if (norm.weight)
        sm90_normalise_heads<DTYPE>(norm, lanes, lane, x);
#pragma unroll
    for (int i = 0; i < SM90_HEADS_AHEAD; i++) {
        bits *to = out + (first + i) * k.out_stride[2];
        sm90_rotate_eight<DTYPE>(m, x[i].one, x[i].other);
        if (first + i < k.heads && number < k.count) {
            *(uint4 *)(void *)to = x[i].one;
            *(uint4 *)(void *)(to + pairs) = x[i].other;
        }
    }
    if (first == 0 && blockIdx.x == 0)
        sm90_reset_tickets(p.tickets);
    if (first == 0 && (row == 0 || p.id_row)) {
        float4 *to = (float4 *)(void *)p.angles + n * p.fours * 2 + lane * 2;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            to[i] = m.c[i];
            to[p.fours + i] = m.s[i];
        }
    }
}

#endif
