/* A workload of the operation "attention" and its backward. */
#ifndef ROPEKIT_BENCH_ATTENTION_WORKLOAD_H
#define ROPEKIT_BENCH_ATTENTION_WORKLOAD_H

#include "bench/attention/set.h"

bool attention_create(workload *w, const options *o);
/* Whether the kernel of the options, or any, takes them. */
bool attention_accepts(const options *o);

#endif
