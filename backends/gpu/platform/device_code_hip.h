/* Device code that CUDA and HIP spell differently. */
#ifndef ROPEKIT_GPU_PLATFORM_DEVICE_CODE_HIP_H
#define ROPEKIT_GPU_PLATFORM_DEVICE_CODE_HIP_H

/* clang fuses products into sums on the device unless told not to; docs/numerics.md rounds both. */
#ifdef __clang__
#pragma clang fp contract(off)
#endif

#include <hip/hip_runtime.h>

#include <hip/hip_fp16.h>

#include <string.h>

/* HIP's memcpy on the device copies byte by byte. */
#ifdef __HIP_DEVICE_COMPILE__
#define memcpy __builtin_memcpy
#endif

#include "backends/gpu/platform/f16_pair.h"
#include "common/math/fp8.h"
#include "common/math/half.h"

/* The address spaces of a kernel's parameters and of global memory. */
#ifdef __HIP_DEVICE_COMPILE__
#define GPU_SEGMENT __attribute__((address_space(4)))
#define GPU_GLOBAL __attribute__((address_space(1)))
#else
#define GPU_SEGMENT
#define GPU_GLOBAL
#endif

/*
 * A kernel's parameter, read where it lies. gpu_parameter<T, BEFORE...>(p) points to p, which
 * follows parameters of the types BEFORE. gpu_reread(p) is p, and no read through it leaves the
 * loop that contains it. Given &p itself clang loads every field before the first instruction and
 * spills; nvcc makes a copy of a parameter that is indexed, unless told not to.
 */
#ifdef __CUDACC__
#define GPU_PARAMETER const __grid_constant__
template <typename T, typename...>
static __device__ __forceinline__ const T *gpu_parameter(const T &p) {
    return &p;
}
#else
#define GPU_PARAMETER const
template <typename T, typename... BEFORE>
static __device__ __forceinline__ const T *gpu_parameter(const T &) {
    static_assert(((sizeof(BEFORE) % alignof(T) == 0) && ... && true), "no padding before T");
    auto segment = (const GPU_SEGMENT char *)__builtin_amdgcn_kernarg_segment_ptr();
    return (const T *)(segment + (0 + ... + sizeof(BEFORE)));
}
#endif

template <typename T> static __device__ __forceinline__ const T *gpu_reread(const T *p) {
    auto segment = (const GPU_SEGMENT T *)p;
#ifdef __HIP_DEVICE_COMPILE__
    asm volatile("" : "+s"(segment));
#endif
    return (const T *)segment;
}

/* A number that all threads have, read again. */
static __device__ __forceinline__ int32_t gpu_reread(int32_t x) {
#ifdef __HIP_DEVICE_COMPILE__
    asm volatile("" : "+s"(x));
#endif
    return x;
}

/* p, which points to global memory, where clang cannot tell and would take flat accesses. The type
 * must say so: a cast to it and back is no longer there when accesses are chosen. */
template <typename T> static __device__ __forceinline__ GPU_GLOBAL T *gpu_global(T *p) {
    return (GPU_GLOBAL T *)p;
}

/* A number that threads may have their own of: what follows from it is not kept in scalar
 * registers. */
static __device__ __forceinline__ int64_t gpu_own(int64_t x) {
#ifdef __HIP_DEVICE_COMPILE__
    asm volatile("" : "+v"(x));
#endif
    return x;
}

/* x, and what is computed of it stays in the loop that does: kept, it would take registers. */
static __device__ __forceinline__ int gpu_opaque(int x) {
#ifdef __HIP_DEVICE_COMPILE__
    asm volatile("" : "+v"(x));
#endif
    return x;
}

/* A kernel's host symbol. */
#define GPU_KERNEL(...) ((const void *)(HIP_KERNEL_NAME(__VA_ARGS__)))

/* HIP starts no launch before the one ahead of it on its stream has ended. */
#define GPU_FOR_EARLY(early, in_order) in_order
static __device__ __forceinline__ void gpu_wait_for_last(void) {}
static __device__ __forceinline__ void gpu_let_next_start(void) {}

/* Two bf16 numbers, as f16_pair.h has f16. */
static __device__ __forceinline__ unsigned gpu_join_bf16(float low, float high) {
    return rope_to_bf16(low) | (unsigned)rope_to_bf16(high) << 16;
}

/* Two numbers in 8 bits each, the first in the low byte. */
static __device__ __forceinline__ unsigned gpu_join_e4m3(float low, float high) {
    return rope_to_f8(ROPE_F8E4M3, low) | (unsigned)rope_to_f8(ROPE_F8E4M3, high) << 8;
}

static __device__ __forceinline__ unsigned gpu_join_e5m2(float low, float high) {
    return rope_to_f8(ROPE_F8E5M2, low) | (unsigned)rope_to_f8(ROPE_F8E5M2, high) << 8;
}

/* The numbers of the two low bytes of a word, the first in the low one. */
static __device__ __forceinline__ float2 gpu_split_e4m3(unsigned word) {
    return {rope_from_f8(ROPE_F8E4M3, (uint8_t)word),
            rope_from_f8(ROPE_F8E4M3, (uint8_t)(word >> 8))};
}

static __device__ __forceinline__ float2 gpu_split_e5m2(unsigned word) {
    return {rope_from_f8(ROPE_F8E5M2, (uint8_t)word),
            rope_from_f8(ROPE_F8E5M2, (uint8_t)(word >> 8))};
}

/* A value of the thread whose lane differs by these bits, below 32; all of a wave's threads ask. */
template <typename T> static __device__ __forceinline__ T gpu_shuffle_xor(T value, int bits) {
#ifdef __CUDACC__
    return __shfl_xor_sync(0xffffffffu, value, bits);
#else
    return __shfl_xor(value, bits);
#endif
}

/* Two 16-bit numbers of a word times, and plus, two others, rounded once. */
static __device__ __forceinline__ unsigned gpu_multiply_f16(unsigned a, unsigned b) {
    const float2 x = gpu_split_f16(a), y = gpu_split_f16(b);
    return gpu_join_f16(x.x * y.x, x.y * y.y);
}

static __device__ __forceinline__ unsigned gpu_add_f16(unsigned a, unsigned b) {
    const float2 x = gpu_split_f16(a), y = gpu_split_f16(b);
    return gpu_join_f16(x.x + y.x, x.y + y.y);
}

static __device__ __forceinline__ unsigned gpu_multiply_bf16(unsigned a, unsigned b) {
    return gpu_join_bf16(rope_from_bf16((uint16_t)a) * rope_from_bf16((uint16_t)b),
                         rope_from_bf16((uint16_t)(a >> 16)) * rope_from_bf16((uint16_t)(b >> 16)));
}

static __device__ __forceinline__ unsigned gpu_add_bf16(unsigned a, unsigned b) {
    return gpu_join_bf16(rope_from_bf16((uint16_t)a) + rope_from_bf16((uint16_t)b),
                         rope_from_bf16((uint16_t)(a >> 16)) + rope_from_bf16((uint16_t)(b >> 16)));
}

#endif
