/* The operation "append": its plans and its calls. */
#include "common/ops/append_call.h"
#include "common/ops/append_descriptor.h"
#include "common/ops/append_problem.h"
#include "common/plan.h"
#include "common/status.h"

#include <stdlib.h>

static const rope_operation operation = {.name = "append",
                                         .version = ROPE_APPEND_VERSION,
                                         .call_size = sizeof(rope_append_call),
                                         .read = rope_append_call_read,
                                         .release = free};

const rope_operation rope_append_within = {.name = "append",
                                           .version = ROPE_APPEND_VERSION,
                                           .call_size = sizeof(rope_append_call),
                                           .read = rope_append_call_read};

_Static_assert(sizeof(rope_append_call) <= ROPE_MAX_CALL_SIZE, "a call lies on the stack");

rope_status rope_append_plan_create(const rope_append_desc *desc, rope_plan **plan) {
    if (!plan)
        return rope_fail_null("plan");
    rope_append_desc full;
    rope_append_problem *problem;
    rope_status status = rope_append_descriptor_read(desc, &full);
    if (status == ROPE_OK)
        status = rope_append_problem_create(&full, &problem);
    if (status != ROPE_OK)
        return status;
    const rope_choice choice = {full.rope.backend, full.rope.device, full.rope.kernel};
    return rope_plan_make(&operation, problem, &choice, plan);
}

rope_status rope_append(const rope_plan *plan, const rope_append_args *args) {
    const rope_status status = rope_plan_check(plan, &operation);
    return status == ROPE_OK ? rope_plan_apply_on(plan, args, NULL, NULL) : status;
}
