/* Launch geometry by size, by platform. */
#ifndef ROPEKIT_GPU_PLATFORM_TUNING_H
#define ROPEKIT_GPU_PLATFORM_TUNING_H

#ifdef ROPEKIT_HIP
#include "backends/gpu/platform/tuning_hip.h"
#else
#include "backends/gpu/platform/tuning_cuda.h"
#endif

#endif
