/* What C, CUDA and HIP spell differently. */
#ifndef ROPEKIT_COMMON_PORTABLE_H
#define ROPEKIT_COMMON_PORTABLE_H

#include <math.h>
#include <stdint.h>
#include <string.h>

/* Bits are the same on every device by IEEE arithmetic in the types as written, and only so. */
#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__)
#error "ropekit: fast-math flags are refused: outputs must be bitwise equal on every backend"
#endif
#if defined(__FLT_EVAL_METHOD__) &&                                                                \
    (__FLT_EVAL_METHOD__ < 0 || __FLT_EVAL_METHOD__ == 1 || __FLT_EVAL_METHOD__ == 2)
#error "ropekit: arithmetic wider than its types is refused: outputs must be bitwise equal"
#endif

#if defined(__CUDACC__) || defined(__HIPCC__)
#define ROPE_FN static __host__ __device__ __forceinline__
#else
#define ROPE_FN static inline
#endif

ROPE_FN uint32_t rope_float_bits(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

ROPE_FN float rope_bits_float(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

ROPE_FN uint64_t rope_double_bits(double x) {
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

ROPE_FN double rope_bits_double(uint64_t u) {
    double x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* Sum of two positions; wraps, as angles do. */
ROPE_FN int64_t rope_sum(int64_t a, int64_t b) {
    return (int64_t)((uint64_t)a + (uint64_t)b);
}

/* Difference of two positions; wraps, too. */
ROPE_FN int64_t rope_difference(int64_t a, int64_t b) {
    return (int64_t)((uint64_t)a - (uint64_t)b);
}

/* Product; wraps. */
ROPE_FN int64_t rope_product(int64_t a, int64_t b) {
    return (int64_t)((uint64_t)a * (uint64_t)b);
}

/* High word of the 128-bit product of two unsigned words. */
ROPE_FN uint64_t rope_mulhi(uint64_t a, uint64_t b) {
#if defined(__CUDA_ARCH__) || defined(__HIP_DEVICE_COMPILE__)
    return __umul64hi(a, b);
#else
    __extension__ typedef unsigned __int128 uint128;
    return (uint64_t)(((uint128)a * b) >> 64);
#endif
}

#endif
