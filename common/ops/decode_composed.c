#include "common/ops/decode_composed.h"

#include "common/math/position.h"
#include "common/ops/append_call.h"
#include "common/ops/attention_call.h"
#include "common/ops/attention_shape.h"
#include "common/ops/tensor.h"
#include "common/plan.h"
#include "common/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 256 };

/* Its problem is that of the whole, which releases it. */
static const rope_operation attention_operation = {.name = "attention",
                                                   .version = ROPE_ATTENTION_VERSION,
                                                   .call_size = sizeof(rope_attention_call),
                                                   .read = rope_attention_call_read};

typedef struct composition {
    rope_plan *append, *attention;
    int on_host; /* lists lie in the host's memory */
} composition;

static void release(void *kernel) {
    composition *c = kernel;
    rope_plan_destroy(c->append);
    rope_plan_destroy(c->attention);
    free(c);
}

static rope_status make_plans(const rope_backend *backend, const rope_decode_own *own,
                              int32_t device, composition *made) {
    const int whole = !own->kernel || strcmp(own->kernel, rope_decode_composed.name) == 0;
    const rope_choice any = {backend->name, device, NULL},
                      named = {backend->name, device, whole ? NULL : own->kernel};
    void *append = (void *)(uintptr_t)own->problem.append,
         *attention = (void *)(uintptr_t)own->problem.attention;
    const rope_status status = rope_plan_make(&rope_append_within, append, &any, &made->append);
    return status == ROPE_OK
               ? rope_plan_make_tuned(&attention_operation, attention, &named,
                                      &rope_attention_shape, own->tuning, NULL, &made->attention)
               : status;
}

static rope_status bind(const rope_candidate *self, const void *problem, int32_t device,
                        void **kernel, char *reason) {
    composition *made = calloc(1, sizeof *made);
    if (!made)
        return rope_fail(ROPE_ERROR_OUT_OF_MEMORY, "no memory for a plan");
    made->on_host = strcmp(((const rope_backend *)self->data)->name, "cpu") == 0;
    const rope_status status = make_plans(self->data, problem, device, made);
    if (status == ROPE_OK) {
        *kernel = made;
    } else {
        release(made);
        snprintf(reason, ROPE_REASON_SIZE, "declined: %.140s", rope_last_error());
    }
    return status;
}

/* Whether attention reads the caller's queries, as the append would write the same. */
static int are_read_as_given(const rope_append_problem *p) {
    const rope_append_steps *q = &p->steps[ROPE_APPEND_Q];
    return !q->norm && !q->rotates && q->factor == 1;
}

/* Rotated queries that no q.out receives come first in the workspace. */
static rope_status query_bytes(const rope_append_problem *p, int64_t batch, int64_t tokens,
                               int64_t heads, size_t *bytes) {
    const rope_append_steps *steps = &p->steps[ROPE_APPEND_Q];
    size_t made = (size_t)(steps->head_dim * rope_dtype_size(p->rope.dtype));
    *bytes = 0;
    if (are_read_as_given(p))
        return ROPE_OK;
    if (__builtin_mul_overflow(made, batch, &made) || __builtin_mul_overflow(made, tokens, &made) ||
        __builtin_mul_overflow(made, heads, &made) ||
        __builtin_add_overflow(made, ALIGNMENT - 1, &made))
        return rope_fail(ROPE_ERROR_OVERFLOW,
                         "bounds.batch %lld * bounds.tokens %lld * bounds.q_heads %lld of %d "
                         "elements overflow; allowed is below 2^64 bytes",
                         (long long)batch, (long long)tokens, (long long)heads, steps->head_dim);
    *bytes = made / ALIGNMENT * ALIGNMENT;
    return ROPE_OK;
}

static rope_status workspace_of(const void *canonical, const void *kernel, const void *given,
                                size_t *bytes) {
    const rope_decode_problem *problem = canonical;
    const composition *c = kernel;
    const rope_attention_bounds *bounds = given;
    size_t queries = 0, attention = 0;
    rope_status status =
        query_bytes(problem->append, bounds->batch, bounds->tokens, bounds->q_heads, &queries);
    if (status == ROPE_OK)
        status = rope_plan_workspace(c->attention, bounds, &attention);
    if (status == ROPE_OK && __builtin_add_overflow(queries, attention, bytes))
        return rope_fail(ROPE_ERROR_OVERFLOW,
                         "bounds.tokens is %lld; allowed is what needs less than 2^64 bytes",
                         (long long)bounds->tokens);
    return status;
}

