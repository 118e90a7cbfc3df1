/* The kernels of a dtype, as gpu_rotate_kernels lists them. */
#ifndef ROPEKIT_GPU_INSTANCES_H
#define ROPEKIT_GPU_INSTANCES_H

#include "common/gpu/generic.h"
#include "common/gpu/heads.h"
#include "common/gpu/window.h"

/* clang-format off */
#define GPU_VECTOR(DTYPE, GEOMETRY)                                                                \
    {GPU_KERNEL(gpu_vector_kernel<DTYPE, GPU_HALF_SPLIT, GEOMETRY>),                               \
     GPU_KERNEL(gpu_vector_kernel<DTYPE, GPU_INTERLEAVED, GEOMETRY>),                              \
     GPU_KERNEL(gpu_vector_kernel<DTYPE, GPU_TO_HALF_SPLIT, GEOMETRY>),                            \
     GPU_KERNEL(gpu_vector_kernel<DTYPE, GPU_TO_INTERLEAVED, GEOMETRY>)}
#define GPU_WINDOW_TURNS(DTYPE, PAIRING, GEOMETRY)                                                 \
    GPU_KERNEL(gpu_window_kernel<DTYPE, PAIRING, GEOMETRY, GPU_TURNS>),                            \
        GPU_KERNEL(gpu_window_kernel<DTYPE, PAIRING, GEOMETRY, GPU_TABLE_F32>)
#define GPU_WINDOW_F32(DTYPE, PAIRING, GEOMETRY) {GPU_WINDOW_TURNS(DTYPE, PAIRING, GEOMETRY), NULL}
#define GPU_WINDOW_ALL(DTYPE, PAIRING, GEOMETRY)                                                   \
    {GPU_WINDOW_TURNS(DTYPE, PAIRING, GEOMETRY),                                                   \
     GPU_KERNEL(gpu_window_kernel<DTYPE, PAIRING, GEOMETRY, GPU_TABLE_SAME>)}
#define GPU_WINDOW(DTYPE, GEOMETRY, ANGLES)                                                        \
    {ANGLES(DTYPE, GPU_HALF_SPLIT, GEOMETRY), ANGLES(DTYPE, GPU_INTERLEAVED, GEOMETRY),            \
     ANGLES(DTYPE, GPU_TO_HALF_SPLIT, GEOMETRY), ANGLES(DTYPE, GPU_TO_INTERLEAVED, GEOMETRY)}
#define GPU_PLAIN_STARTS(DTYPE, PAIRING, GEOMETRY, BLOCKS, PAIRS)                                  \
    {GPU_KERNEL(gpu_plain_kernel<DTYPE, PAIRING, GEOMETRY, BLOCKS, PAIRS, false>),                 \
     GPU_EARLY_KERNEL(gpu_plain_kernel<DTYPE, PAIRING, GEOMETRY, BLOCKS, PAIRS, true>)}
#define GPU_PLAIN_ANY(DTYPE, PAIRING, GEOMETRY, BLOCKS)                                            \
    {GPU_PLAIN_STARTS(DTYPE, PAIRING, GEOMETRY, BLOCKS, GPU_ANY_PAIRS), {NULL, NULL}, {NULL, NULL}}
#define GPU_PLAIN_KNOWN(DTYPE, PAIRING, GEOMETRY, BLOCKS)                                          \
    {{NULL, NULL},                                                                                 \
     GPU_PLAIN_STARTS(DTYPE, PAIRING, GEOMETRY, BLOCKS, 32),                                       \
     GPU_PLAIN_STARTS(DTYPE, PAIRING, GEOMETRY, BLOCKS, 64)}
#define GPU_PLAIN_ALL(DTYPE, PAIRING, GEOMETRY, BLOCKS)                                            \
    {GPU_PLAIN_STARTS(DTYPE, PAIRING, GEOMETRY, BLOCKS, GPU_ANY_PAIRS),                            \
     GPU_PLAIN_STARTS(DTYPE, PAIRING, GEOMETRY, BLOCKS, 32),                                       \
     GPU_PLAIN_STARTS(DTYPE, PAIRING, GEOMETRY, BLOCKS, 64)}
#define GPU_PLAIN_PAIRINGS(DTYPE, GEOMETRY, CHECKED, WHOLE)                                        \
    {{CHECKED(DTYPE, GPU_HALF_SPLIT, GEOMETRY, GPU_CHECKED),                                       \
      WHOLE(DTYPE, GPU_HALF_SPLIT, GEOMETRY, GPU_WHOLE)},                                          \
     {CHECKED(DTYPE, GPU_INTERLEAVED, GEOMETRY, GPU_CHECKED),                                      \
      WHOLE(DTYPE, GPU_INTERLEAVED, GEOMETRY, GPU_WHOLE)}}
#define GPU_PLAIN_NONE(...)                                                                        \
    { {NULL, NULL}, {NULL, NULL}, {NULL, NULL} }
#define GPU_PLAIN(DTYPE, WIDE_CHECKED)                                                             \
    {GPU_PLAIN_PAIRINGS(DTYPE, GPU_NARROW, GPU_PLAIN_ANY, GPU_PLAIN_KNOWN),                           \
     GPU_PLAIN_PAIRINGS(DTYPE, GPU_WIDE, WIDE_CHECKED, GPU_PLAIN_KNOWN),                              \
     GPU_PLAIN_PAIRINGS(DTYPE, GPU_DEEP, GPU_PLAIN_NONE, GPU_PLAIN_KNOWN),                            \
     GPU_PLAIN_PAIRINGS(DTYPE, GPU_ALONE, GPU_PLAIN_ANY, GPU_PLAIN_ALL)}
/* clang-format on */

#endif
