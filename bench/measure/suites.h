/* Named lists of cases, each written as the options that repeat it. */
#ifndef ROPEKIT_BENCH_SUITES_H
#define ROPEKIT_BENCH_SUITES_H

#include "bench/options/options.h"

typedef struct bench_case {
    const char *suite;    /* NULL outside a suite */
    const char *label;    /* model, rule or "" */
    const char *settings; /* "--tokens=1 ..." */
    options o;
} bench_case;

/* Suite of errors, which `ropekit accuracy` measures; it has no cases. */
#define SUITE_ACCURACY "accuracy"

/* Appends the cases of a suite, or of all, over the base options; their number, or -1 after a
 * message. cases has room for SUITE_CASES_MOST. */
#define SUITE_CASES_MOST 1024
int32_t suite_expand(const char *name, const options *base, bool gpu, bench_case *cases);
/* As suite_expand: calls of attention and of its backward that `ropekit tune` times, from small to
 * large where they differ in tokens alone. */
int32_t suite_expand_tuning(const options *base, bool gpu, bench_case *cases);
/* The index-th name that suite_expand takes, "all" the last, or NULL past it. */
const char *suite_name(int32_t index);
/* Headings of label, tokens, head_dim and dtype in a suite's table, separated by '|'; what does not
 * vary in the suite is empty. */
const char *suite_headings(const char *name);

#endif
