#include "backends/cpu/simd/avx2.h"

#include "backends/cpu/append/elementwise.h"

const cpu_append_kernel cpu_append_avx2 = APPEND_KERNEL(CPU_ISA_AVX2, cpu_kernel_avx2);
