/* 4 lanes: what vector extensions of C cannot say. AArch64 has all of it. */
#ifndef ROPEKIT_CPU_SIMD_NEON_H
#define ROPEKIT_CPU_SIMD_NEON_H

#include <arm_neon.h>

#define SIMD_LANES 4
#define SIMD_REGISTER(x) "+w"(x)
/* Index lists that part neighbours and join them again. */
#define SIMD_EVEN 0, 2, 4, 6
#define SIMD_ODD 1, 3, 5, 7
#define SIMD_LOW 0, 4, 1, 5
#define SIMD_HIGH 2, 6, 3, 7
#include "backends/cpu/simd/vector.h"

CPU_INLINE simd_f32 simd_swap(simd_f32 x) {
    return (simd_f32)vrev64q_f32((float32x4_t)x);
}

/* Compilers do not find these conversions for vector extensions. */
CPU_INLINE simd_u32 simd_words_of(simd_u16 h) {
    return (simd_u32)vmovl_u16((uint16x4_t)h);
}

CPU_INLINE simd_u16 simd_low_halves(simd_u32 u) {
    return (simd_u16)vmovn_u32((uint32x4_t)u);
}

CPU_INLINE simd_f32 simd_sqrt(simd_f32 x) {
    return (simd_f32)vsqrtq_f32((float32x4_t)x);
}

/* The lesser of x and a limit; a NaN stays. */
CPU_INLINE simd_f32 simd_min_f(simd_f32 x, simd_f32 limit) {
    return (simd_f32)vminq_f32((float32x4_t)x, (float32x4_t)limit);
}

CPU_INLINE simd_u32 simd_min_u(simd_u32 a, simd_u32 b) {
    return (simd_u32)vminq_u32((uint32x4_t)a, (uint32x4_t)b);
}

/* Of words below 2^31. */
CPU_INLINE simd_u32 simd_max_i(simd_u32 a, simd_u32 b) {
    return (simd_u32)vmaxq_u32((uint32x4_t)a, (uint32x4_t)b);
}

CPU_INLINE simd_f32 simd_fma(simd_f32 a, simd_f32 b, simd_f32 c) {
    return (simd_f32)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
}

CPU_INLINE simd_f32 simd_from_f16(simd_u16 h) {
    return (simd_f32)vcvt_f32_f16(vreinterpret_f16_u16((uint16x4_t)h));
}

CPU_INLINE simd_u16 simd_to_f16(simd_f32 x) {
    return (simd_u16)vreinterpret_u16_f16(vcvt_f16_f32((float32x4_t)x));
}

CPU_INLINE int simd_any(simd_u32 mask) {
    return vmaxvq_u32((uint32x4_t)mask) != 0;
}

/* AArch64 has no streaming store of one vector; an ordinary one keeps the contract. */
CPU_INLINE void simd_stream_f(void *p, simd_f32 x) {
    vst1q_f32(p, (float32x4_t)x);
}

CPU_INLINE void simd_stream_h(void *p, simd_u16 x) {
    vst1_u16(p, (uint16x4_t)x);
}

CPU_INLINE void simd_fence(void) {}

#endif
