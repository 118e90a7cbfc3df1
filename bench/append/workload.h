/* A workload of the operation "append": its sets, then its steps and its rotation alone. */
#ifndef ROPEKIT_BENCH_APPEND_WORKLOAD_H
#define ROPEKIT_BENCH_APPEND_WORKLOAD_H

#include "bench/append/set.h"

bool append_create(workload *w, const options *o);
/* Writes the image over set 0; false after a message. */
bool append_restore(const workload *w);

#endif
