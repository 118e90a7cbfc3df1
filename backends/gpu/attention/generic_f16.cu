#include "backends/gpu/attention/generic.h"

const gpu_generic_kernels gpu_attention_generic_f16 = GPU_ATTENTION_GENERIC(ROPE_F16);
