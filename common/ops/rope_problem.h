/* The canonical problem of a checked descriptor. */
#ifndef ROPEKIT_COMMON_PROBLEM_H
#define ROPEKIT_COMMON_PROBLEM_H

#include <ropekit/backend.h>

/* Lists are padded with zeros to a multiple of this, so that a vector may read past the last pair.
 */
enum { ROPE_PAIR_PADDING = 16 };

/* *problem receives one block of memory, to be freed: a struct of `size` bytes that begins with the
 * problem, whose rest is not set, and all that the problem points to. desc is checked; with a
 * rotary_dim of 0 there are no lists. */
rope_status rope_problem_create(const rope_desc *desc, size_t size, rope_problem **problem);

#endif
