/* Cases checked, timed and recorded. */
#ifndef ROPEKIT_BENCH_COMMANDS_BENCH_H
#define ROPEKIT_BENCH_COMMANDS_BENCH_H

#include "bench/workload/target.h"

/* Checks and times the cases, or with --list prints them; the exit status. */
int bench_cases(const char *command, const options *o, const target *t, options *cases,
                int32_t count);

#endif
