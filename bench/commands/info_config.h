/* What a configuration says of each kind of its layers. */
#ifndef ROPEKIT_BENCH_INFO_CONFIG_H
#define ROPEKIT_BENCH_INFO_CONFIG_H

#include "bench/measure/record.h"

/* Prints and records the kinds of --config; false after a message. */
bool info_config(const options *o, record_list *list, FILE *file);

#endif
