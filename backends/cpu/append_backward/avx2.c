#include "backends/cpu/simd/avx2.h"

#include "backends/cpu/append_backward/elementwise.h"

const cpu_append_backward_kernel cpu_append_backward_avx2 = APPEND_BACKWARD_KERNEL(cpu_append_avx2);
