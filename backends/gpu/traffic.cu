/* Copy and read-modify-write of plain memory: the floors of this device. */
#include "backends/gpu/platform/device_code.h"

#include "backends/gpu/traffic.h"

/* COUNT vectors of type T a thread, a block apart. */
template <typename T, int COUNT>
static __global__ void __launch_bounds__(GPU_TRAFFIC_THREADS)
    copy(T *target, const T *source, size_t bytes) {
    size_t count = bytes / sizeof(T);
    size_t first = (size_t)blockIdx.x * blockDim.x * COUNT + threadIdx.x;
    T v[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        if (first + i * blockDim.x < count)
            v[i] = source[first + i * blockDim.x];
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        if (first + i * blockDim.x < count)
            target[first + i * blockDim.x] = v[i];
}

static __device__ uint4 inverted(uint4 v) {
    return make_uint4(~v.x, ~v.y, ~v.z, ~v.w);
}

static __device__ uint8_t inverted(uint8_t v) {
    return (uint8_t)~v;
}

/* Changes every byte, so that no store can be left out. */
template <typename T>
static __global__ void __launch_bounds__(GPU_TRAFFIC_THREADS)
    update(T *target, const T *, size_t bytes) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < bytes / sizeof(T))
        target[i] = inverted(target[i]);
}

const gpu_traffic_kernel gpu_copy_vec16 = {GPU_KERNEL(copy<uint4, 1>),
                                           GPU_KERNEL(copy<uint8_t, 1>), 16};
const gpu_traffic_kernel gpu_copy_vec16x4 = {GPU_KERNEL(copy<uint4, 4>),
                                             GPU_KERNEL(copy<uint8_t, 1>), 64};
const gpu_traffic_kernel gpu_update_vec16 = {GPU_KERNEL(update<uint4>),
                                             GPU_KERNEL(update<uint8_t>), 16};
