/* Pairs in vectors of 16 bytes, rotated with the bits of rope_apply. */
#ifndef ROPEKIT_GPU_ATTENTION_SM90_ANGLES_H
#define ROPEKIT_GPU_ATTENTION_SM90_ANGLES_H

#include "backends/gpu/element.h"
#include "common/math/rotate.h"

/* Cosines and sines of 8 pairs. */
struct sm90_angles {
    float4 c[2], s[2];
};

/* `from` on, of rows of `pairs` pairs. */
GPU_FN sm90_angles sm90_read_angles(const float4 *from, int pairs) {
    return {{__ldg(from), __ldg(from + 1)}, {__ldg(from + pairs / 4), __ldg(from + pairs / 4 + 1)}};
}

/* Two pairs: elements of a and of b at the same place. */
template <int DTYPE> GPU_FN void sm90_rotate_two(float2 c, float2 s, uint32_t &a, uint32_t &b) {
    const float2 x = gpu_split<DTYPE>(a), y = gpu_split<DTYPE>(b);
    const rope_pair one = rope_rotate({x.x, y.x}, {c.x, s.x, c.x, s.x}),
                    two = rope_rotate({x.y, y.y}, {c.y, s.y, c.y, s.y});
    a = gpu_join<DTYPE>(one.x1, two.x1);
    b = gpu_join<DTYPE>(one.x2, two.x2);
}

template <int DTYPE> GPU_FN void sm90_rotate_eight(const sm90_angles &m, uint4 &x, uint4 &y) {
    sm90_rotate_two<DTYPE>({m.c[0].x, m.c[0].y}, {m.s[0].x, m.s[0].y}, x.x, y.x);
    sm90_rotate_two<DTYPE>({m.c[0].z, m.c[0].w}, {m.s[0].z, m.s[0].w}, x.y, y.y);
    sm90_rotate_two<DTYPE>({m.c[1].x, m.c[1].y}, {m.s[1].x, m.s[1].y}, x.z, y.z);
    sm90_rotate_two<DTYPE>({m.c[1].z, m.c[1].w}, {m.s[1].z, m.s[1].w}, x.w, y.w);
}

#endif
