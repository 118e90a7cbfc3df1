/* Rotation of a pair, with the roundings of each arithmetic. */
#ifndef ROPEKIT_GPU_ROPE_ROTATE_H
#define ROPEKIT_GPU_ROPE_ROTATE_H

#include "backends/gpu/element.h"
#include "common/math/coefficients.h"
#include "common/math/rotate.h"

/* rope_rotate_model(), two numbers a rounding. */
template <int DTYPE> GPU_FN rope_pair gpu_rotate_model(rope_pair x, rope_coefficients m) {
    float2 first = gpu_round<DTYPE>(x.x1 * m.c1, -x.x2 * m.s1);
    float2 second = gpu_round<DTYPE>(x.x2 * m.c2, x.x1 * m.s2);
    float2 y = gpu_round<DTYPE>(first.x + first.y, second.x + second.y);
    return {y.x, y.y};
}

template <int DTYPE> GPU_FN rope_pair64 gpu_rotate_model(rope_pair64 x, rope_coefficients64 m) {
    return rope_rotate_model64(x, m);
}

GPU_FN rope_pair gpu_rotate(rope_pair x, rope_coefficients m) {
    return rope_rotate(x, m);
}

GPU_FN rope_pair64 gpu_rotate(rope_pair64 x, rope_coefficients64 m) {
    return rope_rotate64(x, m);
}

#endif
