/* Vectors of AVX-512, of which an instruction makes bf16. */
#ifndef ROPEKIT_CPU_SIMD_AVX512_BF16_H
#define ROPEKIT_CPU_SIMD_AVX512_BF16_H

#define SIMD_TO_BF16_NATIVE
#include "backends/cpu/simd/avx512.h"

/* Of 0, NaN and normal numbers. */
CPU_INLINE simd_u16 simd_to_bf16(simd_f32 x) {
    return (simd_u16)_mm512_cvtneps_pbh((__m512)x);
}

#endif
