/* The current device: HIP makes nothing on a device that is only made current. */
#include "backends/gpu/device.h"

gpuError_t gpu_enter(int32_t device, int *previous) {
    gpuError_t error = hipGetDevice(previous);
    if (error != gpuSuccess || *previous == device)
        return error;
    return hipSetDevice(device);
}

void gpu_leave(int32_t device, int previous) {
    if (previous != device)
        (void)hipSetDevice(previous);
}
