/*
 * How a case is timed: in every round its kernels, its public calls and each copy (in place:
 * update) kernel of the backend over the same bytes, the latter before and after. The fastest copy
 * by its median is the floor; ratios are taken within a round, so that drift of the clock cancels.
 * The time of several calls is the sum of theirs.
 */
#ifndef ROPEKIT_BENCH_MEASURE_H
#define ROPEKIT_BENCH_MEASURE_H

#include "bench/workload/workload.h"

/* Median and quartiles. */
typedef struct summary {
    double median, low, high;
} summary;

typedef struct measurement {
    const char *floor_kernel;
    summary floor;                     /* seconds of one copy */
    summary self_ratio;                /* floor before over floor after: how far 1 is from 1 */
    summary kernel, apply;             /* seconds of one run */
    summary kernel_ratio, apply_ratio; /* the floor's seconds over these: 1 is the floor */
    summary host;                      /* the host's seconds for one run of the calls */
    int64_t rounds, iterations;
} measurement;

/* Sets of tensors that leave the last-level cache between two visits; 1 for a warm workload. */
int64_t measure_sets(const options *o, const rope_device_info *info, size_t tensor_bytes);
/* Bytes of cos and sin that a call reads once: a row for every position of its own. */
size_t measure_table_bytes(const workload *w, const options *o);
/* Takes `rounds` rounds, or of attention fewer where they take long. False after a message. */
bool measure_run(const workload *w, int64_t rounds, measurement *m);

/* Seconds of a clock that does not jump. */
double measure_now(void);
/* Sorts the values. */
summary measure_summary(double *values, int64_t count);

#endif
