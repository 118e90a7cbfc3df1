#include "python/csrc/attention_explain.h"

#include "python/csrc/attention_plan.h"
#include "python/csrc/attention_results.h"

#include <stdio.h>
#include <string.h>

enum { LONGEST = 16384 }; /* of a text, of which the rest is cut off */
static _Thread_local char explanation[LONGEST];

/* The kernel that a call's sizes choose; of a call that the library refuses those of the plan. */
static const char *kernel_of(const plan_entry *entry, const void *args) {
    const char *kernel = rope_plan_kernel_of(entry->plan, args);
    return kernel ? kernel : rope_plan_kernel(entry->plan);
}

/* Of the backward of a call with these arguments, by a gradient of q alone. */
static const char *kernel_of_backward(const attention_call *c, const plan_entry *entry,
                                      int32_t layout, rope_attention_args forward) {
    rope_attention_backward_args args = ROPE_ATTENTION_BACKWARD_ARGS_INIT;
    tensor lse = {0}, dq = {0};
    const char *error = results_lse(&c->q, layout, 0, &lse);
    if (!error)
        error = results_like(&c->q, layout, c->q.dims, tensor_last_size(&c->q), 0, &dq);
    if (!error) {
        results_put_lse(&lse, layout, &forward);
        results_put(&dq, layout, &args.dq);
        args.forward = &forward;
        args.dout = forward.out.data;
        memcpy(args.dout_stride, forward.out.stride, sizeof args.dout_stride);
    }
    const char *kernel = error ? rope_plan_kernel(entry->plan) : kernel_of(entry, &args);
    tensor_release(&lse);
    tensor_release(&dq);
    return kernel;
}

/* The kernel, the candidates, and the same of the backward, or why there is none, with a byte of 1
 * between them. */
void attention_explain(const attention_call *c, const plan_entry *forward,
                       const rope_attention_args *args, int32_t layout, int32_t position_dtype) {
    const char *none = attention_check_gradient(c);
    const plan_entry *backward =
        none ? NULL : attention_plan(c, OPERATION_ATTENTION_BACKWARD, position_dtype, &none);
    snprintf(explanation, sizeof explanation, "%s\1%s\1%s\1%s", kernel_of(forward, args),
             rope_plan_report(forward->plan),
             backward ? kernel_of_backward(c, backward, layout, *args) : "",
             backward ? rope_plan_report(backward->plan) : none);
}

void decode_explain(const plan_entry *entry, const rope_decode_args *args) {
    snprintf(explanation, sizeof explanation, "%s\1%s\1\1decode has no gradient",
             kernel_of(entry, args), rope_plan_report(entry->plan));
}

/* What the thread's last call of either wrote. */
ROPE_API const char *ropekit_explanation(void) {
    return explanation;
}
