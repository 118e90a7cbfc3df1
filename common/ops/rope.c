/* The operation "rope": its plans, its calls and its frequencies. */
#include "common/frequency/frequency.h"
#include "common/frequency/rule.h"
#include "common/ops/rope_call.h"
#include "common/ops/rope_descriptor.h"
#include "common/ops/rope_problem.h"
#include "common/plan.h"
#include "common/status.h"

#include <stdlib.h>

static const rope_operation operation = {.name = "rope",
                                         .version = ROPE_ROPE_VERSION,
                                         .call_size = sizeof(rope_call),
                                         .read = rope_call_read,
                                         .release = free};

_Static_assert(sizeof(rope_call) <= ROPE_MAX_CALL_SIZE, "a call lies on the stack");

rope_status rope_plan_create(const rope_desc *desc, rope_plan **plan) {
    if (!plan)
        return rope_fail_null("plan");
    rope_desc full;
    rope_problem *problem;
    rope_status status = rope_descriptor_read(desc, ROPE_MAX_HEAD_DIM, &full);
    if (status == ROPE_OK)
        status = rope_problem_create(&full, sizeof *problem, &problem);
    if (status != ROPE_OK)
        return status;
    const rope_choice choice = {full.backend, full.device, full.kernel};
    return rope_plan_make(&operation, problem, &choice, plan);
}

rope_status rope_apply(const rope_plan *plan, const rope_args *args) {
    const rope_status status = rope_plan_check(plan, &operation);
    return status == ROPE_OK ? rope_plan_apply_on(plan, args, NULL, NULL) : status;
}

rope_status rope_frequencies(const rope_desc *desc, int32_t long_set, double *inv_freq,
                             int32_t count, double *attention_factor) {
    rope_desc full;
    rope_status status = rope_descriptor_read(desc, ROPE_MAX_HEAD_DIM, &full);
    if (status != ROPE_OK)
        return status;
    if (full.angle_mode == ROPE_ANGLE_TABLE)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "angle_mode is table; allowed is exact or f32, which have frequencies");
    if (long_set < 0 || long_set >= rope_frequency_sets(&full))
        return rope_fail(ROPE_ERROR_INVALID_VALUE, "long_set is %d; allowed is 0..%d", long_set,
                         rope_frequency_sets(&full) - 1);
    if (!inv_freq)
        return rope_fail_null("inv_freq");
    if (count < full.rotary_dim / 2)
        return rope_fail(ROPE_ERROR_INVALID_VALUE, "count is %d; allowed is >= %d (rotary_dim / 2)",
                         count, full.rotary_dim / 2);
    rope_rule rule;
    rope_rule_begin(&rule, &full, long_set);
    for (int32_t i = 0; i < full.rotary_dim / 2; i++)
        inv_freq[i] = rope_real_double(rope_rule_next(&rule));
    if (attention_factor)
        *attention_factor = rope_rule_attention(&full, long_set);
    return ROPE_OK;
}
