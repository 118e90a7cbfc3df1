/* HIP 5.2 and later behind the names that backends/gpu is written in, as runtime_cuda.h. */
#ifndef ROPEKIT_GPU_PLATFORM_RUNTIME_HIP_H
#define ROPEKIT_GPU_PLATFORM_RUNTIME_HIP_H

#include <hip/hip_runtime_api.h>

#ifndef GPU_BACKEND_NAME
#define GPU_BACKEND_NAME "hip"
#define GPU_BACKEND_PRIORITY 10
#endif

#define gpuError_t hipError_t
#define gpuSuccess hipSuccess
#define gpuErrorMemoryAllocation hipErrorOutOfMemory
#define gpuErrorNoDevice hipErrorNoDevice
#define gpuErrorInsufficientDriver hipErrorInsufficientDriver
#define gpuErrorInvalidDevice hipErrorInvalidDevice
#define gpuGetErrorString hipGetErrorString

#define gpuGetDeviceCount hipGetDeviceCount
#define gpuDriverGetVersion hipDriverGetVersion
#define gpuGetDevice hipGetDevice
#define gpuSetDevice hipSetDevice
#define gpuDeviceProp hipDeviceProp_t
#define gpuGetDeviceProperties hipGetDeviceProperties
#define gpuDeviceGetAttribute hipDeviceGetAttribute
#define gpuDevAttrMultiprocessorCount hipDeviceAttributeMultiprocessorCount
#define gpuDeviceSynchronize hipDeviceSynchronize

#define gpuMalloc hipMalloc
#define gpuFree hipFree
#define gpuHostMalloc(pointer, bytes) hipHostMalloc(pointer, bytes, hipHostMallocDefault)
#define gpuHostFree hipHostFree
#define gpuMemcpyAsync hipMemcpyAsync
#define gpuMemcpyKind hipMemcpyKind
#define gpuMemcpyHostToDevice hipMemcpyHostToDevice
#define gpuMemcpyDeviceToHost hipMemcpyDeviceToHost
#define gpuMemcpyDeviceToDevice hipMemcpyDeviceToDevice

#define gpuStream_t hipStream_t
#define gpuStreamCreateWithFlags hipStreamCreateWithFlags
#define gpuStreamNonBlocking hipStreamNonBlocking
#define gpuStreamSynchronize hipStreamSynchronize
#define gpuStreamDestroy hipStreamDestroy
#define gpuStreamBeginCapture hipStreamBeginCapture
#define gpuLaunchHostFunc hipLaunchHostFunc
#define gpuStreamCaptureModeThreadLocal hipStreamCaptureModeThreadLocal
#define gpuStreamEndCapture hipStreamEndCapture
#define gpuStreamCaptureMode hipStreamCaptureMode
#define gpuStreamCaptureModeRelaxed hipStreamCaptureModeRelaxed
#define gpuThreadExchangeStreamCaptureMode hipThreadExchangeStreamCaptureMode

#define gpuEvent_t hipEvent_t
#define gpuEventCreate hipEventCreate
#define gpuEventRecord hipEventRecord
#define gpuEventElapsedTime hipEventElapsedTime
#define gpuEventDestroy hipEventDestroy

#define gpuGraph_t hipGraph_t
#define gpuGraphExec_t hipGraphExec_t
#define gpuGraphInstantiate(exec, graph) hipGraphInstantiate(exec, graph, NULL, NULL, 0)
/* HIP 5.2 has no upload; the first launch does it. */
#define gpuGraphUpload(exec, stream) ((void)(exec), (void)(stream), hipSuccess)
#define gpuGraphLaunch hipGraphLaunch
#define gpuGraphDestroy hipGraphDestroy
#define gpuGraphExecDestroy hipGraphExecDestroy

/* Blocks of a grid along x, which has less than 2^32 threads, 256 a block. */
#define GPU_GRID_X_MOST (INT32_MAX / 128)

#define gpuFuncAttributes hipFuncAttributes
#define gpuFuncGetAttributes hipFuncGetAttributes

/* Whether a loaded kernel may begin before the launch ahead of it on its stream has ended. */
static inline int gpu_starts_early(const hipFuncAttributes *kernel) {
    (void)kernel;
    return 0;
}

/* HIP cannot be asked: hipPointerGetAttributes leaves an error for memory that it does not know,
 * which the caller would find. */
static inline int gpu_is_out_of_reach(int device, const void *pointer) {
    (void)device, (void)pointer;
    return 0;
}

/* The device of a stream, or `device` where the runtime does not tell. */
static inline int gpu_device_of_stream(hipStream_t stream, int device) {
    const int found = hipGetStreamDeviceId(stream);
    return found < 0 ? device : found;
}

static inline hipError_t gpu_launch_kernel(const void *kernel, dim3 grid, dim3 block,
                                           void **arguments, size_t shared, hipStream_t stream,
                                           int early) {
    (void)early;
    return hipLaunchKernel(kernel, grid, block, arguments, shared, stream);
}

/* Bytes of LDS of a block, on every processor, and what kernels of matrix instructions have of them
 * beside what is asked for. */
enum { GPU_SHARED_MOST = 64 << 10, GPU_TILE_SHARED = 16 << 10 };

/* Bytes of shared memory of a block that kernels of matrix instructions may have. */
static inline hipError_t gpu_tile_memory(int device, int dtype, int *bytes) {
    (void)device, (void)dtype;
#ifdef EMULATED_MMA
    *bytes = EMULATED_SHARED_MOST;
#else
    *bytes = GPU_SHARED_MOST - GPU_TILE_SHARED;
#endif
    return hipSuccess;
}

/* Lets launches of a kernel ask for so many bytes of dynamic shared memory. */
static inline hipError_t gpu_allow_shared(const void *kernel, int bytes) {
    return hipFuncSetAttribute(kernel, hipFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

/* The last-level cache: no property tells of the Infinity Cache behind the L2, of which no
 * processor has more than 256 MiB. */
#define GPU_CACHE_BYTES(properties)                                                                \
    ((properties)->l2CacheSize > 256 << 20 ? (properties)->l2CacheSize : 256 << 20)

/* The features by which kernels are chosen, for rope_device_info.features. */
#define GPU_FEATURES(text, room, properties)                                                       \
    snprintf(text, room, "%.100s wave%d", (properties)->gcnArchName, (properties)->warpSize)

#endif
