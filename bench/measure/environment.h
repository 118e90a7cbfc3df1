/* What a result depends on beside the library: host, threads, driver. */
#ifndef ROPEKIT_BENCH_ENVIRONMENT_H
#define ROPEKIT_BENCH_ENVIRONMENT_H

#include "bench/options/options.h"

#include <cjson/cJSON.h>

/* Adds "build" and "host" to a document. */
void environment_add(cJSON *document);
/* Adds to a document's "device" its driver, where known. */
void environment_add_driver(cJSON *device);

#endif
