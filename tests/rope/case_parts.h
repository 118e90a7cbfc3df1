/* What the files of the generator share. */
#ifndef ROPEKIT_TESTS_CASE_PARTS_H
#define ROPEKIT_TESTS_CASE_PARTS_H

#include "tests/oracle/oracle.h"
#include "tests/rope/cases.h"

void case_choose_desc(test_case *c, const case_wish *wish);

/* Fills memory with numbers of a type within +-scale; wild: some from the edges of the format. */
void case_fill_data(test_random *r, int wild, void *from, size_t bytes, int32_t dtype,
                    double scale);

/* Reserves bytes at a multiple of the alignment, and of no more where that can be had, after a gap.
 * Until the arena exists a pointer holds its offset. */
const void *case_reserve(test_case *c, int64_t bytes, int64_t alignment);
/* The same for a view of elements of a size; returns its element 0. */
const void *case_reserve_view(test_case *c, int64_t size, const int64_t count[4],
                              const int64_t stride[4]);
size_t case_piece_bytes(const test_case *c, const void *at);
/* Strides of a permutation of [batch, token, head], padded and perhaps spread over the head too. */
int64_t case_choose_strides(test_random *r, const int64_t count[4], int64_t stride[4]);

void case_choose_tokens(test_random *r, test_case *c);
void case_choose_positions(test_random *r, test_case *c);
void case_choose_table(test_random *r, test_case *c, const case_wish *wish);

/* Makes the arena; pointers of c->args then point into it. */
void case_make_arena(test_case *c);
/* Fills every piece as elements of dtype; the others then fill theirs. */
void case_fill_tensors(test_case *c);
void case_fill_table(test_case *c);
void case_fill_positions(test_case *c, const case_wish *wish);
/* Of an array of ROPE_I32 or of any other integer, which is int64. */
void case_store_index(int32_t dtype, const void *array, int64_t i, int64_t value);

#endif
