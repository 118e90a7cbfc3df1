/* From vectors of 16-bit elements to store_dtype. */
#ifndef ROPEKIT_GPU_APPEND_STORE_H
#define ROPEKIT_GPU_APPEND_STORE_H

#include "common/gpu/append/kernels.h"
#include "common/gpu/element.h"
#include "common/math/fp8.h"

/*
 * x / scale as far as 8 bits tell it from another number; reciprocal is 1 / scale rounded, and
 * scale within 2^-60..2^60. Each fused step takes q nearer to the quotient: the first to within an
 * ulp, and the second rounds it correctly (Markstein) where the quotient is 2^-20 or more, so that
 * no product loses digits. Below, every format has 0 with q's sign, which a first of 0 has and a
 * step may lose. A first that is too large for a finite remainder saturates as it is.
 */
GPU_FN float gpu_divided(float x, float scale, float reciprocal) {
    const float first = x * reciprocal, magnitude = fabsf(first);
    float q = fmaf(fmaf(-first, scale, x), reciprocal, first);
    q = fmaf(fmaf(-q, scale, x), reciprocal, q);
    return magnitude > 0 && magnitude < 0x1p30f ? q : first;
}

GPU_FN bool gpu_divides_fast(float scale) {
    return scale >= 0x1p-60f && scale <= 0x1p60f;
}

/* rope_to_i8 of four numbers: adding 1.5 * 2^23 puts units at the last bit of the sum. */
GPU_FN uint32_t gpu_four_i8(const float q[4]) {
    uint32_t word = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float x = q[i] == q[i] ? q[i] : 0.0f;
        x = x < -128 ? -128 : x > 127 ? 127 : x;
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
GPU_FN uint2 gpu_quantize(int32_t dtype, const gpu_vector<DTYPE, GPU_APPEND_V> &x, float scale,
                          float reciprocal) {
    float q[GPU_APPEND_V];
    gpu_unpack<DTYPE, GPU_APPEND_V>(x, q);
    if (gpu_divides_fast(scale)) {
#pragma unroll
        for (int i = 0; i < GPU_APPEND_V; i++)
            q[i] = gpu_divided(q[i], scale, reciprocal);
    } else {
#pragma unroll
        for (int i = 0; i < GPU_APPEND_V; i++)
            q[i] = q[i] / scale;
    }
    return {gpu_four_8bit(dtype, q), gpu_four_8bit(dtype, q + 4)};
}

/* One vector to an address of store_dtype. */
template <int DTYPE>
GPU_FN void gpu_store_vector_as(int32_t dtype, char *to, float scale, float reciprocal,
                                const gpu_vector<DTYPE, GPU_APPEND_V> &x) {
    constexpr int OTHER = DTYPE == ROPE_BF16 ? ROPE_F16 : ROPE_BF16;
    float y[GPU_APPEND_V];
    if (dtype >= ROPE_F8E4M3) {
        *(uint2 *)to = gpu_quantize<DTYPE>(dtype, x, scale, reciprocal);
        return;
    }
    gpu_unpack<DTYPE, GPU_APPEND_V>(x, y);
    if (dtype == OTHER) {
        gpu_store<OTHER, GPU_APPEND_V>(to, gpu_pack<OTHER, GPU_APPEND_V>(y));
    } else {
        gpu_store<ROPE_F32, 4>(to, gpu_pack<ROPE_F32, 4>(y));
        gpu_store<ROPE_F32, 4>(to + 16, gpu_pack<ROPE_F32, 4>(y + 4));
    }
}

/* Two vectors of a head, from elements a and b of it on; blocks of 1 << shift elements lie `block`
 * bytes apart. */
template <int DTYPE>
GPU_FN void gpu_store_as(int32_t dtype, char *head, int64_t block, int shift, float scale, int a,
                         int b, bool second, gpu_vector<DTYPE, GPU_APPEND_V> x,
                         const gpu_vector<DTYPE, GPU_APPEND_V> &y) {
    const int size = dtype >= ROPE_F8E4M3 ? 1 : dtype == ROPE_F32 ? 4 : 2, mask = (1 << shift) - 1;
    char *to = head + (a >> shift) * block + (a & mask) * size;
    char *next = head + (b >> shift) * block + (b & mask) * size;
    if (dtype == DTYPE) {
        gpu_store<DTYPE, GPU_APPEND_V>(to, x);
        if (second)
            gpu_store<DTYPE, GPU_APPEND_V>(next, y);
        return;
    }
    const float reciprocal = 1.0f / scale;
#pragma unroll 1
    for (int i = 0; i < (second ? 2 : 1); i++) { /* one copy of the code */
        gpu_store_vector_as<DTYPE>(dtype, to, scale, reciprocal, x);
        x = y;
        to = next;
    }
}

#endif
