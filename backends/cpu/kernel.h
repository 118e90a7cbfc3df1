/* What the CPU kernels share: a slice of a call, and the function that rotates it. */
#ifndef ROPEKIT_CPU_KERNEL_H
#define ROPEKIT_CPU_KERNEL_H

#include <ropekit/backend.h>

/* Some tokens (batch * tokens + token) and some heads of each tensor. */
typedef struct cpu_slice {
    int64_t first_token, last_token;
    int64_t first_head[2], last_head[2];
    int stream; /* write around the cache where the views allow it */
} cpu_slice;

/* A kernel is one function; every variant gives the same bits. */
typedef struct cpu_kernel {
    void (*rotate)(const rope_problem *problem, const rope_call *call, const cpu_slice *slice);
} cpu_kernel;

extern const cpu_kernel cpu_kernel_scalar;
extern const cpu_kernel cpu_kernel_avx2;
extern const cpu_kernel cpu_kernel_avx512;
extern const cpu_kernel cpu_kernel_avx512_bf16;
extern const cpu_kernel cpu_kernel_neon;
extern const cpu_kernel cpu_kernel_reference;

#endif
