/* The kernels of a dtype, as gpu_append_kernels lists them. */
#ifndef ROPEKIT_GPU_APPEND_INSTANCES_H
#define ROPEKIT_GPU_APPEND_INSTANCES_H

#include "common/gpu/append/generic.h"
#include "common/gpu/append/vector.h"

#define GPU_APPEND_VECTOR(DTYPE)                                                                   \
    {                                                                                              \
        GPU_KERNEL(gpu_append_vector<DTYPE, GPU_HALF_SPLIT>),                                      \
            GPU_KERNEL(gpu_append_vector<DTYPE, GPU_INTERLEAVED>),                                 \
            GPU_KERNEL(gpu_append_vector<DTYPE, GPU_TO_HALF_SPLIT>),                               \
            GPU_KERNEL(gpu_append_vector<DTYPE, GPU_TO_INTERLEAVED>)                               \
    }

#endif
