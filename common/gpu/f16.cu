#include "common/gpu/generic.h"
#include "common/gpu/plain.h"

const gpu_rotate_kernels gpu_kernels_f16 = {(const void *)gpu_generic<ROPE_F16>,
                                            GPU_VECTOR_KERNELS(ROPE_F16)};
