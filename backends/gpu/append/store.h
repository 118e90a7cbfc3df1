/* From vectors of dtype to store_dtype. */
#ifndef ROPEKIT_GPU_APPEND_STORE_H
#define ROPEKIT_GPU_APPEND_STORE_H

#include "backends/gpu/append/kernels.h"
#include "backends/gpu/cache_element.h"

/* A scale as quotients are made of it: times a power of two, `up`, that brings it within
 * 2^-60..2^60, and its reciprocal, rounded. */
struct gpu_scale {
    float by, reciprocal, up;
};

GPU_FN gpu_scale gpu_scale_from(float scale) {
    const float up = scale > 0x1p60f ? 0x1p-100f : scale < 0x1p-60f ? 0x1p100f : 1.0f;
    return {scale * up, 1.0f / (scale * up), up};
}

/*
 * x / scale as 8 bits see it, of an x of 16 bits that was multiplied by s.up. One fused step
 * (Markstein) rounds the quotient correctly: tried with every significand of 11 digits over every
 * one of 24. That holds where no product loses digits, from 2^-20 on. Below, every format has 0
 * with x's sign, which the order of signs keeps; beyond 2^30 it saturates, and a finite first lets
 * an infinity do so.
 */
GPU_FN float gpu_divided(float x, gpu_scale s) {
    const float first = fminf(fmaxf(x * s.reciprocal, -0x1p30f), 0x1p30f);
    return fmaf(-fmaf(first, s.by, -x), s.reciprocal, first);
}

/* rope_to_i8 of four numbers: adding 1.5 * 2^23 puts units at the last bit of the sum. */
GPU_FN uint32_t gpu_four_i8(const float q[4]) {
    uint32_t word = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float x = fminf(fmaxf(q[i] == q[i] ? q[i] : 0.0f, -128.0f), 127.0f);
        word |= (rope_float_bits(x + 12582912.0f) & 0xffu) << (8 * i);
    }
    return word;
}

GPU_FN uint32_t gpu_four_8bit(int32_t dtype, const float q[4]) {
    if (dtype == ROPE_I8)
        return gpu_four_i8(q);
    if (dtype == ROPE_F8E4M3)
        return gpu_join_e4m3(q[0], q[1]) | gpu_join_e4m3(q[2], q[3]) << 16;
    if (dtype == ROPE_F8E5M2)
        return gpu_join_e5m2(q[0], q[1]) | gpu_join_e5m2(q[2], q[3]) << 16;
    uint32_t word = 0;
#pragma unroll
    for (int i = 0; i < 4; i++)
        word |= (uint32_t)rope_to_f8(dtype, q[i]) << (8 * i);
    return word;
}

template <int DTYPE>
GPU_FN uint2 gpu_quantize(int32_t dtype, const gpu_vector<DTYPE, GPU_APPEND_V> &x, gpu_scale s) {
    float q[GPU_APPEND_V];
    gpu_unpack<DTYPE, GPU_APPEND_V>(x, q);
    if (s.up != 1)
#pragma unroll
        for (int i = 0; i < GPU_APPEND_V; i++)
            q[i] = q[i] * s.up;
#pragma unroll
    for (int i = 0; i < GPU_APPEND_V; i++)
        q[i] = DTYPE == ROPE_F32 ? q[i] / s.by : gpu_divided(q[i], s);
    return {gpu_four_8bit(dtype, q), gpu_four_8bit(dtype, q + 4)};
}

/* --- a vector at an address of store_dtype --- */

template <int DTYPE>
GPU_FN void gpu_store_vector_as(int32_t dtype, char *to, gpu_scale scale,
                                const gpu_vector<DTYPE, GPU_APPEND_V> &x) {
    constexpr int OTHER = DTYPE == ROPE_F16 ? ROPE_BF16 : ROPE_F16,
                  LAST = DTYPE == ROPE_F32 ? ROPE_BF16 : ROPE_F32;
    float y[GPU_APPEND_V];
    if (dtype >= ROPE_F8E4M3) {
        *(uint2 *)to = gpu_quantize<DTYPE>(dtype, x, scale);
        return;
    }
    gpu_unpack<DTYPE, GPU_APPEND_V>(x, y);
    if (dtype == OTHER)
        gpu_store<OTHER, GPU_APPEND_V>(to, gpu_pack<OTHER, GPU_APPEND_V>(y));
    else
        gpu_store<LAST, GPU_APPEND_V>(to, gpu_pack<LAST, GPU_APPEND_V>(y));
}

/* Bytes from a head's first element to its i-th; blocks of 1 << shift elements lie `block` bytes
 * apart. */
GPU_FN int64_t gpu_element_at(int32_t dtype, int64_t block, int shift, int i) {
    const int size = dtype >= ROPE_F8E4M3 ? 1 : dtype == ROPE_F32 ? 4 : 2;
    return (i >> shift) * block + (i & ((1 << shift) - 1)) * size;
}

/* Two vectors of a head to where they lie. */
template <int DTYPE>
GPU_FN void gpu_store_as(int32_t dtype, char *to, char *next, float scale, bool second,
                         gpu_vector<DTYPE, GPU_APPEND_V> x,
                         const gpu_vector<DTYPE, GPU_APPEND_V> &y) {
    if (dtype == DTYPE) {
        gpu_store<DTYPE, GPU_APPEND_V>(to, x);
        if (second)
            gpu_store<DTYPE, GPU_APPEND_V>(next, y);
        return;
    }
    const gpu_scale s = gpu_scale_from(scale);
#pragma unroll 1
    for (int i = 0; i < (second ? 2 : 1); i++) { /* one copy of the code */
        gpu_store_vector_as<DTYPE>(dtype, to, s, x);
        x = y;
        to = next;
    }
}

#endif
