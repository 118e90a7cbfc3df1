/*
 * The results of a command as one JSON document, schema "ropekit-results", version 1:
 *
 *   schema, version     "ropekit-results", 1
 *   command             info, verify, accuracy, bench or demo
 *   library, compiler   version of libropekit; compiler of the tool
 *   time                UTC, ISO 8601
 *   seed, threads       of the data; OpenMP threads
 *   device              backend, index, name, features, memory_bytes, cache_bytes, compute_units
 *   host                cpu (model), mhz (of the first core when the command ended, where known)
 *   records             list of objects, one a result
 *
 * Every record names its "case" (options that repeat it) and "kernel". Records of
 *
 *   bench, demo  measure (kernel: bound kernel alone, apply: rope_apply), cache (warm, cold), bytes
 *                (read and written), rounds, iterations (runs in one look at the clock),
 *                seconds {median, low, high} of one run with its quartiles, gb_per_second,
 *                floor {kernel, seconds {...}, gb_per_second}, ratio {...} (floor's seconds over
 *                seconds, within a round: 1 is the floor), self_ratio {...} (the floor before over
 *                the floor after), host_seconds (apply only: the host's time for one call)
 *   verify, demo elements, refused, max_error, worst (error over its bound) and, for that worst
 *                element, bound, tensor, batch, token, head, dim, got, value; passed
 *   accuracy     angle_mode, positions (all below), cos_sin_error (max, absolute), output_ulp (max,
 *                in units of the last place of the larger element of a pair), samples
 *   info         backend, status, reason, origin, devices, or device, choices, report
 */
#ifndef ROPEKIT_BENCH_RECORD_H
#define ROPEKIT_BENCH_RECORD_H

#include "bench/check.h"
#include "bench/measure.h"
#include "bench/options.h"
#include "bench/target.h"

#include <cjson/cJSON.h>

typedef struct record_list {
    cJSON *document, *records;
} record_list;

/* Starts a document; device may be NULL. */
void record_begin(record_list *list, const char *command, const options *o,
                  const rope_device_info *device);
/* Adds an empty record with its case and kernel. */
cJSON *record_add(record_list *list, const char *case_name, const char *kernel);
/* Adds the two records, kernel and apply, of a measurement. */
void record_measurement(record_list *list, const char *case_name, const char *kernel,
                        const options *o, const workload *w, const measurement *m);
void record_check(record_list *list, const char *case_name, const char *kernel,
                  const check_result *r);
/* Writes the document to stdout with --json and to --output; false after a message. Releases it. */
bool record_end(record_list *list, const options *o);

#endif
