/* The kernels of a dtype, as gpu_attention_kernels lists them. */
#ifndef ROPEKIT_GPU_ATTENTION_INSTANCES_H
#define ROPEKIT_GPU_ATTENTION_INSTANCES_H

#include "backends/gpu/attention/decode.h"
#include "backends/gpu/attention/join.h"
#include "backends/gpu/attention/prompt.h"
#include "backends/gpu/attention/wide_heads.h"

#if GPU_TILE_AHEAD
#define GPU_ATTENTION_PROMPT(DTYPE)                                                                \
    { GPU_KERNEL(gpu_attention_prompt<DTYPE, 64>), GPU_KERNEL(gpu_attention_prompt<DTYPE, 128>) }
#else
#define GPU_ATTENTION_PROMPT(DTYPE)                                                                \
    {}
#endif

#if GPU_TILE_DIM > 128
#define GPU_ATTENTION_WIDE(...) GPU_KERNEL(__VA_ARGS__)
#else
#define GPU_ATTENTION_WIDE(...) NULL
#endif

#ifdef GPU_QUERIES_LEFT
#define GPU_ATTENTION_WIDE_HEADS(DTYPE) GPU_KERNEL(gpu_attention_wide_heads<DTYPE>)
#else
#define GPU_ATTENTION_WIDE_HEADS(DTYPE) NULL
#endif

/* As gpu_tile_dim() has them. */
#define GPU_ATTENTION_TILES(DTYPE)                                                                 \
    {GPU_KERNEL(gpu_attention_tiles<DTYPE, 64>), GPU_KERNEL(gpu_attention_tiles<DTYPE, 128>),      \
     GPU_ATTENTION_WIDE(gpu_attention_tiles<DTYPE, 256>)},                                         \
        GPU_ATTENTION_PROMPT(DTYPE),                                                               \
        {GPU_KERNEL(gpu_attention_splits<DTYPE, 64>),                                              \
         GPU_KERNEL(gpu_attention_splits<DTYPE, 128>),                                             \
         GPU_ATTENTION_WIDE(gpu_attention_splits<DTYPE, 256>)},                                    \
        {GPU_KERNEL(gpu_attention_decode<DTYPE, 64>),                                              \
         GPU_KERNEL(gpu_attention_decode<DTYPE, 128>),                                             \
         GPU_ATTENTION_WIDE(gpu_attention_decode<DTYPE, 256>)},                                    \
        {GPU_KERNEL(gpu_attention_decode_join<DTYPE, 64>),                                         \
         GPU_KERNEL(gpu_attention_decode_join<DTYPE, 128>)},                                       \
        GPU_ATTENTION_WIDE_HEADS(DTYPE)

/* Two vectors of 16-bit elements. */
#define GPU_ATTENTION_VECTORS(DTYPE)                                                               \
    {                                                                                              \
        GPU_KERNEL(gpu_attention_rotate_vectors<DTYPE, 0>),                                        \
            GPU_KERNEL(gpu_attention_rotate_vectors<DTYPE, 1>)                                     \
    }

/* vectors: GPU_ATTENTION_VECTORS or {}. */
#define GPU_ATTENTION_KERNELS(DTYPE, vectors, ...)                                                 \
    {                                                                                              \
        GPU_KERNEL(gpu_attention_check<DTYPE>),                                                    \
            {GPU_KERNEL(gpu_attention_rotate<DTYPE, 0>),                                           \
             GPU_KERNEL(gpu_attention_rotate<DTYPE, 1>)},                                          \
            vectors, GPU_KERNEL(gpu_attention_join<DTYPE>), __VA_ARGS__                            \
    }

#endif
