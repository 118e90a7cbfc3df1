/* Runs of a case of rope_append, and what they may write. */
#ifndef ROPEKIT_TESTS_APPEND_COMPARE_H
#define ROPEKIT_TESTS_APPEND_COMPARE_H

#include "tests/append/cases.h"

/* As device_run. */
rope_status append_run(const append_case *c, const rope_append_desc *desc,
                       const rope_append_args *args, int32_t count, const char *kernel,
                       unsigned char *result);

/* An element that a call writes: its place in the arena and its type. */
typedef struct append_write {
    size_t at;
    int32_t dtype;
} append_write;

/* What a call writes, and why one that fails does. */
typedef struct append_writes {
    append_write *list;
    int64_t count;
    int32_t tokens_fail; /* 1: of `fails` */
    int32_t places_fail; /* 1: a token's page is not there */
    int32_t scales_fail; /* 1: a scale that is read is not > 0 and finite */
} append_writes;

/* fails: of each token, whether it may not be written; NULL: none. A head whose place or scale
 * fails is not among the elements. */
append_writes append_writes_of(const append_case *c, const rope_append_desc *desc,
                               const rope_append_args *args, const unsigned char *fails);
void append_writes_free(append_writes *w);

/* Gives every NaN of floating elements of 16 and 32 bits the same bits. */
void append_canonical(const append_writes *w, unsigned char *arena);
/* NULL, or a text that says which other byte changed. */
const char *append_untouched(const append_case *c, const append_writes *w,
                             const unsigned char *result);

/* The sum of nodes, of which neighbours make one up to the last; they are lost. */
float append_plain_sum(float *node, int64_t count);
/* rope_append of a plan without a rotation, in plain C as the contract has it, on host memory. */
void append_plain(const rope_append_desc *desc, const rope_append_args *args);

#endif
