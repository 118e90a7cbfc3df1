#include "common/gpu/candidate.h"

#include "common/gpu/device.h"

#include <stdio.h>

rope_status gpu_refuse(gpuError_t error, char *reason) {
    snprintf(reason, ROPE_REASON_SIZE, "%s", gpuGetErrorString(error));
    return gpu_status(error);
}

rope_status gpu_kernel_probe(const void *kernel, int32_t device, char *reason) {
    gpuFuncAttributes attributes;
    int previous;
    gpuError_t error = gpu_enter(device, &previous);
    if (error == gpuSuccess) {
        error = gpuFuncGetAttributes(&attributes, kernel);
        gpu_leave(device, previous);
    }
    return error == gpuSuccess ? ROPE_OK : gpu_refuse(error, reason);
}

gpuError_t gpu_kernels_load(const void *const *kernels, size_t count, int32_t *early) {
    gpuFuncAttributes attributes;
    gpuError_t error = gpuSuccess;
    *early = 1;
    for (size_t i = 0; i < count && error == gpuSuccess; i++)
        if (kernels[i]) {
            error = gpuFuncGetAttributes(&attributes, kernels[i]);
            *early &= error == gpuSuccess && gpu_starts_early(&attributes);
        }
    return error;
}

rope_status gpu_check_pointers(int32_t device, const gpu_named_pointer *given, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (given[i].pointer && gpu_is_out_of_reach(device, given[i].pointer))
            return gpu_host->fail(ROPE_ERROR_INVALID_VALUE,
                                  "%s is %p; allowed is memory that %s device %d reaches",
                                  given[i].name, given[i].pointer, GPU_BACKEND_NAME, device);
    return ROPE_OK;
}

rope_status gpu_check_stream(int32_t device, int32_t devices, void *stream) {
    const int found = stream && devices > 1 ? gpu_device_of_stream(stream, device) : device;
    return found == device
               ? ROPE_OK
               : gpu_host->fail(ROPE_ERROR_INVALID_VALUE,
                                "stream is of %s device %d; allowed is one of device %d, or NULL",
                                GPU_BACKEND_NAME, found, device);
}
