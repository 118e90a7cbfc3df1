#include "bench/table.h"

#include <ctype.h>
#include <stdarg.h>
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

void table_print(const table *t, FILE *file) {
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
