#include "tests/model/goldens.h"

#include "tests/support/harness.h"

#include <stdlib.h>
#include <string.h>

/* Names in capitals are of tests/CMakeLists.txt. A configuration is its name, then its text. */
/* clang-format off */
__asm__(".data\n"
        "golden_text: .incbin \"" ROPE_GOLDENS "\"\n.byte 0\n"
        "golden_configs:\n"
        ".irp name, " ROPE_CONFIGS "\n"
        ".asciz \"\\name\"\n.incbin \"" ROPE_CONFIG_FOLDER "/\\name\\().json\"\n.byte 0\n"
        ".endr\n.byte 0\n.text\n");
/* clang-format on */
__attribute__((visibility("hidden"))) extern char golden_text[];
__attribute__((visibility("hidden"))) extern const char golden_configs[];

enum { MOST_ROWS = 128 };
static golden_row rows[MOST_ROWS];

/* Ends each column with a NUL; "=" is what the row before has there. Returns how many rows. */
static int read_rows(void) {
    static int count;
    char *at = golden_text;
    while (*at) {
        CHECK(count < MOST_ROWS, "goldens.tsv has more than %d rows", MOST_ROWS);
        for (int c = 0; c < GOLDEN_COLUMNS; c++) {
            size_t length = strcspn(at, "\t\n");
            CHECK(at[length] == (c < GOLDEN_COLUMNS - 1 ? '\t' : '\n'),
                  "row %d of goldens.tsv has not %d columns", count, GOLDEN_COLUMNS);
            at[length] = 0;
            rows[count][c] = strcmp(at, "=") == 0 && count ? rows[count - 1][c] : at;
            at += length + 1;
        }
        count++;
    }
    golden_text[0] = 0;
    return count;
}

const golden_row *golden_find(const char *kind, int index) {
    static int count;
    int found = 0;
    if (!count)
        count = read_rows();
    for (int r = 0; r < count; r++)
        if (strcmp(rows[r][0], kind) == 0 && found++ == index)
            return (const golden_row *)&rows[r];
    CHECK(found, "goldens.tsv has no %s", kind);
    return NULL;
}

int32_t golden_numbers(const char *column, int64_t *numbers, int32_t most) {
    int32_t count = 0;
    for (char *end; *column; column = end) {
        CHECK(count < most, "a column of goldens.tsv has more than %d numbers", most);
        numbers[count++] = strtoll(column, &end, 10);
        CHECK(end != column, "a column of goldens.tsv has %.20s", column);
    }
    return count;
}

int32_t golden_bits(const char *column, int32_t element_bytes, void *elements, int32_t most) {
    size_t digits = 2 * (size_t)element_bytes, count = strlen(column) / digits;
    CHECK(count <= (size_t)most, "a column of goldens.tsv has %zu elements", count);
    for (size_t i = 0; i < count; i++) {
        char text[9] = "";
        memcpy(text, column + i * digits, digits);
        uint32_t wide = (uint32_t)strtoul(text, NULL, 16);
        uint16_t narrow = (uint16_t)wide;
        memcpy((char *)elements + i * (size_t)element_bytes,
               element_bytes == 4 ? (const void *)&wide : &narrow, (size_t)element_bytes);
    }
    return (int32_t)count;
}

/* The text of a configuration of a name, or what is no name. */
static const char *json_of(const char *column) {
    const char *at = golden_configs;
    while (*at && strcmp(at, column) != 0) {
        at += strlen(at) + 1;
        at += strlen(at) + 1;
    }
    return *at ? at + strlen(at) + 1 : column;
}

int golden_frequency_at(int index, golden_frequency *golden) {
    const golden_row *row = golden_find("frequency", index);
    if (!row)
        return 0;
    const char *const *column = *row;
    golden->name = column[1];
    golden->json = json_of(column[2]);
    golden->long_set = (int32_t)strtol(column[3], NULL, 10);
    golden->sequence_length = strtoll(column[4], NULL, 10);
    golden->attention_factor = strtod(column[5], NULL);
    golden->pairs = golden_bits(column[6], 4, golden->inv_freq, GOLDEN_MAX_PAIRS);
    return 1;
}

void golden_frequency_of(const char *name, golden_frequency *golden) {
    int i = 0;
    while (golden_frequency_at(i, golden) && strcmp(golden->name, name) != 0)
        i++;
    CHECK(golden_frequency_at(i, golden), "goldens.tsv has no frequencies of %s", name);
}
