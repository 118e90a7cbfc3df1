/* Errors by position and by angle mode. */
#ifndef ROPEKIT_BENCH_ACCURACY_H
#define ROPEKIT_BENCH_ACCURACY_H

#include "bench/measure/record.h"

/* Measures the options' frequency rule on a device, adds records and prints a table. Reduces the
 * options to one head; false after a message. */
bool accuracy_measure(options *o, const target *t, record_list *list, FILE *file);

#endif
