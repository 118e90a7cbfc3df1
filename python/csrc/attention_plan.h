/* What an operator of attention checks ahead of its plan, and the plan. */
#ifndef ROPEKIT_PYTHON_ATTENTION_PLAN_H
#define ROPEKIT_PYTHON_ATTENTION_PLAN_H

#include "python/csrc/attention.h"
#include "python/csrc/plans.h"

/* Checks that do not need the plan; *position_dtype is 0 where index tensors are of two types. */
const char *attention_check(const attention_call *c, int32_t *position_dtype);

/* Of sinks and of a tree alone. */
const char *attention_check_masks(const attention_call *c);

/* Refuses what no gradient is of. */
const char *attention_check_gradient(const attention_call *c);

/* The plan of OPERATION_ATTENTION or OPERATION_ATTENTION_BACKWARD; NULL where *error says why. */
const plan_entry *attention_plan(const attention_call *c, int32_t operation, int32_t position_dtype,
                                 const char **error);

#endif
