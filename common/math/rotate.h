/* The rotation of one pair: the order of operations that every kernel follows. */
#ifndef ROPEKIT_COMMON_ROTATE_H
#define ROPEKIT_COMMON_ROTATE_H

#include "common/math/coefficients.h"

typedef struct rope_pair {
    float x1, x2;
} rope_pair;

typedef struct rope_pair64 {
    double x1, x2;
} rope_pair64;

ROPE_FN rope_pair rope_rotate(rope_pair x, rope_coefficients m) {
    rope_pair y;
    y.x1 = fmaf(x.x1, m.c1, -(x.x2 * m.s1));
    y.x2 = fmaf(x.x2, m.c2, x.x1 * m.s2);
    return y;
}

/* Eager PyTorch's x * cos + rotate_half(x) * sin: each of three operations rounded to dtype. */
ROPE_FN rope_pair rope_rotate_model(int32_t dtype, rope_pair x, rope_coefficients m) {
    float a = rope_round_to(dtype, x.x1 * m.c1);
    float b = rope_round_to(dtype, -x.x2 * m.s1);
    float c = rope_round_to(dtype, x.x2 * m.c2);
    float d = rope_round_to(dtype, x.x1 * m.s2);
    rope_pair y;
    y.x1 = rope_round_to(dtype, a + b);
    y.x2 = rope_round_to(dtype, c + d);
    return y;
}

ROPE_FN rope_pair64 rope_rotate64(rope_pair64 x, rope_coefficients64 m) {
    rope_pair64 y;
    y.x1 = fma(x.x1, m.c1, -(x.x2 * m.s1));
    y.x2 = fma(x.x2, m.c2, x.x1 * m.s2);
    return y;
}

ROPE_FN rope_pair64 rope_rotate_model64(rope_pair64 x, rope_coefficients64 m) {
    rope_pair64 y;
    y.x1 = x.x1 * m.c1 + -x.x2 * m.s1;
    y.x2 = x.x2 * m.c2 + x.x1 * m.s2;
    return y;
}

#endif
