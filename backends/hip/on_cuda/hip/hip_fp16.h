/* HIP's half precision is CUDA's, as far as the HIP backend uses it. */
#ifndef ROPEKIT_HIP_ON_CUDA_FP16_H
#define ROPEKIT_HIP_ON_CUDA_FP16_H

#include <cuda_fp16.h>

#endif
