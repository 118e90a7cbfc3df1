/*
 * The results of a command as one JSON document, which docs/bench.md describes and
 * bench/python/ropekit_bench/results.schema.json defines.
 */
#ifndef ROPEKIT_BENCH_RECORD_H
#define ROPEKIT_BENCH_RECORD_H

#include "bench/measure/measure.h"
#include "bench/measure/suites.h"
#include "bench/operation/check.h"
#include "bench/options/options.h"
#include "bench/workload/target.h"

#include <cjson/cJSON.h>

#define RECORD_SCHEMA "ropekit-results"
#define RECORD_VERSION 2

typedef struct record_list {
    cJSON *document, *records;
} record_list;

/* Starts a document; device may be NULL. */
void record_begin(record_list *list, const char *command, const options *o,
                  const rope_device_info *device);
/* States the rounds that cases are asked for. */
void record_rounds(record_list *list, int64_t rounds);
/* States whether all cases of a suite were run; "" is that of cases outside suites. The document is
 * complete where every suite stated is, in this run or in those that it resumes. */
void record_suite(record_list *list, const char *suite, bool complete);
/* Adds an empty record with its case, the command that repeats it and its kernel, each unless NULL.
 */
cJSON *record_add(record_list *list, const char *case_name, const char *command,
                  const char *kernel);
/* Adds the effective values of what was rotated. */
void record_shape(cJSON *record, const options *o);
/* Adds those of the heads of a kind of layer alone. */
void record_layer(cJSON *record, const options *o);
/* Adds a record with a case's suite, label, settings and shape. */
cJSON *record_case(record_list *list, const bench_case *c);
/* Adds a measurement whose output was compared with the oracle. */
void record_measurement(record_list *list, const bench_case *c, const char *kernel,
                        const workload *w, const measurement *m, const check_result *checked);
/* States in a record with case and kernel what the oracle found. */
void record_check(cJSON *record, const check_result *r);
/* Whether --output can be written, to be known before anything is measured; false after a message.
 * Leaves what is there as it is. */
bool record_check_output(const options *o);
/* Writes what there is so far to --output, unless that is a stream; false after a message. */
bool record_save(const record_list *list, const options *o);
/* Writes the document to stdout with --json and to --output; false after a message. Releases it. */
bool record_end(record_list *list, const options *o);

#endif
