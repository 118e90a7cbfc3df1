#include "backends/cpu/lanes_neon.h"

#include "backends/cpu/kernel_lanes.h"
#include "backends/cpu/traffic_lines.h"

const cpu_kernel cpu_kernel_neon = {CPU_ISA_NEON, LANES_ROTATE, &traffic_lines};
