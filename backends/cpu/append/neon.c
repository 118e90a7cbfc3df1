#include "backends/cpu/simd/neon.h"

#include "backends/cpu/append/elementwise.h"

const cpu_append_kernel cpu_append_neon = APPEND_KERNEL(CPU_ISA_NEON, cpu_kernel_neon);
