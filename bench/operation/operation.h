/* What operations make of a case; each is false after a message. */
#ifndef ROPEKIT_BENCH_OPERATION_H
#define ROPEKIT_BENCH_OPERATION_H

#include "bench/workload/workload.h"

/* Makes plans, allocates sets of tensors, fills them from the seed and places positions and tables;
 * false after a message. Destroy it either way. */
bool workload_create(workload *w, const options *o, rope_device *device, int64_t sets);

/* Of one that was begun. */
bool rope_create(workload *w);
bool append_create(workload *w);
/* With --backward its backward too; then, where it rotates, the steps that it is compared with. */
bool attention_create(workload *w);

/* With --decode, of a set that attention has laid out. */
bool decode_add(workload *w);

/* A set of arguments over memory of the device or the host. */
rope_args rope_args_on(const workload *w, const rope_args *fixed, char *in, char *out);
rope_append_args append_args_on(const workload *w, const rope_append_args *fixed, char *in,
                                char *out);
/* `between` NULL: the call itself, else the call without a rotation, of what lies there. */
rope_attention_args attention_args_on(const workload *w, const rope_attention_args *fixed, char *in,
                                      char *between, char *out);
rope_attention_backward_args attention_backward_args_on(const workload *w,
                                                        const rope_attention_args *forward,
                                                        char *in, char *between, char *out);

/* What decode has of attention: bounds of its calls; device memory for those of a plan, one at a
 * time, none beyond workspace_most; where sequences begin in their caches; the rotation that a
 * check needs. */
rope_attention_bounds attention_bounds(const workload *w);
bool attention_workspace(workload *w, workload_call *c, size_t bytes);
bool attention_place_starts(workload *w, rope_args *args);
bool attention_add_rotation(workload *w);

/* For `ropekit tune`: tensors of attention without calls, of a backward with the forward, as call
 * 0.
 */
bool attention_create_tensors(workload *w, const options *o, rope_device *device, int64_t sets);
/* Kernels are added that need no more workspace than a table may ask for beside the backend's first
 * kernel; any where it has none. */
void attention_limit_workspace(workload *w, const char *backend);
/* Adds attention, with --backward its backward, by a kernel of a backend that has the workload's
 * device. False where it declines or needs too much workspace, and after a message. */
bool attention_add_kernel(workload *w, const char *backend, const char *kernel);

#endif
