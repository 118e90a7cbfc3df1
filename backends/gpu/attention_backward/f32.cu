#include "backends/gpu/attention_backward/instances.h"

const gpu_backward_kernels gpu_attention_backward_f32 = GPU_BACKWARD_KERNELS(ROPE_F32, {});
