/*
 * What makes a run repeatable: the seed (ROPE_TEST_SEED), the number of cases (ROPE_TEST_CASES, for
 * a test that usually runs 1000; others in proportion), one case alone (ROPE_TEST_CASE), and the
 * command that a failure prints.
 */
#ifndef ROPEKIT_TESTS_REPEAT_H
#define ROPEKIT_TESTS_REPEAT_H

#include <stddef.h>
#include <stdint.h>

uint64_t test_seed(void);
/* A variable that is a whole number, 0 or more, or `otherwise` where it is not set or empty; ends
 * the process with 2 where it is anything else. */
int64_t test_number(const char *name, int64_t otherwise);
/* ROPE_TEST_DEVICE: index of the device under test; 0 where it is not set. */
int32_t test_device(void);

/* `usual` in the proportion that ROPE_TEST_CASES asks for; at least 1. */
int64_t test_scaled(int64_t usual);
/* for (int64_t i = -1; test_next(&i, usual);) runs over the cases asked for. */
int test_next(int64_t *index, int64_t usual);
/* Describes the case that is running, for a failure's text; NULL: none. */
void test_describe(const char *text);

/* The file that runs. */
const char *test_program(void);
/* Names the test that starts. */
void test_begin(const char *name);
__attribute__((format(printf, 1, 2))) const char *test_text(const char *format, ...);
/* Adds to a text that has room for so many characters in all. */
__attribute__((format(printf, 3, 4))) void test_append(char *text, size_t room, const char *format,
                                                       ...);
/* The text, the condition, the case and the command that repeats it. */
__attribute__((format(printf, 2, 3))) const char *test_failure(const char *condition,
                                                               const char *format, ...);

#endif
