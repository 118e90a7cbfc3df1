#include "backends/cpu/lanes_avx512.h"

#include "backends/cpu/kernel_lanes.h"

const cpu_kernel cpu_kernel_avx512 = {lanes_rotate_slice};
