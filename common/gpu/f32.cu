#include "common/gpu/instances.h"

const gpu_rotate_kernels gpu_kernels_f32 = {
    GPU_KERNEL(gpu_generic<ROPE_F32>),
    {GPU_VECTOR(ROPE_F32, GPU_NARROW), GPU_VECTOR(ROPE_F32, GPU_WIDE)},
    {GPU_WINDOW(ROPE_F32, GPU_NARROW, GPU_WINDOW_F32), GPU_WINDOW(ROPE_F32, GPU_WIDE, GPU_WINDOW_F32)},
    GPU_PLAIN(ROPE_F32, GPU_PLAIN_ANY)};
