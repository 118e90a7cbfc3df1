/* The backend that backends/gpu makes of a runtime's aliases. */
#ifndef ROPEKIT_GPU_BACKEND_H
#define ROPEKIT_GPU_BACKEND_H

#include <ropekit/backend.h>

/* A backend with the candidates of `lists`, on the functions of device.h. */
#define GPU_BACKEND(count_devices)                                                                 \
    {                                                                                              \
        .abi = ROPE_BACKEND_ABI, .struct_size = sizeof(rope_backend),                              \
        .priority = GPU_BACKEND_PRIORITY, .name = GPU_BACKEND_NAME, .lists = lists,                \
        .list_count = sizeof lists / sizeof lists[0], .device_count = count_devices,               \
        .device_info = gpu_device_info, .alloc = gpu_alloc, .free = gpu_free,                      \
        .copy_in = gpu_copy_in, .copy_out = gpu_copy_out, .synchronize = gpu_synchronize,          \
        .time = gpu_time                                                                           \
    }

/* NULL for a host of another ABI. */
const rope_backend *gpu_backend_for(const rope_host *host);

#endif
