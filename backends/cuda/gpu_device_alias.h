/* What device code of CUDA and HIP spells differently. */
#ifndef ROPEKIT_CUDA_GPU_DEVICE_ALIAS_H
#define ROPEKIT_CUDA_GPU_DEVICE_ALIAS_H

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

/* A kernel's parameter, read where it lies. */
#define GPU_PARAMETER const __grid_constant__

/* A load and a store of what nothing reads again soon. */
template <typename T> static __device__ __forceinline__ T gpu_load_streaming(const T *p) {
    return __ldcs(p);
}

template <typename T> static __device__ __forceinline__ void gpu_store_streaming(T *p, T v) {
    __stcs(p, v);
}

/* Two 16-bit numbers of a word, the first in its low half; every one but a NaN as common/half.h
 * has it. */
static __device__ __forceinline__ float2 gpu_split_f16(unsigned word) {
    __half2 h;
    memcpy(&h, &word, sizeof h);
    return __half22float2(h);
}

static __device__ __forceinline__ unsigned gpu_join_f16(float low, float high) {
    __half2 h = __floats2half2_rn(low, high);
    unsigned word;
    memcpy(&word, &h, sizeof word);
    return word;
}

static __device__ __forceinline__ unsigned gpu_join_bf16(float low, float high) {
    __nv_bfloat162 h = __floats2bfloat162_rn(low, high);
    unsigned word;
    memcpy(&word, &h, sizeof word);
    return word;
}

#endif
