/* What this machine's processor can do, and what the environment makes of it. */
#ifndef ROPEKIT_CPU_FEATURES_H
#define ROPEKIT_CPU_FEATURES_H

#include <ropekit/backend.h>

#include <stdint.h>

/* The variables of the environment that all this depends on. */
enum { CPU_SETTINGS = 3 };
extern const rope_setting cpu_settings[CPU_SETTINGS];

/* Instruction sets in ascending order within an architecture. */
typedef enum cpu_isa {
    CPU_ISA_SCALAR = 0,
    CPU_ISA_NEON = 1,
    CPU_ISA_AVX2 = 2,   /* AVX2, FMA and F16C */
    CPU_ISA_AVX512 = 3, /* F, BW, DQ and VL */
    CPU_ISA_AVX512_BF16 = 4,
    CPU_ISA_AMX = 5, /* tiles of bf16, beside AVX512_BF16 */
} cpu_isa;

/* The beginning of a file as text; empty where it cannot be read. Takes no memory. */
void cpu_read_file(const char *path, char *text, size_t size);

/* The highest that kernels may use. */
cpu_isa cpu_isa_allowed(void);

/* Whether a kernel of AVX-512 may permute bytes (AVX512_VBMI). */
int cpu_has_vbmi(void);

/* Whether a kernel that needs an instruction set may run: ROPE_OK, or ROPE_DECLINED with a reason.
 */
rope_status cpu_isa_query(cpu_isa needs, char *reason);

/* How memory is read, as was best where it was measured. */
typedef struct cpu_prefetch_policy {
    int64_t cache_bytes; /* read and written that a call may come to without: ROPE_CPU_STREAM */
    int ahead[2];        /* bytes prefetched ahead beyond it: of f16 and bf16, of f32; 0: none */
    int into_l2; /* beyond it only what is read, of several heads of 64 pairs, into the L2 */
    int within;  /* the same of a call that the cache holds */
    int no_write_prefetch; /* of 32 and 64 pairs there, nor reads of a single head */
    int64_t split_loads;   /* least bytes a thread of a call that the cache holds at which f32 is
                              given the split-load hint, as all is beyond it; 0: none is */
    int streams;           /* beyond it parts of a run that go side by side: ROPE_CPU_STREAMS */
} cpu_prefetch_policy;

/* What is wrong with a ROPE_CPU_ variable, or NULL. */
const char *cpu_setting_error(void);

/* Bytes of the last-level cache. */
int64_t cpu_cache_bytes(void);

const cpu_prefetch_policy *cpu_prefetch_policy_chosen(void);

#endif
