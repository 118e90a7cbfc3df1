#include "backends/gpu/attention/instances.h"

const gpu_attention_kernels gpu_attention_f32 =
    GPU_ATTENTION_KERNELS(ROPE_F32, {}, {}, {}, {}, {}, {}, NULL);
