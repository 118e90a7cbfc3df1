/* 16 lanes: what vector extensions of C cannot say. Needs AVX-512 F, BW, DQ and VL. */
#ifndef ROPEKIT_CPU_LANES_AVX512_H
#define ROPEKIT_CPU_LANES_AVX512_H

#include <immintrin.h>

#define LANES 16
#define LANES_REGISTER(x) "+v"(x)
/* Index lists that part neighbours and join them again. */
#define LANES_EVEN 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30
#define LANES_ODD 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31
#define LANES_LOW 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define LANES_HIGH 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#define LANES_MASKS
#define LANES_SOME
#include "backends/cpu/lanes.h"

CPU_INLINE __mmask16 lanes_first(int count) {
    return (__mmask16)((1u << count) - 1);
}

CPU_INLINE lanes_u lanes_some_words(const void *p, int count) {
    return (lanes_u)_mm512_maskz_loadu_epi32(lanes_first(count), p);
}

CPU_INLINE lanes_h lanes_some_halves(const void *p, int count) {
    return (lanes_h)_mm256_maskz_loadu_epi16(lanes_first(count), p);
}

CPU_INLINE void lanes_put_words(void *p, lanes_u x, int count) {
    _mm512_mask_storeu_epi32(p, lanes_first(count), (__m512i)x);
}

CPU_INLINE void lanes_put_halves(void *p, lanes_h x, int count) {
    _mm256_mask_storeu_epi16(p, lanes_first(count), (__m256i)x);
}

typedef __mmask16 lanes_mask;

CPU_INLINE lanes_mask lanes_has_bit(lanes_u u, uint32_t bit) {
    return _mm512_test_epi32_mask((__m512i)u, _mm512_set1_epi32((int)bit));
}

CPU_INLINE lanes_f lanes_choose(lanes_mask mask, lanes_f a, lanes_f b) {
    return (lanes_f)_mm512_mask_blend_ps(mask, (__m512)b, (__m512)a);
}

CPU_INLINE lanes_f lanes_swap(lanes_f x) {
    return (lanes_f)_mm512_permute_ps((__m512)x, 0xb1);
}

/* Compilers do not find these conversions for vector extensions. */
CPU_INLINE lanes_u lanes_words_of(lanes_h h) {
    return (lanes_u)_mm512_cvtepu16_epi32((__m256i)h);
}

CPU_INLINE lanes_h lanes_low_halves(lanes_u u) {
    return (lanes_h)_mm512_cvtepi32_epi16((__m512i)u);
}

CPU_INLINE lanes_f lanes_fma(lanes_f a, lanes_f b, lanes_f c) {
    return (lanes_f)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}

CPU_INLINE lanes_f lanes_from_f16(lanes_h h) {
    return (lanes_f)_mm512_cvtph_ps((__m256i)h);
}

CPU_INLINE lanes_h lanes_to_f16(lanes_f x) {
    return (lanes_h)_mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT);
}

CPU_INLINE int lanes_any(lanes_u mask) {
    return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask) != 0;
}

CPU_INLINE void lanes_stream_f(void *p, lanes_f x) {
    _mm512_stream_ps(p, (__m512)x);
}

CPU_INLINE void lanes_stream_h(void *p, lanes_h x) {
    _mm256_stream_si256(p, (__m256i)x);
}

CPU_INLINE void lanes_fence(void) {
    _mm_sfence();
}

#endif
