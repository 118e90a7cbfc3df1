/* Devices of the runtime: errors as statuses, the current device, memory. */
#ifndef ROPEKIT_GPU_DEVICE_H
#define ROPEKIT_GPU_DEVICE_H

#include "backends/gpu/platform/runtime.h"

#include <ropekit/backend.h>

/* The host that loaded this library. */
extern const rope_host *gpu_host;

rope_status gpu_status(gpuError_t error);

/* The status of an error, with its text under host->fail as "what on device d: text". */
rope_status gpu_fail(gpuError_t error, const char *what, int32_t device);

/* Makes a device current and remembers which was. gpu_leave is called where gpu_enter succeeded.
 * Each backend has its own, in current.c. */
gpuError_t gpu_enter(int32_t device, int *previous);
void gpu_leave(int32_t device, int previous);

rope_status gpu_device_count(int32_t *count, char *reason);
rope_status gpu_device_info(int32_t device, rope_device_info *info);
rope_status gpu_alloc(int32_t device, size_t bytes, void **pointer);
rope_status gpu_free(int32_t device, void *pointer);
rope_status gpu_copy_in(int32_t device, void *target, const void *source, size_t bytes);
rope_status gpu_copy_out(int32_t device, void *target, const void *source, size_t bytes);
rope_status gpu_synchronize(int32_t device);
rope_status gpu_time(int32_t device, int32_t graph, int64_t iterations, rope_iteration iteration,
                     void *state, double *seconds, double *host_seconds);

#endif
