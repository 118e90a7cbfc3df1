/* A set of the operation "rope": q and k, in place or not. */
#ifndef ROPEKIT_BENCH_ROPE_WORKLOAD_H
#define ROPEKIT_BENCH_ROPE_WORKLOAD_H

#include "bench/workload/workload_set.h"

bool rope_workload_create(workload *w, const options *o);
/* Bytes that a call reads, and as many that it writes. */
size_t rope_workload_bytes(const options *o);
/* Copies the outputs of set 0 to the host. */
bool rope_workload_fetch(workload *w);

#endif