/* Has the append write its queries, and attention read them, at the front of the workspace. */
static rope_status place_queries(const rope_append_problem *problem, void **workspace,
                                 rope_append_operand *q, rope_attention_call *attention) {
    const rope_call *call = &attention->rope;
    const int64_t dim = problem->steps[ROPE_APPEND_Q].head_dim, row = q->heads * dim,
                  stride[4] = {call->tokens * row, row, dim, 1};
    size_t bytes = 0;
    rope_status status = query_bytes(problem, call->batch, call->tokens, q->heads, &bytes);
    if (status != ROPE_OK)
        return status;
    if (bytes > attention->workspace_bytes)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "workspace_bytes is %zu; allowed is at least %zu where q.out is NULL",
                         attention->workspace_bytes, bytes);
    if (!*workspace)
        return rope_fail_null("workspace");
    q->out = *workspace;
    memcpy(q->out_stride, stride, sizeof stride);
    memcpy(attention->rope.tensor[0].in_stride, stride, sizeof stride);
    attention->rope.tensor[0].in = *workspace;
    attention->workspace_bytes -= bytes;
    *workspace = (char *)*workspace + bytes;
    return ROPE_OK;
}

/* Has attention read the caller's queries, which the append then leaves out. */
static void pass_queries(rope_append_operand *q, rope_attention_call *attention) {
    attention->rope.tensor[0].in = q->in;
    *q = (rope_append_operand){0};
}

/* Of packed sequences, as rope_append says it, and whether one has more tokens than the most. */
static rope_status check_boundaries(const rope_decode_call *call) {
    const rope_position_map *map = &call->append.rope.position;
    const int limits = call->most_tokens < call->append.rope.tokens;
    for (int64_t s = 0; map->cu_seqlens && s < map->sequences; s++) {
        const int64_t begin = rope_index_at(map, map->cu_seqlens, s),
                      end = rope_index_at(map, map->cu_seqlens, s + 1);
        if (end < begin)
            return rope_fail(ROPE_ERROR_INVALID_VALUE,
                             "cu_seqlens[%lld] is %lld and cu_seqlens[%lld] is %lld; allowed is "
                             "boundaries that do not fall",
                             (long long)s, (long long)begin, (long long)s + 1, (long long)end);
        if (limits && rope_difference(end, begin) > call->most_tokens)
            return rope_fail(ROPE_ERROR_POSITION_RANGE,
                             "cu_seqlens[%lld] is %lld and cu_seqlens[%lld] is %lld; allowed is at "
                             "most most_tokens (%lld) apart",
                             (long long)s, (long long)begin, (long long)s + 1, (long long)end,
                             (long long)call->most_tokens);
    }
    return ROPE_OK;
}

static rope_status run(const void *canonical, const void *kernel, const void *given,
                       void *workspace, void *stream) {
    const rope_decode_problem *problem = canonical;
    const composition *c = kernel;
    rope_decode_call call = *(const rope_decode_call *)given;
    rope_append_operand *q = &call.append.tensor[ROPE_APPEND_Q];
    rope_status status = ROPE_OK;
    if (!q->out && are_read_as_given(problem->append))
        pass_queries(q, &call.attention);
    else if (!q->out)
        status = place_queries(problem->append, &workspace, q, &call.attention);
    if (status == ROPE_OK && c->on_host)
        status = check_boundaries(&call);
    if (status == ROPE_OK)
        status = rope_plan_check_call(c->attention, &call.attention, workspace, stream);
    if (status == ROPE_OK)
        status = rope_plan_run(c->append, &call.append, NULL, stream);
    return status == ROPE_OK ? rope_plan_run(c->attention, &call.attention, workspace, stream)
                             : status;
}

static const char *kernel_of(const void *kernel, const void *call) {
    const composition *c = kernel;
    const rope_decode_call *decode = call;
    return rope_plan_name_of(c->attention, &decode->attention);
}

const rope_candidate rope_decode_composed = {.operation = "decode",
                                             .version = ROPE_DECODE_VERSION,
                                             .numerics = ROPE_BOUNDED,
                                             .name = "composed",
                                             .bind = bind,
                                             .workspace = workspace_of,
                                             .run = run,
                                             .release = release,
                                             .kernel_of = kernel_of};
