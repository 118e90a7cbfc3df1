/* The reference's rotation, for operations that rotate. */
#ifndef ROPEKIT_CPU_REFERENCE_ROPE_H
#define ROPEKIT_CPU_REFERENCE_ROPE_H

#include "backends/cpu/rope/kernel.h"

/* One head of a token that rotates, elements side by side; in may be out. */
void cpu_reference_rotate(const rope_problem *problem, const rope_call *call,
                          const rope_token *token, int tensor, const char *in, char *out);

#endif
