/* A problem bound to a device, and the launch of its calls. */
#ifndef ROPEKIT_GPU_ROPE_LAUNCH_H
#define ROPEKIT_GPU_ROPE_LAUNCH_H

#include "backends/gpu/candidate.h"
#include "backends/gpu/rope/kernels.h"

enum { GPU_BY_SIZE = -1, GPU_GENERIC = -2 };

/* The state of a plan: bind makes it, run is given it. */
typedef struct gpu_rope_state {
    gpu_binding on;
    rope_problem problem; /* its lists lie on the device */
    const gpu_rope_kernels *kernels;
    int32_t geometry; /* a forced GPU_ geometry; GPU_BY_SIZE; or GPU_GENERIC */
    int32_t plain;    /* calls may take a plain kernel */
    int32_t window;   /* or a window kernel */
} gpu_rope_state;

/* Why no call of this problem takes a plain, a window or a vector kernel; NULL where some may. */
const char *gpu_plain_declines(const rope_problem *problem);
const char *gpu_window_declines(const rope_problem *problem);
const char *gpu_vector_declines(const rope_problem *problem);

/* Binds to the current device for calls that may take every kernel, all but state->problem, whose
 * lists are the caller's to copy; `launch` is ROPE_LAUNCH_. */
gpuError_t gpu_rope_bind(gpu_rope_state *state, const rope_problem *problem, int32_t device,
                         int32_t launch);

/* One launch for q and k, of the first of plain, window, vector and generic kernel that fits.
 * `early`: it may start early, where on.early says that it can. */
gpuError_t gpu_rope_launch(const gpu_rope_state *state, const rope_call *call, int32_t early,
                           void *stream);

#endif
