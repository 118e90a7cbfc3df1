#include "backends/cpu/simd/avx512.h"

#include "backends/cpu/attention_backward/score_tile.h"

const cpu_backward_kernel cpu_backward_avx512 = BACKWARD_KERNEL(cpu_attention_avx512);
