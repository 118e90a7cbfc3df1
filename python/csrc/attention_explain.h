/* Which kernel a call of attention or decode would take, as a text. */
#ifndef ROPEKIT_PYTHON_ATTENTION_EXPLAIN_H
#define ROPEKIT_PYTHON_ATTENTION_EXPLAIN_H

#include "python/csrc/attention.h"
#include "python/csrc/plans.h"

#include <ropekit/decode.h>

/* Keeps the text for the thread's next ropekit_explanation(). */
void attention_explain(const attention_call *c, const plan_entry *forward,
                       const rope_attention_args *args, int32_t layout, int32_t position_dtype);

/* Of a call with its workspace. */
void decode_explain(const plan_entry *entry, const rope_decode_args *args);

#endif
