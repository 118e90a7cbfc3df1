/* From a checked descriptor of "attention" to its problem. */
#ifndef ROPEKIT_COMMON_ATTENTION_PROBLEM_H
#define ROPEKIT_COMMON_ATTENTION_PROBLEM_H

#include <ropekit/backend.h>

/* Makes a problem, a rope_attention_own without norms, that free() releases. */
rope_status rope_attention_problem_create(const rope_attention_desc *desc,
                                          rope_attention_problem **problem);

#endif
