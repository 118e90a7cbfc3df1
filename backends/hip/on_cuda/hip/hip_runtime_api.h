/* HIP's host API on CUDA's runtime, as far as the HIP backend uses it. */
#ifndef ROPEKIT_HIP_ON_CUDA_RUNTIME_API_H
#define ROPEKIT_HIP_ON_CUDA_RUNTIME_API_H

#include <cuda_runtime_api.h>

#include <stdio.h>

#define hipError_t cudaError_t
#define hipSuccess cudaSuccess
#define hipErrorOutOfMemory cudaErrorMemoryAllocation
#define hipErrorInsufficientDriver cudaErrorInsufficientDriver
#define hipErrorNoDevice cudaErrorNoDevice
#define hipErrorInvalidDevice cudaErrorInvalidDevice
#define hipGetErrorString cudaGetErrorString

#define hipGetDeviceCount cudaGetDeviceCount
#define hipDriverGetVersion cudaDriverGetVersion
#define hipGetDevice cudaGetDevice
#define hipSetDevice cudaSetDevice
#define hipDeviceGetAttribute cudaDeviceGetAttribute
#define hipDeviceAttributeMultiprocessorCount cudaDevAttrMultiProcessorCount
#define hipDeviceSynchronize cudaDeviceSynchronize

#define hipMalloc cudaMalloc
#define hipFree cudaFree
#define hipHostMallocDefault cudaHostAllocDefault
#define hipHostMalloc cudaHostAlloc
#define hipHostFree cudaFreeHost
#define hipMemcpyAsync cudaMemcpyAsync
#define hipMemcpyKind enum cudaMemcpyKind
#define hipMemcpyHostToDevice cudaMemcpyHostToDevice
#define hipMemcpyDeviceToHost cudaMemcpyDeviceToHost
#define hipMemcpyDeviceToDevice cudaMemcpyDeviceToDevice

#define hipStream_t cudaStream_t
#define hipStreamNonBlocking cudaStreamNonBlocking
#define hipStreamCreateWithFlags cudaStreamCreateWithFlags
#define hipStreamSynchronize cudaStreamSynchronize
#define hipStreamDestroy cudaStreamDestroy
#define hipLaunchHostFunc cudaLaunchHostFunc
#define hipStreamCaptureModeThreadLocal cudaStreamCaptureModeThreadLocal
#define hipStreamBeginCapture cudaStreamBeginCapture
#define hipStreamEndCapture cudaStreamEndCapture

#define hipEvent_t cudaEvent_t
#define hipEventCreate cudaEventCreate
#define hipEventRecord cudaEventRecord
#define hipEventElapsedTime cudaEventElapsedTime
#define hipEventDestroy cudaEventDestroy

#define hipGraph_t cudaGraph_t
#define hipGraphExec_t cudaGraphExec_t
#define hipGraphInstantiate(exec, graph, node, log, bytes) cudaGraphInstantiate(exec, graph, 0)
#define hipGraphLaunch cudaGraphLaunch
#define hipGraphDestroy cudaGraphDestroy
#define hipGraphExecDestroy cudaGraphExecDestroy

#define hipFuncAttributes struct cudaFuncAttributes
#define hipFuncGetAttributes cudaFuncGetAttributes
#define hipFuncSetAttribute cudaFuncSetAttribute
#define hipFuncAttributeMaxDynamicSharedMemorySize cudaFuncAttributeMaxDynamicSharedMemorySize
#define hipLaunchKernel cudaLaunchKernel

/* The name says that HIP's calls are CUDA's here. */
typedef struct hipDeviceProp_t {
    char name[256];
    char gcnArchName[256];
    size_t totalGlobalMem;
    int l2CacheSize;
    int multiProcessorCount;
    int warpSize;
} hipDeviceProp_t;

static inline int hipGetStreamDeviceId(hipStream_t stream) {
    enum cudaStreamCaptureStatus capture;
    int device;
    return cudaStreamIsCapturing(stream, &capture) == cudaSuccess &&
                   capture == cudaStreamCaptureStatusNone &&
                   cudaStreamGetDevice(stream, &device) == cudaSuccess
               ? device
               : -1;
}

static inline hipError_t hipGetDeviceProperties(hipDeviceProp_t *p, int device) {
    struct cudaDeviceProp cuda;
    hipError_t error = cudaGetDeviceProperties(&cuda, device);
    if (error != cudaSuccess)
        return error;
    snprintf(p->name, sizeof p->name, "%.200s through HIP", cuda.name);
    snprintf(p->gcnArchName, sizeof p->gcnArchName, "sm_%d%d", cuda.major, cuda.minor);
    p->totalGlobalMem = cuda.totalGlobalMem;
    p->l2CacheSize = cuda.l2CacheSize;
    p->multiProcessorCount = cuda.multiProcessorCount;
    p->warpSize = cuda.warpSize;
    return cudaSuccess;
}

#endif
