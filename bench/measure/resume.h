/* What an interrupted run measured, taken into the next one. */
#ifndef ROPEKIT_BENCH_RESUME_H
#define ROPEKIT_BENCH_RESUME_H

#include "bench/measure/record.h"

/* Moves records and suites of the document in --output to a list that was just begun. False after a
 * message: the file is unreadable, or its device, build, seed or arguments are not the list's. A
 * file that is not there is an empty one. Cases that were refused are left out, to be checked
 * again. */
bool resume_read(record_list *list, const options *o);
/* Whether the list holds a record of a suite with a member of this value. */
bool resume_holds(const record_list *list, const char *suite, const char *name, const char *value);

#endif
