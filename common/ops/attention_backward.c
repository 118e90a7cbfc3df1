/* The operation "attention_backward": its plans, its calls and their workspace. */
#include "common/names.h"
#include "common/ops/attention_backward_call.h"
#include "common/ops/attention_call.h"
#include "common/ops/attention_descriptor.h"
#include "common/ops/attention_norms.h"
#include "common/ops/attention_problem.h"
#include "common/ops/attention_shape.h"
#include "common/ops/rope_descriptor.h"
#include "common/plan.h"
#include "common/status.h"

static const rope_operation operation = {.name = "attention_backward",
                                         .version = ROPE_ATTENTION_BACKWARD_VERSION,
                                         .call_size = sizeof(rope_attention_backward_own_call),
                                         .read = rope_attention_backward_call_read,
                                         .release = rope_attention_own_release};

_Static_assert(sizeof(rope_attention_backward_own_call) <= ROPE_MAX_CALL_SIZE,
               "a call lies on the stack");

/* What the forward alone has. */
static rope_status check_descriptor(const rope_attention_desc *desc) {
    if (desc->cache)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "cache is %s; allowed is 0 for a gradient: it is of k.in and v.in",
                         rope_choice_name(rope_cache_names, desc->cache).text);
    if (desc->mask == ROPE_MASK_TREE)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "mask is %s; allowed is ROPE_MASK_CAUSAL (1) or ROPE_MASK_FULL (2) for a "
                         "gradient",
                         rope_choice_name(rope_mask_names, desc->mask).text);
    return desc->rotation == ROPE_ATTENTION_ROTATE_NONE ? ROPE_OK
                                                        : rope_transpose_check(&desc->rope);
}

rope_status rope_attention_backward_plan_create(const rope_attention_desc *desc, rope_plan **plan) {
    if (!plan)
        return rope_fail_null("plan");
    rope_attention_desc full;
    rope_attention_problem *problem;
    rope_status status = rope_attention_descriptor_read(desc, &full);
    if (status == ROPE_OK)
        status = check_descriptor(&full);
    if (status == ROPE_OK)
        status = rope_attention_problem_create(&full, &problem);
    if (status != ROPE_OK)
        return status;
    rope_attention_own *own = (rope_attention_own *)(void *)problem;
    status = rope_attention_norms_create(&full, 1, own);
    if (status != ROPE_OK) {
        rope_attention_own_release(own);
        return status;
    }
    const rope_choice choice = {full.rope.backend, full.rope.device, full.rope.kernel};
    status = rope_plan_make_tuned(&operation, own, &choice, &rope_attention_backward_shape,
                                  full.tuning, rope_attention_around(own), plan);
    if (status == ROPE_OK)
        rope_attention_norms_note(*plan);
    return status;
}

rope_status rope_attention_backward_workspace(const rope_plan *plan,
                                              const rope_attention_bounds *bounds, size_t *bytes) {
    rope_status status = rope_plan_check(plan, &operation);
    return status == ROPE_OK ? rope_attention_bounds_read(plan, bounds, bytes) : status;
}

rope_status rope_attention_backward(const rope_plan *plan,
                                    const rope_attention_backward_args *given) {
    rope_attention_backward_args args;
    rope_attention_args full;
    rope_status status = rope_plan_check(plan, &operation);
    if (status != ROPE_OK)
        return status;
    const rope_attention_args *forward =
        rope_attention_backward_args_read(given, &args, &full, &status);
    return forward ? rope_plan_apply_on(plan, &args, forward->workspace, NULL) : status;
}
