#include "backends/cpu/lanes_neon.h"

#include "backends/cpu/kernel_lanes.h"

const cpu_kernel cpu_kernel_neon = {lanes_rotate_slice};
