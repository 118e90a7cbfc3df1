/*
 * Tests for two runners: Criterion, and with ROPE_TEST_PLAIN a runner of our own that needs neither
 * processes nor signals, for emulators and sanitizers.
 *
 *     TEST(suite, name) { CHECK(x == 1, "x is %d", x); CHECK_STATUS(ROPE_OK, rope_apply(...)); }
 *
 * CHECK, CHECK_STATUS and SKIP end the test and belong to the thread that runs it.
 */
#ifndef ROPEKIT_TESTS_HARNESS_H
#define ROPEKIT_TESTS_HARNESS_H

#include "tests/support/repeat.h"

#include <ropekit/rope.h>

#include <string.h>

#ifdef ROPE_TEST_PLAIN

typedef struct plain_test {
    const char *name;
    void (*body)(void);
    struct plain_test *next;
} plain_test;

void plain_register(plain_test *test);
_Noreturn void plain_fail(const char *file, int line, const char *text);
_Noreturn void plain_skip(const char *text);

#define TEST_FAIL(text) plain_fail(__FILE__, __LINE__, text)
#define SKIP(...) plain_skip(test_text(__VA_ARGS__))
#define TEST_RUNNER(suite, test)                                                                   \
    __attribute__((constructor)) static void suite##_##test##_register(void) {                     \
        static plain_test entry = {#suite "/" #test, suite##_##test##_body, 0};                    \
        plain_register(&entry);                                                                    \
    }

#else

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#define TEST_FAIL(text) cr_assert_fail_user(__FILE__, __LINE__, criterion_abort_test, "%s", text)
#define SKIP(...) cr_skip_test("%s", test_text(__VA_ARGS__))
#define TEST_RUNNER(suite, test)                                                                   \
    Test(suite, test) {                                                                            \
        test_begin(#suite "/" #test);                                                              \
        suite##_##test##_body();                                                                   \
    }

#endif

#define TEST(suite, test)                                                                          \
    static void suite##_##test##_body(void);                                                       \
    TEST_RUNNER(suite, test)                                                                       \
    static void suite##_##test##_body(void)

#define CHECK(condition, ...)                                                                      \
    do {                                                                                           \
        if (!(condition))                                                                          \
            TEST_FAIL(test_failure(#condition, __VA_ARGS__));                                      \
    } while (0)

#define CHECK_STATUS(expected, call)                                                               \
    do {                                                                                           \
        rope_status test_status = (call), test_wanted = (expected);                                \
        if (test_status != test_wanted)                                                            \
            TEST_FAIL(test_failure(#call, "%s, not %s; last error: %s",                            \
                                   rope_status_string(test_status),                                \
                                   rope_status_string(test_wanted), rope_last_error()));           \
        if (test_status == ROPE_ERROR_NULL_POINTER && !strstr(rope_last_error(), "allowed"))       \
            TEST_FAIL(test_failure(#call, "the text does not say what is allowed: %s",             \
                                   rope_last_error()));                                            \
    } while (0)

#endif
