/* Host memory with a page on either side that faults when it is touched. */
#ifndef ROPEKIT_TESTS_GUARD_H
#define ROPEKIT_TESTS_GUARD_H

#include "tests/cases.h"

/* Which of the two pages the memory touches. */
typedef enum guard_side { GUARD_AFTER, GUARD_BEFORE } guard_side;

typedef struct guard_block {
    void *map;
    size_t map_bytes;
    unsigned char *at;
} guard_block;

/* The pieces of a case, each in memory of its own, and a call that points into them. */
typedef struct guard_case {
    guard_block block[CASE_MAX_PIECES];
    rope_args args;
} guard_case;

/* Returns 0 where the system has no memory for it. */
int guard_make(guard_case *g, const test_case *c, guard_side side);
void guard_free(guard_case *g, const test_case *c);

#endif
