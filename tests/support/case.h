/* A call and all that it points to, in one arena of pieces. */
#ifndef ROPEKIT_TESTS_CASE_H
#define ROPEKIT_TESTS_CASE_H

#include "tests/support/random.h"

#include <ropekit/rope.h>
#include <stddef.h>

enum { CASE_MAX_PAIRS = 288, CASE_MAX_PIECES = 32, CASE_MAX_SEQUENCES = 6 };

/* A part of the arena that the call reads or writes; between pieces there are gaps. */
typedef struct case_piece {
    size_t offset, bytes, alignment;
} case_piece;

typedef struct test_case {
    int64_t index;
    rope_desc desc; /* points into this struct */
    rope_args args; /* points into the arena */
    unsigned char *arena;
    size_t bytes;
    case_piece piece[CASE_MAX_PIECES];
    int32_t pieces;
    int32_t wild;      /* 1: data holds infinities, NaNs, subnormals and the largest numbers */
    int64_t alignment; /* of every piece at least, in bytes */
    double list[2][CASE_MAX_PAIRS];
    uint8_t axis[CASE_MAX_PAIRS];
    test_random random;
    int64_t boundary[CASE_MAX_SEQUENCES + 1]; /* of cu_seqlens, when packed */
} test_case;

/* Where a call holds its pointers. */
enum { CASE_POINTERS = 11 };
void case_pointers(rope_args *args, const void **list[CASE_POINTERS]);

/* Moves pointers, those that are not NULL, by the distance from one base address to another. */
void case_move_pointers(const void **const *list, int32_t count, const void *from, const void *to);

/* The same of every pointer of a call. */
void case_relocate(rope_args *args, const void *from, const void *to);

#endif
