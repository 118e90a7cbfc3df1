/* "decode" in one launch, as sm90/ shows it to others. */
#ifndef ROPEKIT_GPU_DECODE_SM90_H
#define ROPEKIT_GPU_DECODE_SM90_H

#include "backends/gpu/platform/runtime.h"

#include <ropekit/backend.h>

typedef struct gpu_decode_sizes {
    int64_t sequences, tokens, k_tokens, q_heads, k_heads; /* the most of each */
    int64_t all;                                           /* tokens of all sequences */
    int32_t dim;                                           /* elements of a head */
} gpu_decode_sizes;

typedef struct gpu_decode_launch {
    const rope_decode_problem *problem; /* whose lists lie on the device */
    const rope_decode_call *call;
    void *workspace;
    int multiprocessors;
    int early;
    gpuStream_t stream;
} gpu_decode_launch;

/* Whether a device runs the kernel. */
int gpu_decode_sm90_runs(int32_t device);

/* Why a problem does not take the kernel, or NULL. */
const char *gpu_decode_sm90_decline(const rope_decode_problem *problem);

/* Whether a call takes it. */
int gpu_decode_sm90_fits(const rope_decode_problem *problem, const rope_decode_call *call,
                         int multiprocessors);

/* Bytes of workspace that calls of these sizes need, or of fewer sequences, tokens and keys; 0
 * where none takes the kernel. */
size_t gpu_decode_sm90_workspace(const gpu_decode_sizes *sizes, int multiprocessors);

/* That of a call that takes it. */
size_t gpu_decode_sm90_workspace_of(const rope_decode_problem *problem,
                                    const rope_decode_call *call, int multiprocessors);

/* Loads the kernels of a problem. */
gpuError_t gpu_decode_sm90_load(const rope_decode_problem *problem, int32_t *early);

gpuError_t gpu_decode_sm90_launch(const gpu_decode_launch *launch);

#endif
