#include "bench/output/table.h"

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

/* Whether every row has the same in a column. */
static bool is_constant(const table *t, int32_t column) {
    for (int64_t i = 2 * t->columns + column; i < t->count; i += t->columns)
        if (strcmp(t->cells[i], t->cells[t->columns + column]) != 0)
            return false;
    return t->count > t->columns;
}

/* Whether a column is marked to be printed above the table and may be. */
static bool is_above(const table *t, int32_t column) {
    return t->cells[column][0] == '*' && is_constant(t, column);
}

static bool is_absent(const table *t, int32_t column) {
    return is_constant(t, column) && strcmp(t->cells[t->columns + column], "-") == 0;
}

/* A cell; of a heading without its mark. */
static const char *text_of(const table *t, int64_t i) {
    const char *cell = t->cells[i];
    return cell + (i < t->columns && cell[0] == '*');
}

static void print_above(const table *t, FILE *file) {
    const char *before = "";
    for (int32_t column = 0; column < t->columns; column++)
        if (is_above(t, column) && !is_absent(t, column)) {
            fprintf(file, "%s%s %s", before, text_of(t, column), t->cells[t->columns + column]);
            before = ", ";
        }
    fputs(*before ? "\n" : "", file);
}

void table_print(const table *t, FILE *file) {
    int width[TABLE_COLUMNS] = {0};
    int32_t last = 0;
    for (int64_t i = 0; i < t->count; i++) {
        int length = (int)strlen(text_of(t, i));
        int *most = &width[i % t->columns];
        *most = length > *most ? length : *most;
    }
    for (int32_t column = 0; column < t->columns; column++)
        last = is_above(t, column) || is_absent(t, column) ? last : column;
    print_above(t, file);
    for (int64_t i = 0; i < t->count; i++) {
        int32_t column = (int32_t)(i % t->columns);
        int left = column == last ? 0 : -width[column];
        if (!is_above(t, column) && !is_absent(t, column))
            fprintf(file, "%*s%s", is_right(t, column) ? width[column] : left, text_of(t, i),
                    column == last ? "\n" : "  ");
    }
}

void table_end(table *t) {
    for (int64_t i = 0; i < t->count; i++)
        free(t->cells[i]);
    free(t->cells);
}
