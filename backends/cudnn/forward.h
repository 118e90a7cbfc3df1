/* Plans of the CUDA backend for problems and calls as a candidate is given them. */
#ifndef ROPEKIT_CUDNN_FORWARD_H
#define ROPEKIT_CUDNN_FORWARD_H

#include <ropekit/backend.h>

/* A plan of "rope". The problem stays the caller's and lives as long as the plan. Where the CUDA
 * backend cannot make it, ROPE_DECLINED with its reason. */
rope_status dnn_rotation_make(const rope_problem *problem, int32_t device, rope_plan **plan,
                              char *reason);
rope_status dnn_rotation_run(const rope_plan *plan, const rope_call *call, void *stream);

#endif
