#include "backends/gpu/append/instances.h"

const gpu_append_kernels gpu_append_bf16 = {
    GPU_KERNEL(gpu_append_generic<ROPE_BF16>), GPU_APPEND_VECTOR(ROPE_BF16),
    GPU_APPEND_PLAIN(ROPE_BF16), GPU_APPEND_REROTATE(ROPE_BF16), GPU_APPEND_MLA(ROPE_BF16)};
