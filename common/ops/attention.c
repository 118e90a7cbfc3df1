/* The operation "attention": its plans, its calls and their workspace. */
#include "common/abi.h"
#include "common/ops/attention_call.h"
#include "common/ops/attention_descriptor.h"
#include "common/ops/attention_norms.h"
#include "common/ops/attention_problem.h"
#include "common/ops/attention_shape.h"
#include "common/ops/fields.h"
#include "common/plan.h"
#include "common/status.h"

static const rope_operation operation = {.name = "attention",
                                         .version = ROPE_ATTENTION_VERSION,
                                         .call_size = sizeof(rope_attention_own_call),
                                         .read = rope_attention_call_read,
                                         .release = rope_attention_own_release};

_Static_assert(sizeof(rope_attention_own_call) <= ROPE_MAX_CALL_SIZE, "a call lies on the stack");

rope_status rope_attention_plan_create(const rope_attention_desc *desc, rope_plan **plan) {
    if (!plan)
        return rope_fail_null("plan");
    rope_attention_desc full;
    rope_attention_problem *problem;
    rope_status status = rope_attention_descriptor_read(desc, &full);
    if (status == ROPE_OK)
        status = rope_attention_problem_create(&full, &problem);
    if (status != ROPE_OK)
        return status;
    rope_attention_own *own = (rope_attention_own *)(void *)problem;
    status = rope_attention_norms_create(&full, 0, own);
    if (status != ROPE_OK) {
        rope_attention_own_release(own);
        return status;
    }
    const rope_choice choice = {full.rope.backend, full.rope.device, full.rope.kernel};
    status = rope_plan_make_tuned(&operation, own, &choice, &rope_attention_shape, full.tuning,
                                  rope_attention_around(own), plan);
    if (status == ROPE_OK)
        rope_attention_norms_note(*plan);
    return status;
}

static rope_status check_bounds(const rope_attention_bounds *b) {
    const rope_bound fields[] = {{"batch", b->batch},       {"tokens", b->tokens},
                                 {"k_tokens", b->k_tokens}, {"sequences", b->sequences},
                                 {"q_heads", b->q_heads},   {"k_heads", b->k_heads}};
    return rope_bounds_check(fields, sizeof fields / sizeof fields[0]);
}

rope_status rope_attention_bounds_read(const rope_plan *plan, const rope_attention_bounds *given,
                                       size_t *bytes) {
    rope_attention_bounds bounds;
    if (!bytes)
        return rope_fail_null("bytes");
    rope_status status = rope_abi_read(&bounds, sizeof bounds, given, "rope_attention_bounds");
    if (status == ROPE_OK)
        status = check_bounds(&bounds);
    size_t made = 0;
    if (status == ROPE_OK)
        status = rope_plan_workspace(plan, &bounds, &made);
    if (status == ROPE_OK)
        *bytes = made;
    return status;
}

rope_status rope_attention_workspace(const rope_plan *plan, const rope_attention_bounds *bounds,
                                     size_t *bytes) {
    rope_status status = rope_plan_check(plan, &operation);
    return status == ROPE_OK ? rope_attention_bounds_read(plan, bounds, bytes) : status;
}

rope_status rope_attention(const rope_plan *plan, const rope_attention_args *given) {
    rope_attention_args full;
    rope_status status = rope_plan_check(plan, &operation);
    if (status != ROPE_OK)
        return status;
    const rope_attention_args *args = rope_attention_args_read(given, &full, &status);
    return args ? rope_plan_apply_on(plan, args, args->workspace, NULL) : status;
}
