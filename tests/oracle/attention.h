/*
 * What rope_attention gives, in double, by attention.h alone: sequences, masks pair by pair, where
 * elements lie, and the softmax. Rotated queries and keys are the caller's to give. What it is
 * given must be valid but for values in memory, and every pointer of a call is host memory.
 */
#ifndef ROPEKIT_ORACLE_ATTENTION_H
#define ROPEKIT_ORACLE_ATTENTION_H

#include <ropekit/attention.h>

enum { ORACLE_Q = 0, ORACLE_K = 1, ORACLE_V = 2 };

/* A call with its descriptor. */
typedef struct oracle_attention {
    const rope_attention_desc *desc;
    const rope_attention_args *args;
} oracle_attention;

/* A sequence: queries are tokens q_first.. of batch row q_row, keys the same of k_row. */
typedef struct oracle_part {
    int64_t index, q_row, q_first, q_count, k_row, k_first, k_count;
    int64_t k_begin; /* first key that is there: a ring has the last ones */
    int32_t fails;   /* 1: a length or a boundary is out of range */
} oracle_part;

int64_t oracle_attention_parts(const oracle_attention *o);
oracle_part oracle_attention_part(const oracle_attention *o, int64_t index);

int64_t oracle_attention_head_dim(const oracle_attention *o, int32_t tensor);
int64_t oracle_attention_heads(const oracle_attention *o, int32_t tensor);
/* Keys of a batch row, or the most of a sequence. */
int64_t oracle_attention_key_tokens(const oracle_attention *o);

/* Where the position id of query or key i lies, in entries of its array, which is there. */
int64_t oracle_attention_id_at(const oracle_attention *o, const oracle_part *s, int32_t tensor,
                               int64_t i, int32_t axis);
/* Position of query or key i on an axis, and the length that chooses a longrope list. */
int64_t oracle_attention_position(const oracle_attention *o, const oracle_part *s, int32_t tensor,
                                  int64_t i, int32_t axis);
int64_t oracle_attention_length(const oracle_attention *o, const oracle_part *s);

/* The first key that counts by its position id: of a tree with a window or chunks. k_count or more:
 * none does. */
int64_t oracle_attention_by_id(const oracle_attention *o, const oracle_part *s);
/* What a window and chunks take for the index of query or key i. */
int64_t oracle_attention_counted(const oracle_attention *o, const oracle_part *s, int32_t tensor,
                                 int64_t i);

/* Whether query i may see key j; in_range: whatever the bits and the position ids of a tree are. */
int oracle_attention_in_range(const oracle_attention *o, const oracle_part *s, int64_t i,
                              int64_t j);
int oracle_attention_sees(const oracle_attention *o, const oracle_part *s, int64_t i, int64_t j);

/* Where element e of a head of query, key or value i lies: an array of `dtype`, and its scale. */
typedef struct oracle_element {
    void *array;
    int64_t at;
    int32_t dtype;
    float *scale;      /* NULL: none */
    int32_t has_place; /* 0: the cache does not have its page; array is not to be read */
} oracle_element;
oracle_element oracle_attention_at(const oracle_attention *o, const oracle_part *s, int32_t tensor,
                                   int64_t i, int64_t head, int64_t e);
/* Its number, of dtype. */
double oracle_attention_load(const oracle_attention *o, const oracle_element *e);
/* Where entry `key` of a sequence's row of block_table lies there, in entries. */
int64_t oracle_attention_table_at(const oracle_attention *o, const oracle_part *s, int64_t key);

/* Where results lie, in elements. */
int64_t oracle_attention_out_at(const oracle_attention *o, const oracle_part *s, int64_t i,
                                int64_t head, int64_t e);
int64_t oracle_attention_lse_at(const oracle_attention *o, const oracle_part *s, int64_t i,
                                int64_t head);
int64_t oracle_attention_bits_at(const oracle_attention *o, const oracle_part *s, int64_t i);

/* A row of results. */
typedef struct oracle_row {
    int32_t known; /* 0: all is allowed: a score or a sink that counts is no finite number, or
                      scores are too large for fp32 to tell apart */
    int64_t keys;  /* that the query sees */
    double logits; /* largest scale * sum of |q k| of a key */
    double lse;
    double value[ROPE_MAX_ATTENTION_HEAD_DIM];     /* NaN: all is allowed */
    double weight[ROPE_MAX_ATTENTION_HEAD_DIM];    /* sum of p |v| */
    double magnitude[ROPE_MAX_ATTENTION_HEAD_DIM]; /* sum of |v| */
} oracle_row;

/* Query i and a head of it; k and v: its head of the keys from k_begin on, `stride` elements apart.
 */
typedef struct oracle_heads {
    const double *q, *k, *v;
    int64_t k_stride, v_stride;
} oracle_heads;
void oracle_attention_row(const oracle_attention *o, const oracle_part *s, int64_t i, int64_t head,
                          const oracle_heads *heads, oracle_row *row);

double oracle_attention_scale(const oracle_attention *o);
/* The score of a key; row->logits grows to what its products reach. */
double oracle_attention_score(const oracle_attention *o, const double *q, const double *k,
                              oracle_row *row);
/* How far a score may be off: a chain of head_dim products of any order, scale, cap, exponent. */
double oracle_attention_score_error(const oracle_attention *o, const oracle_row *row);
/* -INFINITY without one. */
double oracle_attention_sink(const oracle_attention *o, int64_t head, oracle_row *row);

/* How far element e of a row may be off, and lse: docs/numerics.md. */
double oracle_attention_bound(const oracle_attention *o, const oracle_row *row, int64_t e);
double oracle_attention_lse_bound(const oracle_attention *o, const oracle_row *row);
/* What an element may lose by weights that become 0 or are rounded as subnormal numbers. */
double oracle_attention_flushed(const oracle_attention *o, const oracle_row *row, int64_t e);
/* How large the root mean square of errors may be over that of weights, of as many rows and with
 * logits as large, but for what is flushed. */
double oracle_attention_rms_bound(const oracle_attention *o, double logits, double rows);

#endif
