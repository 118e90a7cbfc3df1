/* Vectors of LANES pairs in the C compilers' vector extensions: the same source for every ISA. */
#ifndef ROPEKIT_CPU_LANES_H
#define ROPEKIT_CPU_LANES_H

#include "backends/cpu/generic.h"

typedef float lanes_f __attribute__((vector_size(4 * LANES)));
typedef uint32_t lanes_u __attribute__((vector_size(4 * LANES)));
typedef int32_t lanes_i __attribute__((vector_size(4 * LANES)));
typedef uint16_t lanes_h __attribute__((vector_size(2 * LANES)));
typedef uint64_t lanes_d __attribute__((vector_size(4 * LANES)));

/* 64 bits a lane: two vectors, since compilers take a longer one apart. */
typedef struct lanes_w {
    lanes_d part[2];
} lanes_w;

/* Reads a byte; where registers are short a compiler would take a mask's for it, at more cost. */
CPU_INLINE void lanes_read_byte(const char *p) {
#if defined(__x86_64__)
    __asm__ volatile("testb $0, %0" : : "m"(*p) : "cc");
#else
    (void)*(const volatile char *)p;
#endif
}

CPU_INLINE lanes_f lanes_load_f(const void *p) {
    lanes_f x;
    memcpy(&x, p, sizeof x);
    return x;
}

CPU_INLINE lanes_u lanes_load_u(const void *p) {
    lanes_u x;
    memcpy(&x, p, sizeof x);
    return x;
}

CPU_INLINE lanes_h lanes_load_h(const void *p) {
    lanes_h x;
    memcpy(&x, p, sizeof x);
    return x;
}

CPU_INLINE void lanes_store_f(void *p, lanes_f x) {
    memcpy(p, &x, sizeof x);
}
CPU_INLINE void lanes_store_u(void *p, lanes_u x) {
    memcpy(p, &x, sizeof x);
}
CPU_INLINE void lanes_store_h(void *p, lanes_h x) {
    memcpy(p, &x, sizeof x);
}

CPU_INLINE lanes_f lanes_set_f(float x) {
    lanes_f v;
    for (int i = 0; i < LANES; i++)
        v[i] = x;
    return v;
}

#if !defined(LANES_SOME)
/* The first `count` lanes; what is loaded beyond them is zero. */
CPU_INLINE lanes_u lanes_some_words(const void *p, int count) {
    lanes_u x = {0};
    memcpy(&x, p, 4 * (size_t)count);
    return x;
}

CPU_INLINE lanes_h lanes_some_halves(const void *p, int count) {
    lanes_h x = {0};
    memcpy(&x, p, 2 * (size_t)count);
    return x;
}

CPU_INLINE void lanes_put_words(void *p, lanes_u x, int count) {
    memcpy(p, &x, 4 * (size_t)count);
}

CPU_INLINE void lanes_put_halves(void *p, lanes_h x, int count) {
    memcpy(p, &x, 2 * (size_t)count);
}
#endif

/* a where the mask is all ones, b where it is zero. */
CPU_INLINE lanes_u lanes_select(lanes_u mask, lanes_u a, lanes_u b) {
    return (a & mask) | (b & ~mask);
}

/* The bits of rope_to_bf16, but for NaNs, in the low half of each word: to nearest even, by carry.
 * None reaches a NaN whose own low half is empty, as it is in all that comes of bfloat16
 * (table_lanes.h sees to tables). */
CPU_INLINE lanes_u lanes_bf16_words(lanes_f x) {
    lanes_u u = (lanes_u)x;
    return (u + ((u >> 16) & 1u) + 0x7fffu) >> 16;
}

#if !defined(LANES_MASKS)
/* Which lanes of u have a bit, and a choice by it. */
typedef lanes_u lanes_mask;

CPU_INLINE lanes_mask lanes_has_bit(lanes_u u, uint32_t bit) {
    return (lanes_u)((u & bit) == bit);
}

CPU_INLINE lanes_f lanes_choose(lanes_mask mask, lanes_f a, lanes_f b) {
    return (lanes_f)lanes_select(mask, (lanes_u)a, (lanes_u)b);
}
#endif

#if defined(LANES_EVEN)
/* Two vectors parted into first and second of each pair of neighbours, and joined again. */
CPU_INLINE lanes_f lanes_even(lanes_f a, lanes_f b) {
    return __builtin_shufflevector(a, b, LANES_EVEN);
}

CPU_INLINE lanes_f lanes_odd(lanes_f a, lanes_f b) {
    return __builtin_shufflevector(a, b, LANES_ODD);
}

CPU_INLINE lanes_f lanes_low(lanes_f a, lanes_f b) {
    return __builtin_shufflevector(a, b, LANES_LOW);
}

CPU_INLINE lanes_f lanes_high(lanes_f a, lanes_f b) {
    return __builtin_shufflevector(a, b, LANES_HIGH);
}
#endif

#endif
