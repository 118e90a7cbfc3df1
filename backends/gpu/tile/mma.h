/* Matrix instructions and asynchronous copies, by platform. */
#ifndef ROPEKIT_GPU_TILE_MMA_H
#define ROPEKIT_GPU_TILE_MMA_H

#ifdef ROPEKIT_HIP
#include "backends/gpu/tile/mma_hip.h"
#else
#include "backends/gpu/tile/mma_cuda.h"
#endif

#endif
