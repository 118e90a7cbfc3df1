#include "common/gpu/instances.h"

const gpu_rotate_kernels gpu_kernels_f16 = {
    GPU_KERNEL(gpu_generic<ROPE_F16>),
    {GPU_VECTOR(ROPE_F16, GPU_NARROW), GPU_VECTOR(ROPE_F16, GPU_WIDE)},
    {GPU_WINDOW(ROPE_F16, GPU_NARROW, GPU_WINDOW_ALL), GPU_WINDOW(ROPE_F16, GPU_WIDE, GPU_WINDOW_ALL)},
    GPU_PLAIN(ROPE_F16, GPU_PLAIN_ALL)};
