/* The kernel of bf16 by products of tiles. */
#include "backends/cpu/attention/amx.h"

#include "backends/cpu/attention_backward/matrix.h"

const cpu_backward_kernel cpu_backward_amx = MATRIX_BACKWARD_KERNEL(cpu_attention_amx);
