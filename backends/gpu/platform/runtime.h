/* The GPU runtime's host API under one name, by platform. */
#ifndef ROPEKIT_GPU_PLATFORM_RUNTIME_H
#define ROPEKIT_GPU_PLATFORM_RUNTIME_H

#ifdef ROPEKIT_HIP
#include "backends/gpu/platform/runtime_hip.h"
#else
#include "backends/gpu/platform/runtime_cuda.h"
#endif

#endif
