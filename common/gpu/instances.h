/* The kernels of a dtype, as gpu_rotate_kernels lists them. */
#ifndef ROPEKIT_GPU_INSTANCES_H
#define ROPEKIT_GPU_INSTANCES_H

#include "common/gpu/generic.h"
#include "common/gpu/heads.h"
#include "common/gpu/plain.h"

/* clang-format off */
#define GPU_VECTOR(DTYPE, GEOMETRY)                                                                \
    {GPU_KERNEL(gpu_vector_kernel<DTYPE, GPU_HALF_SPLIT, GEOMETRY>),                               \
     GPU_KERNEL(gpu_vector_kernel<DTYPE, GPU_INTERLEAVED, GEOMETRY>),                              \
     GPU_KERNEL(gpu_vector_kernel<DTYPE, GPU_TO_HALF_SPLIT, GEOMETRY>),                            \
     GPU_KERNEL(gpu_vector_kernel<DTYPE, GPU_TO_INTERLEAVED, GEOMETRY>)}
#define GPU_PLAIN_STARTS(DTYPE, PAIRING, GEOMETRY, PAIRS)                                          \
    {GPU_KERNEL(gpu_plain_kernel<DTYPE, PAIRING, GEOMETRY, PAIRS, false>),                         \
     GPU_EARLY_KERNEL(gpu_plain_kernel<DTYPE, PAIRING, GEOMETRY, PAIRS, true>)}
#define GPU_PLAIN_PAIRS(DTYPE, PAIRING, GEOMETRY)                                                  \
    {GPU_PLAIN_STARTS(DTYPE, PAIRING, GEOMETRY, GPU_ANY_PAIRS),                                    \
     GPU_PLAIN_STARTS(DTYPE, PAIRING, GEOMETRY, GPU_PAIRS_64)}
#define GPU_PLAIN(DTYPE, GEOMETRY)                                                                 \
    {GPU_PLAIN_PAIRS(DTYPE, GPU_HALF_SPLIT, GEOMETRY),                                             \
     GPU_PLAIN_PAIRS(DTYPE, GPU_INTERLEAVED, GEOMETRY)}
/* clang-format on */

#endif
