/* 16 lanes: what vector extensions of C cannot say. Needs AVX-512 F, BW, DQ and VL. */
#ifndef ROPEKIT_CPU_SIMD_AVX512_H
#define ROPEKIT_CPU_SIMD_AVX512_H

#include <immintrin.h>

#define SIMD_LANES 16
#define SIMD_REGISTER(x) "+v"(x)
/* Index lists that part neighbours and join them again. */
#define SIMD_EVEN 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30
#define SIMD_ODD 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31
#define SIMD_LOW 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define SIMD_HIGH 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#define SIMD_MASKS
#define SIMD_SOME
#define SIMD_ADD_EIGHTS
#include "backends/cpu/simd/vector.h"

CPU_INLINE __mmask16 simd_first(int count) {
    return (__mmask16)((1u << count) - 1);
}

CPU_INLINE simd_u32 simd_some_words(const void *p, int count) {
    return (simd_u32)_mm512_maskz_loadu_epi32(simd_first(count), p);
}

CPU_INLINE simd_u16 simd_some_halves(const void *p, int count) {
    return (simd_u16)_mm256_maskz_loadu_epi16(simd_first(count), p);
}

CPU_INLINE void simd_put_words(void *p, simd_u32 x, int count) {
    _mm512_mask_storeu_epi32(p, simd_first(count), (__m512i)x);
}

CPU_INLINE void simd_put_halves(void *p, simd_u16 x, int count) {
    _mm256_mask_storeu_epi16(p, simd_first(count), (__m256i)x);
}

typedef __mmask16 simd_mask;

CPU_INLINE simd_mask simd_has_bit(simd_u32 u, uint32_t bit) {
    return _mm512_test_epi32_mask((__m512i)u, _mm512_set1_epi32((int)bit));
}

CPU_INLINE simd_f32 simd_choose(simd_mask mask, simd_f32 a, simd_f32 b) {
    return (simd_f32)_mm512_mask_blend_ps(mask, (__m512)b, (__m512)a);
}

/* Sums of neighbours in each quarter: those of a, then those of b. */
CPU_INLINE __m512 simd_add_in_quarters(simd_f32 a, simd_f32 b) {
    return _mm512_add_ps(_mm512_shuffle_ps((__m512)a, (__m512)b, 0x88),
                         _mm512_shuffle_ps((__m512)a, (__m512)b, 0xdd));
}

/* Sums of eight neighbours each, as a balanced tree, of eight vectors: after two levels a quarter
 * has those of four from that quarter of four vectors, and the third joins two quarters. */
CPU_INLINE simd_f32 simd_add_eights(const simd_f32 x[8]) {
    const __m512i order = _mm512_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
    __m512 four[2];
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++)
        four[i] = simd_add_in_quarters((simd_f32)simd_add_in_quarters(x[4 * i], x[4 * i + 1]),
                                       (simd_f32)simd_add_in_quarters(x[4 * i + 2], x[4 * i + 3]));
    return (simd_f32)_mm512_permutexvar_ps(
        order, _mm512_add_ps(_mm512_shuffle_f32x4(four[0], four[1], 0x88),
                             _mm512_shuffle_f32x4(four[0], four[1], 0xdd)));
}

CPU_INLINE simd_f32 simd_swap(simd_f32 x) {
    return (simd_f32)_mm512_permute_ps((__m512)x, 0xb1);
}

/* The eight elements at each of two places. */
CPU_INLINE simd_f32 simd_join_f(const void *a, const void *b) {
    const __m256d low = _mm256_loadu_pd(a), high = _mm256_loadu_pd(b);
    return (simd_f32)_mm512_insertf64x4(_mm512_castpd256_pd512(low), high, 1);
}

CPU_INLINE simd_f32 simd_twice_f(const void *p) {
    return (simd_f32)_mm512_broadcast_f64x4(_mm256_loadu_pd(p));
}

/* The first halves of two vectors, and the second ones. */
CPU_INLINE simd_f32 simd_low_halves_of(simd_f32 a, simd_f32 b) {
    return (simd_f32)_mm512_shuffle_f32x4((__m512)a, (__m512)b, 0x44);
}

CPU_INLINE simd_f32 simd_high_halves_of(simd_f32 a, simd_f32 b) {
    return (simd_f32)_mm512_shuffle_f32x4((__m512)a, (__m512)b, 0xee);
}

CPU_INLINE simd_u16 simd_join_h(const void *a, const void *b) {
    const __m128i low = _mm_loadu_si128(a), high = _mm_loadu_si128(b);
    return (simd_u16)_mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
}

/* Compilers do not find these conversions for vector extensions. */
CPU_INLINE simd_u32 simd_words_of(simd_u16 h) {
    return (simd_u32)_mm512_cvtepu16_epi32((__m256i)h);
}

CPU_INLINE simd_u16 simd_low_halves(simd_u32 u) {
    return (simd_u16)_mm512_cvtepi32_epi16((__m512i)u);
}

CPU_INLINE simd_f32 simd_sqrt(simd_f32 x) {
    return (simd_f32)_mm512_sqrt_ps((__m512)x);
}

/* The lesser of x and a limit; a NaN stays. */
CPU_INLINE simd_f32 simd_min_f(simd_f32 x, simd_f32 limit) {
    return (simd_f32)_mm512_min_ps((__m512)limit, (__m512)x);
}

CPU_INLINE simd_u32 simd_min_u(simd_u32 a, simd_u32 b) {
    return (simd_u32)_mm512_min_epu32((__m512i)a, (__m512i)b);
}

/* Of words below 2^31. */
CPU_INLINE simd_u32 simd_max_i(simd_u32 a, simd_u32 b) {
    return (simd_u32)_mm512_max_epi32((__m512i)a, (__m512i)b);
}

CPU_INLINE simd_f32 simd_fma(simd_f32 a, simd_f32 b, simd_f32 c) {
    return (simd_f32)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}

CPU_INLINE simd_f32 simd_from_f16(simd_u16 h) {
    return (simd_f32)_mm512_cvtph_ps((__m256i)h);
}

CPU_INLINE simd_u16 simd_to_f16(simd_f32 x) {
    return (simd_u16)_mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT);
}

CPU_INLINE int simd_any(simd_u32 mask) {
    return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask) != 0;
}

CPU_INLINE void simd_stream_f(void *p, simd_f32 x) {
    _mm512_stream_ps(p, (__m512)x);
}

CPU_INLINE void simd_stream_h(void *p, simd_u16 x) {
    _mm256_stream_si256(p, (__m256i)x);
}

CPU_INLINE void simd_fence(void) {
    _mm_sfence();
}

#endif
