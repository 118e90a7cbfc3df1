/* What an operator of attention gives to the library's call. */
#ifndef ROPEKIT_PYTHON_ATTENTION_PUT_H
#define ROPEKIT_PYTHON_ATTENTION_PUT_H

#include "python/csrc/attention.h"
#include "python/csrc/cache.h"
#include "python/csrc/plans.h"

/* Whether keys and values lie in caches, and whether sequences have cu_seqlens. */
int attention_is_cached(const attention_call *c);
int attention_is_packed(const attention_call *c);

/* One of the caches, with its scale. */
stored attention_store(const attention_call *c, int which);

/* Lengths and positions of keys, sinks and a tree, of args whose queries and k_tokens are known. */
const char *attention_put_masks(const attention_call *c, const plan_entry *entry,
                                rope_attention_args *args);

/* Fills args but for what is made: out, lse and workspace. */
const char *attention_put(const attention_call *c, const plan_entry *entry, int32_t layout,
                          rope_attention_args *args);

#endif
