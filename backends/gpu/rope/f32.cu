#include "backends/gpu/rope/instances.h"

const gpu_rope_kernels gpu_rope_f32 = {
    GPU_KERNEL(gpu_generic<ROPE_F32>),
    {GPU_VECTOR(ROPE_F32, GPU_NARROW), GPU_VECTOR(ROPE_F32, GPU_WIDE)},
    {GPU_WINDOW(ROPE_F32, GPU_NARROW), GPU_WINDOW(ROPE_F32, GPU_WIDE)},
    GPU_PLAIN(ROPE_F32, GPU_PLAIN_BOTH)};
