/* Text tables: cells as they come, columns aligned when printed. */
#ifndef ROPEKIT_BENCH_TABLE_H
#define ROPEKIT_BENCH_TABLE_H

#include <stdint.h>
#include <stdio.h>

#define TABLE_COLUMNS 20

typedef struct table {
    char **cells; /* row by row; the first row is the heading */
    int64_t count, capacity;
    int32_t columns;
} table;

/* Starts a table; headings are separated by '|'. A column that is "-" in every row is left out. One
   whose heading begins with '*' is printed once, above the table, where every row has the same. */
void table_begin(table *t, const char *headings);
/* Adds the next cell; a cell that starts with a digit or a sign is aligned to the right. */
__attribute__((format(printf, 2, 3))) void table_cell(table *t, const char *format, ...);
void table_print(const table *t, FILE *file);
void table_end(table *t);

#endif
