/* The operation "decode": its plans, its calls and their workspace. */
#include "common/ops/append_problem.h"
#include "common/ops/attention_call.h"
#include "common/ops/attention_problem.h"
#include "common/ops/decode_call.h"
#include "common/ops/decode_composed.h"
#include "common/ops/decode_descriptor.h"
#include "common/plan.h"
#include "common/status.h"

#include <stdlib.h>

static void release(void *given) {
    rope_decode_own *own = given;
    free((void *)(uintptr_t)own->problem.append);
    free((void *)(uintptr_t)own->problem.attention);
    free(own);
}

static const rope_operation operation = {.name = "decode",
                                         .version = ROPE_DECODE_VERSION,
                                         .call_size = sizeof(rope_decode_call),
                                         .read = rope_decode_call_read,
                                         .release = release};

_Static_assert(sizeof(rope_decode_call) <= ROPE_MAX_CALL_SIZE, "a call lies on the stack");

static rope_status create_problem(const rope_append_desc *append,
                                  const rope_attention_desc *attention, rope_decode_own **made) {
    rope_append_problem *appended;
    rope_attention_problem *attended;
    rope_decode_own *own = calloc(1, sizeof *own);
    if (!own)
        return rope_fail(ROPE_ERROR_OUT_OF_MEMORY, "no memory for a plan");
    rope_status status = rope_append_problem_create(append, &appended);
    if (status == ROPE_OK) {
        own->problem.append = appended;
        status = rope_attention_problem_create(attention, &attended);
    }
    if (status != ROPE_OK) {
        release(own);
        return status;
    }
    own->problem.attention = attended;
    own->kernel = append->rope.kernel;
    own->tuning = attention->tuning;
    *made = own;
    return ROPE_OK;
}

rope_status rope_decode_plan_create(const rope_decode_desc *desc, rope_plan **plan) {
    if (!plan)
        return rope_fail_null("plan");
    rope_append_desc append;
    rope_attention_desc attention;
    rope_decode_own *own = NULL;
    rope_status status = rope_decode_descriptor_read(desc, &append, &attention);
    if (status == ROPE_OK)
        status = create_problem(&append, &attention, &own);
    if (status != ROPE_OK)
        return status;
    const rope_choice choice = {append.rope.backend, append.rope.device, append.rope.kernel};
    return rope_plan_make_composed(&operation, own, &choice, &rope_decode_composed, plan);
}

rope_status rope_decode_workspace(const rope_plan *plan, const rope_attention_bounds *bounds,
                                  size_t *bytes) {
    rope_status status = rope_plan_check(plan, &operation);
    return status == ROPE_OK ? rope_attention_bounds_read(plan, bounds, bytes) : status;
}

rope_status rope_decode(const rope_plan *plan, const rope_decode_args *given) {
    rope_decode_args full;
    rope_status status = rope_plan_check(plan, &operation);
    if (status != ROPE_OK)
        return status;
    const rope_decode_args *args = rope_decode_args_read(given, &full, &status);
    return args ? rope_plan_apply_on(plan, args, args->workspace, NULL) : status;
}
