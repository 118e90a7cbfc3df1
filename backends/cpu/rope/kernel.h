/*
 * What the driver asks of an instruction set: cos/sin rows, and the rotation of heads by them.
 * Every instruction set gives the same bits.
 */
#ifndef ROPEKIT_CPU_ROPE_KERNEL_H
#define ROPEKIT_CPU_ROPE_KERNEL_H

#include "backends/cpu/features.h"
#include "backends/cpu/scalar.h"
#include "common/math/token.h"

enum { CPU_MAX_PAIRS = ROPE_MAX_ROTARY_DIM / 2, CPU_ROW_PADDING = 16 };

/* Callers' threads may have small stacks. Longer windows than a row's memory has room for, of at
 * most CPU_ROW_PAIRS pairs, go in parts of CPU_PART_PAIRS, and so do those of kernels that go pair
 * by pair. */
enum { CPU_ROW_PAIRS = CPU_MAX_PAIRS / 2, CPU_PART_PAIRS = 256 };

/* Some pairs of a window. */
typedef struct cpu_pairs {
    int first, count;
} cpu_pairs;

/* Some tokens (batch * tokens + token) and some heads of each tensor: a thread's part of a call. */
typedef struct cpu_slice {
    int64_t first_token, last_token;
    int64_t first_head[2], last_head[2];
    const cpu_prefetch_policy *policy;
    int exceeds;     /* the call exceeds the cache, which stores then go around */
    int near;        /* the call is so small that nothing is prefetched */
    int split_loads; /* the split-load hint is given */
} cpu_slice;

/* Lists of one token's coefficients, padded to whole vectors: c2 and s2 are the very lists of c1
 * and s1 where these rotate both elements of a pair alike. */
typedef struct cpu_cos_sin_row {
    float *c1, *s1, *c2, *s2;
} cpu_cos_sin_row;

/* Memory of rows. */
typedef struct cpu_row_buffer {
    float lists[2 * CPU_ROW_PAIRS];
} __attribute__((aligned(64))) cpu_row_buffer;

CPU_INLINE int cpu_row_is_full(const rope_problem *p) {
    return p->angle_mode == ROPE_ANGLE_TABLE && p->table_width == ROPE_TABLE_FULL;
}

CPU_INLINE int cpu_row_list(int pairs) {
    return (pairs + CPU_ROW_PADDING - 1) / CPU_ROW_PADDING * CPU_ROW_PADDING;
}

/* Whether a buffer has room for so many rows. */
CPU_INLINE int cpu_rows_fit(const rope_problem *p, int rows) {
    return rows * (cpu_row_is_full(p) ? 4 : 2) * cpu_row_list(p->pairs) <= 2 * CPU_ROW_PAIRS;
}

/* Row i of those. */
CPU_INLINE cpu_cos_sin_row cpu_row_at(const rope_problem *p, float *buffer, int i) {
    int full = cpu_row_is_full(p), list = cpu_row_list(p->pairs);
    float *c1 = buffer + (full ? 4 : 2) * i * list, *s1 = c1 + list;
    cpu_cos_sin_row row = {c1, s1, full ? s1 + list : c1, full ? s1 + 2 * list : s1};
    return row;
}

/* The windows of some heads of some tokens, elements side by side. Strides from head to head and
 * steps from token to token are in bytes. */
typedef struct cpu_heads {
    const rope_problem *problem;
    const char *in;
    char *out;
    int64_t count, in_stride, out_stride, in_step, out_step;
    int64_t before, after;       /* bytes around the window that an out-of-place call copies */
    int64_t in_ahead, out_ahead; /* from a head to that which is prefetched, or 0: none is */
    int into_l2;                 /* only what is read is prefetched, and no nearer */
    int split_loads;
    int stream;  /* stores go around the cache: addresses are multiples of a vector */
    int by_head; /* one head of every token, then the next head */
    int part;    /* pairs from the window's first on that rotate, of cpu_rope_instances.general
                    alone; 0: all */
} cpu_heads;

/* Heads of one tensor, or of q and k, at `tokens` tokens, each by its row. */
typedef void (*cpu_rotate_heads)(const cpu_heads *heads, int tensors, const cpu_cos_sin_row *rows,
                                 int tokens);

/* Tokens of one head each at consecutive positions, without a row in memory: `tokens` of each of
 * `streams` parts, which go side by side. */
typedef void (*cpu_rotate_single_head)(const cpu_heads *heads, int64_t position, int64_t tokens,
                                       int streams);

enum { CPU_PAIRS_32, CPU_PAIRS_64, CPU_PAIRS_ANY, CPU_PAIRS };

