#include "backends/gpu/append/instances.h"

const gpu_append_kernels gpu_append_f32 = {
    GPU_KERNEL(gpu_append_generic<ROPE_F32>), GPU_APPEND_VECTOR(ROPE_F32), {}, {}, {}};
