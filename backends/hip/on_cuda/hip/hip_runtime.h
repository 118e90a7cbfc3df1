/* HIP's device language is CUDA's, as far as the HIP backend uses it. */
#ifndef ROPEKIT_HIP_ON_CUDA_RUNTIME_H
#define ROPEKIT_HIP_ON_CUDA_RUNTIME_H

#include <cuda_runtime.h>

#define HIP_KERNEL_NAME(...) __VA_ARGS__

#endif
