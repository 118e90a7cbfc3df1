/* Errors of angles by position. */
#ifndef ROPEKIT_BENCH_BY_POSITION_H
#define ROPEKIT_BENCH_BY_POSITION_H

#include "bench/measure/record.h"

/* Measures the options' frequency rule at positions below 1K to 2^36, adds records and prints a
 * table. False after a message. */
bool by_position(const options *o, const target *t, record_list *list, FILE *file);

#endif
