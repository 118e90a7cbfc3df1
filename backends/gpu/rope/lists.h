/* A problem whose lists lie on a device. */
#ifndef ROPEKIT_GPU_ROPE_LISTS_H
#define ROPEKIT_GPU_ROPE_LISTS_H

#include "backends/gpu/platform/runtime.h"

#include <ropekit/backend.h>

/*
 * Copies a problem with all that kernels read to the current device. Each list begins at a multiple
 * of 16 bytes; omega, which no kernel reads, becomes NULL. *memory is to be freed.
 */
gpuError_t gpu_lists_copy(const rope_problem *problem, rope_problem *copy, void **memory);

#endif
