/* Generated cases of rope_attention: a descriptor and a call over the whole of what attention.h
 * allows. Its rotation and positions are those of tests/rope/cases.h, and so is its arena. Memory
 * of keys and values that no sequence has holds NaNs. */
#ifndef ROPEKIT_TESTS_ATTENTION_CASES_H
#define ROPEKIT_TESTS_ATTENTION_CASES_H

#include "tests/oracle/attention.h"
#include "tests/rope/cases.h"

enum { ATTENTION_MAX_PARTS = 5, ATTENTION_FEW_ROWS = 9, ATTENTION_LONG_ROWS = 6 };

typedef struct attention_case {
    test_case base;           /* arena, pieces and random numbers; desc and args are not used */
    rope_attention_desc desc; /* points into base */
    rope_attention_args args; /* points into the arena; no workspace */
    int64_t parts, q_count[ATTENTION_MAX_PARTS], k_count[ATTENTION_MAX_PARTS];
    int64_t k_boundary[ATTENTION_MAX_PARTS + 1]; /* of k_cu_seqlens, where there is one */
    int32_t dense;        /* tensors and a cache lie as most do, in whole vectors */
    int32_t decode;       /* the same, of one query a sequence */
    int32_t few;          /* rows of few queries, as wished */
    int32_t provided;     /* what providers have, as wished */
    int32_t alike;        /* queries are the keys' own, in rows of one length */
    int32_t gradients;    /* the case has one */
    test_random of_norms; /* random numbers of norms */
} attention_case;

/* What a test asks of the generator; 0 in a field leaves it free. */
typedef struct attention_wish {
    int32_t tame;     /* 1: data is finite and of ordinary size */
    int32_t in_range; /* 1: nothing fails */
    int32_t large;    /* 1: at times as many queries as keys, and more than a tile has */
    int32_t provided; /* 1: what providers have: 16 bits, heads of 64 or 128, tensors that lie as
                         most do, finite memory in padding */
    int32_t few;      /* 1: what kernels of 1 to 8 queries take; sizes are those of the index modulo
                         ATTENTION_FEW_ROWS, whatever the seed */
    int32_t
        long_keys; /* 1: some queries of thousands of keys, as few, modulo ATTENTION_LONG_ROWS */
    /* Not NULL: the case has a gradient; reserves more pieces ahead of the arena. */
    void (*gradients)(attention_case *c);
} attention_wish;

/* Makes case `index` of the seed; the same three give the same case. wish may be NULL. */
void attention_make(attention_case *c, uint64_t seed, int64_t index, const attention_wish *wish);
void attention_free(attention_case *c);
static inline oracle_attention attention_oracle(const attention_case *c) {
    return (oracle_attention){&c->desc, &c->args};
}

/* Fills a case whose arena is made: the second half of attention_make. */
void attention_fill(attention_case *c, const attention_wish *wish);

/* As case_describe, case_pointers and case_relocate. */
void attention_describe(const attention_case *c, const char *kernel);
enum { ATTENTION_POINTERS = CASE_POINTERS + 16 };
void attention_pointers(rope_attention_args *args, const void **list[ATTENTION_POINTERS]);
void attention_relocate(rope_attention_args *args, const void *from, const void *to);

#endif
