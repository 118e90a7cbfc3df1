/* Generated cases of rope_attention_backward: one of rope_attention that ran on the CPU, whose
 * arena has the gradients too. */
#ifndef ROPEKIT_TESTS_ATTENTION_BACKWARD_CASES_H
#define ROPEKIT_TESTS_ATTENTION_BACKWARD_CASES_H

#include "tests/attention/compare.h"

enum { GRADIENT_Q, GRADIENT_K, GRADIENT_V, GRADIENTS };

typedef struct backward_case {
    attention_case forward; /* out and lse, and q.out and k.out, are those of a kernel of the CPU */
    rope_attention_backward_args args; /* points into the arena; no forward */
    attention_dense dense;             /* of the forward; not of a plain case */
    int32_t fails;                     /* 1: a length or a position is out of range */
} backward_case;

/* As attention_make; kernel: of the CPU, which rotates and attends. */
void backward_make(backward_case *c, uint64_t seed, int64_t index, const attention_wish *wish,
                   const char *kernel);
void backward_free(backward_case *c);

/* Where an element of dout lies. */
int64_t backward_dout_at(const backward_case *c, const oracle_part *s, int64_t i, int64_t head,
                         int64_t e);
const rope_attention_out *backward_gradient(const rope_attention_backward_args *args,
                                            int32_t gradient);

/* The gradient of weights of q's or k's norm, or NULL. */
float *backward_weight(const rope_attention_backward_args *args, int32_t gradient);

/* As those of attention_compare.h. */
enum { BACKWARD_POINTERS = 7 };
void backward_pointers(rope_attention_backward_args *args, const void **list[BACKWARD_POINTERS]);
void backward_required(void);
rope_status backward_run(const backward_case *c, const char *kernel, unsigned char *result);
rope_status backward_replay(const backward_case *c, const char *kernel, unsigned char *result);
/* Runs every kernel, the reference too; returns how many did not decline. */
typedef void backward_check(const backward_case *c, const char *kernel, unsigned char *result);
int64_t backward_each_kernel(const backward_case *c, backward_check *check);
const char *backward_untouched(const backward_case *c, const unsigned char *result);
/* The same gradients, all of them wanted, without a rotation: sequences first..first + count - 1
 * as rows of a batch. */
void backward_plain(backward_case *plain, const backward_case *c, int64_t first, int64_t count);

/* What norms make of a result of the plain call of all sequences, rotated back: gradients of each
 * in the order below, to `rows`, and those of weights. Returns malloc'ed memory, or NULL. */
float *backward_normed(const backward_case *c, int32_t gradient,
                       unsigned char *rows[ATTENTION_MAX_PARTS]);

/* A gradient of a sequence in the order [token, head, dim], NaNs as they are. */
unsigned char *backward_rows(const backward_case *c, const unsigned char *result, int32_t gradient,
                             int64_t part, size_t *bytes);

#endif
