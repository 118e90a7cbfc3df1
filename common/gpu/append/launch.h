/* A problem of "append" bound to a device, and the launch of its calls. */
#ifndef ROPEKIT_GPU_APPEND_LAUNCH_H
#define ROPEKIT_GPU_APPEND_LAUNCH_H

#include <gpu_alias.h>

#include <stdatomic.h>

#include "common/gpu/append/kernels.h"

/* What bind makes and run is given. */
typedef struct gpu_append_bound {
    rope_append_problem problem; /* its lists lie on the device */
    void *lists;
    const gpu_append_kernels *kernels;
    int32_t vector; /* calls may take a vector kernel */
    int32_t device;
    int32_t devices; /* of the machine */
    int32_t multiprocessors;
    int32_t early;    /* launches may begin before the one ahead of them has ended */
    atomic_int asked; /* the runtime was asked about a call's memory */
} gpu_append_bound;

/* Why no call of this problem takes a vector kernel; NULL where some may. */
const char *gpu_append_vector_declines(const rope_append_problem *problem);

/* One launch for q, k and v, of a vector kernel where one fits the call, else of the generic one.
 */
gpuError_t gpu_append_launch(const gpu_append_bound *bound, const rope_append_call *call,
                             void *stream);

#endif
