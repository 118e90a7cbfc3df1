/* Results against the oracle. */
#ifndef ROPEKIT_BENCH_CHECK_H
#define ROPEKIT_BENCH_CHECK_H

#include "bench/progress.h"
#include "bench/workload.h"

typedef struct check_result {
    int64_t elements;
    int64_t refused;  /* elements outside their bound */
    int64_t steps;    /* append, attention: elements compared with those of steps, among these */
    double max_error; /* largest absolute error of a finite element */
    double worst;     /* largest error over its bound; the element below is the one */
    double bound, got, value;
    int32_t tensor; /* 0: q, 1: k, 2: v, 3: out */
    int64_t batch, token, head, dim;
} check_result;

extern const char *const check_tensors[]; /* their names */

/* Where an element lies. */
typedef struct check_place {
    int32_t tensor;
    int64_t batch, token, head, dim;
} check_place;
/* Compares an element of dtype with its true value. */
void check_element(check_result *r, int32_t dtype, const check_place *at, double got, double value,
                   double bound);

/* Compares what workload_fetch brought, for the listed tokens of every batch row, or all where
 * tokens is NULL. False after a message, also where there is nothing to compare. */
bool check_workload(const workload *w, const int64_t *tokens, int64_t count, progress *bar,
                    check_result *result);
/*
 * Runs the call once over set 0 and compares: all of a row where `whole`, else a sample: the first
 * token, the last and random ones between. That of append and of attention is compared bit for bit
 * with its steps, one after the other; rope_apply, which is one of them, and attention's last with
 * the oracle. False after a message.
 */
#define CHECK_SAMPLE 16
bool check_call(workload *w, const options *o, bool whole, progress *bar, check_result *result);

#endif
