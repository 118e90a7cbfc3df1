/* The kernels of a dtype, as gpu_rope_kernels lists them. */
#ifndef ROPEKIT_GPU_ROPE_INSTANCES_H
#define ROPEKIT_GPU_ROPE_INSTANCES_H

#include "backends/gpu/rope/generic.h"
#include "backends/gpu/rope/vector.h"
#include "backends/gpu/rope/window.h"

/* clang-format off */
#define GPU_VECTOR(DTYPE, GEOMETRY)                                                                \
    {GPU_KERNEL(gpu_vector_kernel<DTYPE, GPU_HALF_SPLIT, GEOMETRY>),                               \
     GPU_KERNEL(gpu_vector_kernel<DTYPE, GPU_INTERLEAVED, GEOMETRY>),                              \
     GPU_KERNEL(gpu_vector_kernel<DTYPE, GPU_TO_HALF_SPLIT, GEOMETRY>),                            \
     GPU_KERNEL(gpu_vector_kernel<DTYPE, GPU_TO_INTERLEAVED, GEOMETRY>)}
#define GPU_WINDOW_ANGLES(...)                                                                     \
    {GPU_KERNEL(gpu_window_kernel<__VA_ARGS__, GPU_TURNS>),                                        \
     GPU_KERNEL(gpu_window_kernel<__VA_ARGS__, GPU_TABLE>)}
#define GPU_WINDOW(DTYPE, GEOMETRY)                                                                \
    {GPU_WINDOW_ANGLES(DTYPE, GPU_HALF_SPLIT, GEOMETRY),                                           \
     GPU_WINDOW_ANGLES(DTYPE, GPU_INTERLEAVED, GEOMETRY),                                          \
     GPU_WINDOW_ANGLES(DTYPE, GPU_TO_HALF_SPLIT, GEOMETRY),                                        \
     GPU_WINDOW_ANGLES(DTYPE, GPU_TO_INTERLEAVED, GEOMETRY)}
#define GPU_PLAIN_START(...)                                                                       \
    GPU_KERNEL(gpu_plain_kernel<__VA_ARGS__>)
#define GPU_PLAIN_BY_FLAG(...)                                                                     \
    {GPU_PLAIN_START(__VA_ARGS__, GPU_START_BY_FLAG),                                              \
     GPU_PLAIN_START(__VA_ARGS__, GPU_START_BY_FLAG)}
/* The flag costs one to 64 warm tokens of 32 and 8 heads 3 to 5 % (H100). */
#define GPU_PLAIN_APART(...)                                                                       \
    {GPU_PLAIN_START(__VA_ARGS__, GPU_START_IN_ORDER),                                             \
     GPU_PLAIN_START(__VA_ARGS__, GPU_FOR_EARLY(GPU_START_EARLY, GPU_START_IN_ORDER))}
#define GPU_PLAIN_SMALL(...)                                                                       \
    {GPU_PLAIN_APART(__VA_ARGS__, GPU_CHECKED), GPU_PLAIN_APART(__VA_ARGS__, GPU_WHOLE), {}}
#define GPU_PLAIN_BOTH(...)                                                                        \
    {GPU_PLAIN_BY_FLAG(__VA_ARGS__, GPU_CHECKED), GPU_PLAIN_BY_FLAG(__VA_ARGS__, GPU_WHOLE), {}}
/* 5 % of 256 warm tokens of 129 heads of 32 pairs (DeepSeek MLA, bf16, H100). */
#define GPU_PLAIN_AND_32(...)                                                                      \
    {GPU_PLAIN_BY_FLAG(__VA_ARGS__, GPU_CHECKED), GPU_PLAIN_BY_FLAG(__VA_ARGS__, GPU_WHOLE),       \
     GPU_PLAIN_BY_FLAG(__VA_ARGS__, GPU_CHECKED_32)}
#define GPU_PLAIN_WHOLE_ALONE(...)                                                                 \
    {{}, GPU_PLAIN_BY_FLAG(__VA_ARGS__, GPU_WHOLE), {}}
#define GPU_PLAIN_PAIRINGS(DTYPE, GEOMETRY, BLOCKS)                                                \
    {BLOCKS(DTYPE, GPU_HALF_SPLIT, GEOMETRY), BLOCKS(DTYPE, GPU_INTERLEAVED, GEOMETRY)}
#define GPU_PLAIN(DTYPE, WIDE)                                                                     \
    {GPU_PLAIN_PAIRINGS(DTYPE, GPU_NARROW, GPU_PLAIN_SMALL),                                       \
     GPU_PLAIN_PAIRINGS(DTYPE, GPU_WIDE, WIDE),                                                    \
     GPU_PLAIN_PAIRINGS(DTYPE, GPU_DEEP, GPU_PLAIN_WHOLE_ALONE),                                   \
     GPU_PLAIN_PAIRINGS(DTYPE, GPU_SINGLE_HEAD, GPU_PLAIN_BOTH)}
/* clang-format on */

#endif
