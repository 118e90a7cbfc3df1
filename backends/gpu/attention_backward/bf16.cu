#include "backends/gpu/attention_backward/instances.h"

const gpu_backward_kernels gpu_attention_backward_bf16 =
    GPU_BACKWARD_KERNELS(ROPE_BF16, GPU_BACKWARD_TILES(ROPE_BF16));
