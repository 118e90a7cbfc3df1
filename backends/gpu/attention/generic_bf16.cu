#include "backends/gpu/attention/generic.h"

const gpu_generic_kernels gpu_attention_generic_bf16 = GPU_ATTENTION_GENERIC(ROPE_BF16);
