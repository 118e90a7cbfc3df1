/* Generated cases of rope_decode: those of rope_append (tests/append/cases.h) with keys ahead of
 * their tokens, and what attention has beside. */
#ifndef ROPEKIT_TESTS_DECODE_CASES_H
#define ROPEKIT_TESTS_DECODE_CASES_H

#include "tests/append/cases.h"

#include <ropekit/decode.h>

typedef struct decode_case {
    append_case append;    /* arena, pieces and random numbers; its desc and args are not used */
    rope_decode_desc desc; /* points into append.base */
    rope_decode_args args; /* points into the arena; no workspace */
} decode_case;

/* Makes case `index` of the seed. faults: 1: a place, a scale or a position of some is none. */
void decode_make(decode_case *c, uint64_t seed, int64_t index, int32_t faults);
void decode_free(decode_case *c);
void decode_describe(const decode_case *c, const char *kernel);
void decode_relocate(rope_decode_args *args, const void *from, const void *to);

/* The two calls that one of rope_decode stands for. Attention reads q.out, and has no workspace. */
void decode_split_desc(const rope_decode_desc *desc, rope_append_desc *append,
                       rope_attention_desc *attention);
void decode_split_args(const decode_case *c, const rope_decode_args *args, rope_append_args *append,
                       rope_attention_args *attention);
rope_attention_bounds decode_bounds(const decode_case *c);

#endif
