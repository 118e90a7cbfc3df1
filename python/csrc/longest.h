/* The longest position of a call, which dynamic scaling and longrope follow. */
#ifndef ROPEKIT_PYTHON_LONGEST_H
#define ROPEKIT_PYTHON_LONGEST_H

#include "python/csrc/plans.h"

/* The plan that serves a call: the entry, or where scaling follows the longest position and that is
 * beyond the entry's limit, one of that length. NULL and *error where the host cannot read it. The
 * caller gives it back by plan_return. */
const plan_entry *longest_of_tokens(const plan_entry *entry, const rope_args *args,
                                    const char **error);
const plan_entry *longest_of_attention(const plan_entry *entry, const rope_attention_args *args,
                                       const char **error);

/* Refuses keys that longrope would cache by long_factor behind others of the same sequence that it
 * cached by short_factor, where the host sees it. */
const char *longest_check_cached(const plan_entry *entry, const rope_args *args);

#endif
