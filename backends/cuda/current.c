/*
 * The current device, by the driver's stack of contexts: what was current below stays as it is,
 * also where it was nothing. cudaSetDevice back to a device that no one has used would make a
 * context on it, which takes hundreds of megabytes there.
 */
#include "backends/gpu/device.h"

#include <cuda.h>
#include <pthread.h>
#include <stdatomic.h>

/* Of devices below it the context is kept, as the runtime keeps it, until the process ends. */
enum { DEVICES_KEPT = 64 };

static struct {
    CUresult (*device)(CUdevice *device, int number);
    CUresult (*state)(CUdevice device, unsigned *flags, int *active);
    CUresult (*retain)(CUcontext *context, CUdevice device);
    CUresult (*push)(CUcontext context);
    CUresult (*pop)(CUcontext *context);
} driver;
static pthread_once_t driver_once = PTHREAD_ONCE_INIT;
static cudaError_t driver_error;
static _Atomic(CUcontext) kept[DEVICES_KEPT];

/* Behind an error nothing more is asked for. */
static void find(const char *name, void *function) {
    enum cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSuccess;
    if (driver_error != cudaSuccess)
        return;
#if CUDART_VERSION >= 12050
    driver_error = cudaGetDriverEntryPointByVersion(name, (void **)function, 12000,
                                                    cudaEnableDefault, &result);
#else
    driver_error = cudaGetDriverEntryPoint(name, (void **)function, cudaEnableDefault, &result);
#endif
    if (driver_error == cudaSuccess && result != cudaDriverEntryPointSuccess)
        driver_error = cudaErrorInsufficientDriver;
}

static void find_driver(void) {
    find("cuDeviceGet", &driver.device);
    find("cuDevicePrimaryCtxGetState", &driver.state);
    find("cuDevicePrimaryCtxRetain", &driver.retain);
    find("cuCtxPushCurrent", &driver.push);
    find("cuCtxPopCurrent", &driver.pop);
}

/* The runtime's errors have the driver's numbers. */
_Static_assert((int)cudaErrorMemoryAllocation == (int)CUDA_ERROR_OUT_OF_MEMORY &&
                   (int)cudaErrorInvalidDevice == (int)CUDA_ERROR_INVALID_DEVICE,
               "errors of the runtime and of the driver");

/* Makes the device's primary context current above what is. It is retained once, and again behind
 * a cudaDeviceReset, which ends it. */
static CUresult push(int32_t device) {
    const int is_kept = device >= 0 && device < DEVICES_KEPT;
    CUcontext context = is_kept ? atomic_load(&kept[device]) : NULL;
    CUdevice handle;
    unsigned flags;
    int active = 0;
    CUresult result = driver.device(&handle, device);
    if (result == CUDA_SUCCESS)
        result = driver.state(handle, &flags, &active);
    if (result == CUDA_SUCCESS && !(context && active)) {
        result = driver.retain(&context, handle);
        if (result == CUDA_SUCCESS && is_kept)
            atomic_store(&kept[device], context);
    }
    return result == CUDA_SUCCESS ? driver.push(context) : result;
}

gpuError_t gpu_enter(int32_t device, int *previous) {
    cudaError_t error = cudaGetDevice(previous);
    if (error != cudaSuccess || *previous == device)
        return error;
    (void)pthread_once(&driver_once, find_driver);
    return driver_error == cudaSuccess ? (cudaError_t)push(device) : driver_error;
}

void gpu_leave(int32_t device, int previous) {
    CUcontext context;
    if (previous != device)
        (void)driver.pop(&context);
}
