/*
 * Generated cases: a descriptor and a call over the whole of what rope.h allows, with data. One
 * arena holds everything that the call points to, so that a copy of the arena at any address, on
 * any device, is the same call with its pointers moved by one distance.
 */
#ifndef ROPEKIT_TESTS_CASES_H
#define ROPEKIT_TESTS_CASES_H

#include "tests/support/case.h"

/* What a test asks of the generator; 0 in a field leaves it free. */
typedef struct case_wish {
    int32_t angle_mode;
    int32_t rope_type;
    int32_t single_axis;  /* 1: one axis */
    int32_t out_of_place; /* 1: input and output apart, and no input is broadcast */
    int32_t tame;         /* 1: data is finite and of ordinary size */
    int32_t in_range;     /* 1: no token is out of a table's range */
    int32_t single;       /* 1: dtype is not ROPE_F64 */
    int32_t latent;       /* 1: heads of 512 elements and a window of 64 behind them (MLA) */
    int32_t vectors;      /* 1: not ROPE_F64; vectors of 8 elements divide sizes and offsets */
} case_wish;

/* Makes case `index` of the seed; the same three give the same case. wish may be NULL. */
void case_make(test_case *c, uint64_t seed, int64_t index, const case_wish *wish);
void case_free(test_case *c);

/*
 * A plain case over a rule of the generator: one contiguous q, rotated in place, with random int64
 * ids at the start of the arena, ROPE_MAX_AXES * tokens of them. Forward, one axis, no XPos.
 */
typedef struct case_block {
    int32_t angle_mode, dtype, position_bits;
    int64_t tokens, heads;
} case_block;
void case_make_block(test_case *c, uint64_t seed, int64_t index, const case_block *block);
int64_t *case_block_ids(const test_case *c);

/* Says which case runs and on which kernel (NULL: the chosen one), for a failure's text: one line
 * of what differs from the defaults. */
void case_describe(const test_case *c, const char *kernel);

/* q (0) or k (1). */
rope_tensor *case_tensor(rope_args *args, int32_t tensor);
int64_t case_head_dim(const rope_desc *desc, int32_t tensor);
int64_t case_rotary_dim(const rope_desc *desc);

/* A pointer, or NULL, moved by elements of a size. */
const void *case_advance(const void *p, int64_t elements, int64_t size);
/* Writes out the strides that depend on a call's size. */
void case_fix_strides(const rope_desc *desc, rope_args *args);
/* Rows first..first+count-1 of a call. */
rope_args case_batch_rows(const rope_desc *desc, const rope_args *whole, int64_t first,
                          int64_t count);

#endif
