/* Runs of a case of rope_attention, what may be written, and the same attention in a plain call. */
#ifndef ROPEKIT_TESTS_ATTENTION_COMPARE_H
#define ROPEKIT_TESTS_ATTENTION_COMPARE_H

#include "tests/attention/cases.h"

/* Queries, keys and values of each sequence as a kernel multiplies them: [token][head][dim], those
 * of keys from the first that is there, normalised by rope_append and rotated by rope_apply, with
 * kernels of the CPU, where the call does so. */
typedef struct attention_dense {
    unsigned char *data[ATTENTION_MAX_PARTS][3]; /* of dtype; NULL where the sequence fails */
    int32_t parts_fail;                          /* 1: a length or a boundary is out of range */
    int32_t tokens_fail;                         /* 1: a position that is used */
    int32_t places_fail;                         /* 1: a page that is used is not there */
    int32_t scales_fail;                         /* 1: a scale that is used is none */
} attention_dense;
void attention_dense_make(attention_dense *d, const attention_case *c, const char *kernel);
void attention_dense_free(attention_dense *d);

/* The descriptor's rotation, of positions in ids alone, which are int64. */
rope_desc attention_rotation_desc(const rope_attention_desc *desc);
/* A call of it for tokens of a sequence, without tensors; those of keys from the first that is
 * there. The caller frees memory. */
typedef struct attention_rotation {
    rope_args args;
    int64_t *memory;
} attention_rotation;
attention_rotation attention_rotation_of(const oracle_attention *o, const oracle_part *s,
                                         int32_t tensor, int64_t first, int64_t count);
/* The same on the CPU. Rotates tokens first..first + count - 1 of a sequence in
 * place; of keys those from the first that is there. */
rope_plan *attention_rotation_plan(const rope_attention_desc *desc, const char *kernel);
rope_status attention_rotate_tokens(const rope_plan *plan, const oracle_attention *o,
                                    const oracle_part *s, int32_t tensor, unsigned char *data,
                                    int64_t first, int64_t count);

/* Skips the test where the device has no kernel for it. */
void attention_required(void);
/* As device_run, with as much workspace as rope_attention_workspace says. */
rope_status attention_run(const attention_case *c, const char *kernel, unsigned char *result);
/* The same by one replay of a graph that holds the call, where the backend has graphs. */
rope_status attention_replay(const attention_case *c, const char *kernel, unsigned char *result);
/* The largest sizes of the case. */
rope_attention_bounds attention_bounds(const attention_case *c);

/* Bounds of any size have a workspace, or an error that names them and writes nothing. */
typedef rope_status attention_workspace(const rope_plan *plan, const rope_attention_bounds *bounds,
                                        size_t *bytes);
void attention_check_bounds(const rope_plan *plan, attention_workspace *workspace);

/* NULL, or a text that says which byte changed that is not of a result. */
const char *attention_untouched(const attention_case *c, const unsigned char *result);

/* The same attention without a rotation and a cache: sequences first..first + count - 1 as rows of
 * a batch, without their first `skip` queries. A ring stays one. */
void attention_plain(attention_case *plain, const attention_case *c, const attention_dense *d,
                     int64_t first, int64_t count, int64_t skip);

/* Results of a sequence from query `skip` on in the order [query, head, dim], then its lse where
 * that is wanted; every NaN made the same one. Returns malloc'ed memory. */
unsigned char *attention_rows(const attention_case *c, const unsigned char *result, int64_t part,
                              int64_t skip, int with_lse, size_t *bytes);

#endif
