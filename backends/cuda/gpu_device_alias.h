/* What device code of CUDA and HIP spells differently. */
#ifndef ROPEKIT_CUDA_GPU_DEVICE_ALIAS_H
#define ROPEKIT_CUDA_GPU_DEVICE_ALIAS_H

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "common/gpu/f16_pair.h"

/* A kernel's parameter, read where it lies: gpu_parameter<T, types before it>(p) points to p, and
 * gpu_reread(p) is p. HIP tells its compiler more. */
#define GPU_PARAMETER const __grid_constant__
template <typename T, typename...>
static __device__ __forceinline__ const T *gpu_parameter(const T &p) {
    return &p;
}

template <typename T> static __device__ __forceinline__ const T *gpu_reread(const T *p) {
    return p;
}

/* A kernel's host symbol. */
#define GPU_KERNEL(...) ((const void *)(__VA_ARGS__))

/* What is compiled for launches that start early; the second where no launch does. */
#define GPU_FOR_EARLY(early, in_order) early

/* Waits until the launch ahead of this one on its stream has ended and its memory can be read,
 * where this one may start before; else nothing. */
static __device__ __forceinline__ void gpu_wait_for_last(void) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* The launch behind this one may start, and wait, as soon as every block has come so far. */
static __device__ __forceinline__ void gpu_let_next_start(void) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

/* Two bf16 numbers, as f16_pair.h has f16. */
static __device__ __forceinline__ unsigned gpu_join_bf16(float low, float high) {
    __nv_bfloat162 h = __floats2bfloat162_rn(low, high);
    unsigned word;
    memcpy(&word, &h, sizeof word);
    return word;
}

/* Two 16-bit numbers of a word times, and plus, two others, rounded once; none is fused. */
#define GPU_PACKED(name, type, operation)                                                          \
    static __device__ __forceinline__ unsigned name(unsigned a, unsigned b) {                      \
        type x, y;                                                                                 \
        memcpy(&x, &a, sizeof x);                                                                  \
        memcpy(&y, &b, sizeof y);                                                                  \
        x = operation(x, y);                                                                       \
        memcpy(&a, &x, sizeof a);                                                                  \
        return a;                                                                                  \
    }
GPU_PACKED(gpu_multiply_f16, __half2, __hmul2_rn)
GPU_PACKED(gpu_multiply_bf16, __nv_bfloat162, __hmul2_rn)
GPU_PACKED(gpu_add_f16, __half2, __hadd2_rn)
GPU_PACKED(gpu_add_bf16, __nv_bfloat162, __hadd2_rn)
#undef GPU_PACKED

#endif
