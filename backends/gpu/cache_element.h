/* Numbers of a cache, of another type than those of a call, in vectors of eight. */
#ifndef ROPEKIT_GPU_CACHE_ELEMENT_H
#define ROPEKIT_GPU_CACHE_ELEMENT_H

#include "backends/gpu/element.h"
#include "common/math/fp8.h"

enum { GPU_STORED = 8 };

/* The integer of a word's i-th byte: its sign turned, it counts units of 2^23 from 128 below. */
GPU_FN float gpu_byte_i8(uint32_t word, int i) {
    return rope_bits_float(((word ^ 0x80808080u) >> 8 * i & 0xffu) | 0x4b000000u) - 8388736.0f;
}

/* The numbers of a word's two low bytes. */
GPU_FN float2 gpu_split_8bit(int32_t dtype, uint32_t word) {
    if (dtype == ROPE_F8E4M3)
        return gpu_split_e4m3(word);
    if (dtype == ROPE_F8E5M2)
        return gpu_split_e5m2(word);
    if (dtype == ROPE_I8)
        return {gpu_byte_i8(word, 0), gpu_byte_i8(word, 1)};
    return {rope_from_8bit(dtype, (uint8_t)word), rope_from_8bit(dtype, (uint8_t)(word >> 8))};
}

/* 8 bits stay as they are, in the first two words. */
template <int DTYPE>
GPU_FN gpu_vector<DTYPE, GPU_STORED> gpu_load_vector_as(int32_t dtype, const char *from) {
    constexpr int OTHER = DTYPE == ROPE_F16 ? ROPE_BF16 : ROPE_F16,
                  LAST = DTYPE == ROPE_F32 ? ROPE_BF16 : ROPE_F32;
    float y[GPU_STORED];
    if (dtype >= ROPE_F8E4M3) {
        const uint2 raw = *(const uint2 *)from;
        return {{raw.x, raw.y, 0, 0}};
    }
    if (dtype == DTYPE)
        return gpu_load<DTYPE, GPU_STORED>(from);
    if (dtype == OTHER)
        gpu_unpack<OTHER, GPU_STORED>(gpu_load<OTHER, GPU_STORED>(from), y);
    else
        gpu_unpack<LAST, GPU_STORED>(gpu_load<LAST, GPU_STORED>(from), y);
    return gpu_pack<DTYPE, GPU_STORED>(y);
}

/* The numbers that a vector's 8 bits stand for. */
template <int DTYPE>
GPU_FN gpu_vector<DTYPE, GPU_STORED> gpu_dequantize(int32_t dtype, float scale,
                                                    const gpu_vector<DTYPE, GPU_STORED> &raw) {
    float y[GPU_STORED];
#pragma unroll
    for (int i = 0; i < GPU_STORED; i += 2) {
        const float2 two = gpu_split_8bit(dtype, raw.word[i / 4] >> (i % 4 * 8));
        y[i] = two.x * scale;
        y[i + 1] = two.y * scale;
    }
    return gpu_pack<DTYPE, GPU_STORED>(y);
}

#endif
