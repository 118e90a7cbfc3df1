/* What the HIP backend uses of HIP's half precision, computed otherwise than in the library.
 */
#ifndef ROPEKIT_HIP_EMULATION_FP16_H
#define ROPEKIT_HIP_EMULATION_FP16_H

#include <hip/hip_runtime.h>

struct __half2 {
    uint16_t x, y;
};

/* 2^n, for a normal number. */
static inline float emulated_power(int n) {
    const uint32_t bits = (uint32_t)(n + 127) << 23;
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

static inline float emulated_widen(uint16_t h) {
    int exponent = h >> 10 & 31, fraction = h & 1023;
    float magnitude = exponent == 0   ? (float)fraction * emulated_power(-24)
                      : exponent < 31 ? (float)(fraction + 1024) * emulated_power(exponent - 25)
                      : fraction == 0 ? INFINITY
                                      : NAN;
    return std::copysign(magnitude, h >> 15 ? -1.0f : 1.0f);
}

/* Rounds to a multiple of the unit in the last place, 2^-24 for zero and subnormals. */
static inline uint16_t emulated_narrow(float x) {
    int exponent, bits;
    (void)std::frexp(x, &exponent);
    int unit = x == 0 || exponent < -13 ? -24 : exponent - 11;
    if (std::isfinite(x) && exponent <= 16)
        bits = (unit + 24) * 1024 + (int)std::rint(std::fabs(x) * emulated_power(-unit));
    else
        bits = std::isnan(x) ? 0x7e00 : 0x7c00;
    return (uint16_t)(bits | (std::signbit(x) ? 0x8000 : 0));
}

static inline float2 __half22float2(__half2 h) {
    return {emulated_widen(h.x), emulated_widen(h.y)};
}

static inline __half2 __floats2half2_rn(float x, float y) {
    return {emulated_narrow(x), emulated_narrow(y)};
}

#endif
