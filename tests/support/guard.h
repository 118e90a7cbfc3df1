/* Host memory with a page on either side that faults when it is touched. A GPU's has none: there a
 * block is an allocation of its own, and compute-sanitizer sees what is touched beside it. */
#ifndef ROPEKIT_TESTS_GUARD_H
#define ROPEKIT_TESTS_GUARD_H

#include "tests/support/case.h"

/* Which of the two pages the memory touches. */
typedef enum guard_side { GUARD_AFTER, GUARD_BEFORE } guard_side;

typedef struct guard_block {
    void *map;
    size_t map_bytes; /* 0: the device's */
    unsigned char *at;
} guard_block;

/* The pieces of a case, each in memory of its own. */
typedef struct guard_case {
    guard_block block[CASE_MAX_PIECES];
} guard_case;

/* The last side of the device's memory: both ends of an allocation are one. */
guard_side guard_last(void);

/* Returns 0 where the system has no memory for it. */
int guard_make(guard_case *g, const test_case *c, guard_side side);
/* Copies a piece to memory of the host. */
void guard_read(const guard_case *g, const test_case *c, int32_t piece, unsigned char *to);
/* Moves pointers into the arena, or NULL, to where their pieces lie. */
void guard_move(const guard_case *g, const test_case *c, const void **const *list, int32_t count);
void guard_free(guard_case *g, const test_case *c);

/* Memory of a call's workspace, at a multiple of 256 bytes. */
typedef struct guard_workspace {
    test_case c; /* one piece */
    guard_case g;
} guard_workspace;

/* As guard_make. */
int guard_workspace_make(guard_workspace *w, size_t bytes, guard_side side);
void guard_workspace_free(guard_workspace *w);

/* Has a fault from here on say what repeats the running case, before it ends the process. */
void guard_name_fault(void);
/* That the pieces are those of an arena. */
void guard_check(const guard_case *g, const test_case *c, const unsigned char *expected);

#endif
