/* Norms of queries and keys: append's kernels, ahead of attention's and behind its backward's. */
#ifndef ROPEKIT_COMMON_ATTENTION_NORMS_H
#define ROPEKIT_COMMON_ATTENTION_NORMS_H

#include "common/ops/append_call.h"
#include "common/plan.h"

#include <ropekit/backend.h>

/* Queries and keys, by which ROPE_APPEND_Q and ROPE_APPEND_K count. */
enum { ROPE_NORMED = 2 };

/* A problem of attention as the library makes it. */
typedef struct rope_attention_own {
    rope_attention_problem problem;
    rope_append_problem *norms;   /* of tensors that do not rotate; NULL: there is no norm */
    rope_plan *append, *backward; /* of these; the latter where gradients are wanted */
} rope_attention_own;

/* What a norm reads: in, heads (0: there is none), weight. */
typedef struct rope_attention_own_call {
    rope_attention_call call;
    rope_append_operand norm[ROPE_NORMED];
} rope_attention_own_call;

typedef struct rope_attention_backward_own_call {
    rope_attention_backward_call call;
    rope_append_operand norm[ROPE_NORMED];
    float *weight[ROPE_NORMED]; /* gradients, or NULL */
} rope_attention_backward_own_call;

/* Fills in what a problem's norms need, of a checked descriptor; nothing where it has none. */
rope_status rope_attention_norms_create(const rope_attention_desc *desc, int gradients,
                                        rope_attention_own *own);
void rope_attention_norms_note(rope_plan *plan);

/* Frees a problem and what its norms need. */
void rope_attention_own_release(void *problem);

/* Weights that no norm has are not given. */
rope_status rope_attention_weights_unread(const rope_attention_own *own,
                                          const rope_attention_args *args);

/* Fills what norms read of a call that is filled but for that. */
rope_status rope_attention_norms_read(const rope_attention_own *own,
                                      const rope_attention_args *args,
                                      const rope_attention_call *call,
                                      rope_append_operand norm[ROPE_NORMED],
                                      rope_append_weights *const weights[ROPE_NORMED]);

/* For plans that have norms; NULL for others. */
const rope_around *rope_attention_around(const rope_attention_own *own);

#endif
