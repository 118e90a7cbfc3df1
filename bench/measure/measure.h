/*
 * How a kernel is timed: in every round the kernel, rope_apply and each copy (in place: update)
 * kernel of the backend over the same bytes, the latter before and after. The fastest by its median
 * is the floor; ratios are taken within a round, so that drift of the clock cancels. Behind
 * rope_apply the first copy kernel is submitted as often, without a graph, for the host's time.
 * Where CPU kernels may use several threads, a round ends with the kernel by one. Where a call has
 * steps that do the same one after the other, every round has them too, behind the call and ahead
 * of it alternately; their time is the sum of the steps'. So is that of a call and its backward,
 * which are two. Of something beside it the call's time is a multiple: of the steps that attend on
 * rotated inputs, and of rope_apply of as many bytes as append moves for few tokens.
 */
#ifndef ROPEKIT_BENCH_MEASURE_H
#define ROPEKIT_BENCH_MEASURE_H

#include "bench/operation/workload.h"
#include "bench/output/progress.h"

/* Median and quartiles. */
typedef struct summary {
    double median, low, high;
} summary;

typedef struct measurement {
    const char *floor_kernel;
    summary kernel, apply, floor;           /* seconds of one run */
    summary kernel_ratio, apply_ratio;      /* floor's seconds over the kernel's: 1 is the floor */
    summary self_ratio;                     /* floor before over floor after: how far 1 is from 1 */
    summary speedup;                        /* seconds by one thread over the kernel's, or 0 */
    summary steps, steps_apply;             /* seconds of the steps: kernels, and calls; or 0 */
    summary steps_ratio, steps_apply_ratio; /* floor's seconds over theirs */
    summary gain;                           /* the steps' seconds over the kernel's, or 0 */
    double steps_host;                      /* as host_seconds */
    summary beside, beside_apply;           /* seconds of the call beside it, or 0 */
    summary beside_ratio, beside_apply_ratio; /* floor's seconds over these */
    summary multiple; /* the kernel's seconds over those of the one beside it, or 0 */
    double beside_host;
    double host_seconds;   /* the host's time for one rope_apply */
    double launch_seconds; /* the same for the backend's first copy kernel */
    int64_t rounds, iterations;
} measurement;

/* Sets of tensors that leave the last-level cache between two visits; 1 for a warm workload. */
int64_t measure_sets(const options *o, const rope_device_info *info, size_t tensor_bytes);
/* Bytes of cos and sin that a call reads once: a row for every position of its own. */
size_t measure_table_bytes(const workload *w, const options *o);
/* Takes up to `rounds` rounds; fewer after SIGINT, or of attention where they take long. False
 * after a message, or without a round. */
bool measure_run(const workload *w, int64_t rounds, progress *bar, const char *label,
                 measurement *m);
/* Steps of progress that measure_run takes. */
int64_t measure_steps(int64_t rounds);

#endif
