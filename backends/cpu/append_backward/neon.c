#include "backends/cpu/simd/neon.h"

#include "backends/cpu/append_backward/elementwise.h"

const cpu_append_backward_kernel cpu_append_backward_neon = APPEND_BACKWARD_KERNEL(cpu_append_neon);
