/* A problem of "append" bound to a device, and the launch of its calls. */
#ifndef ROPEKIT_GPU_APPEND_LAUNCH_H
#define ROPEKIT_GPU_APPEND_LAUNCH_H

#include "common/gpu/append/kernels.h"
#include "common/gpu/candidate.h"

/* What bind makes and run is given. */
typedef struct gpu_append_bound {
    gpu_binding on;
    rope_append_problem problem; /* its lists lie on the device */
    void *lists;
    const gpu_append_kernels *kernels;
    int32_t vector; /* calls may take a vector kernel */
} gpu_append_bound;

/* Why no call of this problem takes a vector kernel; NULL where some may. */
const char *gpu_append_vector_declines(const rope_append_problem *problem);

/* One launch for q, k and v, of a vector kernel where one fits the call, else of the generic one.
 */
gpuError_t gpu_append_launch(const gpu_append_bound *bound, const rope_append_call *call,
                             void *stream);

#endif
