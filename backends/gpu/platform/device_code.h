/* Device code that CUDA and HIP spell differently, by platform. */
#ifndef ROPEKIT_GPU_PLATFORM_DEVICE_CODE_H
#define ROPEKIT_GPU_PLATFORM_DEVICE_CODE_H

#ifdef ROPEKIT_HIP
#include "backends/gpu/platform/device_code_hip.h"
#else
#include "backends/gpu/platform/device_code_cuda.h"
#endif

#endif
