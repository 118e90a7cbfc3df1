/* XPos' scale: two to the power of distance times rate, the same bits on every device. */
#ifndef ROPEKIT_COMMON_XPOS_H
#define ROPEKIT_COMMON_XPOS_H

#include "common/math/portable.h"

/* Largest exponent: its power and the reciprocal, which k takes, are normal in fp32. */
#define ROPE_XPOS_MOST ((uint64_t)126 << 48)

/* distance * rate 2^-63 with 48 fraction bits, |rate| 2^-63 < 1, kept within ROPE_XPOS_MOST. */
ROPE_FN int64_t rope_xpos_exponent(int64_t distance, int64_t rate) {
    uint64_t a = distance < 0 ? 0u - (uint64_t)distance : (uint64_t)distance;
    uint64_t b = rate < 0 ? 0u - (uint64_t)rate : (uint64_t)rate;
    uint64_t high = rope_mulhi(a, b), low = a * b;
    uint64_t e = (high << 49) | (low >> 15);
    if (high >> 11 || e > ROPE_XPOS_MOST)
        e = ROPE_XPOS_MOST;
    return (distance < 0) != (rate < 0) ? -(int64_t)e : (int64_t)e;
}

/* The nearest integer to an exponent. */
ROPE_FN int64_t rope_xpos_integer(int64_t exponent) {
    return (exponent + ((int64_t)1 << 47)) >> 48;
}

/* What the nearest integer leaves, in units of 2^-48. */
ROPE_FN int64_t rope_xpos_fraction(int64_t exponent) {
    return exponent - rope_xpos_integer(exponent) * ((int64_t)1 << 48);
}

/* 2^(exponent 2^-48); relative error below 2e-7. */
ROPE_FN float rope_xpos_scale(int64_t exponent) {
    float r = (float)rope_xpos_fraction(exponent) * 0x1p-48f;
    float p = fmaf(r, 0x1.ffcbfcp-17f, 0x1.430912p-13f);
    p = fmaf(r, p, 0x1.5d87fep-10f);
    p = fmaf(r, p, 0x1.3b2ab6p-7f);
    p = fmaf(r, p, 0x1.c6b08ep-5f);
    p = fmaf(r, p, 0x1.ebfbe0p-3f);
    p = fmaf(r, p, 0x1.62e430p-1f);
    p = fmaf(r, p, 1.0f);
    return p * rope_bits_float((uint32_t)(127 + rope_xpos_integer(exponent)) << 23);
}

/* The same in double. */
ROPE_FN double rope_xpos_scale64(int64_t exponent) {
    double r = (double)rope_xpos_fraction(exponent) * 0x1p-48;
    double p = fma(r, 0x1.816193166d0f9p-40, 0x1.c3bd650fc2986p-36);
    p = fma(r, p, 0x1.e8cac7351bb25p-32);
    p = fma(r, p, 0x1.e4cf5158b8ecap-28);
    p = fma(r, p, 0x1.b5253d395e7c4p-24);
    p = fma(r, p, 0x1.62c0223a5c824p-20);
    p = fma(r, p, 0x1.ffcbfc588b0c7p-17);
    p = fma(r, p, 0x1.430912f86c787p-13);
    p = fma(r, p, 0x1.5d87fe78a6731p-10);
    p = fma(r, p, 0x1.3b2ab6fba4e77p-7);
    p = fma(r, p, 0x1.c6b08d704a0c0p-5);
    p = fma(r, p, 0x1.ebfbdff82c58fp-3);
    p = fma(r, p, 0x1.62e42fefa39efp-1);
    p = fma(r, p, 1.0);
    return p * rope_bits_double((uint64_t)(1023 + rope_xpos_integer(exponent)) << 52);
}

#endif
