/* Results against the oracle. */
#ifndef ROPEKIT_BENCH_CHECK_H
#define ROPEKIT_BENCH_CHECK_H

#include "bench/progress.h"
#include "bench/workload.h"

typedef struct check_result {
    int64_t elements;
    int64_t refused;  /* elements outside their bound */
    int64_t steps;    /* append: elements compared with those of its steps, among the above */
    double max_error; /* largest absolute error of a finite element */
    double worst;     /* largest error over its bound; the element below is the one */
    double bound, got, value;
    int32_t tensor; /* 0: q, 1: k, 2: v */
    int64_t batch, token, head, dim;
} check_result;

/* Compares what workload_fetch brought, for the listed tokens of every batch row, or all where
 * tokens is NULL. False after a message, also where there is nothing to compare. */
bool check_workload(const workload *w, const int64_t *tokens, int64_t count, progress *bar,
                    check_result *result);
/*
 * Runs the call once over set 0 and compares: all of a row where `whole`, else a sample: the first
 * token, the last and random ones between. That of append is compared bit for bit with its steps,
 * one after the other, and rope_apply, which is one of them, with the oracle. False after a
 * message.
 */
#define CHECK_SAMPLE 16
bool check_call(workload *w, const options *o, bool whole, progress *bar, check_result *result);

#endif
