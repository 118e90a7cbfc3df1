/* The kernels of caches of dtype. */
#include "backends/gpu/decode/sm90/kernel.h"

#define KERNELS(dtype, dim)                                                                        \
    {                                                                                              \
        GPU_KERNEL(gpu_decode_sm90<dtype, SM90_DECODE_ROWS_OF(0), dim, 0>),                        \
            GPU_KERNEL(gpu_decode_sm90<dtype, SM90_DECODE_ROWS_OF(1), dim, 0>),                    \
            GPU_KERNEL(gpu_decode_sm90<dtype, SM90_DECODE_ROWS_OF(2), dim, 0>),                    \
            GPU_KERNEL(gpu_decode_sm90<dtype, SM90_DECODE_ROWS_OF(2), dim, 0, 1>)                  \
    }
const void *const gpu_decode_sm90_kernels[2][SM90_DECODE_DIMS][SM90_DECODE_INSTANCES] = {
    {KERNELS(GPU_SM90_F16, SM90_DECODE_DIM_OF(0)), KERNELS(GPU_SM90_F16, SM90_DECODE_DIM_OF(1))},
    {KERNELS(GPU_SM90_BF16, SM90_DECODE_DIM_OF(0)), KERNELS(GPU_SM90_BF16, SM90_DECODE_DIM_OF(1))}};
