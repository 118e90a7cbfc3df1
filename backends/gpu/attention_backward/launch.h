/* A problem of "attention_backward" bound to a device, the workspace and the launches of its calls.
 */
#ifndef ROPEKIT_GPU_ATTENTION_BACKWARD_LAUNCH_H
#define ROPEKIT_GPU_ATTENTION_BACKWARD_LAUNCH_H

#include "backends/gpu/attention/bind.h"
#include "backends/gpu/attention_backward/kernels.h"

typedef struct gpu_backward_state {
    gpu_attention_state forward;
    rope_attention_problem transposed;
    gpu_rope_state transpose; /* by "rope", as forward.rotation */
    const gpu_backward_kernels *kernels;
    int32_t sm90; /* takes those of sm90/, where they fit the call */
} gpu_backward_state;

/* Where parts of a workspace begin, each at a multiple of 256 bytes. */
typedef struct gpu_backward_layout {
    size_t failed;    /* an int32 of each sequence */
    size_t keys;      /* rotated keys, [row, key, head, dim] */
    size_t queries;   /* rotated queries, [row, query, head, dim] */
    size_t delta;     /* fp32, [row, query, head] */
    size_t stats;     /* fp32, as kernels of sm90/ have them */
    size_t counters;  /* theirs */
    size_t sequences; /* what they know of each */
    size_t list[2];   /* int32_t, as they have them */
    size_t angles;    /* by which they rotate gradients */
    size_t sums;      /* fp32, of dq, as they have them */
    size_t added;     /* uint32_t, what was added */
    int joins;        /* whether there are those */
    size_t bytes;     /* of all */
} gpu_backward_layout;

/* As rope_candidate.workspace. */
rope_status gpu_backward_workspace(const void *problem, const void *kernel, const void *bounds,
                                   size_t *bytes);

/* Whether a call was given the workspace that it needs, an error by name where not. */
rope_status gpu_backward_check_workspace(const gpu_backward_state *state,
                                         const rope_attention_backward_call *call,
                                         const void *workspace, gpu_backward_layout *layout);

/* Launches what rotates ahead, sums of rows, then gradients. */
gpuError_t gpu_backward_launch(const gpu_backward_state *state,
                               const rope_attention_backward_call *call,
                               const gpu_backward_layout *layout, void *workspace, void *stream);

#endif
