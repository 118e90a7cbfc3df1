/* The instances of bf16 with the processor's own rounding; the rest of the kernel is avx512.c's. */
#define SIMD_TO_BF16_NATIVE
#include "backends/cpu/simd/avx512.h"

/* The instruction takes subnormals (class 0x20) for zero: a zero that comes out may be one of them.
 */
CPU_INLINE int simd_lost_subnormal(simd_f32 x) {
    return _mm512_fpclass_ps_mask((__m512)x, 0x20) != 0;
}

CPU_INLINE simd_u16 simd_to_bf16(simd_f32 x) {
    if (__builtin_expect(simd_lost_subnormal(x), 0))
        return simd_low_halves(simd_bf16_words(x));
    return (simd_u16)_mm512_cvtneps_pbh((__m512)x);
}

#define SIMD_TWO_TO_BF16
/* 32 results: those of low, then those of high. */
CPU_INLINE simd_u32 simd_two_to_bf16(simd_f32 low, simd_f32 high) {
    __m512i h = (__m512i)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
    int zeros = _mm512_testn_epi16_mask(h, _mm512_set1_epi16(0x7fff)) != 0;
    if (__builtin_expect(zeros, 0) && (simd_lost_subnormal(low) || simd_lost_subnormal(high))) {
        simd_u16 part[2] = {simd_to_bf16(low), simd_to_bf16(high)};
        memcpy(&h, part, sizeof h);
    }
    return (simd_u32)h;
}

/* A widening by shift or mask for each vector and one permutation of results, in place of a
 * permutation and a shift for each: a twentieth less time for 1 to 256 tokens on Zen 4. */
#define SIMD_PARITY 1
CPU_INLINE simd_u32 simd_neighbours_to_bf16(simd_f32 even, simd_f32 odd) {
    const __m512i place =
        _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                         21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return (simd_u32)_mm512_permutexvar_epi16(place, (__m512i)simd_two_to_bf16(even, odd));
}

#include "backends/cpu/rope/instances.h"

ROPE_INSTANCES(, native_bf16, ROPE_BF16)
