/*
 * What the HIP backend uses of HIP's host API, for a device that this process emulates. Names,
 * types and numbers are HIP's; work submitted to a stream runs when something waits for it.
 */
#ifndef ROPEKIT_HIP_EMULATION_RUNTIME_API_H
#define ROPEKIT_HIP_EMULATION_RUNTIME_API_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum hipError_t {
    hipSuccess = 0,
    hipErrorInvalidValue = 1,
    hipErrorOutOfMemory = 2,
    hipErrorInvalidConfiguration = 9,
    hipErrorInsufficientDriver = 35,
    hipErrorInvalidDeviceFunction = 98,
    hipErrorNoDevice = 100,
    hipErrorInvalidDevice = 101,
    hipErrorInvalidHandle = 400,
    hipErrorNotReady = 600,
    hipErrorLaunchFailure = 719,
    hipErrorStreamCaptureUnsupported = 900
} hipError_t;

typedef enum hipMemcpyKind {
    hipMemcpyHostToDevice = 1,
    hipMemcpyDeviceToHost = 2,
    hipMemcpyDeviceToDevice = 3
} hipMemcpyKind;

typedef enum hipDeviceAttribute_t {
    hipDeviceAttributeMultiprocessorCount = 63
} hipDeviceAttribute_t;

typedef enum hipStreamCaptureMode {
    hipStreamCaptureModeThreadLocal = 1,
    hipStreamCaptureModeRelaxed = 2
} hipStreamCaptureMode;

#define hipStreamNonBlocking 1u
#define hipHostMallocDefault 0u

typedef struct hipDeviceProp_t {
    char name[256];
    char gcnArchName[256];
    size_t totalGlobalMem;
    int l2CacheSize;
    int multiProcessorCount;
    int warpSize;
} hipDeviceProp_t;

/* What a kernel may have beyond what every launch may, once hipFuncSetAttribute says so. */
#define EMULATED_SHARED_MOST (192 << 10)

typedef enum hipFuncAttribute { hipFuncAttributeMaxDynamicSharedMemorySize = 8 } hipFuncAttribute;

typedef struct hipFuncAttributes {
    int maxThreadsPerBlock;
} hipFuncAttributes;

#ifdef __cplusplus
typedef struct dim3 {
    uint32_t x = 1, y = 1, z = 1;
} dim3;
#else
typedef struct dim3 {
    uint32_t x, y, z;
} dim3;
#endif

typedef struct ihipStream_t *hipStream_t;
typedef struct ihipEvent_t *hipEvent_t;
typedef struct ihipGraph *hipGraph_t;
typedef struct hipGraphExec *hipGraphExec_t;
typedef struct hipGraphNode *hipGraphNode_t;
typedef void (*hipHostFn_t)(void *data);

const char *hipGetErrorString(hipError_t error);
hipError_t hipGetDeviceCount(int *count);
hipError_t hipDriverGetVersion(int *version);
hipError_t hipGetDevice(int *device);
hipError_t hipSetDevice(int device);
hipError_t hipGetDeviceProperties(hipDeviceProp_t *properties, int device);
hipError_t hipDeviceGetAttribute(int *value, hipDeviceAttribute_t attribute, int device);
hipError_t hipDeviceSynchronize(void);

hipError_t hipMalloc(void **pointer, size_t bytes);
hipError_t hipFree(void *pointer);
hipError_t hipHostMalloc(void **pointer, size_t bytes, unsigned flags);
hipError_t hipHostFree(void *pointer);
hipError_t hipMemcpyAsync(void *target, const void *source, size_t bytes, hipMemcpyKind kind,
                          hipStream_t stream);

int hipGetStreamDeviceId(hipStream_t stream);
hipError_t hipStreamCreateWithFlags(hipStream_t *stream, unsigned flags);
hipError_t hipStreamSynchronize(hipStream_t stream);
hipError_t hipStreamDestroy(hipStream_t stream);
hipError_t hipStreamBeginCapture(hipStream_t stream, hipStreamCaptureMode mode);
hipError_t hipStreamEndCapture(hipStream_t stream, hipGraph_t *graph);
hipError_t hipThreadExchangeStreamCaptureMode(hipStreamCaptureMode *mode);

hipError_t hipLaunchHostFunc(hipStream_t stream, hipHostFn_t function, void *data);

hipError_t hipEventCreate(hipEvent_t *event);
hipError_t hipEventRecord(hipEvent_t event, hipStream_t stream);
hipError_t hipEventElapsedTime(float *milliseconds, hipEvent_t start, hipEvent_t stop);
hipError_t hipEventDestroy(hipEvent_t event);

hipError_t hipGraphInstantiate(hipGraphExec_t *exec, hipGraph_t graph, hipGraphNode_t *error_node,
                               char *log, size_t log_bytes);
hipError_t hipGraphLaunch(hipGraphExec_t exec, hipStream_t stream);
hipError_t hipGraphDestroy(hipGraph_t graph);
hipError_t hipGraphExecDestroy(hipGraphExec_t exec);

hipError_t hipFuncGetAttributes(hipFuncAttributes *attributes, const void *kernel);
hipError_t hipFuncSetAttribute(const void *kernel, hipFuncAttribute attribute, int value);
hipError_t hipLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **arguments,
                           size_t shared_bytes, hipStream_t stream);

#ifdef __cplusplus
}
#endif
#endif
