/* Vectors of SIMD_LANES pairs in the C compilers' vector extensions: the same source for every ISA.
 */
#ifndef ROPEKIT_CPU_SIMD_SIMD_H
#define ROPEKIT_CPU_SIMD_SIMD_H

#include "backends/cpu/scalar.h"

typedef float simd_f32 __attribute__((vector_size(4 * SIMD_LANES)));
typedef uint32_t simd_u32 __attribute__((vector_size(4 * SIMD_LANES)));
typedef int32_t simd_i32 __attribute__((vector_size(4 * SIMD_LANES)));
typedef uint16_t simd_u16 __attribute__((vector_size(2 * SIMD_LANES)));
typedef uint64_t simd_u64 __attribute__((vector_size(4 * SIMD_LANES)));

/* 64 bits a lane: two vectors, since compilers split a longer one. */
typedef struct simd_turns {
    simd_u64 part[2];
} simd_turns;

/* Reads a byte; where registers are short a compiler would take a mask's for it, at more cost. */
CPU_INLINE void simd_read_byte(const char *p) {
#if defined(__x86_64__)
    __asm__ volatile("testb $0, %0" : : "m"(*p) : "cc");
#else
    (void)*(const volatile char *)p;
#endif
}

CPU_INLINE simd_f32 simd_load_f(const void *p) {
    simd_f32 x;
    memcpy(&x, p, sizeof x);
    return x;
}

CPU_INLINE simd_u32 simd_load_u(const void *p) {
    simd_u32 x;
    memcpy(&x, p, sizeof x);
    return x;
}

CPU_INLINE simd_u16 simd_load_h(const void *p) {
    simd_u16 x;
    memcpy(&x, p, sizeof x);
    return x;
}

CPU_INLINE void simd_store_f(void *p, simd_f32 x) {
    memcpy(p, &x, sizeof x);
}
CPU_INLINE void simd_store_u(void *p, simd_u32 x) {
    memcpy(p, &x, sizeof x);
}
CPU_INLINE void simd_store_h(void *p, simd_u16 x) {
    memcpy(p, &x, sizeof x);
}

CPU_INLINE simd_f32 simd_set_f(float x) {
    return x - (simd_f32){0}; /* -0 as well */
}

#if !defined(SIMD_SOME)
/* The first `count` lanes; what is loaded beyond them is zero. */
CPU_INLINE simd_u32 simd_some_words(const void *p, int count) {
    simd_u32 x = {0};
    memcpy(&x, p, 4 * (size_t)count);
    return x;
}

CPU_INLINE simd_u16 simd_some_halves(const void *p, int count) {
    simd_u16 x = {0};
    memcpy(&x, p, 2 * (size_t)count);
    return x;
}

CPU_INLINE void simd_put_words(void *p, simd_u32 x, int count) {
    memcpy(p, &x, 4 * (size_t)count);
}

CPU_INLINE void simd_put_halves(void *p, simd_u16 x, int count) {
    memcpy(p, &x, 2 * (size_t)count);
}
#endif

/* a where the mask is all ones, b where it is zero. */
CPU_INLINE simd_u32 simd_select(simd_u32 mask, simd_u32 a, simd_u32 b) {
    return (a & mask) | (b & ~mask);
}

/* The bits of rope_to_bf16, but for NaNs, in the low half of each word: to nearest even, by carry.
 * None reaches a NaN whose own low half is empty, as it is in all that comes of bfloat16
 * (cos_sin_row.h sees to tables). */
CPU_INLINE simd_u32 simd_bf16_words(simd_f32 x) {
    simd_u32 u = (simd_u32)x;
    return (u + ((u >> 16) & 1u) + 0x7fffu) >> 16;
}

/* x where it is a number, else a NaN whose low half is empty: for simd_bf16_words. */
CPU_INLINE simd_f32 simd_quiet_nan(simd_f32 x) {
    /* A NaN differs from itself. NOLINTNEXTLINE(misc-redundant-expression) */
    const simd_u32 nan = (simd_u32)(x != x), quiet = (simd_u32){0} + 0x7fc00000u;
    return (simd_f32)simd_select(nan, quiet, (simd_u32)x);
}

#if !defined(SIMD_MASKS)
/* Which lanes of u have a bit, and a choice by it. */
typedef simd_u32 simd_mask;

CPU_INLINE simd_mask simd_has_bit(simd_u32 u, uint32_t bit) {
    return (simd_u32)((u & bit) == bit);
}

CPU_INLINE simd_f32 simd_choose(simd_mask mask, simd_f32 a, simd_f32 b) {
    return (simd_f32)simd_select(mask, (simd_u32)a, (simd_u32)b);
}
#endif

#if defined(SIMD_EVEN)
/* Two vectors parted into first and second of each pair of neighbours, and joined again. */
CPU_INLINE simd_f32 simd_even(simd_f32 a, simd_f32 b) {
    return __builtin_shufflevector(a, b, SIMD_EVEN);
}

CPU_INLINE simd_f32 simd_odd(simd_f32 a, simd_f32 b) {
    return __builtin_shufflevector(a, b, SIMD_ODD);
}

CPU_INLINE simd_f32 simd_low(simd_f32 a, simd_f32 b) {
    return __builtin_shufflevector(a, b, SIMD_LOW);
}

CPU_INLINE simd_f32 simd_high(simd_f32 a, simd_f32 b) {
    return __builtin_shufflevector(a, b, SIMD_HIGH);
}
#endif

#if !defined(SIMD_ADD_EIGHTS)
/* Sums of eight neighbours each, as a balanced tree, of eight vectors. */
CPU_INLINE simd_f32 simd_add_eights(const simd_f32 x[8]) {
    simd_f32 sum[8];
    memcpy(sum, x, sizeof sum);
#pragma GCC unroll 3
    for (int count = 4; count > 0; count /= 2)
#pragma GCC unroll 4
        for (int v = 0; v < count; v++)
            sum[v] = simd_even(sum[2 * v], sum[2 * v + 1]) + simd_odd(sum[2 * v], sum[2 * v + 1]);
    return sum[0];
}
#endif

#endif
