/* Two f16 numbers of a word, the first in its low half; every one but a NaN as common/math/half.h
 * has it. CUDA and HIP name the conversions alike. */
#ifndef ROPEKIT_GPU_PLATFORM_F16_PAIR_H
#define ROPEKIT_GPU_PLATFORM_F16_PAIR_H

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

#endif
