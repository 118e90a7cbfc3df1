/* A problem of "append_backward" bound to a device, and the launches of its calls. */
#ifndef ROPEKIT_GPU_APPEND_BACKWARD_LAUNCH_H
#define ROPEKIT_GPU_APPEND_BACKWARD_LAUNCH_H

#include "backends/gpu/append_backward/kernels.h"
#include "backends/gpu/candidate.h"

/* The state of a plan: bind makes it, run is given it. */
typedef struct gpu_gradient_state {
    gpu_binding on;
    rope_append_problem problem; /* its lists lie on the device */
    const void *kernels[3];      /* of tokens, as kernels.h lists them, and of trees */
} gpu_gradient_state;

/* A call with its workspace. */
typedef struct gpu_gradient_work {
    const rope_append_backward_call *call;
    void *workspace;
} gpu_gradient_work;

/* As rope_candidate.workspace. */
rope_status gpu_gradient_workspace(const void *problem, const void *kernel, const void *bounds,
                                   size_t *bytes);

/* Whether a call was given the workspace that it needs, an error by name where not. */
rope_status gpu_gradient_check(const gpu_gradient_state *state, const gpu_gradient_work *work);

gpuError_t gpu_gradient_launch(const gpu_binding *binding, const void *work, void *stream);

#endif
