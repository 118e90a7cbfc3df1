/*
 * What an instruction set offers the operation "attention", and what its kernels share.
 *
 * Order of arithmetic, which no schedule changes: keys go in blocks of CPU_ATTENTION_BLOCK and
 * blocks in splits of CPU_ATTENTION_SPLIT, both counted from key 0 of the sequence. A score is a
 * sum of chains over at most CPU_ATTENTION_CHAIN elements of head_dim, a block's part of a result
 * one chain over its keys, and blocks join in order within a split, splits in order within a row.
 * So a row's bits depend on its own query and keys.
 */
#ifndef ROPEKIT_CPU_ATTENTION_KERNEL_H
#define ROPEKIT_CPU_ATTENTION_KERNEL_H

#include "backends/cpu/append/kernel.h"
#include "common/math/attention.h"

enum {
    CPU_ATTENTION_CHAIN = 32,  /* one chain over all elements would round more than PyTorch does */
    CPU_ATTENTION_BLOCK = 128, /* keys whose scores are held at once */
    CPU_ATTENTION_SPLIT = 512, /* keys of a task where a tile is several threads' */
    CPU_ATTENTION_ROWS = 96,   /* most rows of a tile: heads of queries that share a head of keys */
    CPU_ATTENTION_PAD = 32 /* rows of results are padded to a multiple of this; most rows of a tile
                              of several heads */
};

/* Codes of 8 bits that are rows of K or V, and how they become elements. */
typedef struct cpu_attention_codes {
    const cpu_append_kernel *append; /* NULL: rows have elements */
    int dtype;
    const float *scale;          /* of the first head of a tile, or NULL */
    int64_t scale_step;          /* to the next one's */
    const cpu_code_table *table; /* of heads, or of all; or NULL */
    int table_step;
    cpu_code_look_up *look_up; /* by a table */
} cpu_attention_codes;

/* Keys of a block, and the rows of a tile that see them. */
typedef struct cpu_attention_block {
    int dtype, head_dim, v_head_dim;
    int o_stride;      /* v_head_dim, padded */
    int rows, of_head; /* of the tile, and of each of its heads of k */
    int64_t step[2];   /* bytes from a head to the next in rows of K and V */
    int size[2];       /* bytes of what these rows have */
    cpu_attention_codes codes[2];
    int from, to;      /* keys of the block that some row sees */
    float factor;      /* from differences of scores to powers of 2 */
    float cap, to_cap; /* scores become cap * tanh(score * to_cap); cap 0: none */
    int64_t q_bytes;   /* from a row of q to the next */
    const float *q;    /* [rows][head_dim], or elements of the kernel's dtype */
    float *scores;     /* [rows][CPU_ATTENTION_BLOCK]; then weights */
    float *o;          /* [rows][o_stride]: sums of weight * value */
    float *max, *sum;  /* [rows]: largest score, and sum of weights */
    float *rescale;    /* [rows]: of o, by a block's new max */
    float *panel;      /* CPU_ATTENTION_PAD keys, or as many values of a block's keys */
    float *spare; /* as many values of a block's keys, or 64 bytes of each pair of a row of q */
    char *stage;  /* elements of codes: of CPU_ATTENTION_PAD rows, or 128 bytes of a block's */
    int16_t first[CPU_ATTENTION_ROWS], last[CPU_ATTENTION_ROWS]; /* keys that a row may see */
    const char *const *ahead; /* rows that are read next, in bytes */
    int ahead_count, ahead_bytes;
    int64_t ahead_step;
    const uint32_t (*seen)[CPU_ATTENTION_BLOCK / 32]; /* [rows]: bits of keys, or NULL: all */
} cpu_attention_block;

CPU_INLINE int cpu_attention_padded(int dim) {
    return (dim + CPU_ATTENTION_PAD - 1) / CPU_ATTENTION_PAD * CPU_ATTENTION_PAD;
}

struct attention_context;
struct attention_tile;

typedef struct cpu_attention_kernel {
    cpu_isa needs;
    int dtype; /* the one that it has, padded with zeros to 64 bytes in rows of q; 0: all, as fp32
                */
    const cpu_append_kernel *append; /* conversions */
    int panel;                       /* keys of a panel */
    int few; /* most rows of a head that read keys and values, or codes, as they lie */
    /* Makes ready for scores what it needs of q besides its rows, behind b->scores, of whose room
     * it has rows * q_bytes; NULL: nothing. */
    void (*queries)(const cpu_attention_block *b);
    /* Scores of keys first..first + count - 1 of a block, first a multiple of panel; k: their
     * elements of dtype, side by side, or codes. */
    void (*scores)(const cpu_attention_block *b, int first, int count, const char *const *k);
    /* From scores to weights. */
    void (*weights)(const cpu_attention_block *b);
    /* Adds weights * values of elements first..first + count - 1 of a head, first a multiple of
     * CPU_ATTENTION_PAD; v: element `first` of each key. */
    void (*values)(const cpu_attention_block *b, int first, int count, const char *const *v);
    /* Joins o, of max and sum, to total, of total_max and total_sum: n elements. */
    void (*join)(float factor, float *total, float *total_max, float *total_sum, const float *o,
                 float max, float sum, int n);
    /* o = (o + 0) * factor: a zero's sign would depend on keys that have no weight. */
    void (*scale)(float *o, float factor, int n);
    /* A whole tile in another way; NULL: by the functions above. */
    void (*attend)(const struct attention_context *ctx, const struct attention_tile *tile);
    const cpu_kernel *rope; /* rotations; NULL: append->rope */
} cpu_attention_kernel;

extern const cpu_attention_kernel cpu_attention_scalar;
extern const cpu_attention_kernel cpu_attention_avx2;
extern const cpu_attention_kernel cpu_attention_avx512;
extern const cpu_attention_kernel cpu_attention_avx512_bf16;
extern const cpu_attention_kernel cpu_attention_amx;
extern const cpu_attention_kernel cpu_attention_neon;
extern const cpu_attention_kernel cpu_attention_reference;

/* Elements first..first + n - 1 of codes of a head of a tile, to rows that are `step` bytes apart.
 * Returns whether some element of bf16 may be 2^65 or more. */
typedef struct cpu_attention_coded {
    int which, head, first, n;
} cpu_attention_coded;

int cpu_attention_decode(const cpu_attention_block *b, cpu_attention_coded part,
                         const char *const *rows, int count, char *to, int64_t step);

/* As rope_candidate.query, of a kernel. */
rope_status cpu_attention_query(const cpu_attention_kernel *kernel,
                                const rope_attention_problem *problem, char *reason);

/* Device values of a call, all of them before anything is written. unwritten: 1: a sequence's last
 * keys, as many as it has queries, are yet to be written, with scales that go with them. */
rope_status cpu_attention_check(const rope_attention_problem *problem,
                                const rope_attention_call *call, int unwritten);

rope_status cpu_attention_workspace(const void *problem, const void *kernel, const void *bounds,
                                    size_t *bytes);

/* Runs a kernel over a whole call: the run of every candidate of "attention". */
rope_status cpu_attention_call(const void *problem, const void *kernel, const void *call,
                               void *workspace, void *stream);

/* The check of every candidate of "attention". */
rope_status cpu_attention_check_call(const void *problem, const void *kernel, const void *call,
                                     void *workspace, void *stream);

#endif
