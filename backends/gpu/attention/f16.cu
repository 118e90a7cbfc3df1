#include "backends/gpu/attention/instances.h"

const gpu_attention_kernels gpu_attention_f16 =
    GPU_ATTENTION_KERNELS(ROPE_F16, GPU_ATTENTION_VECTORS(ROPE_F16), GPU_ATTENTION_TILES(ROPE_F16));
