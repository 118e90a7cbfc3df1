/* Named lists of cases. */
#ifndef ROPEKIT_BENCH_SUITES_H
#define ROPEKIT_BENCH_SUITES_H

#include "bench/options/options.h"

/* Calls of attention and of its backward that `ropekit tune` times, from small to large where they
 * differ in tokens alone. */
#define SUITE_TUNING "tuning"

/* Writes the cases of a suite, or of all but tuning, over the base options; their number, or -1
 * after a message. cases has room for SUITE_CASES_MOST. */
#define SUITE_CASES_MOST 1024
int32_t suite_expand(const char *name, const options *base, bool gpu, options *cases);
/* The index-th name that suite_expand takes, "all" the last, or NULL past it. */
const char *suite_name(int32_t index);

#endif
