/* The kernels of a dtype, as gpu_attention_kernels lists them. */
#ifndef ROPEKIT_GPU_ATTENTION_INSTANCES_H
#define ROPEKIT_GPU_ATTENTION_INSTANCES_H

#include "common/gpu/attention/generic.h"
#include <gpu_tile.h>

/* No processor of this compilation has them. */
#ifndef GPU_NO_TILES
#include "common/gpu/attention/tile.h"
#endif

#if GPU_HAS_TILES
#define GPU_ATTENTION_TILES(DTYPE)                                                                 \
    {                                                                                              \
        GPU_KERNEL(gpu_attention_tiles<DTYPE, 64, 64, 2>),                                         \
            GPU_KERNEL(gpu_attention_tiles<DTYPE, 128, 128, 2>)                                    \
    }
#else
#define GPU_ATTENTION_TILES(DTYPE)                                                                 \
    {}
#endif

#define GPU_ATTENTION_KERNELS(DTYPE, ...)                                                          \
    {                                                                                              \
        GPU_KERNEL(gpu_attention_check<DTYPE>),                                                    \
            {GPU_KERNEL(gpu_attention_rotate<DTYPE, 0>),                                           \
             GPU_KERNEL(gpu_attention_rotate<DTYPE, 1>)},                                          \
            GPU_KERNEL(gpu_attention_generic<DTYPE>), __VA_ARGS__                                  \
    }

#endif
