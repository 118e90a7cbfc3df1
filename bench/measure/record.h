/*
 * The results of a command as one JSON document, which
 * bench/python/ropekit_bench/results.schema.json defines.
 */
#ifndef ROPEKIT_BENCH_RECORD_H
#define ROPEKIT_BENCH_RECORD_H

#include "bench/check/check.h"
#include "bench/measure/measure.h"
#include "bench/workload/target.h"

#include <cjson/cJSON.h>

#define RECORD_SCHEMA "ropekit-results"
#define RECORD_VERSION 3

typedef struct record_list {
    cJSON *document, *records;
} record_list;

/* Starts a document; device may be NULL. */
void record_begin(record_list *list, const char *command, const options *o,
                  const rope_device_info *device);
/* Adds an empty record. */
cJSON *record_add(record_list *list);
/* Adds one with the name of a case, the command that repeats it and its kernel. */
cJSON *record_named(record_list *list, const options *o, const char *command, const char *kernel);
/* Adds the effective values of what was rotated. */
void record_shape(cJSON *record, const options *o);
/* Adds those of the heads of a kind of layer alone. */
void record_layer(cJSON *record, const options *o);
/* Adds a record with a case's suite, label, options and shape. */
cJSON *record_case(record_list *list, const options *o);
/* Adds a measurement whose output was compared with the oracle. */
void record_measurement(record_list *list, const options *o, const workload *w,
                        const measurement *m, const check_result *checked);
/* States what the oracle found. */
void record_check(cJSON *record, const check_result *r);

/* Whether --output can be written, to be known before anything is measured; false after a message.
 * Leaves what is there as it is. Allowed is a regular file or none. */
bool record_check_output(const options *o);
/* Replaces --output by what there is so far; false after a message. */
bool record_save(const record_list *list, const options *o);
/* Where the command is done, writes the document to stdout with --json and to --output; false where
 * it is not, or after a message. Releases it. */
bool record_end(record_list *list, const options *o, bool done);

#endif
