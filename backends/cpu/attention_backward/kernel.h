/*
 * What an instruction set offers the operation "attention_backward", and a call of it as its
 * threads share it.
 *
 * Order of arithmetic, which no schedule changes: rows go in tiles of backward_walk.rows, counted
 * from query 0 of a sequence, keys in tiles of backward_walk.keys, counted from key 0. A tile's
 * part of a sum is one chain, and parts are added in order.
 */
#ifndef ROPEKIT_CPU_ATTENTION_BACKWARD_KERNEL_H
#define ROPEKIT_CPU_ATTENTION_BACKWARD_KERNEL_H

#include "backends/cpu/attention/walk.h"

struct backward_walk;

/* Of a head of k of a sequence rows, as in attention_tile, or keys first..first + count - 1. */
typedef struct backward_tile {
    rope_attention_sequence s;
    int64_t head, first, count;
} backward_tile;

typedef struct cpu_backward_kernel {
    const cpu_attention_kernel *attention; /* conversions, rotations, rows of q */
    int64_t rows, keys;                    /* of a tile, at most */
    /* Sum of the products of n elements. */
    float (*dot)(const float *a, const float *b, int n);
    /* dq of a tile of rows. */
    void (*rows_tile)(const struct backward_walk *b, const backward_tile *tile);
    /* dk and dv of a tile of keys that queries may see, where they are wanted. */
    void (*keys_tile)(const struct backward_walk *b, const backward_tile *tile);
} cpu_backward_kernel;

typedef struct backward_walk {
    attention_walk w; /* its call reads rotated queries and keys */
    attention_walk back;
    rope_attention_call call;          /* of w and back */
    rope_attention_problem transposed; /* of back */
    const rope_attention_backward_call *given;
    const cpu_backward_kernel *kernel;
    float *delta;       /* [row of q][token][head of q]: <dout, out> */
    int64_t rows, keys; /* of a tile */
    int64_t next;       /* task that no thread has taken */
} backward_walk;

extern const cpu_backward_kernel cpu_backward_reference;

rope_status cpu_backward_workspace(const void *problem, const void *kernel, const void *bounds,
                                   size_t *bytes);

/* Where a workspace has what; bytes: of all, SIZE_MAX where they overflow. */
typedef struct backward_space {
    char *queries; /* [row of q][token][head of q][head_dim], of dtype, rotated; NULL: none */
    char *keys;    /* as in attention_space */
    float *delta;
    size_t bytes;
} backward_space;
backward_space backward_space_of(const rope_attention_problem *problem,
                                 const rope_attention_call *call, void *workspace);

/* Runs a kernel over a whole call: the run of every candidate of "attention_backward". */
rope_status cpu_backward_call(const void *problem, const void *kernel, const void *call,
                              void *workspace, void *stream);

/* Index of a row in lists over [row of q][token][head of q], by their strides. */
CPU_INLINE int64_t backward_row_at(const backward_walk *b, const attention_tile *t, int64_t row,
                                   const int64_t *stride) {
    return t->s.q_row * stride[0] + (t->s.q_first + attention_query_of(&b->w, t, row)) * stride[1] +
           attention_head_of(&b->w, t, row) * stride[2];
}

/* A row of dout or out, as fp32. */
void backward_load_row(const backward_walk *b, const attention_tile *t, int64_t row,
                       const void *data, const int64_t *stride, float *to);
/* A row's lse and delta. */
float backward_lse(const backward_walk *b, const attention_tile *t, int64_t row);
float *backward_delta(const backward_walk *b, const attention_tile *t, int64_t row);

/* Ends a row of dq: rounded to dtype, then rotated back. */
void backward_store_query(const backward_walk *b, const attention_tile *t, int64_t row,
                          const float *dq);
/* The same of dk and dv of a key; NULL: not wanted. */
void backward_store_key(const backward_walk *b, const backward_tile *t, int64_t key,
                        const float *dk, const float *dv);

#endif
