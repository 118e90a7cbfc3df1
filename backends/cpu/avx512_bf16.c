/* The avx512 kernel with the processor's own rounding to bfloat16. */
#define LANES_TO_BF16_NATIVE
#include "backends/cpu/lanes_avx512.h"

/* The instruction takes subnormals (class 0x20) for zero: a zero that comes out may be one of them.
 */
CPU_INLINE int lanes_lost_subnormal(lanes_f x) {
    return _mm512_fpclass_ps_mask((__m512)x, 0x20) != 0;
}

CPU_INLINE lanes_h lanes_to_bf16(lanes_f x) {
    if (__builtin_expect(lanes_lost_subnormal(x), 0))
        return lanes_low_halves(lanes_bf16_words(x));
    return (lanes_h)_mm512_cvtneps_pbh((__m512)x);
}

#define LANES_TWO_TO_BF16
/* 32 results: those of low, then those of high. */
CPU_INLINE lanes_u lanes_two_to_bf16(lanes_f low, lanes_f high) {
    __m512i h = (__m512i)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
    int zeros = _mm512_testn_epi16_mask(h, _mm512_set1_epi16(0x7fff)) != 0;
    if (__builtin_expect(zeros, 0) && (lanes_lost_subnormal(low) || lanes_lost_subnormal(high))) {
        lanes_h part[2] = {lanes_to_bf16(low), lanes_to_bf16(high)};
        memcpy(&h, part, sizeof h);
    }
    return (lanes_u)h;
}

/* A widening by shift or mask for each vector and one permutation of results, in place of a
 * permutation and a shift for each. */
#define LANES_PARITY 1
CPU_INLINE lanes_u lanes_neighbours_to_bf16(lanes_f even, lanes_f odd) {
    const __m512i place =
        _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                         21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return (lanes_u)_mm512_permutexvar_epi16(place, (__m512i)lanes_two_to_bf16(even, odd));
}

#include "backends/cpu/kernel_lanes.h"
#include "backends/cpu/traffic_lines.h"

const cpu_kernel cpu_kernel_avx512_bf16 = {CPU_ISA_AVX512_BF16, LANES_ROTATE, &traffic_lines};
