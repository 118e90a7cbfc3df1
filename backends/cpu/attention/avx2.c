#include "backends/cpu/simd/avx2.h"

#include "backends/cpu/attention/block.h"

const cpu_attention_kernel cpu_attention_avx2 = ATTENTION_KERNEL(CPU_ISA_AVX2, cpu_append_avx2);
