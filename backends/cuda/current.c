/*
 * The current device, by the driver's stack of contexts: what was current below stays as it is,
 * also where it was nothing. cudaSetDevice back to a device that no one has used would make a
 * context on it, which takes hundreds of megabytes there.
 */
#include "common/gpu/device.h"

#include <cuda.h>
#include <stdatomic.h>

/* Of devices below it the context is kept, as the runtime keeps it, until the process ends. */
enum { DEVICES_KEPT = 64 };

static struct {
    CUresult (*device)(CUdevice *device, int number);
    CUresult (*retain)(CUcontext *context, CUdevice device);
    CUresult (*push)(CUcontext context);
    CUresult (*pop)(CUcontext *context);
} driver;
static atomic_int driver_is_found;
static _Atomic(CUcontext) kept[DEVICES_KEPT];

static cudaError_t find(const char *name, void *function) {
    enum cudaDriverEntryPointQueryResult result;
#if CUDART_VERSION >= 12050
    cudaError_t error = cudaGetDriverEntryPointByVersion(name, (void **)function, 12000,
                                                         cudaEnableDefault, &result);
#else
    cudaError_t error =
        cudaGetDriverEntryPoint(name, (void **)function, cudaEnableDefault, &result);
#endif
    if (error == cudaSuccess && result != cudaDriverEntryPointSuccess)
        error = cudaErrorInsufficientDriver;
    return error;
}

/* Threads that find them at once write the same. */
static cudaError_t find_driver(void) {
    if (atomic_load_explicit(&driver_is_found, memory_order_acquire))
        return cudaSuccess;
    cudaError_t error = find("cuDeviceGet", &driver.device);
    if (error == cudaSuccess)
        error = find("cuDevicePrimaryCtxRetain", &driver.retain);
    if (error == cudaSuccess)
        error = find("cuCtxPushCurrent", &driver.push);
    if (error == cudaSuccess)
        error = find("cuCtxPopCurrent", &driver.pop);
    if (error == cudaSuccess)
        atomic_store_explicit(&driver_is_found, 1, memory_order_release);
    return error;
}

/* The runtime's errors have the driver's numbers. */
_Static_assert((int)cudaErrorMemoryAllocation == (int)CUDA_ERROR_OUT_OF_MEMORY &&
                   (int)cudaErrorInvalidDevice == (int)CUDA_ERROR_INVALID_DEVICE,
               "errors of the runtime and of the driver");

/* Makes the device's primary context current above what is. */
static CUresult push(int32_t device) {
    int is_kept = device >= 0 && device < DEVICES_KEPT;
    CUcontext context = is_kept ? atomic_load(&kept[device]) : NULL;
    if (context && driver.push(context) == CUDA_SUCCESS)
        return CUDA_SUCCESS;
    /* The first call, or behind a cudaDeviceReset. */
    CUdevice handle;
    CUresult result = driver.device(&handle, device);
    if (result == CUDA_SUCCESS)
        result = driver.retain(&context, handle);
    if (result != CUDA_SUCCESS)
        return result;
    if (is_kept)
        atomic_store(&kept[device], context);
    return driver.push(context);
}

gpuError_t gpu_enter(int32_t device, int *previous) {
    cudaError_t error = cudaGetDevice(previous);
    if (error != cudaSuccess || *previous == device)
        return error;
    error = find_driver();
    return error == cudaSuccess ? (cudaError_t)push(device) : error;
}

void gpu_leave(int32_t device, int previous) {
    CUcontext context;
    if (previous != device)
        (void)driver.pop(&context);
}
