/*
 * What an instruction set offers the operation "attention_backward", and a call of it as its
 * threads share it.
 *
 * Order of arithmetic, which no schedule changes: rows go in tiles of backward_context.tile,
 * counted from query 0 of a sequence, and so do keys, counted from key 0. A tile of rows and those
 * keys of one that some query of the sequence may see make a cell. Its scores and products of dout
 * and v are sums of chains as the forward's, a cell's part of another sum is one chain, and parts
 * are added in order. A task is a tile, or all of a head of keys of a sequence. Tiles of keys may
 * add to dq too, in order from cell to cell. All give the same bits.
 */
#ifndef ROPEKIT_CPU_ATTENTION_BACKWARD_KERNEL_H
#define ROPEKIT_CPU_ATTENTION_BACKWARD_KERNEL_H

#include "backends/cpu/attention/context.h"

/* Most rows, and most keys, of a cell; rows that a kernel may set aside. */
enum { CPU_BACKWARD_CELL = 96, CPU_BACKWARD_SPARE = 32 };

/* Out was rounded to 16 bits, and the error that <dout, out> has from that is shared by weight: a
 * key with nearly all of it has nearly all of the error, while the gradient of its score is small:
 * minus the sum of all others. So a key with a weight above this gets that sum (docs/numerics.md).
 */
#define CPU_BACKWARD_ALONE 0.625F

/* What keys give to a row. The key with a weight above that limit is `key`. */
typedef struct backward_share {
    float others, weight; /* sums of gradients ahead of slopes, without key's, and of weights */
    float own, slope;     /* key's gradient in ds, and its slope */
    int64_t key;          /* of the sequence, in a cell counted from its first; -1: none */
} backward_share;

/* A row of q. */
typedef struct backward_row {
    float delta; /* <dout, out> */
    backward_share share;
} backward_row;

/* A cell. Rows are fp32, or elements of the attention kernel's dtype, padded with zeros to a
 * multiple of CPU_ATTENTION_PAD elements. */
typedef struct backward_cell {
    int rows, keys, dim, v_dim;
    int q_stride, v_stride;     /* floats between rows of q and k, and of dout and v */
    float factor, cap, to_cap;  /* as in cpu_attention_block */
    float *q, *dout, *k, *v;    /* rows */
    float *k_panels, *v_panels; /* as kernels pack them */
    float *spare;               /* CPU_BACKWARD_SPARE rows of p and as many of ds */
    float *p, *ds;              /* [CPU_BACKWARD_CELL][CPU_BACKWARD_CELL]: weights, and gradients of
                                   scores without their scale */
    float lse[CPU_BACKWARD_CELL];                              /* of rows, as a power of 2 */
    float delta[CPU_BACKWARD_CELL];                            /* of rows */
    int balances;                                              /* 1: share is wanted with ds */
    backward_share share[CPU_BACKWARD_CELL];                   /* of rows, where it balances */
    int16_t first[CPU_BACKWARD_CELL], last[CPU_BACKWARD_CELL]; /* keys that a row sees */
    int16_t key_first[CPU_BACKWARD_CELL], key_last[CPU_BACKWARD_CELL]; /* rows that see a key */
} backward_cell;

/* to[i] += the sum of a[i][j] * b[j] over j of first[i]..last[i] - 1; a, of a cell, is 0 of other
 * j.
 */
typedef struct backward_product {
    int count, n;   /* of i; floats of a row of b, a multiple of CPU_ATTENTION_PAD */
    int transposed; /* 1: i is a key and j a row */
    int64_t stride; /* floats between rows of b, and of to */
    const float *a, *b;
    float *to;
    const int16_t *first, *last;
} backward_product;

/* Of a head of k of a sequence rows, as in attention_tile, or keys first..first + count - 1. */
typedef struct backward_tile {
    rope_attention_sequence s;
    int64_t head, first, count;
    float *memory; /* of the thread's own */
    float *sums;   /* of dq of all rows of the head; NULL: others add to them */
    float *kept;   /* of dk of all its keys, which are stored at the end; NULL: by each tile */
    int in_turn;   /* 1: so do tiles of keys that other threads have */
} backward_tile;

struct backward_context;

typedef struct cpu_backward_kernel {
    const cpu_attention_kernel *attention; /* conversions, rotations, rows of q */
    /* Sum of the products of n elements. */
    float (*dot)(const float *a, const float *b, int n);
    /* Panels of `count` rows of n floats. */
    void (*pack)(const float *rows, int count, int n, int64_t stride, float *panels);
    /* Weights of a cell and, where wanted, gradients of its scores: 0 of keys that a row does not
     * see. */
    void (*weigh)(backward_cell *cell, int gradients);
    void (*add)(const backward_product *product);
    /* dq of a tile of rows in another way, dk and dv of a tile of keys that queries may see; NULL:
     * by the functions above. */
    void (*rows_tile)(const struct backward_context *b, const backward_tile *tile);
    void (*keys_tile)(const struct backward_context *b, const backward_tile *tile);
} cpu_backward_kernel;

