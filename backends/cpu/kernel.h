/* What the CPU kernels share: a slice of a call, and the function that rotates it. */
#ifndef ROPEKIT_CPU_KERNEL_H
#define ROPEKIT_CPU_KERNEL_H

#include "backends/cpu/features.h"

#include <ropekit/backend.h>

/* Some tokens (batch * tokens + token) and some heads of each tensor. */
typedef struct cpu_slice {
    int64_t first_token, last_token;
    int64_t first_head[2], last_head[2];
    const cpu_walk *walk;
    int exceeds; /* the call exceeds the cache, which stores then go around */
    int near;    /* the call is so small that nothing is fetched ahead */
    int alone;   /* one thread takes the whole call */
    int touch;   /* lines of f32 are touched */
} cpu_slice;

/* Copies source to target, or updates target; target and source may be any addresses. */
typedef void (*cpu_traffic_function)(char *target, const char *source, size_t bytes);

typedef struct cpu_traffic {
    cpu_traffic_function copy, stream, stream_by_pages, update, update_by_pages;
} cpu_traffic;

typedef void (*cpu_rotate_function)(const rope_problem *problem, const rope_call *call,
                                    const cpu_slice *slice);

/* Every variant gives the same bits. */
typedef struct cpu_kernel {
    cpu_isa needs;
    cpu_rotate_function rotate[4]; /* by dtype - ROPE_F32 */
    const cpu_traffic *traffic;
} cpu_kernel;

extern const cpu_kernel cpu_kernel_scalar;
extern const cpu_kernel cpu_kernel_avx2;
extern const cpu_kernel cpu_kernel_avx512;
extern const cpu_kernel cpu_kernel_avx512_bf16;
extern const cpu_kernel cpu_kernel_neon;
extern const cpu_kernel cpu_kernel_reference;

/* The fastest that processor and ROPE_CPU_ISA allow. */
const cpu_kernel *cpu_kernel_allowed(void);

#endif
