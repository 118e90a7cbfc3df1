/* Scores with a soft cap, as logits of base 2. */
#ifndef ROPEKIT_GPU_ATTENTION_SM90_CAP_H
#define ROPEKIT_GPU_ATTENTION_SM90_CAP_H

#include "backends/gpu/attention/sm90/kernels.h"
#include "backends/gpu/attention/sm90/ptx.h"

/* Whether scores first to end - 1 of a warp's threads are all near 0. */
template <int N>
GPU_FN int sm90_are_near(const sm90_cap &cap, const float (&s)[N], int first, int end) {
    float largest[4] = {};
#pragma unroll
    for (int i = first; i < end; i++)
        largest[i % 4] = fmaxf(largest[i % 4], fabsf(s[i]));
    return __all_sync(~0u, fmaxf(fmaxf(largest[0], largest[1]), fmaxf(largest[2], largest[3])) <=
                               cap.end);
}

/* Of a score near 0. */
GPU_FN float sm90_cap_near(const sm90_cap &cap, float s) {
    const float z = s * s;
    float p = cap.near[5];
#pragma unroll
    for (int i = 4; i >= 0; i--)
        p = fmaf(p, z, cap.near[i]);
    return s * p;
}

/* Of any: without a branch, which the compiler would make of a choice. */
GPU_FN float sm90_cap_any(const sm90_cap &cap, float s) {
    const float far = fmaf(sm90_reciprocal(sm90_exp2(s * cap.rise) + 1), -2 * cap.most, cap.most);
    float capped = sm90_cap_near(cap, s);
    asm("{ .reg .pred p; setp.gtu.f32 p, %1, %2; selp.f32 %0, %3, %0, p; }"
        : "+f"(capped)
        : "f"(fabsf(s)), "f"(cap.end), "f"(far));
    return capped;
}

/* All scores of a thread. */
template <int N> GPU_FN void sm90_cap_all(const sm90_cap &cap, int are_near, float (&s)[N]) {
    enum { SOME = 8 }; /* more take registers that are not there */
    if (are_near) {
#pragma unroll
        for (int i = 0; i < N; i++)
            s[i] = sm90_cap_near(cap, s[i]);
        return;
    }
#pragma unroll
    for (int i = 0; i < N; i += SOME) {
        if (sm90_are_near(cap, s, i, i + SOME))
#pragma unroll
            for (int j = i; j < i + SOME; j++)
                s[j] = sm90_cap_near(cap, s[j]);
        else
#pragma unroll
            for (int j = i; j < i + SOME; j++)
                s[j] = sm90_cap_any(cap, s[j]);
    }
}

#endif
