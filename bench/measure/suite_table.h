/* The table of a suite. */
#ifndef ROPEKIT_BENCH_SUITE_TABLE_H
#define ROPEKIT_BENCH_SUITE_TABLE_H

#include "bench/measure/measure.h"
#include "bench/output/table.h"

typedef struct suite_table {
    table t;
    const char *suite;   /* NULL: cases of the command line */
    double worst_repeat; /* largest of |self_ratio - 1| */
    int64_t rows;
} suite_table;

void suite_table_begin(suite_table *s, const char *suite);
void suite_table_add(suite_table *s, const options *o, const workload *w, const measurement *m);
/* Prints the rows and how far the floor disagreed with itself; releases the table. */
void suite_table_end(suite_table *s, FILE *file);

#endif
