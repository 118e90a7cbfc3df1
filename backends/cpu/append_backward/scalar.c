/* The kernel without vector instructions: the bits that every other kernel must reproduce. */
#include "backends/cpu/append_backward/elementwise.h"

const cpu_append_backward_kernel cpu_append_backward_scalar =
    APPEND_BACKWARD_KERNEL(cpu_append_scalar);
