#include "backends/gpu/append/instances.h"

const gpu_append_kernels gpu_append_f16 = {GPU_KERNEL(gpu_append_generic<ROPE_F16>),
                                           GPU_APPEND_VECTOR(ROPE_F16), GPU_APPEND_PLAIN(ROPE_F16),
                                           GPU_APPEND_MOVED(ROPE_F16), GPU_APPEND_LATENT(ROPE_F16)};
