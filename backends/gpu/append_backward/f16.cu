#include "backends/gpu/append_backward/tokens.h"

const void *const gpu_gradient_tokens_f16[2] = GPU_GRADIENT_KERNELS(ROPE_F16);
