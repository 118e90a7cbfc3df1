/* common/math/angle.h on SIMD_LANES pairs at once, operation by operation, hence bit by bit. */
#ifndef ROPEKIT_CPU_SIMD_COS_SIN_H
#define ROPEKIT_CPU_SIMD_COS_SIN_H

#include "backends/cpu/simd/vector.h"
#include "common/math/angle.h"

/* Vectors of angles go through each operation side by side: one alone waits for its own results. */
enum { SIMD_GROUP = SIMD_LANES == 16 ? 2 : 1 };

#define SIMD_EACH(i, count) _Pragma("GCC unroll 2") for (int i = 0; i < (count); i++)

typedef struct simd_cos_sin {
    simd_f32 c, s;
} simd_cos_sin;

CPU_INLINE void simd_quarter(int count, const simd_f32 *r, const simd_u32 *u, simd_cos_sin *a) {
    simd_f32 z[SIMD_GROUP], p[SIMD_GROUP], q[SIMD_GROUP];
    SIMD_EACH(i, count) z[i] = r[i] * r[i];
    SIMD_EACH(i, count) p[i] = simd_fma(z[i], simd_set_f(ROPE_S3), simd_set_f(ROPE_S2));
    SIMD_EACH(i, count) q[i] = simd_fma(z[i], simd_set_f(ROPE_C4), simd_set_f(ROPE_C3));
    SIMD_EACH(i, count) p[i] = simd_fma(z[i], p[i], simd_set_f(ROPE_S1));
    SIMD_EACH(i, count) q[i] = simd_fma(z[i], q[i], simd_set_f(ROPE_C2));
    SIMD_EACH(i, count) p[i] = simd_fma(z[i], p[i], simd_set_f(ROPE_S0L));
    SIMD_EACH(i, count) q[i] = simd_fma(z[i], q[i], simd_set_f(ROPE_C1));
    SIMD_EACH(i, count) p[i] = p[i] * r[i];
    SIMD_EACH(i, count) q[i] = simd_fma(z[i], q[i], simd_set_f(1.0f));
    SIMD_EACH(i, count) p[i] = simd_fma(r[i], simd_set_f(ROPE_S0), p[i]);
    SIMD_EACH(i, count) {
        simd_mask swap = simd_has_bit(u[i], 0x40000000u);
        simd_u32 c = (simd_u32)simd_choose(swap, p[i], q[i]);
        simd_u32 s = (simd_u32)simd_choose(swap, q[i], p[i]);
        a[i].c = (simd_f32)(c ^ ((u[i] + 0x40000000u) & 0x80000000u));
        a[i].s = (simd_f32)(s ^ (u[i] & 0x80000000u));
    }
}

/* The phase, 2^64 to a turn, of a vector of pairs from `pair` on, at one position. */
CPU_INLINE simd_turns simd_phase_at(const uint64_t *list, int64_t position, int pair) {
    simd_turns phase;
    for (int i = 0; i < 2; i++) {
        memcpy(&phase.part[i], list + pair + i * SIMD_LANES / 2, sizeof phase.part[i]);
        phase.part[i] *= (simd_u64){0} + (uint64_t)position;
    }
    return phase;
}

/* A 64-bit lane is two words, the low one first. */
CPU_INLINE void simd_cos_sin_turns(int count, const simd_turns *t, simd_cos_sin *a) {
    simd_f32 r[SIMD_GROUP];
    simd_u32 u[SIMD_GROUP];
    SIMD_EACH(i, count) {
        simd_u64 low = t[i].part[0], high = t[i].part[1];
        simd_i32 q = (simd_i32)simd_even((simd_f32)(low >> 30), (simd_f32)(high >> 30));
        u[i] = (simd_u32)simd_odd((simd_f32)low, (simd_f32)high) + 0x20000000u;
        r[i] = __builtin_convertvector(q, simd_f32) * 0x1p-32f;
    }
    simd_quarter(count, r, u, a);
}

/* Lanes beyond the two-step reduction go one by one. */
static void simd_large_radians(simd_f32 radians, simd_cos_sin *a) {
    for (int i = 0; i < SIMD_LANES; i++) {
        rope_cos_sin one = rope_cos_sin_radians(radians[i]);
        a->c[i] = one.c;
        a->s[i] = one.s;
    }
}

CPU_INLINE void simd_cos_sin_radians(int count, const simd_f32 *radians, simd_cos_sin *a) {
    simd_f32 r[SIMD_GROUP];
    simd_u32 u[SIMD_GROUP];
    SIMD_EACH(i, count) {
        simd_f32 nf = simd_fma(radians[i], simd_set_f(ROPE_P1), simd_set_f(ROPE_ROUND_MAGIC));
        simd_f32 n = nf - ROPE_ROUND_MAGIC;
        r[i] = simd_fma(radians[i], simd_set_f(ROPE_P1), -n);
        r[i] = simd_fma(radians[i], simd_set_f(ROPE_P2), r[i]);
        u[i] = (simd_u32)nf << 30;
    }
    simd_quarter(count, r, u, a);
    SIMD_EACH(i, count) {
        simd_i32 magnitude = (simd_i32)((simd_u32)radians[i] & 0x7fffffffu);
        if (__builtin_expect(simd_any((simd_u32)(magnitude >= (int32_t)0x48800000)), 0))
            simd_large_radians(radians[i], &a[i]);
    }
}

#endif
