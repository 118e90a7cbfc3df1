/* common/math/angle.h on LANES pairs at once, operation by operation, hence bit by bit. */
#ifndef ROPEKIT_CPU_ANGLE_LANES_H
#define ROPEKIT_CPU_ANGLE_LANES_H

/* Vectors of angles go through each operation side by side: one alone waits for its own results. */
enum { LANES_GROUP = LANES == 16 ? 2 : 1 };

#define LANES_EACH(i, count) _Pragma("GCC unroll 2") for (int i = 0; i < (count); i++)

typedef struct lanes_cos_sin {
    lanes_f c, s;
} lanes_cos_sin;

CPU_INLINE void lanes_quarter(int count, const lanes_f *r, const lanes_u *u, lanes_cos_sin *a) {
    lanes_f z[LANES_GROUP], p[LANES_GROUP], q[LANES_GROUP];
    LANES_EACH(i, count) z[i] = r[i] * r[i];
    LANES_EACH(i, count) p[i] = lanes_fma(z[i], lanes_set_f(ROPE_S3), lanes_set_f(ROPE_S2));
    LANES_EACH(i, count) q[i] = lanes_fma(z[i], lanes_set_f(ROPE_C4), lanes_set_f(ROPE_C3));
    LANES_EACH(i, count) p[i] = lanes_fma(z[i], p[i], lanes_set_f(ROPE_S1));
    LANES_EACH(i, count) q[i] = lanes_fma(z[i], q[i], lanes_set_f(ROPE_C2));
    LANES_EACH(i, count) p[i] = lanes_fma(z[i], p[i], lanes_set_f(ROPE_S0L));
    LANES_EACH(i, count) q[i] = lanes_fma(z[i], q[i], lanes_set_f(ROPE_C1));
    LANES_EACH(i, count) p[i] = p[i] * r[i];
    LANES_EACH(i, count) q[i] = lanes_fma(z[i], q[i], lanes_set_f(1.0f));
    LANES_EACH(i, count) p[i] = lanes_fma(r[i], lanes_set_f(ROPE_S0), p[i]);
    LANES_EACH(i, count) {
        lanes_mask swap = lanes_has_bit(u[i], 0x40000000u);
        lanes_u c = (lanes_u)lanes_choose(swap, p[i], q[i]);
        lanes_u s = (lanes_u)lanes_choose(swap, q[i], p[i]);
        a[i].c = (lanes_f)(c ^ ((u[i] + 0x40000000u) & 0x80000000u));
        a[i].s = (lanes_f)(s ^ (u[i] & 0x80000000u));
    }
}

/* A 64-bit lane is two words, the low one first. */
CPU_INLINE void lanes_turns(int count, const lanes_w *t, lanes_cos_sin *a) {
    lanes_f r[LANES_GROUP];
    lanes_u u[LANES_GROUP];
    LANES_EACH(i, count) {
        lanes_d low = t[i].part[0], high = t[i].part[1];
        lanes_i q = (lanes_i)lanes_even((lanes_f)(low >> 30), (lanes_f)(high >> 30));
        u[i] = (lanes_u)lanes_odd((lanes_f)low, (lanes_f)high) + 0x20000000u;
        r[i] = __builtin_convertvector(q, lanes_f) * 0x1p-32f;
    }
    lanes_quarter(count, r, u, a);
}

/* Lanes beyond the two-step reduction go one by one. */
static void lanes_large_radians(lanes_f radians, lanes_cos_sin *a) {
    for (int i = 0; i < LANES; i++) {
        rope_cos_sin one = rope_cos_sin_radians(radians[i]);
        a->c[i] = one.c;
        a->s[i] = one.s;
    }
}

CPU_INLINE void lanes_radians(int count, const lanes_f *radians, lanes_cos_sin *a) {
    lanes_f r[LANES_GROUP];
    lanes_u u[LANES_GROUP];
    LANES_EACH(i, count) {
        lanes_f nf = lanes_fma(radians[i], lanes_set_f(ROPE_P1), lanes_set_f(ROPE_ROUND_MAGIC));
        lanes_f n = nf - ROPE_ROUND_MAGIC;
        r[i] = lanes_fma(radians[i], lanes_set_f(ROPE_P1), -n);
        r[i] = lanes_fma(radians[i], lanes_set_f(ROPE_P2), r[i]);
        u[i] = (lanes_u)nf << 30;
    }
    lanes_quarter(count, r, u, a);
    LANES_EACH(i, count) {
        lanes_i magnitude = (lanes_i)((lanes_u)radians[i] & 0x7fffffffu);
        if (__builtin_expect(lanes_any((lanes_u)(magnitude >= (int32_t)0x48800000)), 0))
            lanes_large_radians(radians[i], &a[i]);
    }
}

#endif
