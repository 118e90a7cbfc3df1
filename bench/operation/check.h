/* Results against the oracle. */
#ifndef ROPEKIT_BENCH_CHECK_H
#define ROPEKIT_BENCH_CHECK_H

#include "bench/operation/workload.h"
#include "bench/workload/check_result.h"

/*
 * Runs the call once over set 0 and compares: all of a row where `whole`, else a sample: the first
 * token, the last and random ones between. That of append and of attention is compared bit for bit
 * with its steps, one after the other; rope_apply, which is one of them, and those of attention on
 * rotated inputs with the oracle. False after a message.
 */
#define CHECK_SAMPLE 16
bool check_call(workload *w, const options *o, bool whole, check_result *result);

#endif
