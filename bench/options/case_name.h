/* Fields as values, and a case as the options that make it. */
#ifndef ROPEKIT_BENCH_CASE_NAME_H
#define ROPEKIT_BENCH_CASE_NAME_H

#include "bench/options/options.h"

#include <cjson/cJSON.h>

/* A field's value: a string, a number as text, a boolean or an array; NULL where it was not given.
 */
cJSON *options_value(const options *o, const option_field *field);
/* The options that make a case, whatever named its values: all that are not usual. NULL: no memory.
 */
const char *case_name(const options *o);
/* The command line of a shell that repeats a case on the opened backend. NULL: no memory. */
const char *case_command(const options *o, const char *command);

#endif