/* Whether the attention factor scales rows, or sin is negated. */
CPU_INLINE int cpu_scales_rows(const rope_problem *p) {
    return p->direction != ROPE_FORWARD || p->frequency_sets > 1 || p->set[0].attention_factor != 1;
}

/* The instances of one dtype; general is for what the others do not say: a pairing that changes,
 * the arithmetic of the dtype itself, tables of full width. */
typedef struct cpu_rope_instances {
    cpu_rotate_heads rotate[2][CPU_PAIRS][2]; /* [interleaved][CPU_PAIRS_][stream] */
    cpu_rotate_heads general;
    cpu_rotate_single_head single[2][2]; /* [interleaved][stream] */
} cpu_rope_instances;

/* What of a kernel depends on no dtype. */
typedef struct cpu_rope_rows {
    int lanes; /* pairs of a vector */
    /* Rows of some tokens from their angles, for q (tensor 0) or k (tensor 1). */
    void (*compute)(const rope_problem *p, const rope_token *tokens, int count, int tensor,
                    cpu_pairs pairs, const cpu_cos_sin_row *rows);
    /* The row of one token from the caller's tables. */
    void (*read)(const rope_problem *p, const rope_call *call, const rope_token *token,
                 cpu_pairs pairs, const cpu_cos_sin_row *row);
    /* Whole lines around the cache; the driver fences. */
    void (*stream)(char *target, const char *source, int64_t bytes);
} cpu_rope_rows;

typedef void (*cpu_rotate_slice)(const rope_problem *problem, const rope_call *call,
                                 const cpu_slice *slice);

typedef struct cpu_kernel {
    cpu_isa needs;
    cpu_rotate_slice slice; /* takes every call of 16 and 32 bits; NULL: the driver does */
    cpu_rotate_slice slice_f64;
    const cpu_rope_rows *rows;
    const cpu_rope_instances *instances[3]; /* f32, f16, bf16: dtype - ROPE_F32 */
} cpu_kernel;

/* One cos and sin rotate each pair where it is. */
CPU_INLINE int cpu_rotates_in_pairs(const rope_problem *p) {
    return p->pairing_in == p->pairing_out && p->arithmetic != ROPE_ARITHMETIC_MODEL_DTYPE &&
           !cpu_row_is_full(p);
}

/* The instance for heads of a problem, whose rows a buffer has room for. */
CPU_INLINE cpu_rotate_heads cpu_choose_instance(const cpu_kernel *kernel, int in_pairs,
                                                const cpu_heads *h) {
    const rope_problem *p = h->problem;
    const cpu_rope_instances *instances = kernel->instances[p->dtype - ROPE_F32];
    const int size = h->before | h->after ? CPU_PAIRS_ANY
                     : p->pairs == 64     ? CPU_PAIRS_64
                     : p->pairs == 32     ? CPU_PAIRS_32
                                          : CPU_PAIRS_ANY;
    return in_pairs && kernel->rows->lanes > 1
               ? instances->rotate[p->pairing_in == ROPE_PAIRING_INTERLEAVED][size][h->stream]
               : instances->general;
}

/* bf16 by AVX512_BF16, for the kernel that shares all else with avx512. */
extern const cpu_rope_instances cpu_rope_native_bf16;

extern const cpu_kernel cpu_kernel_scalar;
extern const cpu_kernel cpu_kernel_avx2;
extern const cpu_kernel cpu_kernel_avx512;
extern const cpu_kernel cpu_kernel_avx512_bf16;
extern const cpu_kernel cpu_kernel_neon;
extern const cpu_kernel cpu_kernel_reference;

/* The CPU looks at every position first, so that a failing call writes nothing. */
rope_status cpu_check_positions(const rope_problem *problem, const rope_call *call);

/* A checked call by this thread alone, for operations that rotate. */
void cpu_rotate_on_this_thread(const cpu_kernel *kernel, const rope_problem *problem,
                               const rope_call *call);

/* Heads of a token by some pairs at a time, for longer windows than rows have room for and for
 * elements that do not lie side by side. */
typedef struct cpu_long_heads {
    const char *in; /* element 0 of the first head */
    char *out;
    int64_t in_stride, out_stride; /* elements */
    int64_t in_step, out_step;     /* bytes from a head to the next */
    int64_t count, head_dim;
} cpu_long_heads;
void cpu_rotate_long(const cpu_kernel *kernel, const rope_problem *problem, const rope_call *call,
                     const rope_token *token, int tensor, const cpu_long_heads *heads);

/* Runs a kernel over a whole call: the run of every candidate of "rope". */
rope_status cpu_rotate_call(const void *problem, const void *kernel, const void *call,
                            void *workspace, void *stream);

#endif
