/* Matrix instructions of a wave: none here yet but those that tests/hip_emulation has of CUDA. */
#ifndef ROPEKIT_HIP_GPU_TILE_H
#define ROPEKIT_HIP_GPU_TILE_H

#include "common/gpu/element.h"

#ifdef EMULATED_TILES
#define GPU_HAS_TILES 1
#include <hip/emulated_tile.h>
#else
#define GPU_HAS_TILES 0
#define GPU_NO_TILES
#endif

#endif
