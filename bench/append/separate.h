/* Norm, rotation and store, each a call of its own, that do together what one call of "append"
 * does. */
#ifndef ROPEKIT_BENCH_APPEND_SEPARATE_H
#define ROPEKIT_BENCH_APPEND_SEPARATE_H

#include "bench/append/set.h"

enum { STEP_NORM, STEP_ROTATION, STEP_STORE, STEPS };

/* Adds the call of a step that some tensor takes, over every set; false after a message. */
bool append_add_step(workload *w, int step);
/* Runs the steps on set 0; false after a message. */
bool append_run_steps(const workload *w);
/* Element i of an array of any type. */
double append_decode(int32_t dtype, const char *array, int64_t i);

#endif
