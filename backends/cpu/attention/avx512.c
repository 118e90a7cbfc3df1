#include "backends/cpu/simd/avx512.h"

#include "backends/cpu/attention/block.h"

const cpu_attention_kernel cpu_attention_avx512 =
    ATTENTION_KERNEL(CPU_ISA_AVX512, cpu_append_avx512);
