/* Positions and tables of a call. */
#ifndef ROPEKIT_BENCH_PLACEMENT_H
#define ROPEKIT_BENCH_PLACEMENT_H

#include "bench/options/options.h"
#include "bench/workload/staging.h"

/* Makes the index arrays and tables that the options ask for, in host memory and on the device.
 * Takes the frequency rule out of desc where angle_mode is table. False after a message. */
bool placement_create(staging *s, const options *o, rope_desc *desc, rope_args *host,
                      rope_args *device);

/* All of `count` pages in an order that engines leave them in; NULL after a message. */
int64_t *placement_pages(staging *s, int64_t count, int64_t seed);

/* Places index values as ROPE_I32 or, unless that is asked for, ROPE_I64; count 0 leaves both
 * pointers as they are. False after a message. */
bool placement_indices(staging *s, int32_t dtype, const char *name, const int64_t *values,
                       int64_t count, const void **host, const void **device);

#endif
