/* The operation "append_backward": its plans, its calls and their workspace. */
#include "common/abi.h"
#include "common/math/coefficients.h"
#include "common/ops/append_backward_call.h"
#include "common/ops/append_descriptor.h"
#include "common/ops/append_problem.h"
#include "common/ops/fields.h"
#include "common/ops/rope_descriptor.h"
#include "common/plan.h"
#include "common/status.h"

#include <stdlib.h>

static const rope_operation operation = {.name = "append_backward",
                                         .version = ROPE_APPEND_BACKWARD_VERSION,
                                         .call_size = sizeof(rope_append_backward_call),
                                         .read = rope_append_backward_call_read,
                                         .release = free};

const rope_operation rope_append_backward_within = {.name = "append_backward",
                                                    .version = ROPE_APPEND_BACKWARD_VERSION,
                                                    .call_size = sizeof(rope_append_backward_call),
                                                    .read = rope_append_backward_call_read};

_Static_assert(sizeof(rope_append_backward_call) <= ROPE_MAX_CALL_SIZE, "a call lies on the stack");

/* What the forward alone has. */
static rope_status check_descriptor(const rope_append_desc *desc) {
    if (desc->k_source == ROPE_SOURCE_CACHE)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "k_source is %s; allowed is ROPE_SOURCE_TENSOR (1) for a gradient: keys "
                         "that move have none",
                         rope_choice_name(rope_source_names, desc->k_source).text);
    if (desc->cache)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "cache is %s; allowed is 0 for a gradient: it is of q, k and v as they "
                         "are before a cache stores them",
                         rope_choice_name(rope_cache_names, desc->cache).text);
    if (desc->q.store_dtype != desc->rope.dtype)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "q.store_dtype is %s; allowed is 0 (dtype) or dtype, %s, for a gradient",
                         rope_choice_name(rope_dtype_names, desc->q.store_dtype).text,
                         rope_choice_name(rope_dtype_names, desc->rope.dtype).text);
    return desc->rotation == ROPE_ROTATION_ON ? rope_transpose_check(&desc->rope) : ROPE_OK;
}

rope_status rope_append_backward_plan_create(const rope_append_desc *desc, rope_plan **plan) {
    if (!plan)
        return rope_fail_null("plan");
    rope_append_desc full;
    rope_append_problem *problem;
    rope_status status = rope_append_descriptor_read(desc, &full);
    if (status == ROPE_OK)
        status = check_descriptor(&full);
    if (status == ROPE_OK)
        status = rope_append_problem_create(&full, &problem);
    if (status != ROPE_OK)
        return status;
    problem->rope = rope_transposed(&problem->rope);
    const rope_choice choice = {full.rope.backend, full.rope.device, full.rope.kernel};
    return rope_plan_make(&operation, problem, &choice, plan);
}

static rope_status check_bounds(const rope_append_bounds *b) {
    const rope_bound fields[] = {{"batch", b->batch},
                                 {"tokens", b->tokens},
                                 {"q_heads", b->q_heads},
                                 {"k_heads", b->k_heads},
                                 {"v_heads", b->v_heads}};
    return rope_bounds_check(fields, sizeof fields / sizeof fields[0]);
}

rope_status rope_append_backward_workspace(const rope_plan *plan, const rope_append_bounds *given,
                                           size_t *bytes) {
    rope_append_bounds bounds;
    rope_status status = rope_plan_check(plan, &operation);
    if (!bytes)
        return status == ROPE_OK ? rope_fail_null("bytes") : status;
    if (status == ROPE_OK)
        status = rope_abi_read(&bounds, sizeof bounds, given, "rope_append_bounds");
    if (status == ROPE_OK)
        status = check_bounds(&bounds);
    size_t made = 0;
    if (status == ROPE_OK)
        status = rope_plan_workspace(plan, &bounds, &made);
    if (status == ROPE_OK)
        *bytes = made;
    return status;
}

rope_status rope_append_backward(const rope_plan *plan, const rope_append_backward_args *given) {
    rope_append_backward_args args;
    rope_status status = rope_plan_check(plan, &operation);
    if (status == ROPE_OK)
        status = rope_abi_read(&args, sizeof args, given, "rope_append_backward_args");
    return status == ROPE_OK ? rope_plan_apply_on(plan, &args, args.workspace, NULL) : status;
}
