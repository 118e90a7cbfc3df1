/* The variables of the environment that the library reads. */
#ifndef ROPEKIT_BENCH_VARIABLES_H
#define ROPEKIT_BENCH_VARIABLES_H

#include "bench/measure/record.h"
#include "bench/options/options.h"

/* Whether each value is of use: false after a message for the first that is none, ROPE_BACKEND
 * last, as it depends on the others. Beside --backend that is taken out of the environment. */
bool variables_check(const options *o);

/* Names on stderr those named ROPE_ that neither the library nor a backend opened so far reads. */
void variables_warn(void);

/* Tells those that are set and what each selects, and those that variables_warn names. */
void variables_print(record_list *list, FILE *file);

#endif
