/* The calls of a workload of attention. */
#ifndef ROPEKIT_BENCH_ATTENTION_CALLS_H
#define ROPEKIT_BENCH_ATTENTION_CALLS_H

#include "bench/attention/set.h"

/* Adds attention, with --backward its backward too; then, where it rotates, the steps: rope_apply,
 * both on its result, rope_apply of gradients. False after a message. */
bool attention_add_calls(workload *w);
/* Adds attention alone, by the first kernel that takes it, and runs it over every set. */
bool attention_add_forward(workload *w);
/* Kernels are added that need no more workspace than a table may ask for beside the backend's first
 * kernel; any where it has none. */
void attention_limit_workspace(workload *w, const char *backend);
/* Adds attention, with --backward its backward, by a kernel of a backend that has the workload's
 * device. False where it declines or needs too much workspace, and after a message. */
bool attention_add_kernel(workload *w, const char *backend, const char *kernel);

/* A set of arguments over memory of the device or the host. `rotated` NULL: the call itself, else
 * what lies between steps, of the call without a rotation. */
rope_attention_args attention_args_on(const attention_state *s, const rope_attention_args *fixed,
                                      char *in, char *rotated, char *out);
rope_attention_backward_args attention_backward_args_on(const attention_state *s,
                                                        const rope_attention_args *forward,
                                                        char *in, char *rotated, char *out);

#endif