/* Where a workspace has what. */
typedef struct backward_workspace {
    char *queries;      /* [row of q][token][head of q][head_dim], of dtype, rotated; NULL: none */
    char *keys;         /* as in attention_workspace */
    backward_row *rows; /* of a sequence and a head of k side by side */
    char *tiles;        /* of threads, tile_bytes each */
    int64_t tile_bytes; /* for cells */
    int64_t left;       /* bytes from tiles to the workspace's end */
    size_t bytes;       /* of all with one thread; SIZE_MAX: they overflow */
} backward_workspace;

typedef struct backward_context {
    attention_context ctx, back;
    rope_attention_problem transposed; /* of back */
    const rope_attention_backward_call *given;
    const cpu_backward_kernel *kernel;
    backward_workspace workspace;
    int64_t tile;       /* rows or keys of one, at most */
    int balances;       /* as cells do */
    int64_t sum_bytes;  /* of the sums of dq of a head; 0: each task has a tile alone */
    int64_t kept_bytes; /* of those of dk behind them */
    float *shared;   /* sums of all heads, to which tiles of keys add; NULL: each thread has one */
    int64_t next[2]; /* tasks that no thread has taken: tiles of rows, others */
} backward_context;

extern const cpu_backward_kernel cpu_backward_scalar;
extern const cpu_backward_kernel cpu_backward_avx2;
extern const cpu_backward_kernel cpu_backward_avx512;
extern const cpu_backward_kernel cpu_backward_avx512_bf16;
extern const cpu_backward_kernel cpu_backward_amx;
extern const cpu_backward_kernel cpu_backward_neon;
extern const cpu_backward_kernel cpu_backward_reference;

rope_status cpu_backward_workspace(const void *problem, const void *kernel, const void *bounds,
                                   size_t *bytes);
backward_workspace backward_workspace_of(const rope_attention_problem *problem,
                                         const rope_attention_call *call, void *workspace);

/* Runs a kernel over a whole call: the run of every candidate of "attention_backward". */
rope_status cpu_backward_call(const void *problem, const void *kernel, const void *call,
                              void *workspace, void *stream);

/* Most rows or keys of a tile, and bytes of a thread's memory for its cells. */
int64_t backward_tile_size(const rope_attention_problem *problem);
int64_t backward_tile_bytes(const rope_attention_problem *problem);
/* Whether gradients of scores balance: in 16 bits. */
CPU_INLINE int backward_balances(const rope_attention_problem *problem) {
    return problem->rope.dtype != ROPE_F32;
}
/* Floats of the sums of a row of dq, or of dk. */
int64_t backward_row_sums(const rope_attention_problem *problem);
void backward_rows_tile(const backward_context *b, const backward_tile *tile);
void backward_keys_tile(const backward_context *b, const backward_tile *tile);
/* Ends rows first..first + count - 1 of a head from their sums, and keys. */
void backward_store_rows(const backward_context *b, const backward_tile *tile);
void backward_store_keys(const backward_context *b, const backward_tile *tile);
/* Adds what the keys of a cell give to a row; first: of these keys. */
void backward_add_share(backward_row *row, const backward_share *share, int64_t first);
/* What the gradient of the score of a row's share.key lacks, which is not -1. */
float backward_lacking(const backward_context *b, const attention_tile *t, int64_t row);

/* Index of a row in lists over [row of q][token][head of q], by their strides. */
CPU_INLINE int64_t backward_row_at(const backward_context *b, const attention_tile *t, int64_t row,
                                   const int64_t *stride) {
    return t->s.q_row * stride[0] +
           (t->s.q_first + attention_query_of(&b->ctx, t, row)) * stride[1] +
           attention_head_of(&b->ctx, t, row) * stride[2];
}

/* n elements of a row of dout, out or rotated q, as fp32. */
void backward_load_row(const backward_context *b, const attention_tile *t, int64_t row,
                       const void *data, const int64_t *stride, int n, float *to);
/* The same as cells have them. */
void backward_load_cell(const backward_context *b, const attention_tile *t, int64_t row,
                        const void *data, const int64_t *stride, int n, float *to);
/* n elements side by side become a row of a cell. */
void backward_load(const backward_context *b, const char *from, int n, float *to);
float backward_lse(const backward_context *b, const attention_tile *t, int64_t row);
/* What is kept of a row, with those of the others of its head of k behind it. */
CPU_INLINE backward_row *backward_row_of(const backward_context *b, const attention_tile *t,
                                         int64_t row) {
    const int64_t heads = b->ctx.call->rope.tensor[0].heads;
    return b->workspace.rows + (t->s.q_row * b->ctx.call->rope.tokens + t->s.q_first) * heads +
           t->head * t->s.q_count * b->ctx.group + t->first + row;
}

/* A row of dq, and dk and dv of a key (NULL: not wanted), rounded to dtype. */
void backward_store_query(const backward_context *b, const attention_tile *t, int64_t row,
                          const float *dq);
void backward_store_key(const backward_context *b, const backward_tile *t, int64_t key,
                        const float *dk, const float *dv);
/* Rotates back what a tile of rows stored, or one of keys. */
void backward_rotate_rows(const backward_context *b, const backward_tile *t);
void backward_rotate_keys(const backward_context *b, const backward_tile *t);

#endif
