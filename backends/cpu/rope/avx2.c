#include "backends/cpu/simd/avx2.h"

#include "backends/cpu/rope/isa.h"
#include "backends/cpu/simd/membench.h"

ROPE_INSTANCES(static, f32, ROPE_F32)
ROPE_INSTANCES(static, f16, ROPE_F16)
ROPE_INSTANCES(static, bf16, ROPE_BF16)

const cpu_kernel cpu_kernel_avx2 = {.needs = CPU_ISA_AVX2,
                                    .slice_f64 = cpu_rotate_f64,
                                    .rows = &rope_rows,
                                    .instances = {&cpu_rope_f32, &cpu_rope_f16, &cpu_rope_bf16}};

const cpu_membench cpu_membench_avx2 = MEMBENCH_FUNCTIONS;
