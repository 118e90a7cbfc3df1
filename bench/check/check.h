/* Results against the oracle. */
#ifndef ROPEKIT_BENCH_CHECK_H
#define ROPEKIT_BENCH_CHECK_H

#include "bench/workload/workload.h"

/*
 * Runs the case once over set 0 and compares: all of a row where `whole`, else a sample of tokens,
 * the first and the last among them. Rotations and appends are compared with 256-bit arithmetic.
 * Attention is compared bit for bit with its steps and, of queries and keys that rope_apply
 * rotated, with the softmax and its gradients in double. False after a message, also where there is
 * nothing to compare.
 */
bool check_call(workload *w, bool whole, check_result *result);

/* Of attention alone. */
bool check_attention(workload *w, bool whole, check_result *result);
/* Writes that nothing was checked; false. */
bool check_nothing(void);

#endif
