/* The kernels of a dtype, as gpu_backward_kernels lists them. */
#ifndef ROPEKIT_GPU_ATTENTION_BACKWARD_INSTANCES_H
#define ROPEKIT_GPU_ATTENTION_BACKWARD_INSTANCES_H

#include "backends/gpu/attention_backward/generic.h"
#include "backends/gpu/attention_backward/sums.h"
#include "backends/gpu/attention_backward/tile.h"

/* Registers of AMD's processors do not hold a lane's sums of two gradients in the order of
 * lanes_right.h. */
#ifdef GPU_QUERIES_LEFT
#define GPU_BACKWARD_TILES_OF(DTYPE, KEYS)                                                         \
    {                                                                                              \
        GPU_KERNEL(gpu_backward_tiles<DTYPE, 64, KEYS>),                                           \
            GPU_KERNEL(gpu_backward_tiles<DTYPE, 128, KEYS>),                                      \
            GPU_KERNEL(gpu_backward_tiles<DTYPE, 256, KEYS>)                                       \
    }
#define GPU_BACKWARD_TILES(DTYPE)                                                                  \
    {                                                                                              \
        GPU_BACKWARD_TILES_OF(DTYPE, GPU_BACKWARD_ROWS),                                           \
            GPU_BACKWARD_TILES_OF(DTYPE, GPU_BACKWARD_KEYS)                                        \
    }
#else
#define GPU_BACKWARD_TILES(DTYPE)                                                                  \
    {}
#endif

/* As gpu_generic_dim() has them. */
#define GPU_BACKWARD_GENERIC(DTYPE, KEYS)                                                          \
    {                                                                                              \
        GPU_KERNEL(gpu_backward_generic<DTYPE, 64, KEYS>),                                         \
            GPU_KERNEL(gpu_backward_generic<DTYPE, 128, KEYS>),                                    \
            GPU_KERNEL(gpu_backward_generic<DTYPE, 256, KEYS>),                                    \
            GPU_KERNEL(gpu_backward_generic<DTYPE, ROPE_MAX_ATTENTION_HEAD_DIM, KEYS>)             \
    }

/* ...: GPU_BACKWARD_TILES or {}. */
#define GPU_BACKWARD_KERNELS(DTYPE, ...)                                                           \
    {                                                                                              \
        GPU_KERNEL(gpu_backward_delta<DTYPE>), GPU_KERNEL(gpu_backward_sinks<DTYPE>),              \
            {GPU_BACKWARD_GENERIC(DTYPE, GPU_BACKWARD_ROWS),                                       \
             GPU_BACKWARD_GENERIC(DTYPE, GPU_BACKWARD_KEYS)},                                      \
            __VA_ARGS__                                                                            \
    }

#endif
