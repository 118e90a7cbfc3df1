/* Generated cases of rope_append_backward: one of rope_append without a cache, whose arena has the
 * gradients too. */
#ifndef ROPEKIT_TESTS_APPEND_BACKWARD_CASES_H
#define ROPEKIT_TESTS_APPEND_BACKWARD_CASES_H

#include "tests/append/cases.h"

typedef struct gradient_case {
    append_case forward;
    rope_append_backward_args args; /* points into the arena; no forward */
} gradient_case;

/* As append_make: rotation, tame and in_range of wish count. */
void gradient_make(gradient_case *c, uint64_t seed, int64_t index, const append_wish *wish);
void gradient_free(gradient_case *c);
rope_append_bounds gradient_bounds(const gradient_case *c);

/* Gradients of q, k or v. */
rope_append_gradient *gradient_of(rope_append_backward_args *args, int32_t tensor);
/* Where element i of a head of a token lies in `in` or `out`. */
int64_t gradient_in_at(const gradient_case *c, int32_t tensor, int64_t token, int64_t head,
                       int64_t i);
int64_t gradient_out_at(const gradient_case *c, int32_t tensor, int64_t token, int64_t head,
                        int64_t i);
/* How many weights of a tensor have a gradient that is wanted. */
int64_t gradient_weights(const gradient_case *c, int32_t tensor);

enum { GRADIENT_POINTERS = 9 };
void gradient_pointers(rope_append_backward_args *args, const void **list[GRADIENT_POINTERS]);

/* As device_run: kernel NULL is the chosen one. */
rope_status gradient_run(const gradient_case *c, const char *kernel, unsigned char *result);
/* NULL, or a text that says which byte changed that is of no gradient; those of tokens that fail
 * are none. Gives NaNs of gradients the same bits. */
const char *gradient_untouched(const gradient_case *c, const unsigned char *fails,
                               unsigned char *result);

/* rope_append_backward in scalar fp32 arithmetic, written from its text, but that rope_apply of the
 * CPU's scalar kernel rotates; of an arena. */
void gradient_plain(const gradient_case *c, unsigned char *result);

#endif
