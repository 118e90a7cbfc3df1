#include "backends/gpu/decode/portable.h"

const void *const gpu_decode_portable_bf16[GPU_DECODE_DIMS] = GPU_DECODE_PORTABLE(ROPE_BF16);
