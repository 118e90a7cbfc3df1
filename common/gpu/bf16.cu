#include "common/gpu/instances.h"

const gpu_rotate_kernels gpu_kernels_bf16 = {
    GPU_KERNEL(gpu_generic<ROPE_BF16>),
    {GPU_VECTOR(ROPE_BF16, GPU_NARROW), GPU_VECTOR(ROPE_BF16, GPU_WIDE)},
    {GPU_WINDOW(ROPE_BF16, GPU_NARROW, GPU_WINDOW_ALL), GPU_WINDOW(ROPE_BF16, GPU_WIDE, GPU_WINDOW_ALL)},
    GPU_PLAIN(ROPE_BF16, GPU_PLAIN_ALL)};
