/* A call of "attention" as its threads share it, and a tile of it. */
#ifndef ROPEKIT_CPU_ATTENTION_CONTEXT_H
#define ROPEKIT_CPU_ATTENTION_CONTEXT_H

#include "backends/cpu/attention/kernel.h"

/* Where a workspace has what; NULL: nowhere. */
typedef struct attention_workspace {
    char *keys;    /* [row][head of k][key][head_dim], of dtype, rotated */
    char *queries; /* [row][token][head][head_dim], of dtype, rotated */
    float *totals; /* [row of q][token][head of q][o_stride + 2] */
    int32_t *done; /* [row of q][token][head of q]: splits joined of the tile that begins there */
    int64_t done_bytes;
    char *tiles;        /* of threads, tile_bytes each */
    int64_t tile_bytes; /* attention_tile_bytes */
    int64_t left;       /* bytes from tiles to the workspace's end */
    size_t bytes;       /* of all with one thread; SIZE_MAX: they overflow */
} attention_workspace;

typedef struct attention_context {
    const cpu_attention_kernel *kernel;
    const rope_attention_problem *problem;
    const rope_attention_call *call;
    attention_workspace workspace;
    char *rotated;       /* queries, by q_stride; NULL: they are read where they are given */
    int64_t q_stride[4]; /* elements */
    int size;            /* bytes of an element of dtype */
    int64_t group;       /* heads of q of a head of k */
    int64_t rows;        /* most of a tile */
    int64_t heads;       /* of k, most of a tile */
    int64_t sequences;
    int64_t most_rows; /* of a sequence and a head of k */
    int64_t most_keys; /* of a sequence */
    int split;         /* a task is a split of a tile */
    int coded[2];      /* K and V reach the kernel in codes of 8 bits */
    int64_t next;      /* task that no thread has taken */
    int64_t tasks;
} attention_context;

/* Of each of some heads of k of a sequence rows first..first + count - 1: row n is query n / group.
 */
typedef struct attention_tile {
    rope_attention_sequence s;
    int64_t head, heads; /* of k */
    int64_t first, count;
    rope_key_range seen; /* keys that any row may see */
} attention_tile;

/* A tile of all its keys, or where split is not below 0 a split's share of them. */
typedef struct attention_task {
    attention_tile tile;
    int64_t split;
} attention_task;

/* What a thread attends to now and next, and its memory. */
typedef struct attention_worker {
    attention_context *ctx;
    attention_task task, next;
    int has_next; /* next is taken */
    char *memory;
} attention_worker;

/* Takes a worker's next task, unless it has one; returns whether there is any. */
int attention_take_next(attention_worker *worker);

/* K (which 0) or V (1) of a head. */
typedef struct attention_source {
    const rope_append_operand *operand;
    const rope_append_steps *steps; /* of the cache; NULL: none */
    const char *base;               /* element 0 of key 0; without a cache */
    int64_t token, element;         /* strides in bytes; without a cache */
    int64_t head;                   /* bytes from a head to the next */
    int staged;                     /* elements do not lie side by side, or are of another type */
    int coded, size;                /* rows have codes; bytes of what they have */
    /* What is staged next, or NULL, of a cache: while a key is staged, that of so many later is
     * prefetched from there, before `end`. */
    const struct attention_source *next;
    int64_t later, end;
    const cpu_code_table *table; /* or NULL */
    cpu_code_look_up *look_up;   /* by it */
} attention_source;

/* All of a context but its kernel, its workspace and what a task is. */
void attention_context_fill(attention_context *ctx, const rope_attention_problem *problem,
                            const rope_attention_call *call);

/* From a row of a tile to its query and its head. */
CPU_INLINE int64_t attention_query_of(const attention_context *ctx, const attention_tile *t,
                                      int64_t row) {
    return (t->first + row % t->count) / ctx->group;
}

CPU_INLINE int64_t attention_head_of(const attention_context *ctx, const attention_tile *t,
                                     int64_t row) {
    return (t->head + row / t->count) * ctx->group + (t->first + row % t->count) % ctx->group;
}

