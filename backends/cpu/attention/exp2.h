/* 2^x and tanh(x) of vectors. */
#ifndef ROPEKIT_CPU_ATTENTION_EXP2_H
#define ROPEKIT_CPU_ATTENTION_EXP2_H

#include "backends/cpu/simd/vector.h"

CPU_INLINE simd_f32 attention_where(simd_i32 mask, simd_f32 a, simd_f32 b) {
    return (simd_f32)simd_select((simd_u32)mask, (simd_u32)a, (simd_u32)b);
}

/* Of x <= 1, within 1 ulp; 0 below -125, and NaN of NaN. Adding 1.5 * 2^23 puts the integer part in
 * the low bits. */
CPU_INLINE simd_f32 attention_exp2(simd_f32 x) {
    const simd_f32 magic = simd_set_f(0x1.8p+23f), whole = x + magic, f = x - (whole - magic);
    simd_f32 y = simd_fma(f, simd_set_f(0x1.41fbbap-13f), simd_set_f(0x1.5f3e54p-10f));
    y = simd_fma(f, y, simd_set_f(0x1.3b2d4cp-7f));
    y = simd_fma(f, y, simd_set_f(0x1.c6aee8p-5f));
    y = simd_fma(f, y, simd_set_f(0x1.ebfbdcp-3f));
    y = simd_fma(f, y, simd_set_f(0x1.62e43p-1f));
    y = simd_fma(f, y, simd_set_f(1));
    y = (simd_f32)((simd_u32)y + ((simd_u32)whole << 23));
    /* A NaN differs from itself. NOLINTNEXTLINE(misc-redundant-expression) */
    const simd_u32 none = (simd_u32)x & (simd_u32)(x != x);
    return (simd_f32)(((simd_u32)y & (simd_u32)(x >= simd_set_f(-125))) | none);
}

/* Within 3 ulp: a polynomial near 0, and 1 - 2 / (e^2|x| + 1) beyond. */
CPU_INLINE simd_f32 attention_tanh(simd_f32 x) {
    const simd_u32 sign = (simd_u32)x & 0x80000000u;
    const simd_f32 a = (simd_f32)((simd_u32)x ^ sign), z = x * x, one = simd_set_f(1);
    simd_f32 p = simd_fma(z, simd_set_f(-0x1.76abf6p-8f), simd_set_f(0x1.5256cep-6f));
    p = simd_fma(z, p, simd_set_f(-0x1.b84448p-5f));
    p = simd_fma(z, p, simd_set_f(0x1.110768p-3f));
    p = simd_fma(z, p, simd_set_f(-0x1.555534p-2f));
    const simd_f32 near = simd_fma(x * z, p, x);
    const simd_f32 e = attention_exp2(a * simd_set_f(-0x1.715476p+1f)); /* e^-2|x| */
    const simd_f32 far = (one - e) / (one + e);
    return attention_where(a < simd_set_f(0.625f), near, (simd_f32)((simd_u32)far | sign));
}

#endif
