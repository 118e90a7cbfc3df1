/* Positions and tables of a workload's call. */
#ifndef ROPEKIT_BENCH_PLACEMENT_H
#define ROPEKIT_BENCH_PLACEMENT_H

#include "bench/workload.h"

/* Makes the index arrays and tables that the options ask for: host pointers go to w->host, device
 * pointers to args. Takes the frequency rule out of w->desc where angle_mode is table. */
bool placement_create(workload *w, const options *o, rope_args *args);
/* Copies bytes to memory of the device that the workload owns. */
bool workload_place(workload *w, const void *host, size_t bytes, const void **device);

#endif
