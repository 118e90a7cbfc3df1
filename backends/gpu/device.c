#include "backends/gpu/device.h"

#include <stdio.h>

rope_status gpu_status(gpuError_t error) {
    switch (error) {
    case gpuSuccess:
        return ROPE_OK;
    case gpuErrorMemoryAllocation:
        return ROPE_ERROR_OUT_OF_MEMORY;
    case gpuErrorNoDevice:
    case gpuErrorInsufficientDriver:
    case gpuErrorInvalidDevice:
        return ROPE_ERROR_NO_DEVICE;
    default:
        return ROPE_ERROR_DEVICE;
    }
}

rope_status gpu_fail(gpuError_t error, const char *what, int32_t device) {
    return gpu_host->fail(gpu_status(error), "%s on %s device %d: %s", what, GPU_BACKEND_NAME,
                          device, gpuGetErrorString(error));
}

rope_status gpu_device_count(int32_t *count, char *reason) {
    int found = 0;
    gpuError_t error = gpuGetDeviceCount(&found);
    *count = error == gpuSuccess ? found : 0;
    if (error == gpuSuccess)
        return ROPE_OK;
    int driver = 0;
    int known = gpuDriverGetVersion(&driver) == gpuSuccess && driver == 0;
    snprintf(reason, ROPE_REASON_SIZE, "%s",
             known ? "no driver is installed" : gpuGetErrorString(error));
    return gpu_status(error);
}

rope_status gpu_device_info(int32_t device, rope_device_info *info) {
    gpuDeviceProp properties;
    gpuError_t error = gpuGetDeviceProperties(&properties, device);
    if (error != gpuSuccess)
        return gpu_fail(error, "asking for properties", device);
    snprintf(info->name, sizeof info->name, "%.127s", properties.name);
    GPU_FEATURES(info->features, sizeof info->features, &properties);
    info->memory_bytes = (int64_t)properties.totalGlobalMem;
    info->cache_bytes = GPU_CACHE_BYTES(&properties);
    info->compute_units = properties.multiProcessorCount;
    return ROPE_OK;
}

rope_status gpu_alloc(int32_t device, size_t bytes, void **pointer) {
    int previous;
    void *memory = NULL;
    gpuError_t error = gpu_enter(device, &previous);
    if (error == gpuSuccess) {
        error = gpuMalloc(&memory, bytes);
        gpu_leave(device, previous);
    }
    if (error != gpuSuccess)
        return gpu_host->fail(gpu_status(error), "%zu bytes on %s device %d: %s", bytes,
                              GPU_BACKEND_NAME, device, gpuGetErrorString(error));
    *pointer = memory;
    return ROPE_OK;
}

rope_status gpu_free(int32_t device, void *pointer) {
    int previous;
    gpuError_t error = gpu_enter(device, &previous);
    if (error == gpuSuccess) {
        error = gpuFree(pointer);
        gpu_leave(device, previous);
    }
    return error == gpuSuccess ? ROPE_OK : gpu_fail(error, "freeing memory", device);
}

/* On the default stream, which waits for every stream that was not made non-blocking. */
static gpuError_t copy_and_wait(void *target, const void *source, size_t bytes,
                                gpuMemcpyKind kind) {
    gpuError_t error = gpuMemcpyAsync(target, source, bytes, kind, NULL);
    return error == gpuSuccess ? gpuStreamSynchronize(NULL) : error;
}

rope_status gpu_copy_in(int32_t device, void *target, const void *source, size_t bytes) {
    int previous;
    gpuError_t error = gpu_enter(device, &previous);
    if (error == gpuSuccess) {
        error = copy_and_wait(target, source, bytes, gpuMemcpyHostToDevice);
        gpu_leave(device, previous);
    }
    return error == gpuSuccess ? ROPE_OK : gpu_fail(error, "copying in", device);
}

rope_status gpu_copy_out(int32_t device, void *target, const void *source, size_t bytes) {
    int previous;
    gpuError_t error = gpu_enter(device, &previous);
    if (error == gpuSuccess) {
        error = copy_and_wait(target, source, bytes, gpuMemcpyDeviceToHost);
        gpu_leave(device, previous);
    }
    return error == gpuSuccess ? ROPE_OK : gpu_fail(error, "copying out", device);
}

rope_status gpu_synchronize(int32_t device) {
    int previous;
    gpuError_t error = gpu_enter(device, &previous);
    if (error == gpuSuccess) {
        error = gpuDeviceSynchronize();
        gpu_leave(device, previous);
    }
    return error == gpuSuccess ? ROPE_OK : gpu_fail(error, "waiting", device);
}
