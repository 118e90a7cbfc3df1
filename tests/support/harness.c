#define _GNU_SOURCE
/* The plain runner: every test in one process, in the order of the link; --list prints their names.
 * Exit status 1: one failed; 77: nothing passed and something was skipped; 2: nothing was asked
 * for. */
#include "tests/support/harness.h"

#include <fnmatch.h>
#include <setjmp.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { OUTCOME_PASS = 0, OUTCOME_FAIL = 1, OUTCOME_SKIP = 2 };
static const char *const outcome_names[] = {"pass", "FAIL", "skip"};

static plain_test *first_test, **last_test = &first_test;
static jmp_buf leave;

void plain_register(plain_test *test) {
    *last_test = test;
    last_test = &test->next;
}

_Noreturn void plain_fail(const char *file, int line, const char *text) {
    printf("%s:%d: %s\n", file, line, text);
    longjmp(leave, OUTCOME_FAIL);
}

_Noreturn void plain_skip(const char *text) {
    printf("%s\n", text);
    longjmp(leave, OUTCOME_SKIP);
}

/* Patterns are the arguments without --list, and --filter before any; none takes every test. */
static int is_wanted(const char *name, int argc, char **argv) {
    int patterns = 0;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--filter") == 0 || strcmp(argv[i], "--list") == 0)
            continue;
        patterns++;
        if (fnmatch(argv[i], name, 0) == 0)
            return 1;
    }
    return patterns == 0;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int run(const plain_test *test) {
    double start = now();
    test_begin(test->name);
    int outcome = setjmp(leave);
    if (outcome == OUTCOME_PASS)
        test->body();
    printf("%s %s (%.2f s)\n", outcome_names[outcome], test->name, now() - start);
    fflush(stdout);
    return outcome;
}

static int list(int argc, char **argv) {
    int names = 0;
    for (const plain_test *test = first_test; test; test = test->next)
        if (is_wanted(test->name, argc, argv))
            names += puts(test->name) >= 0;
    return names ? 0 : 2;
}

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--list") == 0)
            return list(argc, argv);
    int count[3] = {0};
    printf("seed %llu\n", (unsigned long long)test_seed());
    for (const plain_test *test = first_test; test; test = test->next)
        if (is_wanted(test->name, argc, argv))
            count[run(test)]++;
    printf("%d passed, %d failed, %d skipped\n", count[0], count[1], count[2]);
    return count[OUTCOME_FAIL] ? 1 : count[OUTCOME_PASS] ? 0 : count[OUTCOME_SKIP] ? 77 : 2;
}
