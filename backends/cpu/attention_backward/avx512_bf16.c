/* The kernel of bf16 by dot products of pairs. */
#include "backends/cpu/attention/avx512_bf16.h"

#include "backends/cpu/attention_backward/matrix.h"

const cpu_backward_kernel cpu_backward_avx512_bf16 =
    MATRIX_BACKWARD_KERNEL(cpu_attention_avx512_bf16);
