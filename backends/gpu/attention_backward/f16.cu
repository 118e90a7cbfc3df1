#include "backends/gpu/attention_backward/instances.h"

const gpu_backward_kernels gpu_attention_backward_f16 =
    GPU_BACKWARD_KERNELS(ROPE_F16, GPU_BACKWARD_TILES(ROPE_F16));
