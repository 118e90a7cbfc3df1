/* Sizes of a call, and parts of a workspace, each at a multiple of so many bytes. */
#ifndef ROPEKIT_GPU_ATTENTION_SIZES_H
#define ROPEKIT_GPU_ATTENTION_SIZES_H

#include <ropekit/backend.h>

enum { GPU_WORKSPACE_ALIGNMENT = 256 };

typedef struct gpu_attention_sizes {
    int64_t sequences;
    int64_t k_rows, k_tokens, k_heads;
    int64_t q_rows, tokens, q_heads;
} gpu_attention_sizes;

gpu_attention_sizes gpu_attention_sizes_of(const rope_attention_problem *problem,
                                           const rope_attention_call *call);

/* The largest within bounds. */
gpu_attention_sizes gpu_attention_sizes_within(const rope_attention_problem *problem,
                                               const rope_attention_bounds *bounds);

/* Appends a part of n0 * n1 * n2 * n3 elements; 0 where bytes overflow. */
int gpu_workspace_add(const int64_t n[4], size_t element, size_t *bytes, size_t *begin);

/* Fails where bytes overflowed; prefix: of the fields' names. */
rope_status gpu_workspace_overflows(const char *prefix, const gpu_attention_sizes *sizes);

/* Whether a call was given the workspace of `bytes` that it needs, an error by name where not. */
rope_status gpu_workspace_check(size_t bytes, size_t given, const void *workspace);

#endif
