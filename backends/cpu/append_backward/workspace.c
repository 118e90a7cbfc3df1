/* What a workspace of "append_backward" holds: for each tensor whose weights have a gradient rows
 * of sums of groups of tokens, then for each thread a chain, a block and a tree of rows, and two
 * stages. */
#include "backends/cpu/workspace.h"
#include "backends/cpu/append_backward/context.h"
#include "backends/cpu/partition.h"
#include "common/status.h"

int gradient_plan_fill(int64_t tokens, const int64_t width[ROPE_APPEND_TENSORS],
                       gradient_plan *plan) {
    const int64_t units = tokens / GRADIENT_UNIT + (tokens % GRADIENT_UNIT != 0);
    int64_t each = 1, bytes = 0, more = 0;
    plan->levels = 4; /* of the blocks of a unit, one of which may be a token */
    for (; (units - 1) / each >= GRADIENT_GROUPS; each *= 2)
        plan->levels++;
    plan->tokens = tokens;
    plan->group_tokens = each * GRADIENT_UNIT;
    plan->groups = units ? (units - 1) / each + 1 : 0;
    for (int t = 0; t < ROPE_APPEND_TENSORS; t++) {
        plan->width[t] = width[t];
        plan->rows[t] = bytes;
        plan->thread[t] = more;
        if (cpu_workspace_add(&bytes, units < GRADIENT_GROUPS ? units : GRADIENT_GROUPS, width[t],
                              sizeof(float), 1) ||
            cpu_workspace_add(&more, 2 + plan->levels, width[t], sizeof(float), 1))
            return 0;
    }
    plan->begin = bytes;
    plan->stages = more;
    if (cpu_workspace_add(&more, 2, GRADIENT_STAGE, 1, 1))
        return 0;
    plan->thread_bytes = more;
    return 1;
}

rope_status cpu_append_backward_workspace(const void *problem, const void *kernel,
                                          const void *given, size_t *bytes) {
    (void)kernel;
    const rope_append_problem *p = problem;
    const rope_append_bounds *b = given;
    const int64_t heads[ROPE_APPEND_TENSORS] = {b->q_heads, b->k_heads, b->v_heads};
    int64_t width[ROPE_APPEND_TENSORS], tokens, threads, all;
    gradient_plan plan;
    int overflows = __builtin_mul_overflow(b->batch, b->tokens, &tokens);
    for (int t = 0; t < ROPE_APPEND_TENSORS; t++)
        overflows |= __builtin_mul_overflow(heads[t], p->steps[t].weight ? p->steps[t].norm_dim : 0,
                                            &width[t]);
    if (overflows || !gradient_plan_fill(tokens, width, &plan) ||
        __builtin_mul_overflow(plan.thread_bytes,
                               cpu_threads_most() < plan.groups ? cpu_threads_most() : plan.groups,
                               &threads) ||
        __builtin_add_overflow(plan.begin, threads, &all))
        return rope_fail(ROPE_ERROR_OVERFLOW,
                         "bounds.tokens is %lld with batch %lld, q_heads %lld, k_heads %lld and "
                         "v_heads %lld; allowed is what stays within 64-bit addresses",
                         (long long)b->tokens, (long long)b->batch, (long long)b->q_heads,
                         (long long)b->k_heads, (long long)b->v_heads);
    *bytes = (size_t)all;
    return ROPE_OK;
}
