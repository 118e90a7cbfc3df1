/* The variables of the environment that the library reads. */
#ifndef ROPEKIT_BENCH_VARIABLES_H
#define ROPEKIT_BENCH_VARIABLES_H

#include "bench/options.h"
#include "bench/record.h"

/* Whether each value is of use: false after a message for the first that is none, ROPE_BACKEND
 * last, as it depends on the others; that does not count beside --backend. */
bool variables_check(const options *o);

/* Tells those that are set and what each selects, and those named ROPE_ that nothing reads. */
void variables_print(record_list *list, FILE *file);

#endif
