#include "backends/cpu/simd/neon.h"

#include "backends/cpu/attention/block.h"

const cpu_attention_kernel cpu_attention_neon = ATTENTION_KERNEL(CPU_ISA_NEON, cpu_append_neon);
