#include "common/gpu/backend.h"

#include "common/gpu/device.h"
#include "common/gpu/operations.h"

const rope_host *gpu_host;

static const rope_backend backend = {
    .abi = ROPE_BACKEND_ABI,
    .priority = GPU_BACKEND_PRIORITY,
    .name = GPU_BACKEND_NAME,
    .operation = {&gpu_rotate_operation, &gpu_copy_operation, &gpu_update_operation},
    .device_count = gpu_device_count,
    .device_info = gpu_device_info,
    .alloc = gpu_alloc,
    .free = gpu_free,
    .copy_in = gpu_copy_in,
    .copy_out = gpu_copy_out,
    .synchronize = gpu_synchronize,
    .time = gpu_time,
};

const rope_backend *gpu_backend_for(const rope_host *host) {
    if (host->abi != ROPE_BACKEND_ABI)
        return NULL;
    gpu_host = host;
    return &backend;
}
