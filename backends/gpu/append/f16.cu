#include "backends/gpu/append/instances.h"

const gpu_append_kernels gpu_append_f16 = {GPU_KERNEL(gpu_append_generic<ROPE_F16>),
                                           GPU_APPEND_VECTOR(ROPE_F16), GPU_APPEND_PLAIN(ROPE_F16),
                                           GPU_APPEND_REROTATE(ROPE_F16), GPU_APPEND_MLA(ROPE_F16)};
