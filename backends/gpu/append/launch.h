/* A problem of "append" bound to a device, and the launch of its calls. */
#ifndef ROPEKIT_GPU_APPEND_LAUNCH_H
#define ROPEKIT_GPU_APPEND_LAUNCH_H

#include "backends/gpu/append/kernels.h"
#include "backends/gpu/candidate.h"
#include "backends/gpu/rope/launch.h"

/* The state of a plan: bind makes it, run is given it. */
typedef struct gpu_append_state {
    gpu_binding on;
    rope_append_problem problem; /* its lists lie on the device */
    const gpu_append_kernels *kernels;
    int32_t most;     /* GPU_APPEND_BY_: the first of the kernels that its calls may take */
    int32_t geometry; /* a forced GPU_ geometry of plain kernels, or GPU_BY_SIZE */
} gpu_append_state;

/* Kernels: calls that do not fit rerotate, mla or plain ones take vector's, and those that do not
 * fit it the generic one's. */
enum {
    GPU_APPEND_BY_GENERIC = 0,
    GPU_APPEND_BY_VECTOR = 1,
    GPU_APPEND_BY_PLAIN = 2,
    GPU_APPEND_BY_MLA = 3,
    GPU_APPEND_BY_REROTATE = 4
};

/* Why no call of this problem takes such a kernel; NULL where some may. */
const char *gpu_append_rerotate_declines(const rope_append_problem *problem);
const char *gpu_append_mla_declines(const rope_append_problem *problem);
const char *gpu_append_plain_declines(const rope_append_problem *problem);
const char *gpu_append_vector_declines(const rope_append_problem *problem);

/* One launch for q, k and v, of the first kernel that fits the call. */
gpuError_t gpu_append_launch(const gpu_append_state *state, const rope_append_call *call,
                             void *stream);

#endif
