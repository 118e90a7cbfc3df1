/* What an operator of attention gives to the library's call. */
#ifndef ROPEKIT_PYTHON_ATTENTION_PUT_H
#define ROPEKIT_PYTHON_ATTENTION_PUT_H

#include "python/csrc/attention.h"
#include "python/csrc/cache.h"
#include "python/csrc/plans.h"

/* Whether keys and values lie in caches, and whether sequences have cu_seqlens. */
int attention_is_cached(const attention_call *c);
int attention_is_packed(const attention_call *c);

/* Checks that do not need the plan; *position_dtype is 0 where index tensors are of two types. */
const char *attention_check(const attention_call *c, int32_t *position_dtype);

/* Refuses what no gradient is of. */
const char *attention_check_gradient(const attention_call *c);

/* The plan of OPERATION_ATTENTION or OPERATION_ATTENTION_BACKWARD; NULL where *error says why. */
const plan_entry *attention_plan(const attention_call *c, int32_t operation, int32_t position_dtype,
                                 const char **error);

/* One of the caches, with its scale. */
stored attention_store(const attention_call *c, int which);

/* Fills args but for what is made: out, lse and workspace. */
const char *attention_put(const attention_call *c, const plan_entry *entry, int32_t layout,
                          rope_attention_args *args);

#endif
