#include "backends/gpu/rope/instances.h"

const gpu_rope_kernels gpu_rope_f64 = {
    GPU_KERNEL(gpu_generic<ROPE_F64>), {{}, GPU_VECTOR(ROPE_F64, GPU_WIDE)}, {}, {}};
