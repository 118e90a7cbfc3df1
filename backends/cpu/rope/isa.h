/* Everything but instances that an instruction set offers the driver: compiled by the file that
 * includes this with its vectors. */
#ifndef ROPEKIT_CPU_ROPE_ISA_H
#define ROPEKIT_CPU_ROPE_ISA_H

#include "backends/cpu/rope/cos_sin_row.h"
#include "backends/cpu/rope/f64.h"
#include "backends/cpu/rope/instances.h"

/* Whole lines around the cache; the driver fences. */
static void rope_stream(char *target, const char *source, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i += 4 * SIMD_LANES)
        simd_stream_f(target + i, simd_load_f(source + i));
}

static const cpu_rope_rows rope_rows = {SIMD_LANES, rope_compute_rows, rope_read_row, rope_stream};

#endif
