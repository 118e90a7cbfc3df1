/* The model's arithmetic with one cos and sin a pair, of 16-bit numbers two an operation. */
#ifndef ROPEKIT_GPU_ROPE_MODEL_ARITHMETIC_H
#define ROPEKIT_GPU_ROPE_MODEL_ARITHMETIC_H

#include "backends/gpu/rope/fragment.h"

/* Rounded once, as fp32 products and sums that are then rounded to 16 bits: a product is exact in
 * fp32, and its digits are more than twice those of 16 bits, which makes two roundings of a sum
 * one. */
template <int DTYPE> GPU_FN uint32_t gpu_multiply(uint32_t a, uint32_t b) {
    return DTYPE == ROPE_F16 ? gpu_multiply_f16(a, b) : gpu_multiply_bf16(a, b);
}

template <int DTYPE> GPU_FN uint32_t gpu_add(uint32_t a, uint32_t b) {
    return DTYPE == ROPE_F16 ? gpu_add_f16(a, b) : gpu_add_bf16(a, b);
}

/* Coefficients of two pairs a word, rounded. */
template <typename S> struct gpu_model_row {
    uint32_t c[S::V / 2], s[S::V / 2], negative_s[S::V / 2];
};

template <typename S> GPU_FN gpu_model_row<S> gpu_round_row(const gpu_lane_row<S> &row) {
    gpu_model_row<S> rounded;
#pragma unroll
    for (int j = 0; j < S::V / 2; j++) {
        rounded.c[j] = gpu_join<S::DTYPE>(row.c[2 * j], row.c[2 * j + 1]);
        rounded.s[j] = gpu_join<S::DTYPE>(row.s[2 * j], row.s[2 * j + 1]);
        rounded.negative_s[j] = rounded.s[j] ^ 0x80008000u;
    }
    return rounded;
}

/* The low halves of two words, or the high ones. */
GPU_FN uint32_t gpu_low_halves(uint32_t a, uint32_t b) {
    return (a & 0xffffu) | b << 16;
}

GPU_FN uint32_t gpu_high_halves(uint32_t a, uint32_t b) {
    return a >> 16 | (b & 0xffff0000u);
}

/* As gpu_rotate_vectors<S, true>(). */
template <typename S>
GPU_FN void gpu_rotate_model_vectors(gpu_vectors<S> &x, const gpu_model_row<S> &m) {
    constexpr int DTYPE = S::DTYPE;
    uint32_t in[S::V], out[S::V];
    memcpy(in, &x, sizeof x);
#pragma unroll
    for (int j = 0; j < S::V / 2; j++) {
        uint32_t a = in[S::JOINED_IN ? 2 * j : j], b = in[S::JOINED_IN ? 2 * j + 1 : S::V / 2 + j];
        const uint32_t x1 = S::JOINED_IN ? gpu_low_halves(a, b) : a;
        const uint32_t x2 = S::JOINED_IN ? gpu_high_halves(a, b) : b;
        a = gpu_add<DTYPE>(gpu_multiply<DTYPE>(x1, m.c[j]),
                           gpu_multiply<DTYPE>(x2, m.negative_s[j]));
        b = gpu_add<DTYPE>(gpu_multiply<DTYPE>(x2, m.c[j]), gpu_multiply<DTYPE>(x1, m.s[j]));
        out[S::JOINED_OUT ? 2 * j : j] = S::JOINED_OUT ? gpu_low_halves(a, b) : a;
        out[S::JOINED_OUT ? 2 * j + 1 : S::V / 2 + j] = S::JOINED_OUT ? gpu_high_halves(a, b) : b;
    }
    memcpy(&x, out, sizeof x);
}

#endif
