/* Results of a case: against the oracle (compare_oracle.c), against another result, and what must
 * not have changed. */
#ifndef ROPEKIT_TESTS_COMPARE_H
#define ROPEKIT_TESTS_COMPARE_H

#include "tests/oracle/oracle.h"
#include "tests/rope/cases.h"

/* An oracle of a descriptor with the plan's own fp64 frequencies. */
oracle *compare_oracle(const rope_desc *desc);

/* 1 when a token of a call that writes something lies out of the caller's table. */
int compare_out_of_range(const oracle *o, const rope_args *args);

/* Each returns NULL, or a text that says what is wrong. `result` is the case's arena after. */
const char *compare_values(oracle *o, const test_case *c, const rope_desc *desc,
                           const rope_args *args, const unsigned char *result);
/* Every byte that is not of an element of an output is as it was. */
const char *compare_untouched(const test_case *c, const rope_desc *desc, const rope_args *args,
                              const unsigned char *result);

/* The outputs of q, then k, in the order [batch, token, head, dim], every NaN made the same one.
 * Returns malloc'ed memory and its size. */
void *compare_gather(const test_case *c, const rope_desc *desc, const rope_args *args,
                     const unsigned char *result, size_t *bytes);

#endif
