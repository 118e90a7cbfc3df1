/* The emulated HIP device behind the names of cuDNN's plugin. */
#ifndef ROPEKIT_TESTS_CUDNN_GPU_ALIAS_H
#define ROPEKIT_TESTS_CUDNN_GPU_ALIAS_H

#define GPU_BACKEND_NAME "cudnn"
#define GPU_BACKEND_PRIORITY (-10)

#include "backends/hip/gpu_alias.h"

#endif
