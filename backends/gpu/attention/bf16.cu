#include "backends/gpu/attention/instances.h"

const gpu_attention_kernels gpu_attention_bf16 = GPU_ATTENTION_KERNELS(
    ROPE_BF16, GPU_ATTENTION_VECTORS(ROPE_BF16), GPU_ATTENTION_TILES(ROPE_BF16));
