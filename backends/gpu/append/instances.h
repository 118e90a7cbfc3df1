/* The kernels of a dtype, as gpu_append_kernels lists them. */
#ifndef ROPEKIT_GPU_APPEND_INSTANCES_H
#define ROPEKIT_GPU_APPEND_INSTANCES_H

#include "backends/gpu/append/generic.h"
#include "backends/gpu/append/mla.h"
#include "backends/gpu/append/plain.h"
#include "backends/gpu/append/rerotate.h"
#include "backends/gpu/append/vector.h"

#define GPU_APPEND_VECTOR(DTYPE)                                                                   \
    {                                                                                              \
        GPU_KERNEL(gpu_append_vector<DTYPE, GPU_HALF_SPLIT>),                                      \
            GPU_KERNEL(gpu_append_vector<DTYPE, GPU_INTERLEAVED>),                                 \
            GPU_KERNEL(gpu_append_vector<DTYPE, GPU_TO_HALF_SPLIT>),                               \
            GPU_KERNEL(gpu_append_vector<DTYPE, GPU_TO_INTERLEAVED>)                               \
    }

#define GPU_APPEND_REROTATE(DTYPE)                                                                 \
    {                                                                                              \
        {GPU_KERNEL(gpu_append_rerotate<DTYPE, GPU_HALF_SPLIT, 0>),                                \
         GPU_KERNEL(gpu_append_rerotate<DTYPE, GPU_HALF_SPLIT, 1>)},                               \
        {                                                                                          \
            GPU_KERNEL(gpu_append_rerotate<DTYPE, GPU_INTERLEAVED, 0>),                            \
                GPU_KERNEL(gpu_append_rerotate<DTYPE, GPU_INTERLEAVED, 1>)                         \
        }                                                                                          \
    }

#define GPU_APPEND_MLA_OF(DTYPE, GEOMETRY)                                                         \
    {                                                                                              \
        GPU_KERNEL(gpu_append_mla<DTYPE, GPU_HALF_SPLIT, GEOMETRY>),                               \
            GPU_KERNEL(gpu_append_mla<DTYPE, GPU_INTERLEAVED, GEOMETRY>),                          \
            GPU_KERNEL(gpu_append_mla<DTYPE, GPU_TO_HALF_SPLIT, GEOMETRY>),                        \
            GPU_KERNEL(gpu_append_mla<DTYPE, GPU_TO_INTERLEAVED, GEOMETRY>)                        \
    }
#define GPU_APPEND_MLA(DTYPE)                                                                      \
    { GPU_APPEND_MLA_OF(DTYPE, GPU_NARROW), GPU_APPEND_MLA_OF(DTYPE, GPU_WIDE) }

/* clang-format off */
#define GPU_APPEND_START(...)                                                                      \
    GPU_KERNEL(gpu_append_plain<__VA_ARGS__>)
#define GPU_APPEND_BY_FLAG(...)                                                                    \
    {GPU_APPEND_START(__VA_ARGS__, GPU_START_BY_FLAG),                                             \
     GPU_APPEND_START(__VA_ARGS__, GPU_START_BY_FLAG)}
#define GPU_APPEND_APART(...)                                                                      \
    {GPU_APPEND_START(__VA_ARGS__, GPU_START_IN_ORDER),                                            \
     GPU_APPEND_START(__VA_ARGS__, GPU_FOR_EARLY(GPU_START_EARLY, GPU_START_IN_ORDER))}
#define GPU_APPEND_PAIRINGS(DTYPE, GEOMETRY, STARTS)                                               \
    {{STARTS(DTYPE, GPU_HALF_SPLIT, GEOMETRY, 0), STARTS(DTYPE, GPU_HALF_SPLIT, GEOMETRY, 1)},     \
     {STARTS(DTYPE, GPU_INTERLEAVED, GEOMETRY, 0), STARTS(DTYPE, GPU_INTERLEAVED, GEOMETRY, 1)}}
#define GPU_APPEND_PLAIN(DTYPE)                                                                    \
    {GPU_APPEND_PAIRINGS(DTYPE, GPU_NARROW, GPU_APPEND_APART),                                     \
     GPU_APPEND_PAIRINGS(DTYPE, GPU_WIDE, GPU_APPEND_BY_FLAG),                                     \
     GPU_APPEND_PAIRINGS(DTYPE, GPU_DEEP, GPU_APPEND_BY_FLAG),                                     \
     {}}
/* clang-format on */

#endif
