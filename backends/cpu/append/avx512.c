#include "backends/cpu/simd/avx512.h"

#define APPEND_LOOK_UP cpu_look_up_vbmi
#define APPEND_LOOK_UP_SHORT cpu_look_up_avx2
#include "backends/cpu/append/elementwise.h"

const cpu_append_kernel cpu_append_avx512 = APPEND_KERNEL(CPU_ISA_AVX512, cpu_kernel_avx512);

const cpu_append_kernel cpu_append_avx512_bf16 =
    APPEND_KERNEL(CPU_ISA_AVX512_BF16, cpu_kernel_avx512_bf16);
