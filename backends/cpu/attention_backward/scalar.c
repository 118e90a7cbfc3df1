/* The kernel without an instruction set of its own. */
#include "backends/cpu/simd/portable.h"

#include "backends/cpu/attention_backward/score_tile.h"

const cpu_backward_kernel cpu_backward_scalar = BACKWARD_KERNEL(cpu_attention_scalar);
