/* CUDA behind the names that backends/gpu is written in. A plugin of another name defines
 * GPU_BACKEND_NAME and GPU_BACKEND_PRIORITY. */
#ifndef ROPEKIT_GPU_PLATFORM_RUNTIME_CUDA_H
#define ROPEKIT_GPU_PLATFORM_RUNTIME_CUDA_H

#include <cuda_runtime_api.h>
#include <string.h>

#include <ropekit/rope.h>

#ifndef GPU_BACKEND_NAME
#define GPU_BACKEND_NAME "cuda"
#define GPU_BACKEND_PRIORITY 20
#endif

#define gpuError_t cudaError_t
#define gpuSuccess cudaSuccess
#define gpuErrorMemoryAllocation cudaErrorMemoryAllocation
#define gpuErrorNoDevice cudaErrorNoDevice
#define gpuErrorInsufficientDriver cudaErrorInsufficientDriver
#define gpuErrorInvalidDevice cudaErrorInvalidDevice
#define gpuGetErrorString cudaGetErrorString

#define gpuGetDeviceCount cudaGetDeviceCount
#define gpuDriverGetVersion cudaDriverGetVersion
#define gpuGetDevice cudaGetDevice
#define gpuSetDevice cudaSetDevice
#define gpuDeviceProp struct cudaDeviceProp
#define gpuGetDeviceProperties cudaGetDeviceProperties
#define gpuDeviceGetAttribute cudaDeviceGetAttribute
#define gpuDevAttrMultiprocessorCount cudaDevAttrMultiProcessorCount
#define gpuDeviceSynchronize cudaDeviceSynchronize

#define gpuMalloc cudaMalloc
#define gpuFree cudaFree
#define gpuHostMalloc cudaMallocHost
#define gpuHostFree cudaFreeHost
#define gpuMemcpyAsync cudaMemcpyAsync
#define gpuMemcpyKind enum cudaMemcpyKind
#define gpuMemcpyHostToDevice cudaMemcpyHostToDevice
#define gpuMemcpyDeviceToHost cudaMemcpyDeviceToHost
#define gpuMemcpyDeviceToDevice cudaMemcpyDeviceToDevice

#define gpuStream_t cudaStream_t
#define gpuStreamCreateWithFlags cudaStreamCreateWithFlags
#define gpuStreamNonBlocking cudaStreamNonBlocking
#define gpuStreamSynchronize cudaStreamSynchronize
#define gpuStreamDestroy cudaStreamDestroy
#define gpuLaunchHostFunc cudaLaunchHostFunc
#define gpuStreamBeginCapture cudaStreamBeginCapture
#define gpuStreamCaptureModeThreadLocal cudaStreamCaptureModeThreadLocal
#define gpuStreamEndCapture cudaStreamEndCapture
#define gpuStreamCaptureMode enum cudaStreamCaptureMode
#define gpuStreamCaptureModeRelaxed cudaStreamCaptureModeRelaxed
#define gpuThreadExchangeStreamCaptureMode cudaThreadExchangeStreamCaptureMode

#define gpuEvent_t cudaEvent_t
#define gpuEventCreate cudaEventCreate
#define gpuEventRecord cudaEventRecord
#define gpuEventElapsedTime cudaEventElapsedTime
#define gpuEventDestroy cudaEventDestroy

#define gpuGraph_t cudaGraph_t
#define gpuGraphExec_t cudaGraphExec_t
#define gpuGraphInstantiate(exec, graph) cudaGraphInstantiate(exec, graph, 0)
#define gpuGraphUpload cudaGraphUpload
#define gpuGraphLaunch cudaGraphLaunch
#define gpuGraphDestroy cudaGraphDestroy
#define gpuGraphExecDestroy cudaGraphExecDestroy

/* Blocks of a grid along x. */
#define GPU_GRID_X_MOST INT32_MAX

#define gpuFuncAttributes struct cudaFuncAttributes
#define gpuFuncGetAttributes cudaFuncGetAttributes

/* Whether a loaded kernel may begin before the launch ahead of it on its stream has ended: one that
 * was compiled for an architecture with the instruction that waits, which not every kernel is that
 * such a device runs. */
static inline int gpu_starts_early(const struct cudaFuncAttributes *kernel) {
    return kernel->ptxVersion >= 90;
}

/* Whether memory is known to be none that a device, the current one, reaches: another device's
 * without peer access, or none of the runtime's where the device does not reach all of the host's.
 */
static inline int gpu_is_out_of_reach(int device, const void *pointer) {
    struct cudaPointerAttributes attributes;
    int reaches_host = 1;
    if (cudaPointerGetAttributes(&attributes, pointer) != cudaSuccess)
        return 0;
    if (attributes.type == cudaMemoryTypeDevice)
        return attributes.device != device && !attributes.devicePointer;
    return attributes.type == cudaMemoryTypeUnregistered &&
           cudaDeviceGetAttribute(&reaches_host, cudaDevAttrPageableMemoryAccess, device) ==
               cudaSuccess &&
           !reaches_host;
}

/* The device of a stream, or `device` where the runtime does not tell: to ask would end a capture.
 * A launch into a stream of another device runs there, beside memory of the plan's. */
static inline int gpu_device_of_stream(cudaStream_t stream, int device) {
#if CUDART_VERSION >= 12080
    enum cudaStreamCaptureStatus capture;
    int found;
    if (cudaStreamIsCapturing(stream, &capture) == cudaSuccess &&
        capture == cudaStreamCaptureStatusNone &&
        cudaStreamGetDevice(stream, &found) == cudaSuccess)
        return found;
#endif
    (void)stream;
    return device;
}

/* early: by programmatic dependent launch. */
static inline cudaError_t gpu_launch_kernel(const void *kernel, dim3 grid, dim3 block,
                                            void **arguments, size_t shared, cudaStream_t stream,
                                            int early) {
    cudaLaunchAttribute attribute;
    cudaLaunchConfig_t config = {.gridDim = grid,
                                 .blockDim = block,
                                 .dynamicSmemBytes = shared,
                                 .stream = stream,
                                 .attrs = &attribute,
                                 .numAttrs = 1};
    if (!early)
        return cudaLaunchKernel(kernel, grid, block, arguments, shared, stream);
    memset(&attribute, 0, sizeof attribute);
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    return cudaLaunchKernelExC(&config, kernel, arguments);
}

/* Bytes of shared memory of a block that kernels of matrix instructions may have; 0 where the
 * device lacks those of a dtype: sm_75 has f16's. */
static inline cudaError_t gpu_tile_memory(int device, int dtype, int *bytes) {
    int major, minor;
    cudaError_t error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (error == cudaSuccess) {
        const int has = 10 * major + minor >= (dtype == ROPE_F16 ? 75 : 80);
        *bytes = has && *bytes > 18432 ? *bytes - 18432 : 0; /* of a block beside them */
    }
    return error;
}

/* Lets launches of a kernel ask for so many bytes of dynamic shared memory. */
static inline cudaError_t gpu_allow_shared(const void *kernel, int bytes) {
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

/* The last-level cache. */
#define GPU_CACHE_BYTES(properties) (properties)->l2CacheSize

/* The features by which kernels are chosen, for rope_device_info.features. */
#define GPU_FEATURES(text, room, properties)                                                       \
    snprintf(text, room, "sm_%d%d", (properties)->major, (properties)->minor)

#endif
