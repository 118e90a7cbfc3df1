/* What host code must know of the kernels of "append". */
#ifndef ROPEKIT_GPU_APPEND_KERNELS_H
#define ROPEKIT_GPU_APPEND_KERNELS_H

#include <ropekit/backend.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Threads of a block of the generic kernel, and nodes of a norm that one pass over its shared
 * memory sums: a power of two. */
enum { GPU_APPEND_GENERIC_THREADS = 128, GPU_APPEND_SEGMENT = 1024 };

/*
 * Kernels of one dtype, each a kernel function's host symbol.
 *   generic (rope_append_problem, rope_append_call): grid x strides over tokens and y over heads, of
 *     which y is 1 with ROPE_NORM_TOKEN; block x strides over elements; dynamic shared memory holds
 *     two heads in fp32 and GPU_APPEND_SEGMENT nodes
 * All may be launched to start early.
 */
typedef struct gpu_append_kernels {
    const void *generic;
} gpu_append_kernels;

extern const gpu_append_kernels gpu_append_f32;
extern const gpu_append_kernels gpu_append_f16;
extern const gpu_append_kernels gpu_append_bf16;

#ifdef __cplusplus
}
#endif

#endif
