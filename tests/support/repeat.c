#define _GNU_SOURCE
#include "tests/support/repeat.h"

#include "tests/support/required.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef ROPE_TEST_PLAIN
#include <criterion/criterion.h>
#include <criterion/hooks.h>

ReportHook(PRE_ALL)(struct criterion_test_set *tests) {
    printf("seed %llu, %zu tests\n", (unsigned long long)test_seed(), tests->tests);
}
#endif

enum { USUAL_CASES = 1000 };
static const uint64_t default_seed = 20261121;

static const char *running_test = "";
static int64_t running_case = -1;
static char description[1024];

int64_t test_number(const char *name, int64_t otherwise) {
    const char *text = getenv(name);
    char *end;
    errno = 0;
    int64_t number = text && *text ? strtoll(text, &end, 0) : otherwise;
    if (text && *text && (*end || errno || number < 0)) {
        fprintf(stderr, "%s is \"%.60s\"; allowed is a whole number, 0 or more\n", name, text);
        exit(2);
    }
    return number;
}

static int is_known(const char *entry) {
    static const char *const names[] = {
        "SEED=", "CASES=", "CASE=", "EMULATED=", "DEVICE=", "REQUIRE="};
    const size_t prefix = strlen("ROPE_TEST_");
    int known = strncmp(entry, "ROPE_TEST_", prefix) != 0;
    for (size_t i = 0; i < sizeof names / sizeof names[0] && !known; i++)
        known = strncmp(entry + prefix, names[i], strlen(names[i])) == 0;
    return known;
}

/* Every run asks for it first: a variable that means nothing would silently run something else, and
 * ends it there. */
uint64_t test_seed(void) {
    for (char **entry = environ; *entry; entry++)
        if (!is_known(*entry)) {
            fprintf(stderr,
                    "%.60s is not known; allowed is ROPE_TEST_SEED, _CASES, _CASE, _EMULATED, "
                    "_DEVICE or _REQUIRE\n",
                    *entry);
            exit(2);
        }
    (void)test_requires("");
    (void)test_number("ROPE_TEST_CASES", 0);
    (void)test_number("ROPE_TEST_CASE", 0);
    (void)test_number("ROPE_TEST_EMULATED", 0);
    (void)test_device();
    return (uint64_t)test_number("ROPE_TEST_SEED", (int64_t)default_seed);
}

int32_t test_device(void) {
    int64_t index = test_number("ROPE_TEST_DEVICE", 0);
    return index < INT32_MAX ? (int32_t)index : INT32_MAX;
}

int64_t test_scaled(int64_t usual) {
    int64_t wanted = test_number("ROPE_TEST_CASES", USUAL_CASES);
    int64_t scaled = usual * wanted / USUAL_CASES;
    return scaled < 1 ? 1 : scaled;
}

int test_next(int64_t *index, int64_t usual) {
    int64_t only = test_number("ROPE_TEST_CASE", -1);
    int first = *index < 0;
    *index = only < 0 ? *index + 1 : only;
    int more = only < 0 ? *index < test_scaled(usual) : first;
    running_case = more ? *index : -1;
    description[0] = 0;
    return more;
}

void test_describe(const char *text) {
    snprintf(description, sizeof description, "%s", text ? text : "");
}

void test_begin(const char *name) {
    running_test = name;
    running_case = -1;
    description[0] = 0;
}

const char *test_text(const char *format, ...) {
    static char text[1024];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    return text;
}

/* Environment variables that decide what runs, as a prefix of the command. */
static void append_variable(char *text, size_t room, const char *name) {
    const char *value = getenv(name);
    size_t used = strlen(text);
    if (value)
        snprintf(text + used, room - used, "%s=%s ", name, value);
}

/* Criterion gives its worker processes another name. */
const char *test_program(void) {
    static char path[512];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    if (length <= 0)
        return program_invocation_name;
    path[length] = 0;
    return path;
}

void test_append(char *text, size_t room, const char *format, ...) {
    size_t used = strlen(text);
    va_list list;
    va_start(list, format);
    vsnprintf(text + used, room - used, format, list);
    va_end(list);
}

const char *test_failure(const char *condition, const char *format, ...) {
    static char text[4096];
    char detail[1024], command[1024] = "";
    va_list list;
    va_start(list, format);
    vsnprintf(detail, sizeof detail, format, list);
    va_end(list);
    append_variable(command, sizeof command, "ROPE_BACKEND");
    append_variable(command, sizeof command, "ROPE_TEST_DEVICE");
    append_variable(command, sizeof command, "ROPE_CPU_ISA");
    append_variable(command, sizeof command, "ROPE_CPU_STREAM");
    append_variable(command, sizeof command, "ROPE_CPU_STREAMS");
    append_variable(command, sizeof command, "OMP_NUM_THREADS");
    char which[64] = "";
    if (running_case >= 0)
        snprintf(which, sizeof which, "ROPE_TEST_CASE=%lld ", (long long)running_case);
    snprintf(text, sizeof text, "%s [%s]%s%s\n  repeat: ROPE_TEST_SEED=%llu %s%s%s --filter '%s'",
             detail, condition, description[0] ? "\n  case: " : "", description,
             (unsigned long long)test_seed(), which, command, test_program(), running_test);
    return text;
}
