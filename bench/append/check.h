/* Outputs of append, bit for bit. */
#ifndef ROPEKIT_BENCH_APPEND_CHECK_H
#define ROPEKIT_BENCH_APPEND_CHECK_H

#include "bench/workload/check_result.h"
#include "bench/workload/workload_set.h"

/* Runs the call over set 0, then its steps one after the other over the same memory, and compares
 * everything that either wrote. False after a message, also where there is nothing to compare. */
bool append_check(workload *w, check_result *result);

#endif
