/* The table of a suite, with the columns its readers know. */
#ifndef ROPEKIT_BENCH_SUITE_TABLE_H
#define ROPEKIT_BENCH_SUITE_TABLE_H

#include "bench/measure/measure.h"
#include "bench/measure/suites.h"
#include "bench/output/table.h"

typedef struct suite_table {
    table t;
    const char *suite; /* NULL: a case of the command line */
    bool append;       /* cases may have steps */
    bool attention, backward;
    double first;        /* rules: seconds of the first row */
    double worst_repeat; /* largest of |self_ratio - 1| */
    double least, most;  /* speedup by threads */
    int64_t rows;
} suite_table;

/* For the suite of a case; NULL: no rows will come. */
void suite_table_begin(suite_table *s, const bench_case *first);
void suite_table_add(suite_table *s, const bench_case *c, const char *kernel, const workload *w,
                     const measurement *m);
/* Prints the rows and how far the floor disagreed with itself; releases the table. */
void suite_table_end(suite_table *s, FILE *file);

#endif
