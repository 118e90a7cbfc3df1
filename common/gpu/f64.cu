#include "common/gpu/generic.h"

const gpu_rotate_kernels gpu_kernels_f64 = {(const void *)gpu_generic<ROPE_F64>, {}};
