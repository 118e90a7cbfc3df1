/* What this machine's processor can do, and how far ROPE_CPU_ISA lowers it. */
#ifndef ROPEKIT_CPU_FEATURES_H
#define ROPEKIT_CPU_FEATURES_H

#include <stdint.h>

/* Instruction sets in ascending order within an architecture. */
typedef enum cpu_isa {
    CPU_ISA_SCALAR = 0,
    CPU_ISA_NEON = 1,
    CPU_ISA_AVX2 = 2,   /* AVX2, FMA and F16C */
    CPU_ISA_AVX512 = 3, /* F, BW, DQ and VL */
    CPU_ISA_AVX512_BF16 = 4,
} cpu_isa;

/* The highest that processor and operating system support, without ROPE_CPU_ISA. */
cpu_isa cpu_isa_present(void);

/* The highest that kernels may use; *unknown is the value of ROPE_CPU_ISA when it names no ISA,
 * else NULL. */
cpu_isa cpu_isa_allowed(const char **unknown);

/* Bytes of the last-level cache. */
int64_t cpu_cache_bytes(void);

/* Bytes read and written from which stores past the cache pay (docs/performance.md). */
int64_t cpu_stream_bytes(void);

/* Model name into text; "unknown" where the system does not say. */
void cpu_model_name(char *text, int size);

#endif
