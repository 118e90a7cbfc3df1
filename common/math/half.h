/* The 16-bit formats as integers: binary16 and bfloat16, rounded to nearest even. */
#ifndef ROPEKIT_COMMON_HALF_H
#define ROPEKIT_COMMON_HALF_H

#include "common/math/portable.h"

ROPE_FN float rope_from_bf16(uint16_t h) {
    return rope_bits_float((uint32_t)h << 16);
}

/* A NaN keeps its sign and its top payload bits, made quiet. */
ROPE_FN uint16_t rope_to_bf16(float x) {
    uint32_t u = rope_float_bits(x);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((u >> 16) | 0x40u);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

/* A subnormal is scaled by a power of two, which is exact in fp32. */
ROPE_FN float rope_from_f16(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t magnitude = h & 0x7fffu;
    if (magnitude >= 0x7c00u) {
        uint32_t quiet = magnitude > 0x7c00u ? 0x00400000u : 0u;
        return rope_bits_float(sign | 0x7f800000u | quiet | ((magnitude & 0x3ffu) << 13));
    }
    if (magnitude >= 0x0400u)
        return rope_bits_float(sign | ((magnitude << 13) + 0x38000000u));
    return rope_bits_float(sign | rope_float_bits((float)magnitude * 0x1p-24f));
}

/* Below 2^-14 adding 0.5 puts the unit of the subnormals at the last bit of the sum. */
ROPE_FN uint16_t rope_to_f16(float x) {
    uint32_t u = rope_float_bits(x);
    uint32_t sign = (u >> 16) & 0x8000u;
    u &= 0x7fffffffu;
    if (u > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | ((u >> 13) & 0x3ffu));
    if (u >= 0x477ff000u)
        return (uint16_t)(sign | 0x7c00u);
    if (u < 0x38800000u) {
        uint32_t sum = rope_float_bits(rope_bits_float(u) + 0.5f);
        return (uint16_t)(sign | (sum - 0x3f000000u));
    }
    return (uint16_t)(sign | ((u - 0x38000000u + 0xfffu + ((u >> 13) & 1u)) >> 13));
}

#endif
