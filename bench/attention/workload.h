/* A workload of the operation "attention" and its backward. */
#ifndef ROPEKIT_BENCH_ATTENTION_WORKLOAD_H
#define ROPEKIT_BENCH_ATTENTION_WORKLOAD_H

#include "bench/attention/set.h"

bool attention_create(workload *w, const options *o);
/* As workload_create, without calls, which attention_add_kernel adds; of a backward with the
 * forward, as call 0. For timing: host memory has no copy of the set. */
bool attention_create_tensors(workload *w, const options *o, rope_device *device, int64_t sets);

#endif
