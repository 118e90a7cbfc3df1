/*
 * Goes through the tokens of a call in groups, each thread through some of them, then adds what
 * groups sum for weights. A group is a subtree of the one tree over blocks of tokens, so the sum is
 * the same however many groups there are.
 */
#include "backends/cpu/append_backward/context.h"
#include "backends/cpu/partition.h"
#include "common/status.h"

#if defined(_OPENMP)
#include <omp.h>
#endif

/* What all threads share. */
typedef struct gradient_team {
    const rope_append_problem *problem;
    const cpu_append_backward_kernel *kernel;
    const rope_append_backward_call *call;
    gradient_plan plan;
    char *workspace;
    int64_t bytes;
} gradient_team;

static void fill_sums(const gradient_team *team, int t, int thread, gradient_sums *s) {
    const rope_append_operand *o = &team->call->forward.tensor[t];
    const gradient_plan *plan = &team->plan;
    s->width = plan->width[t];
    if (!s->width)
        return;
    s->shared = o->weight_stride == 0;
    s->block = rope_gradient_block(o->heads, o->weight_stride);
    s->groups = (float *)(void *)(team->workspace + plan->rows[t]);
    s->chain = (float *)(void *)(team->workspace + plan->begin + thread * plan->thread_bytes +
                                 plan->thread[t]);
    s->sum = s->chain + s->width;
    s->tree = (gradient_tree){s->sum + s->width, s->width, 0};
    memset(s->chain, 0, (size_t)s->width * sizeof *s->chain);
}

static void fill_context(const gradient_team *team, int thread, gradient_context *b) {
    char *stages =
        team->workspace + team->plan.begin + thread * team->plan.thread_bytes + team->plan.stages;
    append_context_fill(&b->w, team->kernel->append, team->problem, &team->call->forward,
                        team->bytes, stages);
    b->x = stages + GRADIENT_STAGE;
    b->w.place.status = ROPE_PLACE_NONE;
    b->kernel = team->kernel;
    b->call = team->call;
    for (int t = 0; t < ROPE_APPEND_TENSORS; t++) {
        const rope_operand *g = &team->call->gradient[t];
        rope_append_operand *o = &b->gradient[t];
        *o = (rope_append_operand){.in = g->in, .out = g->out, .heads = g->heads};
        memcpy(o->in_stride, g->in_stride, sizeof o->in_stride);
        memcpy(o->out_stride, g->out_stride, sizeof o->out_stride);
        fill_sums(team, t, thread, &b->sums[t]);
    }
}

static void run_group(gradient_context *b, const gradient_plan *plan, int64_t group) {
    const rope_problem *p = &b->w.problem->rope;
    const rope_call *call = &b->call->forward.rope;
    const int64_t first = group * plan->group_tokens, left = plan->tokens - first,
                  last = first + (left < plan->group_tokens ? left : plan->group_tokens);
    for (int t = 0; t < ROPE_APPEND_TENSORS; t++)
        b->sums[t].tree.nodes = 0;
    for (int64_t n = first; n < last; n++) {
        b->w.batch = n / call->tokens;
        b->w.index = n % call->tokens;
        b->w.filled = -1;
        if (p->pairs)
            rope_token_read(p, call, b->w.batch, b->w.index, &b->w.token);
        b->takes = rope_gradient_takes(b->call, b->w.batch, b->w.index);
        for (int t = 0; t < ROPE_APPEND_TENSORS; t++)
            gradient_run_tensor(b, t);
    }
    for (int t = 0; t < ROPE_APPEND_TENSORS; t++)
        if (b->sums[t].width)
            gradient_tree_sum(&b->sums[t].tree, b->sums[t].groups + group * b->sums[t].width);
}

static void run_groups(const gradient_team *team, int index, int parts) {
    const gradient_plan *plan = &team->plan;
    gradient_context b;
    fill_context(team, index, &b);
    const int64_t last = cpu_part(plan->groups, index + 1, parts);
    for (int64_t g = cpu_part(plan->groups, index, parts); g < last; g++)
        run_group(&b, plan, g);
#if defined(__SSE2__)
    if (b.w.exceeds)
        __builtin_ia32_sfence();
#endif
}

