/* The kernels of caches of 8 bits. */
#include "backends/gpu/decode/sm90/kernel.h"

#define KERNELS_OF(dtype, dim, codes)                                                              \
    {                                                                                              \
        GPU_KERNEL(gpu_decode_sm90<dtype, SM90_DECODE_ROWS_OF(1), dim, codes>),                    \
            GPU_KERNEL(gpu_decode_sm90<dtype, SM90_DECODE_ROWS_OF(2), dim, codes>),                \
            GPU_KERNEL(gpu_decode_sm90<dtype, SM90_DECODE_ROWS_OF(2), dim, codes, 1>)              \
    }
#define KERNELS(codes)                                                                             \
    {                                                                                              \
        {KERNELS_OF(GPU_SM90_F16, SM90_DECODE_DIM_OF(0), codes),                                   \
         KERNELS_OF(GPU_SM90_F16, SM90_DECODE_DIM_OF(1), codes)},                                  \
            {KERNELS_OF(GPU_SM90_BF16, SM90_DECODE_DIM_OF(0), codes),                              \
             KERNELS_OF(GPU_SM90_BF16, SM90_DECODE_DIM_OF(1), codes)},                             \
    }
const void *const gpu_decode_sm90_codes[2][SM90_DECODE_DIMS][SM90_DECODE_CODES] =
    KERNELS(SM90_DECODE_E4M3_I8);
const void *const gpu_decode_sm90_e5m2[2][SM90_DECODE_DIMS][SM90_DECODE_CODES] =
    KERNELS(SM90_DECODE_E5M2);
