/* 4 lanes: what vector extensions of C cannot say. AArch64 has all of it. */
#ifndef ROPEKIT_CPU_LANES_NEON_H
#define ROPEKIT_CPU_LANES_NEON_H

#include <arm_neon.h>

#define LANES 4
#define LANES_REGISTER(x) "+w"(x)
/* Index lists that part neighbours and join them again. */
#define LANES_EVEN 0, 2, 4, 6
#define LANES_ODD 1, 3, 5, 7
#define LANES_LOW 0, 4, 1, 5
#define LANES_HIGH 2, 6, 3, 7
#include "backends/cpu/lanes.h"

CPU_INLINE lanes_f lanes_swap(lanes_f x) {
    return (lanes_f)vrev64q_f32((float32x4_t)x);
}

/* Compilers do not find these conversions for vector extensions. */
CPU_INLINE lanes_u lanes_words_of(lanes_h h) {
    return (lanes_u)vmovl_u16((uint16x4_t)h);
}

CPU_INLINE lanes_h lanes_low_halves(lanes_u u) {
    return (lanes_h)vmovn_u32((uint32x4_t)u);
}

CPU_INLINE lanes_f lanes_fma(lanes_f a, lanes_f b, lanes_f c) {
    return (lanes_f)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
}

CPU_INLINE lanes_f lanes_from_f16(lanes_h h) {
    return (lanes_f)vcvt_f32_f16(vreinterpret_f16_u16((uint16x4_t)h));
}

CPU_INLINE lanes_h lanes_to_f16(lanes_f x) {
    return (lanes_h)vreinterpret_u16_f16(vcvt_f16_f32((float32x4_t)x));
}

CPU_INLINE int lanes_any(lanes_u mask) {
    return vmaxvq_u32((uint32x4_t)mask) != 0;
}

/* AArch64 has no streaming store of one vector; an ordinary one keeps the contract. */
CPU_INLINE void lanes_stream_f(void *p, lanes_f x) {
    vst1q_f32(p, (float32x4_t)x);
}

CPU_INLINE void lanes_stream_h(void *p, lanes_h x) {
    vst1_u16(p, (uint16x4_t)x);
}

CPU_INLINE void lanes_fence(void) {}

#endif
