/* The kernel without vector instructions: the bits that every other kernel must reproduce. */
#include "backends/cpu/append/elementwise.h"

const cpu_append_kernel cpu_append_scalar = APPEND_KERNEL(CPU_ISA_SCALAR, cpu_kernel_scalar);
