#include "backends/cpu/simd/avx512.h"

#include "backends/cpu/append_backward/elementwise.h"

const cpu_append_backward_kernel cpu_append_backward_avx512 =
    APPEND_BACKWARD_KERNEL(cpu_append_avx512);

const cpu_append_backward_kernel cpu_append_backward_avx512_bf16 =
    APPEND_BACKWARD_KERNEL(cpu_append_avx512_bf16);
