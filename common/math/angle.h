/*
 * cos and sin of an angle, the same bits on every device. Every fused operation is written out;
 * compile with contraction off. Derivations and bounds: docs/numerics.md.
 */
#ifndef ROPEKIT_COMMON_ANGLE_H
#define ROPEKIT_COMMON_ANGLE_H

#include "common/math/portable.h"

/* sin(pi/2 r) = r (S0 + S0L + z (S1 + ...)) and cos(pi/2 r) = 1 + z (C1 + ...), z = r r, |r| <=
 * 1/2. */
#define ROPE_S0 0x1.921fb6p+0f
#define ROPE_S0L -0x1.16492ep-24f
#define ROPE_S1 -0x1.4abba8p-1f
#define ROPE_S2 0x1.465a5ap-4f
#define ROPE_S3 -0x1.2cf990p-8f
#define ROPE_C1 -0x1.3bd3ccp+0f
#define ROPE_C2 0x1.03c1aep-2f
#define ROPE_C3 -0x1.55b146p-6f
#define ROPE_C4 0x1.d47d40p-11f

/* 2/pi as two floats, and the magnitude from which the two-step reduction is not enough. */
#define ROPE_P1 0x1.45f306p-1f
#define ROPE_P2 0x1.b93910p-26f
#define ROPE_ROUND_MAGIC 12582912.0f
#define ROPE_F32_LARGE 0x1p18f

typedef struct rope_cos_sin {
    float c, s;
} rope_cos_sin;

typedef struct rope_cos_sin64 {
    double c, s;
} rope_cos_sin64;

/* cos and sin of (quadrant + r) quarter turns; the quadrant sits in the top two bits of u. */
ROPE_FN rope_cos_sin rope_cos_sin_quarter(float r, uint32_t u) {
    float z = r * r;
    float p = fmaf(z, ROPE_S3, ROPE_S2);
    p = fmaf(z, p, ROPE_S1);
    p = fmaf(z, p, ROPE_S0L);
    p = p * r;
    float s = fmaf(r, ROPE_S0, p);
    float q = fmaf(z, ROPE_C4, ROPE_C3);
    q = fmaf(z, q, ROPE_C2);
    q = fmaf(z, q, ROPE_C1);
    float c = fmaf(z, q, 1.0f);
    int swap = (u & 0x40000000u) != 0;
    rope_cos_sin result;
    result.c = rope_bits_float(rope_float_bits(swap ? s : c) ^ ((u + 0x40000000u) & 0x80000000u));
    result.s = rope_bits_float(rope_float_bits(swap ? c : s) ^ (u & 0x80000000u));
    return result;
}

/* cos and sin of t 2^-64 turns: within 8e-8 of the true values. */
ROPE_FN rope_cos_sin rope_cos_sin_turns(uint64_t t) {
    uint32_t u = (uint32_t)(t >> 32) + 0x20000000u;
    float r = (float)(int32_t)(uint32_t)(t >> 30) * 0x1p-32f;
    return rope_cos_sin_quarter(r, u);
}

/* Turns of |a| >= 1 times 2^64: its 24-bit significand times 64 bits of 1/2pi at its exponent. */
ROPE_FN uint64_t rope_turns_of_float(float a) {
    uint32_t u = rope_float_bits(a);
    uint64_t significand = (u & 0x007fffffu) | 0x00800000u;
    int position = (int)((u >> 23) & 0xffu) - 150 + 64; /* bits of 1/2pi before the window's end */
    const uint64_t w0 = 0x28be60db9391054aull, w1 = 0x7f09d5f47d4d3770ull;
    const uint64_t w2 = 0x36d8a5664f10e410ull;
    uint64_t high = position < 64 ? 0 : position < 128 ? w0 : w1;
    uint64_t low = position < 64 ? w0 : position < 128 ? w1 : w2;
    int shift = position & 63;
    uint64_t window = shift == 0 ? high : (high << shift) | (low >> (64 - shift));
    uint64_t t = significand * window;
    return u >> 31 ? 0u - t : t;
}

/* cos and sin of a radians, |a| < 2^127: within 1.2e-7 of the true values. */
ROPE_FN rope_cos_sin rope_cos_sin_radians(float a) {
    if (fabsf(a) >= ROPE_F32_LARGE)
        return rope_cos_sin_turns(rope_turns_of_float(a));
    float nf = fmaf(a, ROPE_P1, ROPE_ROUND_MAGIC);
    float n = nf - ROPE_ROUND_MAGIC;
    float r = fmaf(a, ROPE_P1, -n);
    r = fmaf(a, ROPE_P2, r);
    return rope_cos_sin_quarter(r, rope_float_bits(nf) << 30);
}

/* High word of position times a 128-bit count of turns: an fp64 angle without a rounding that
 * shows. */
ROPE_FN uint64_t rope_turns_wide(int64_t position, uint64_t top, uint64_t low) {
    uint64_t carry = rope_mulhi((uint64_t)position, low) - (position < 0 ? low : 0);
    return (uint64_t)position * top + carry;
}

/* cos and sin of t 2^-64 turns in double; Taylor coefficients of (pi/2)^k / k!. */
ROPE_FN rope_cos_sin64 rope_cos_sin_turns64(uint64_t t) {
    uint64_t u = t + 0x2000000000000000ull;
    double r = (double)(int64_t)(t << 2) * 0x1p-64;
    double z = r * r;
    double p = fma(z, 0x1.aaec32af93359p-38, -0x1.6fadb9f155744p-31);
    p = fma(z, p, 0x1.e8f434d018d63p-25);
    p = fma(z, p, -0x1.e3074fde8871fp-19);
    p = fma(z, p, 0x1.50783487ee782p-13);
    p = fma(z, p, -0x1.32d2cce62bd86p-8);
    p = fma(z, p, 0x1.466bc6775aae2p-4);
    p = fma(z, p, -0x1.4abbce625be53p-1);
    p = fma(z, p, 0x1.1a62633145c07p-54);
    p = p * r;
    double s = fma(r, 0x1.921fb54442d18p+0, p);
    double q = fma(z, 0x1.20c62c2f2d7f5p-34, -0x1.b6e24f44b128fp-28);
    q = fma(z, q, 0x1.f9d38a3763cc3p-22);
    q = fma(z, q, -0x1.a6d1f2a204a8cp-16);
    q = fma(z, q, 0x1.e1f506891babbp-11);
    q = fma(z, q, -0x1.55d3c7e3cbffap-6);
    q = fma(z, q, 0x1.03c1f081b5ac4p-2);
    q = fma(z, q, -0x1.3bd3cc9be45dep+0);
    double c = fma(z, q, 1.0);
    int swap = (u & 0x4000000000000000ull) != 0;
    uint64_t sign_c = (u + 0x4000000000000000ull) & 0x8000000000000000ull;
    rope_cos_sin64 result;
    result.c = rope_bits_double(rope_double_bits(swap ? s : c) ^ sign_c);
    result.s = rope_bits_double(rope_double_bits(swap ? c : s) ^ (u & 0x8000000000000000ull));
    return result;
}

#endif
