/* Named lists of cases, each written as the options that repeat it. */
#ifndef ROPEKIT_BENCH_SUITES_H
#define ROPEKIT_BENCH_SUITES_H

#include "bench/options.h"

typedef struct bench_case {
    const char *settings; /* "--tokens=1 ..." */
    options o;
} bench_case;

/* Appends the cases of a suite, or of all, over the base options; their number, or -1 after a
 * message. cases has room for SUITE_CASES_MOST. */
#define SUITE_CASES_MOST 160
int32_t suite_expand(const char *name, const options *base, bool gpu, bench_case *cases);

#endif
