/* The kernel of bf16 by dot products of pairs. */
#include "backends/cpu/attention/avx512_bf16.h"

#include "backends/cpu/attention/matrix.h"

const cpu_attention_kernel cpu_attention_avx512_bf16 =
    MATRIX_KERNEL(CPU_ISA_AVX512_BF16, cpu_append_avx512_bf16);
