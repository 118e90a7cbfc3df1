/* Single elements of each dtype, and how functions are inlined. */
#ifndef ROPEKIT_CPU_SCALAR_H
#define ROPEKIT_CPU_SCALAR_H

#include "common/math/half.h"

#include <ropekit/backend.h>
#include <stdint.h>
#include <string.h>

/* Kernels are specialized by inlining. Without optimization nothing is dropped after it, and frames
   would be megabytes: there these are functions as any other. */
#ifdef __OPTIMIZE__
#define CPU_INLINE static inline __attribute__((always_inline))
#else
#define CPU_INLINE static inline
#endif
#define CPU_NOINLINE __attribute__((noinline))

CPU_INLINE int cpu_dtype_size(int dtype) {
    return dtype == ROPE_F64 ? 8 : dtype == ROPE_F32 ? 4 : 2;
}

CPU_INLINE float cpu_load(int dtype, const char *base, int64_t i) {
    if (dtype == ROPE_F32)
        return ((const float *)base)[i];
    uint16_t h = ((const uint16_t *)base)[i];
    return dtype == ROPE_BF16 ? rope_from_bf16(h) : rope_from_f16(h);
}

CPU_INLINE void cpu_store(int dtype, char *base, int64_t i, float x) {
    if (dtype == ROPE_F32)
        ((float *)base)[i] = x;
    else
        ((uint16_t *)base)[i] = dtype == ROPE_BF16 ? rope_to_bf16(x) : rope_to_f16(x);
}

#endif
