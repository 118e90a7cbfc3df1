/* Plans by what they were made from: found without a lock, kept as long as the process, because a
 * captured graph may hold one. */
#ifndef ROPEKIT_PYTHON_PLANS_H
#define ROPEKIT_PYTHON_PLANS_H

#include "python/csrc/config_text.h"

/* What the tensors of a call tell beside its text. All of it counts, so no byte is left unset. */
typedef struct plan_key {
    const char *text;
    size_t length;
    int32_t dtype;          /* ROPE_F32..ROPE_F64 */
    int32_t head_dim[2];    /* of q and of k, 0 where it is absent */
    int32_t position_dtype; /* ROPE_I32 or ROPE_I64 */
    int32_t table_dtype;    /* 0 without the caller's tables */
    int32_t table_columns;  /* entries of a row of them */
    int32_t accelerated;    /* 0: the backend cpu */
    int32_t device;
} plan_key;

typedef struct plan_entry {
    struct plan_entry *next;
    plan_key key;
    config_text config;
    rope_plan *plan;
} plan_entry;

/* Finds or makes a plan. Returns NULL where it cannot, and *error then says why until the thread's
 * next call; *status is the library's, or ROPE_ERROR_INVALID_VALUE. */
const plan_entry *plan_for(const plan_key *key, const char **error, rope_status *status);

/* What is wrong with a text whatever the tensors, or NULL. */
const char *plan_check(const char *text, size_t length);

#endif
