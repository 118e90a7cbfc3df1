#include "common/gpu/instances.h"

const gpu_rotate_kernels gpu_kernels_f64 = {
    GPU_KERNEL(gpu_generic<ROPE_F64>), {{}, GPU_VECTOR(ROPE_F64, GPU_WIDE)}, {}, {}};
