#include "backends/cpu/simd/avx2.h"

#define APPEND_LOOK_UP_SHORT cpu_look_up_avx2
#include "backends/cpu/append/elementwise.h"

const cpu_append_kernel cpu_append_avx2 = APPEND_KERNEL(CPU_ISA_AVX2, cpu_kernel_avx2);
