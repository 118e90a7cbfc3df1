/* Calls of a given shape, whose tensors lie side by side and hold random numbers, and the calls of
 * their sequences alone. */
#ifndef ROPEKIT_TESTS_ATTENTION_BACKWARD_SHAPES_H
#define ROPEKIT_TESTS_ATTENTION_BACKWARD_SHAPES_H

#include "tests/attention_backward/cases.h"

/* `tokens` queries and keys in each row of a batch; `shares` heads of q read one of `k_heads`. */
typedef struct backward_shape {
    int32_t dtype, dim, v_dim;
    int64_t k_heads, shares, batch, tokens;
} backward_shape;

/* Makes a call that rotates; out and lse are any numbers, such that weights are of ordinary size.
 * Its arena ends with 64 bytes more. attention_free() is of its forward. */
void backward_make_shape(backward_case *c, const backward_shape *shape);

/* Sequence n of a call as a plain one, in the same arena: sequences lie as above or packed. */
void backward_alone(backward_case *alone, const backward_case *c, int64_t n);

/* Gradients of sequence n have the bits that those of sequence m of another call have, which is the
 * same but for `what`. */
void backward_check_bits(const char *what, const backward_case *c, const unsigned char *result,
                         int64_t n, const backward_case *other, const unsigned char *expected,
                         int64_t m);

#endif
