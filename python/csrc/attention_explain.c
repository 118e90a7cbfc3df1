#include "python/csrc/attention_explain.h"

#include "python/csrc/attention_put.h"
#include <stdio.h>

enum { LONGEST = 16384 }; /* of a text, of which the rest is cut off */
static _Thread_local char explanation[LONGEST];

/* The kernel, or those among which a call's sizes choose, the candidates, and the same of the
 * backward, or why there is none, with a byte of 1 between them. */
void attention_explain(const attention_call *c, const plan_entry *forward, int32_t position_dtype) {
    const char *none = attention_check_gradient(c);
    const plan_entry *backward =
        none ? NULL : attention_plan(c, OPERATION_ATTENTION_BACKWARD, position_dtype, &none);
    snprintf(explanation, sizeof explanation, "%s\1%s\1%s\1%s", rope_plan_kernel(forward->plan),
             rope_plan_report(forward->plan), backward ? rope_plan_kernel(backward->plan) : "",
             backward ? rope_plan_report(backward->plan) : none);
}

/* What the thread's last attention_explain wrote. */
ROPE_API const char *ropekit_explanation(void) {
    return explanation;
}
