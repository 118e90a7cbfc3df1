/* common/angle.h on LANES pairs at once, operation by operation, hence bit by bit. */
#ifndef ROPEKIT_CPU_ANGLE_LANES_H
#define ROPEKIT_CPU_ANGLE_LANES_H

typedef struct lanes_cos_sin {
    lanes_f c, s;
} lanes_cos_sin;

CPU_INLINE lanes_cos_sin lanes_quarter(lanes_f r, lanes_u u) {
    lanes_f z = r * r;
    lanes_f p = lanes_fma(z, lanes_set_f(ROPE_S3), lanes_set_f(ROPE_S2));
    p = lanes_fma(z, p, lanes_set_f(ROPE_S1));
    p = lanes_fma(z, p, lanes_set_f(ROPE_S0L));
    p = p * r;
    lanes_u s = (lanes_u)lanes_fma(r, lanes_set_f(ROPE_S0), p);
    lanes_f q = lanes_fma(z, lanes_set_f(ROPE_C4), lanes_set_f(ROPE_C3));
    q = lanes_fma(z, q, lanes_set_f(ROPE_C2));
    q = lanes_fma(z, q, lanes_set_f(ROPE_C1));
    lanes_u c = (lanes_u)lanes_fma(z, q, lanes_set_f(1.0f));
    lanes_u swap = (lanes_u)((lanes_i)(u << 1) >> 31);
    lanes_cos_sin result;
    result.c = (lanes_f)(lanes_select(swap, s, c) ^ ((u + 0x40000000u) & 0x80000000u));
    result.s = (lanes_f)(lanes_select(swap, c, s) ^ (u & 0x80000000u));
    return result;
}

/* A 64-bit lane is two words, the low one first. */
CPU_INLINE lanes_cos_sin lanes_turns(const lanes_w *t) {
    lanes_f whole[2] = {(lanes_f)t->part[0], (lanes_f)t->part[1]};
    lanes_f quarter[2] = {(lanes_f)(t->part[0] >> 30), (lanes_f)(t->part[1] >> 30)};
    lanes_u u = (lanes_u)lanes_odd(whole[0], whole[1]) + 0x20000000u;
    lanes_i q = (lanes_i)lanes_even(quarter[0], quarter[1]);
    lanes_f r = __builtin_convertvector(q, lanes_f) * 0x1p-32f;
    return lanes_quarter(r, u);
}

/* Lanes beyond the two-step reduction go one by one. */
CPU_INLINE lanes_cos_sin lanes_radians(lanes_f a) {
    lanes_f nf = lanes_fma(a, lanes_set_f(ROPE_P1), lanes_set_f(ROPE_ROUND_MAGIC));
    lanes_f n = nf - ROPE_ROUND_MAGIC;
    lanes_f r = lanes_fma(a, lanes_set_f(ROPE_P1), -n);
    r = lanes_fma(a, lanes_set_f(ROPE_P2), r);
    lanes_cos_sin result = lanes_quarter(r, (lanes_u)nf << 30);
    lanes_i magnitude = (lanes_i)((lanes_u)a & 0x7fffffffu);
    if (lanes_any((lanes_u)(magnitude >= (int32_t)0x48800000)))
        for (int i = 0; i < LANES; i++) {
            rope_cos_sin one = rope_cos_sin_radians(a[i]);
            result.c[i] = one.c;
            result.s[i] = one.s;
        }
    return result;
}

#endif
