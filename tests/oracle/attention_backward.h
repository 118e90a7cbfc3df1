/*
 * What rope_attention_backward gives, in double, by the sums of attention.h alone: from rotated
 * tensors, and ahead of the rotation's transpose.
 */
#ifndef ROPEKIT_ORACLE_ATTENTION_BACKWARD_H
#define ROPEKIT_ORACLE_ATTENTION_BACKWARD_H

#include "tests/oracle/attention.h"

/* A sum, 0 at first: NaN allows all. */
typedef struct oracle_sum {
    double value;
    double error;     /* of its terms, as far as they may be off */
    double magnitude; /* sum of the terms' magnitudes */
    double weight;    /* the same, of all products in a term */
    double unscaled;  /* as magnitude, without the scale of scores */
    double flushed;   /* of error, what comes of numbers below 2^-126 that are taken for 0 */
    int64_t terms;
} oracle_sum;

/* Gradients that query i and a head of it add to: its own dq, dk and dv of its head of keys
 * first..last - 1, as far apart as those of oracle_heads. What is NULL is not wanted. */
typedef struct oracle_gradients {
    oracle_sum *dq, *dk, *dv, *dsink;
    int64_t first, last; /* both 0: all; of others dq and dsink are not wanted */
} oracle_gradients;

/* What else a row reads. */
typedef struct oracle_results {
    const double *dout, *out;
    double lse;
    const double *out_error; /* how far what a kernel reads may be off; NULL: not at all */
    double lse_error;
    int32_t balances; /* 1: in 16 bits the gradient of a weight near 1 is made from the others' */
} oracle_results;

/* Returns oracle_row.logits, the magnitude of lse and, as 2^-24ths, what of a score's error comes
 * of numbers that are taken for 0; 0 of a row that is not known. */
double oracle_attention_backward_row(const oracle_attention *o, const oracle_part *s, int64_t i,
                                     int64_t head, const oracle_heads *heads,
                                     const oracle_results *results, const oracle_gradients *to);

/* How far an element may be off that is a sum rounded to a type, with `by_heads` of sums of query
 * heads that are so rounded themselves: docs/numerics.md. */
double oracle_sum_bound(int32_t dtype, const oracle_sum *sum, int by_heads);

#endif
