/* The kernel without an instruction set of its own. */
#include "backends/cpu/simd/portable.h"

#include "backends/cpu/attention/block.h"

const cpu_attention_kernel cpu_attention_scalar =
    ATTENTION_KERNEL(CPU_ISA_SCALAR, cpu_append_scalar);
