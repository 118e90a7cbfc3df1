/* Reads one option's value into its field. */
#ifndef ROPEKIT_BENCH_OPTION_VALUE_H
#define ROPEKIT_BENCH_OPTION_VALUE_H

#include "bench/options/option_fields.h"
#include "bench/options/options.h"

/* Stores value (NULL for a flag) in the field; false after a message on stderr. */
bool option_store(options *o, const option_field *field, const char *value);

#endif
