/* 4 lanes of whatever instructions a compiler has without being told of any. */
#ifndef ROPEKIT_CPU_SIMD_PORTABLE_H
#define ROPEKIT_CPU_SIMD_PORTABLE_H

#define SIMD_LANES 4
/* Index lists that part neighbours and join them again. */
#define SIMD_EVEN 0, 2, 4, 6
#define SIMD_ODD 1, 3, 5, 7
#define SIMD_LOW 0, 4, 1, 5
#define SIMD_HIGH 2, 6, 3, 7
#include "backends/cpu/simd/vector.h"

CPU_INLINE simd_u32 simd_words_of(simd_u16 h) {
    return __builtin_convertvector(h, simd_u32);
}

CPU_INLINE simd_u16 simd_low_halves(simd_u32 u) {
    return __builtin_convertvector(u, simd_u16);
}

/* Rounded twice: a fused operation would be a function's call. */
CPU_INLINE simd_f32 simd_fma(simd_f32 a, simd_f32 b, simd_f32 c) {
    return a * b + c;
}

CPU_INLINE simd_f32 simd_from_f16(simd_u16 h) {
    simd_f32 x;
    for (int i = 0; i < SIMD_LANES; i++)
        x[i] = rope_from_f16(h[i]);
    return x;
}

CPU_INLINE simd_u16 simd_to_f16(simd_f32 x) {
    simd_u16 h;
    for (int i = 0; i < SIMD_LANES; i++)
        h[i] = rope_to_f16(x[i]);
    return h;
}

CPU_INLINE int simd_any(simd_u32 mask) {
    return (mask[0] | mask[1] | mask[2] | mask[3]) != 0;
}

CPU_INLINE void simd_stream_f(void *p, simd_f32 x) {
    simd_store_f(p, x);
}

CPU_INLINE void simd_stream_h(void *p, simd_u16 x) {
    simd_store_h(p, x);
}

#endif
