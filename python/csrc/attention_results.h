/* What operators of attention make: results in the order of their tensors, and the library's memory
 * of a call. */
#ifndef ROPEKIT_PYTHON_ATTENTION_RESULTS_H
#define ROPEKIT_PYTHON_ATTENTION_RESULTS_H

#include "python/csrc/plans.h"

/* `dims` dimensions of `like`, the last of size `last`, of its type, in memory by token, which a
 * product with the next matrix reads; zeros where the library leaves some tokens out. */
const char *results_like(const tensor *like, int32_t layout, int64_t dims, int64_t last, int zeros,
                         tensor *made);
/* float32 without q's last dimension; -infinity where the library leaves some tokens out. */
const char *results_lse(const tensor *q, int32_t layout, int partly, tensor *made);
/* A tensor of no elements, for a result that is not there. */
const char *results_none(const tensor *lead, int32_t torch_dtype, tensor *made);

void results_put(const tensor *t, int32_t layout, rope_attention_out *out);
void results_put_lse(const tensor *t, int32_t layout, rope_attention_args *args);

/* Memory of a call, to be given back to PyTorch's allocator, which knows the stream, right after
 * it.
 */
typedef rope_status results_bytes(const rope_plan *plan, const rope_attention_bounds *bounds,
                                  size_t *bytes);
const char *results_workspace(const tensor *lead, const plan_entry *entry, results_bytes *bytes_of,
                              rope_attention_args *args, tensor *memory);

#endif
