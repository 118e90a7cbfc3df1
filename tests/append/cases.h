/* Generated cases of rope_append: a descriptor and a call over the whole of what append.h allows.
 * Its rotation and positions are those of tests/rope/cases.h, and so is its arena. */
#ifndef ROPEKIT_TESTS_APPEND_CASES_H
#define ROPEKIT_TESTS_APPEND_CASES_H

#include "tests/rope/cases.h"

#include <ropekit/attention.h>

typedef struct append_case {
    test_case base;        /* arena, pieces and random numbers; its desc and args are not used */
    rope_append_desc desc; /* points into base */
    rope_append_args args; /* points into the arena */
    int32_t cached[3];     /* 1: of k and v: it has a cache */
    int32_t vectors; /* 1: 16 bits, all in whole vectors of 8 elements, as engines have them */
} append_case;

/* What a test asks of the generator; 0 in a field leaves it free. */
typedef struct append_wish {
    int32_t rotation;     /* ROPE_ROTATION_ */
    int32_t source;       /* ROPE_SOURCE_ */
    int32_t out_of_place; /* 1: input and output apart, and no input is broadcast */
    int32_t tame;         /* 1: data is finite and of ordinary size */
    int32_t in_range;     /* 1: no token fails, every place is there, every scale is one */
    void (*gradients)(append_case *c); /* the case has gradients, for which this reserves memory */
    void (*attended)(append_case *c);  /* attention follows, for which this reserves memory: k and v
                                          are cached by index, and all scales of caches are ones */
} append_wish;

/* Makes case `index` of the seed; the same three give the same case. wish may be NULL. */
void append_make(append_case *c, uint64_t seed, int64_t index, const append_wish *wish);
void append_free(append_case *c);

/* As case_describe, case_pointers and case_relocate. */
void append_describe(const append_case *c, const char *kernel);
enum { APPEND_POINTERS = CASE_POINTERS + 13 };
void append_pointers(rope_append_args *args, const void **list[APPEND_POINTERS]);
void append_relocate(rope_append_args *args, const void *from, const void *to);

#endif
