#include "backends/cpu/lanes_avx512.h"

#include "backends/cpu/kernel_lanes.h"
#include "backends/cpu/traffic_lines.h"

const cpu_kernel cpu_kernel_avx512 = {CPU_ISA_AVX512, LANES_ROTATE, &traffic_lines};
