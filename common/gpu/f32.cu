#include "common/gpu/generic.h"
#include "common/gpu/plain.h"

const gpu_rotate_kernels gpu_kernels_f32 = {(const void *)gpu_generic<ROPE_F32>,
                                            GPU_VECTOR_KERNELS(ROPE_F32)};
