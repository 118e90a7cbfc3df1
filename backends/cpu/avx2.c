#include "backends/cpu/lanes_avx2.h"

#include "backends/cpu/kernel_lanes.h"

const cpu_kernel cpu_kernel_avx2 = {lanes_rotate_slice};
