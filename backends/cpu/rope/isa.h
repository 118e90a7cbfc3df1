/* Everything but instances that an instruction set offers the driver: compiled by the file that
 * includes this with its vectors. */
#ifndef ROPEKIT_CPU_ROPE_ISA_H
#define ROPEKIT_CPU_ROPE_ISA_H

#include "backends/cpu/rope/cos_sin_row.h"
#include "backends/cpu/rope/f64.h"
#include "backends/cpu/rope/instances.h"
#include "backends/cpu/rope/pass_through.h"
#include "backends/cpu/simd/membench.h"

static const cpu_rope_rows rope_rows = {SIMD_LANES, rope_compute_rows, rope_read_row,
                                        rope_pass_through, rope_stream};

#endif
