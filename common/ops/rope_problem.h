/* The canonical problem of a checked descriptor. */
#ifndef ROPEKIT_COMMON_PROBLEM_H
#define ROPEKIT_COMMON_PROBLEM_H

#include <ropekit/backend.h>

/* Lists are padded with zeros to a multiple of this, so that a vector may read past the last pair.
 */
enum { ROPE_PAIR_PADDING = 16 };

/* *problem receives one block of memory, to be freed, that holds the problem and all that it points
 * to. desc is checked. */
rope_status rope_problem_create(const rope_desc *desc, rope_problem **problem);

#endif
