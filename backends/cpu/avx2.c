#include "backends/cpu/lanes_avx2.h"

#include "backends/cpu/kernel_lanes.h"
#include "backends/cpu/traffic_lines.h"

const cpu_kernel cpu_kernel_avx2 = {CPU_ISA_AVX2, LANES_ROTATE, &traffic_lines};
