/* The elements of a head outside its window, which a call out of place copies. */
#ifndef ROPEKIT_GPU_ROPE_PASS_THROUGH_H
#define ROPEKIT_GPU_ROPE_PASS_THROUGH_H

#include "backends/gpu/rope/fragment.h"

/* Copies this thread's share of what lies outside the window of a head: a few vectors at a time,
 * so that their loads are under way together. */
template <typename S>
GPU_FN void gpu_copy_outside(const char *in, char *out, int before, int after, int pairs) {
    constexpr int BYTES = S::V * S::SIZE, AT_ONCE = 4;
    const int step = (int)blockDim.x;
    for (int first = (int)threadIdx.x - before; first < after; first += AT_ONCE * step) {
        gpu_vector<S::DTYPE, S::V> v[AT_ONCE];
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            int i = first + j * step;
            if (i < after)
                v[j] = gpu_load<S::DTYPE, S::V>(in + i * BYTES + (i < 0 ? 0 : 2 * pairs * S::SIZE));
        }
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            int i = first + j * step;
            if (i < after)
                gpu_store<S::DTYPE, S::V>(out + i * BYTES + (i < 0 ? 0 : 2 * pairs * S::SIZE),
                                          v[j]);
        }
    }
}

#endif
