/* Memory of one workload, on the host and on its device. */
#ifndef ROPEKIT_BENCH_STAGING_H
#define ROPEKIT_BENCH_STAGING_H

#include "bench/support/pool.h"

#include <ropekit/rope.h>

#include <stdbool.h>

#define STAGING_ALLOCATIONS 32

typedef struct staging {
    rope_device *device;
    pool host;
    void *allocations[STAGING_ALLOCATIONS];
    int32_t count;
} staging;

/* Whether count * size bytes fit this machine; else writes a message that names `what`. */
bool staging_fits(const char *what, int64_t count, size_t size);
/* Host memory, zeroed; NULL after a message. */
void *staging_host(staging *s, const char *what, int64_t count, size_t size);
/* Device memory; false after a message. */
bool staging_device(staging *s, size_t bytes, void **pointer);
/* A copy of host memory on the device; false after a message. */
bool staging_copy(staging *s, const void *host, size_t bytes, const void **device);
void staging_release(staging *s);

#endif