/* Where rotated keys of a head are in the workspace. */
CPU_INLINE char *attention_kept_key(const attention_context *ctx, const rope_attention_sequence *s,
                                    int64_t head, int64_t key) {
    const int64_t dropped = s->k_count - rope_attention_kept(ctx->problem, s->k_count);
    return ctx->workspace.keys + ((s->k_row * ctx->call->k.heads + head) * ctx->call->k_tokens +
                                  s->k_first + key - dropped) *
                                     ctx->problem->head_dim * ctx->size;
}

/* Keys that some query of a sequence may see. */
rope_key_range attention_keys_used(const rope_attention_problem *problem,
                                   const rope_attention_sequence *s);

attention_workspace attention_workspace_of(const rope_attention_problem *problem,
                                           const rope_attention_call *call, void *workspace);

/* K or V of a head of a sequence, rotated where that is asked. */
attention_source attention_source_of(const attention_context *ctx, const rope_attention_sequence *s,
                                     int64_t head, int which);

/* Of `count` keys from `key` on, at a slot, those that follow each other in one page. */
int64_t cpu_attention_run(const rope_attention_problem *problem, int64_t key, int64_t slot,
                          int64_t count);

/* Makes the table of a head and returns what looks up its elements faster than they are converted,
 * or NULL. */
cpu_code_look_up *attention_code_table(const attention_context *ctx, const attention_source *from,
                                       int64_t head, cpu_code_table *table);

/* Whether K (which 0) or V of a call's cache can reach its kernel in codes. */
int attention_takes_codes(const attention_context *ctx, int which);

/* Elements first..first + n - 1 of keys key..key + count - 1 of a head. */
typedef struct attention_part {
    int64_t head, key;
    int count, first, n;
} attention_part;

/* Where they are, of dtype; those of each key are put into stage where they are not so in memory.
 */
void cpu_attention_rows(const attention_context *ctx, const attention_source *from,
                        const rope_attention_sequence *s, attention_part part, char *stage,
                        const char **rows);

/* Most heads of a tile that reads codes. */
enum { ATTENTION_TABLES = 8 };

/* Some tokens of a row, whose first has an index among its sequence's keys. */
typedef struct attention_tokens {
    int64_t row, first, count, index;
} attention_tokens;

/* Queries (tensor 0) or keys (1) of a sequence as the tokens of a call's only row, which has no
 * tensor yet. */
rope_call attention_call_of(const attention_context *ctx, int tensor,
                            const rope_attention_sequence *s, const attention_tokens *tokens);

/* Rotates by rope_apply's driver, on this thread alone. */
void attention_rotate(const attention_context *ctx, const rope_call *call);

/* One thread's part of what is rotated, all of it before a tile reads any. memory: of the thread's
 * tiles, where keys are cached. */
void attention_rotate_first(const attention_context *ctx, int index, int parts, char *memory);

/* Bytes of a row of q of a tile. */
CPU_INLINE int64_t attention_q_bytes(const attention_context *ctx) {
    const int64_t dim = ctx->problem->head_dim;
    return ctx->kernel->dtype ? (dim * ctx->size + 63) / 64 * 64 : dim * (int64_t)sizeof(float);
}

/* Rows of q of a tile; stage: room for one. */
void attention_queries(const attention_context *ctx, const attention_tile *tile, char *stage,
                       char *q);

/* Ends a row: out and lse from its sums. */
void attention_finish(const attention_context *ctx, const attention_tile *tile, int64_t row,
                      float max, float sum, float *o);

/* Most rows of a tile, and bytes of a thread's memory for its tiles. */
int64_t attention_tile_rows(const rope_attention_problem *problem);
int64_t attention_tile_bytes(const rope_attention_problem *problem);

/* Splits of the keys that a tile sees; without any it has one too. */
CPU_INLINE int64_t attention_splits_of(rope_key_range seen) {
    return seen.begin >= seen.end
               ? 1
               : (seen.end - 1) / CPU_ATTENTION_SPLIT - seen.begin / CPU_ATTENTION_SPLIT + 1;
}

/* Attends to a worker's task, and takes its next one once the last block of keys is read. */
void attention_tile_attend(attention_worker *worker);

#endif
