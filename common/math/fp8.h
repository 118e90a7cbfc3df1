/* The 8-bit formats of a cache, as integers: rounded to nearest even, saturating. */
#ifndef ROPEKIT_COMMON_FP8_H
#define ROPEKIT_COMMON_FP8_H

#include "common/math/portable.h"

#include <ropekit/rope.h>

/* A format of a sign, an exponent and `mantissa` bits. The largest finite number has the code
 * `largest`; a NaN is `nan`. */
typedef struct rope_f8_format {
    int32_t mantissa, bias;
    uint32_t largest, nan;
    int32_t signed_zero;
} rope_f8_format;

ROPE_FN rope_f8_format rope_f8_format_of(int32_t dtype) {
    const rope_f8_format e4m3 = {3, 7, 0x7e, 0x7f, 1}, e5m2 = {2, 15, 0x7b, 0x7f, 1},
                         fnuz = {3, 8, 0x7f, 0x80, 0};
    return dtype == ROPE_F8E4M3 ? e4m3 : dtype == ROPE_F8E5M2 ? e5m2 : fnuz;
}

/* Among subnormals adding 2^23 of their units puts the unit at the last bit of the sum. */
ROPE_FN uint8_t rope_to_f8(int32_t dtype, float x) {
    const rope_f8_format f = rope_f8_format_of(dtype);
    const int shift = 23 - f.mantissa;
    const uint32_t base = (uint32_t)(127 - f.bias) << 23, sign = rope_float_bits(x) >> 24 & 0x80u;
    uint32_t u = rope_float_bits(x) & 0x7fffffffu, code;
    if (u > 0x7f800000u)
        return (uint8_t)f.nan;
    if (u < base + (1u << 23)) {
        const uint32_t magic = (uint32_t)(127 + 24 - f.bias - f.mantissa) << 23;
        code = rope_float_bits(rope_bits_float(u) + rope_bits_float(magic)) - magic;
    } else {
        code = (u - base + (1u << (shift - 1)) - 1 + (u >> shift & 1u)) >> shift;
    }
    if (code > f.largest)
        code = f.largest;
    return (uint8_t)(code == 0 && !f.signed_zero ? 0 : code | sign);
}

ROPE_FN float rope_from_f8(int32_t dtype, uint8_t h) {
    const rope_f8_format f = rope_f8_format_of(dtype);
    const uint32_t sign = (uint32_t)(h & 0x80u) << 24, code = h & 0x7fu;
    if (f.signed_zero ? code > f.largest : h == f.nan) {
        if (dtype == ROPE_F8E5M2 && code == 0x7cu)
            return rope_bits_float(sign | 0x7f800000u);
        return rope_bits_float(0x7fc00000u);
    }
    if (code >> f.mantissa)
        return rope_bits_float(sign |
                               ((code << (23 - f.mantissa)) + ((uint32_t)(127 - f.bias) << 23)));
    const uint32_t unit = (uint32_t)(127 + 1 - f.bias - f.mantissa) << 23;
    return rope_bits_float(sign | rope_float_bits((float)code * rope_bits_float(unit)));
}

/* A NaN is 0. */
ROPE_FN uint8_t rope_to_i8(float x) {
    if (!(x == x))
        return 0;
    x = x < -128 ? -128 : x > 127 ? 127 : x;
    return (uint8_t)(int8_t)rintf(x);
}

ROPE_FN uint8_t rope_to_8bit(int32_t dtype, float x) {
    return dtype == ROPE_I8 ? rope_to_i8(x) : rope_to_f8(dtype, x);
}

ROPE_FN float rope_from_8bit(int32_t dtype, uint8_t h) {
    return dtype == ROPE_I8 ? (float)(int8_t)h : rope_from_f8(dtype, h);
}

ROPE_FN float rope_8bit_largest(int32_t dtype) {
    return dtype == ROPE_F8E4M3   ? 448.0f
           : dtype == ROPE_F8E5M2 ? 57344.0f
           : dtype == ROPE_I8     ? 127.0f
                                  : 240.0f;
}

/* ROPE_SCALE_TOKEN_HEAD_MAX: a magnitude's bits are in its order; what is not finite has no say. */
ROPE_FN uint32_t rope_finite_magnitude(float x) {
    const uint32_t u = rope_float_bits(x) & 0x7fffffffu;
    return u < 0x7f800000u ? u : 0;
}

/* The scale of elements whose largest finite magnitude has these bits: at least 2^-126. */
ROPE_FN float rope_scale_of_largest(int32_t dtype, uint32_t magnitude) {
    const float scale = rope_bits_float(magnitude) / rope_8bit_largest(dtype);
    return magnitude == 0 ? 1.0f : scale < 0x1p-126f ? 0x1p-126f : scale;
}

#endif
