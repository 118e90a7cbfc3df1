/* Numbers that grids and blocks are laid out by. */
#ifndef ROPEKIT_GPU_GEOMETRY_H
#define ROPEKIT_GPU_GEOMETRY_H

#include "backends/gpu/platform/runtime.h"

#include <ropekit/rope.h>

/* Blocks of a grid that takes a call of any size with any number of them. */
#ifndef GPU_GENERIC_X_MOST
#define GPU_GENERIC_X_MOST GPU_GRID_X_MOST
#define GPU_GENERIC_Y_MOST GPU_GRID_YZ_MOST
#endif

static inline int64_t gpu_divide_up(int64_t a, int64_t b) {
    return a / b + (a % b != 0);
}

static inline int64_t gpu_at_most(int64_t n, int64_t most) {
    return n < most ? n : most;
}

/* Bytes of an element. */
static inline int32_t gpu_dtype_size(int32_t dtype) {
    if (dtype >= ROPE_F8E4M3)
        return 1;
    return dtype == ROPE_F64 ? 8 : dtype == ROPE_F32 ? 4 : 2;
}

#endif
