/* Outputs of attention: bit for bit beside its steps, and a sample of rows in double. */
#ifndef ROPEKIT_BENCH_ATTENTION_CHECK_H
#define ROPEKIT_BENCH_ATTENTION_CHECK_H

#include "bench/workload/check_result.h"
#include "bench/workload/workload_set.h"

/* Runs the call over set 0, then its steps over the same memory, and compares what they wrote; then
 * the rows of a sample, or all where `whole`. False after a message, also where there is nothing to
 * compare. */
bool attention_check(workload *w, bool whole, check_result *result);

#endif