/* The sums of all groups for a part of the weights. */
static void add_groups(const gradient_team *team, int index, int parts) {
    enum { WIDTH = 64, LEVELS = 9 };
    _Static_assert(GRADIENT_GROUPS >> (LEVELS - 1) <= 1, "a row for each level");
    float partial[LEVELS * WIDTH], node[WIDTH];
    const gradient_plan *plan = &team->plan;
    for (int t = 0; t < ROPE_APPEND_TENSORS; t++) {
        const int64_t all = plan->width[t], last = cpu_part(all, index + 1, parts);
        if (!all)
            continue;
        const float *rows = (const float *)(const void *)(team->workspace + plan->rows[t]);
        for (int64_t at = cpu_part(all, index, parts), width; at < last; at += width) {
            width = last - at < WIDTH ? last - at : WIDTH;
            gradient_tree tree = {partial, width, 0};
            for (int64_t g = 0; g < plan->groups; g++) {
                memcpy(node, rows + g * all + at, (size_t)width * sizeof *node);
                gradient_tree_add(&tree, node);
            }
            gradient_tree_sum(&tree, team->call->weight[t] + at);
        }
    }
}

/* Read and written. */
static int64_t bytes_of(const rope_append_problem *p, const rope_append_backward_call *call) {
    int64_t bytes = 0;
    for (int t = 0; t < ROPE_APPEND_TENSORS; t++) {
        const int64_t row = call->gradient[t].heads * p->steps[t].head_dim;
        bytes += call->forward.rope.batch * call->forward.rope.tokens * row *
                 (1 + (call->gradient[t].out != NULL) + (p->steps[t].norm != 0)) *
                 cpu_dtype_size(p->rope.dtype);
    }
    return bytes;
}

/* Plans a call; how many threads it is worth and has a workspace for. */
static rope_status plan_call(gradient_team *team, int *parts) {
    const rope_append_backward_call *call = team->call;
    int64_t width[ROPE_APPEND_TENSORS];
    for (int t = 0; t < ROPE_APPEND_TENSORS; t++) {
        const rope_append_operand *o = &call->forward.tensor[t];
        width[t] = call->weight[t]
                       ? (o->weight_stride ? o->heads : 1) * team->problem->steps[t].norm_dim
                       : 0;
    }
    gradient_plan *plan = &team->plan;
    if (!gradient_plan_fill(call->forward.rope.batch * call->forward.rope.tokens, width, plan))
        return rope_fail(ROPE_ERROR_OVERFLOW,
                         "tokens is %lld with batch %lld; allowed is a workspace within 64-bit "
                         "addresses",
                         (long long)call->forward.rope.tokens, (long long)call->forward.rope.batch);
    const int64_t least = plan->begin + plan->thread_bytes;
    if ((uint64_t)least > call->workspace_bytes)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "workspace_bytes is %zu; allowed is at least %lld", call->workspace_bytes,
                         (long long)least);
    if (!team->workspace)
        return rope_fail_null("workspace");
    const int64_t room = ((int64_t)call->workspace_bytes - plan->begin) / plan->thread_bytes;
    const int worth = cpu_threads_for(team->bytes);
    *parts = worth;
    if (*parts > plan->groups)
        *parts = (int)plan->groups;
    if (*parts > room)
        *parts = (int)room;
    return ROPE_OK;
}

rope_status cpu_append_backward_call(const void *problem, const void *kernel, const void *given,
                                     void *workspace, void *stream) {
    (void)stream;
    const rope_append_backward_call *call = given;
    gradient_team team = {.problem = problem,
                          .kernel = kernel,
                          .call = call,
                          .workspace = workspace,
                          .bytes = bytes_of(problem, call)};
    int parts = 1;
    rope_status status = plan_call(&team, &parts);
    if (status == ROPE_OK)
        status = cpu_check_positions(&team.problem->rope, &call->forward.rope);
    if (status != ROPE_OK)
        return status;
    if (parts == 1) {
        run_groups(&team, 0, 1);
        add_groups(&team, 0, 1);
        return ROPE_OK;
    }
#if defined(_OPENMP)
#pragma omp parallel num_threads(parts)
    {
        run_groups(&team, omp_get_thread_num(), omp_get_num_threads());
#pragma omp barrier
        add_groups(&team, omp_get_thread_num(), omp_get_num_threads());
    }
#endif
    return ROPE_OK;
}
