/* The kernels of "append_backward" as host code sees them: symbols, parameters, sizes. */
#ifndef ROPEKIT_GPU_APPEND_BACKWARD_KERNELS_H
#define ROPEKIT_GPU_APPEND_BACKWARD_KERNELS_H

#include "backends/gpu/append/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Rows that a thread of the kernel of trees joins: a power of two; a node for each of its levels.
 */
enum { GPU_GRADIENT_JOINED = 16, GPU_GRADIENT_LEVELS = 5 };

/* How one tensor is dealt: blocks of tokens, in which chains of heads have a row of sums each. */
typedef struct gpu_gradient_tensor {
    int64_t blocks, chains;
    int32_t tokens, heads; /* of a block, and of a chain */
    float *sums;           /* norm_dim of each chain of each block; NULL: not wanted */
    float *gradients;      /* of each block those of a token ahead of the norm, or NULL */
} gpu_gradient_tensor;

typedef struct gpu_gradient_tensors {
    gpu_gradient_tensor tensor[ROPE_APPEND_TENSORS];
} gpu_gradient_tensors;

/* Rows of sums that are joined: `count` nodes, each `chains` rows that are added in order, from
 * node to node `stride` rows. Their joined ones lie where the first of them lay, or in `to`. */
typedef struct gpu_gradient_tree {
    float *rows, *to;
    int64_t width, count, stride, chains;
} gpu_gradient_tree;

typedef struct gpu_gradient_trees {
    gpu_gradient_tree tensor[ROPE_APPEND_TENSORS]; /* count 0: nothing to join */
} gpu_gradient_trees;

/*
 * Kernels, each a kernel function's host symbol.
 *   tokens (rope_append_problem, rope_append_backward_call, gpu_gradient_tensors), of a dtype, [1]
 *     for tensors whose heads have norms of their own or none, [0] for those with one norm: grid
 *     x strides over blocks of tokens, y over chains, z over tensors; block x strides over
 * elements; dynamic shared memory as that of append's generic kernel trees (gpu_gradient_trees):
 * grid x strides over joined nodes, y over blocks of weights, z over tensors
 */
extern const void *const gpu_gradient_tokens_f32[2],
    *const gpu_gradient_tokens_f16[2], *const gpu_gradient_tokens_bf16[2], *const gpu_gradient_join;

#ifdef __cplusplus
}
#endif

#endif
