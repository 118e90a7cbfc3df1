/* 8 lanes: what vector extensions of C cannot say. Needs AVX2, FMA and F16C. */
#ifndef ROPEKIT_CPU_SIMD_AVX2_H
#define ROPEKIT_CPU_SIMD_AVX2_H

#include <immintrin.h>

#define SIMD_LANES 8
#define SIMD_REGISTER(x) "+x"(x)
#include "backends/cpu/simd/vector.h"

/* Two vectors parted into first and second of each pair of neighbours, and joined again. */
CPU_INLINE simd_f32 simd_even(simd_f32 a, simd_f32 b) {
    __m256d mixed = (__m256d)_mm256_shuffle_ps((__m256)a, (__m256)b, 0x88);
    return (simd_f32)_mm256_permute4x64_pd(mixed, 0xd8);
}

CPU_INLINE simd_f32 simd_odd(simd_f32 a, simd_f32 b) {
    __m256d mixed = (__m256d)_mm256_shuffle_ps((__m256)a, (__m256)b, 0xdd);
    return (simd_f32)_mm256_permute4x64_pd(mixed, 0xd8);
}

CPU_INLINE simd_f32 simd_low(simd_f32 a, simd_f32 b) {
    __m256 low = _mm256_unpacklo_ps((__m256)a, (__m256)b);
    return (simd_f32)_mm256_permute2f128_ps(low, _mm256_unpackhi_ps((__m256)a, (__m256)b), 0x20);
}

CPU_INLINE simd_f32 simd_high(simd_f32 a, simd_f32 b) {
    __m256 low = _mm256_unpacklo_ps((__m256)a, (__m256)b);
    return (simd_f32)_mm256_permute2f128_ps(low, _mm256_unpackhi_ps((__m256)a, (__m256)b), 0x31);
}

/* Half of the shuffles that simd_low and simd_high would take. */
#define SIMD_TRANSPOSE
CPU_INLINE void simd_transpose(simd_u32 *x) {
    __m256d pair[8], quad[8];
    for (int i = 0; i < 8; i += 2) {
        const __m256 a = (__m256)x[i], b = (__m256)x[i + 1];
        pair[i] = (__m256d)_mm256_unpacklo_ps(a, b);
        pair[i + 1] = (__m256d)_mm256_unpackhi_ps(a, b);
    }
    for (int i = 0; i < 8; i += 4)
        for (int j = 0; j < 2; j++) {
            quad[i + 2 * j] = _mm256_unpacklo_pd(pair[i + j], pair[i + 2 + j]);
            quad[i + 2 * j + 1] = _mm256_unpackhi_pd(pair[i + j], pair[i + 2 + j]);
        }
    for (int i = 0; i < 4; i++) {
        x[i] = (simd_u32)_mm256_permute2f128_pd(quad[i], quad[i + 4], 0x20);
        x[i + 4] = (simd_u32)_mm256_permute2f128_pd(quad[i], quad[i + 4], 0x31);
    }
}

CPU_INLINE simd_f32 simd_swap(simd_f32 x) {
    return (simd_f32)_mm256_permute_ps((__m256)x, 0xb1);
}

/* Compilers do not find these conversions for vector extensions. */
CPU_INLINE simd_u32 simd_words_of(simd_u16 h) {
    return (simd_u32)_mm256_cvtepu16_epi32((__m128i)h);
}

CPU_INLINE simd_u16 simd_low_halves(simd_u32 u) {
    __m256i low = _mm256_and_si256((__m256i)u, _mm256_set1_epi32(0xffff));
    __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, low), 0x08);
    return (simd_u16)_mm256_castsi256_si128(packed);
}

/* 16 results: those of low, then those of high. */
#define SIMD_TWO_TO_BF16
CPU_INLINE simd_u32 simd_two_to_bf16(simd_f32 low, simd_f32 high) {
    simd_u32 a = simd_bf16_words(low), b = simd_bf16_words(high);
    return (simd_u32)_mm256_permute4x64_epi64(_mm256_packus_epi32((__m256i)a, (__m256i)b), 0xd8);
}

/* 16 results: those of even and of odd alternately. By both functions bf16 took a quarter less time
 * on Zen 4. Halves of words in 16-bit lanes: a result goes up
 * where what it drops is above the middle, or in it and the result is odd. */
#define SIMD_PARITY 1
CPU_INLINE simd_u32 simd_neighbours_to_bf16(simd_f32 even, simd_f32 odd) {
    __m256i e = (__m256i)even, o = (__m256i)odd, one = _mm256_set1_epi16(1);
    __m256i kept = _mm256_blend_epi16(_mm256_srli_epi32(e, 16), o, 0xaa);
    __m256i dropped = _mm256_blend_epi16(e, _mm256_slli_epi32(o, 16), 0xaa);
    __m256i above = _mm256_subs_epu16(dropped, _mm256_andnot_si256(kept, one));
    return (simd_u32)_mm256_add_epi16(kept, _mm256_srli_epi16(above, 15));
}

CPU_INLINE simd_f32 simd_fma(simd_f32 a, simd_f32 b, simd_f32 c) {
    return (simd_f32)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}

CPU_INLINE simd_f32 simd_from_f16(simd_u16 h) {
    return (simd_f32)_mm256_cvtph_ps((__m128i)h);
}

CPU_INLINE simd_u16 simd_to_f16(simd_f32 x) {
    return (simd_u16)_mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT);
}

CPU_INLINE int simd_any(simd_u32 mask) {
    return !_mm256_testz_si256((__m256i)mask, (__m256i)mask);
}

CPU_INLINE void simd_stream_f(void *p, simd_f32 x) {
    _mm256_stream_ps(p, (__m256)x);
}

CPU_INLINE void simd_stream_h(void *p, simd_u16 x) {
    _mm_stream_si128(p, (__m128i)x);
}

CPU_INLINE void simd_fence(void) {
    _mm_sfence();
}

#endif
