/* The canonical problem of a checked descriptor of "append". */
#ifndef ROPEKIT_COMMON_APPEND_PROBLEM_H
#define ROPEKIT_COMMON_APPEND_PROBLEM_H

#include <ropekit/backend.h>

/* *problem receives one block of memory, to be freed, that holds the problem and all that it points
 * to. desc is checked. */
rope_status rope_append_problem_create(const rope_append_desc *desc, rope_append_problem **problem);

#endif
