#include "backends/gpu/rope/instances.h"

const gpu_rope_kernels gpu_rope_f16 = {
    GPU_KERNEL(gpu_generic<ROPE_F16>),
    {GPU_VECTOR(ROPE_F16, GPU_NARROW), GPU_VECTOR(ROPE_F16, GPU_WIDE)},
    {GPU_WINDOW(ROPE_F16, GPU_NARROW), GPU_WINDOW(ROPE_F16, GPU_WIDE)},
    GPU_PLAIN(ROPE_F16, GPU_PLAIN_AND_32)};
