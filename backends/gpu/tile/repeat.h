/* Loops without a loop. */
#ifndef ROPEKIT_GPU_TILE_REPEAT_H
#define ROPEKIT_GPU_TILE_REPEAT_H

#include "backends/gpu/element.h"

/* f(i) for i = 0, STEP.. below N, without a loop. */
template <int N, int STEP = 1, typename F> GPU_FN void gpu_repeat(F f) {
#pragma unroll
    for (int i = 0; i < N; i += STEP)
        f(i);
}

#endif
