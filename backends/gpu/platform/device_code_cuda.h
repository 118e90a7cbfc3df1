/* Device code that CUDA and HIP spell differently. */
#ifndef ROPEKIT_GPU_PLATFORM_DEVICE_CODE_CUDA_H
#define ROPEKIT_GPU_PLATFORM_DEVICE_CODE_CUDA_H

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "backends/gpu/platform/f16_pair.h"
#include "common/math/fp8.h"

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

static __device__ __forceinline__ int32_t gpu_reread(int32_t x) {
    return x;
}

/* x, and what is computed of it stays in the loop that does: kept, it would take registers. */
static __device__ __forceinline__ int gpu_opaque(int x) {
    asm volatile("" : "+r"(x));
    return x;
}

/* p, which points to global memory; the compiler finds that out. */
template <typename T> static __device__ __forceinline__ T *gpu_global(T *p) {
    return p;
}

/* x; HIP keeps what follows from it out of scalar registers. */
static __device__ __forceinline__ int64_t gpu_own(int64_t x) {
    return x;
}

/* A kernel's host symbol. */
#define GPU_KERNEL(...) ((const void *)(__VA_ARGS__))

/* The first is compiled for launches that start early; the second where no launch does. */
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

/* Two numbers in 8 bits each, the first in the low byte, as common/math/fp8.h has them.
 * cmake/cuda_language.cmake says which sources are compiled for sm_89. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
#define GPU_JOIN_F8(name, dtype, instruction)                                                      \
    static __device__ __forceinline__ unsigned name(float low, float high) {                       \
        unsigned short pair;                                                                       \
        asm(instruction " %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));                        \
        return pair;                                                                               \
    }
#else
#define GPU_JOIN_F8(name, dtype, instruction)                                                      \
    static __device__ __forceinline__ unsigned name(float low, float high) {                       \
        return rope_to_f8(dtype, low) | (unsigned)rope_to_f8(dtype, high) << 8;                    \
    }
#endif
GPU_JOIN_F8(gpu_join_e4m3, ROPE_F8E4M3, "cvt.rn.satfinite.e4m3x2.f32")
GPU_JOIN_F8(gpu_join_e5m2, ROPE_F8E5M2, "cvt.rn.satfinite.e5m2x2.f32")
#undef GPU_JOIN_F8

/* The numbers of the two low bytes of a word, the first in the low one. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
#define GPU_SPLIT_F8(name, dtype, instruction)                                                     \
    static __device__ __forceinline__ float2 name(unsigned word) {                                 \
        unsigned halves;                                                                           \
        asm(instruction " %0, %1;" : "=r"(halves) : "h"((unsigned short)word));                    \
        return gpu_split_f16(halves);                                                              \
    }
#else
#define GPU_SPLIT_F8(name, dtype, instruction)                                                     \
    static __device__ __forceinline__ float2 name(unsigned word) {                                 \
        return {rope_from_f8(dtype, (uint8_t)word), rope_from_f8(dtype, (uint8_t)(word >> 8))};    \
    }
#endif
GPU_SPLIT_F8(gpu_split_e4m3, ROPE_F8E4M3, "cvt.rn.f16x2.e4m3x2")
GPU_SPLIT_F8(gpu_split_e5m2, ROPE_F8E5M2, "cvt.rn.f16x2.e5m2x2")
#undef GPU_SPLIT_F8

/* A value of the thread whose lane differs by these bits, below 32; all of a warp's threads ask. */
template <typename T> static __device__ __forceinline__ T gpu_shuffle_xor(T value, int bits) {
    return __shfl_xor_sync(0xffffffffu, value, bits);
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
