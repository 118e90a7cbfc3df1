/* The kernel of bf16 by products of tiles. */
#include "backends/cpu/attention/amx.h"

#include "backends/cpu/attention/matrix.h"

#if defined(ROPEKIT_EMULATE_AMX)
const cpu_attention_kernel cpu_attention_amx = MATRIX_KERNEL(CPU_ISA_SCALAR, cpu_append_scalar);
#else
const cpu_attention_kernel cpu_attention_amx = MATRIX_KERNEL(CPU_ISA_AMX, cpu_append_avx512_bf16);
#endif
