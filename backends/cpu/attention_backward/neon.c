#include "backends/cpu/simd/neon.h"

#include "backends/cpu/attention_backward/score_tile.h"

const cpu_backward_kernel cpu_backward_neon = BACKWARD_KERNEL(cpu_attention_neon);
