#include "bench/table.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static void append(table *t, const char *text) {
    if (t->count == t->capacity) {
        int64_t capacity = t->capacity ? 2 * t->capacity : 64;
        char **cells = realloc(t->cells, (size_t)capacity * sizeof *cells);
        if (!cells)
            return;
        t->cells = cells;
        t->capacity = capacity;
    }
    char *copy = strdup(text);
    if (copy)
        t->cells[t->count++] = copy;
}

void table_begin(table *t, const char *headings) {
    *t = (table){0};
    while (*headings && t->columns < TABLE_COLUMNS) {
        size_t length = strcspn(headings, "|");
        char heading[64];
        snprintf(heading, sizeof heading, "%.*s", (int)length, headings);
        append(t, heading);
        t->columns++;
        headings += length + (headings[length] == '|');
    }
}

void table_cell(table *t, const char *format, ...) {
    char text[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    append(t, text);
}

static int is_number(const char *cell) {
    return isdigit((unsigned char)cell[0]) || cell[0] == '-' || cell[0] == '+';
}

/* Whether the column's first value is a number: its heading follows it. */
static int is_right(const table *t, int32_t column) {
    int64_t first = t->columns + column;
    return first < t->count && is_number(t->cells[first]);
}

static bool is_alike(const table *t, int32_t column) {
    for (int64_t i = 2 * t->columns + column; i < t->count; i += t->columns)
        if (strcmp(t->cells[i], t->cells[t->columns + column]) != 0)
            return false;
    return t->count > t->columns;
}

static void drop(table *t, int32_t column) {
    int64_t kept = 0;
    for (int64_t i = 0; i < t->count; i++)
        if (i % t->columns == column)
            free(t->cells[i]);
        else
            t->cells[kept++] = t->cells[i];
    t->count = kept;
    t->columns--;
}

/* Takes marked columns that are alike in every row to a line above the table; removes the marks. */
static void lift(table *t, FILE *file) {
    const char *before = "";
    for (int32_t column = 0; column < t->columns;) {
        char *heading = t->cells[column];
        bool marked = heading[0] == '*';
        memmove(heading, heading + marked, strlen(heading + marked) + 1);
        if (marked && is_alike(t, column)) {
            fprintf(file, "%s%s %s", before, heading, t->cells[t->columns + column]);
            before = ", ";
            drop(t, column);
        } else {
            column++;
        }
    }
    fputs(*before ? "\n" : "", file);
}

void table_print(table *t, FILE *file) {
    lift(t, file);
    int width[TABLE_COLUMNS] = {0};
    for (int64_t i = 0; i < t->count; i++) {
        int length = (int)strlen(t->cells[i]);
        int *most = &width[i % t->columns];
        *most = length > *most ? length : *most;
    }
    for (int64_t i = 0; i < t->count; i++) {
        int32_t column = (int32_t)(i % t->columns);
        int last = column == t->columns - 1;
        int right = is_right(t, column);
        fprintf(file, "%s%*s%s", column ? "  " : "",
                right  ? width[column]
                : last ? 0
                       : -width[column],
                t->cells[i], last ? "\n" : "");
    }
}

void table_end(table *t) {
    for (int64_t i = 0; i < t->count; i++)
        free(t->cells[i]);
    free(t->cells);
}
