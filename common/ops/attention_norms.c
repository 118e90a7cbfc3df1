#include "common/ops/attention_norms.h"

#include "common/candidate.h"
#include "common/ops/append_backward_call.h"
#include "common/ops/append_descriptor.h"
#include "common/ops/append_problem.h"
#include "common/ops/tensor.h"
#include "common/status.h"

#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 256 };

/* --- problems --- */

/* As it may be given once more: a default of what it does not have stays out. */
static rope_norm given_norm(rope_norm norm) {
    norm.weight_dtype = norm.weight ? norm.weight_dtype : 0;
    return norm;
}

/* The rotation is attention's, whose positions append does not have. */
static rope_status make_problem(const rope_attention_desc *desc, rope_append_problem **made) {
    rope_append_desc given = ROPE_APPEND_DESC_INIT, full;
    given.rope.dtype = desc->rope.dtype;
    given.rope.head_dim = desc->rope.head_dim;
    given.rope.launch = desc->rope.launch;
    given.rotation = ROPE_ROTATION_OFF;
    given.q.norm = given_norm(desc->q_norm);
    given.k.norm = given_norm(desc->k_norm);
    const rope_status status = rope_append_descriptor_read(&given, &full);
    return status == ROPE_OK ? rope_append_problem_create(&full, made) : status;
}

rope_status rope_attention_norms_create(const rope_attention_desc *desc, int gradients,
                                        rope_attention_own *own) {
    const rope_choice choice = {desc->rope.backend, desc->rope.device, NULL};
    if (!desc->q_norm.type && !desc->k_norm.type)
        return ROPE_OK;
    rope_status status = make_problem(desc, &own->norms);
    if (status == ROPE_OK)
        status = rope_plan_make(&rope_append_within, own->norms, &choice, &own->append);
    if (status == ROPE_OK && gradients)
        status = rope_plan_make(&rope_append_backward_within, own->norms, &choice, &own->backward);
    return status;
}

void rope_attention_norms_note(rope_plan *plan) {
    const rope_attention_own *own = plan->problem;
    if (own->norms)
        rope_plan_note(plan, own->append->name, "normalises queries and keys");
}

void rope_attention_own_release(void *problem) {
    rope_attention_own *own = problem;
    rope_plan_destroy(own->append);
    rope_plan_destroy(own->backward);
    free(own->norms);
    free(own);
}

/* --- arguments --- */

static const rope_append_steps *steps_of(const rope_attention_own *own, int which) {
    static const rope_append_steps none;
    return own->norms ? &own->norms->steps[which] : &none;
}

rope_status rope_attention_weights_unread(const rope_attention_own *own,
                                          const rope_attention_args *args) {
    const rope_status status =
        rope_norm_weight_unread(steps_of(own, ROPE_APPEND_Q), &args->q_weight, ROPE_APPEND_Q);
    return status == ROPE_OK ? rope_norm_weight_unread(steps_of(own, ROPE_APPEND_K),
                                                       &args->k_weight, ROPE_APPEND_K)
                             : status;
}

rope_status rope_attention_norms_read(const rope_attention_own *own,
                                      const rope_attention_args *args,
                                      const rope_attention_call *call,
                                      rope_append_operand norm[ROPE_NORMED],
                                      rope_append_weights *const weights[ROPE_NORMED]) {
    const rope_operand *q = &call->rope.tensor[0];
    const rope_norm_weight *given[ROPE_NORMED] = {&args->q_weight, &args->k_weight};
    rope_status status = ROPE_OK;
    norm[0] = (rope_append_operand){.in = q->in, .heads = call->rope.tokens ? q->heads : 0};
    memcpy(norm[0].in_stride, q->in_stride, sizeof q->in_stride);
    norm[1] = call->k;
    norm[1].out = NULL;
    for (int t = 0; t < ROPE_NORMED; t++) {
        const rope_append_steps *steps = steps_of(own, t);
        weights[t]->region.name = NULL;
        if (!steps->norm)
            norm[t].heads = 0;
        else if (status == ROPE_OK && norm[t].heads)
            status = rope_norm_weight_read(steps, given[t], t, &norm[t], weights[t]);
    }
    return status;
}

/* --- workspace --- */

static int64_t tokens_of(const rope_attention_call *call, int which) {
    return which == ROPE_APPEND_Q ? call->rope.tokens : call->k_tokens;
}

/* Bytes of a tensor that lies there; 0 where they overflow. */
static int bytes_of(const rope_attention_own *own, int64_t batch, int64_t tokens, int64_t heads,
                    size_t *bytes) {
    const rope_attention_problem *p = &own->problem;
    size_t made = (size_t)(p->head_dim * rope_dtype_size(p->rope.dtype));
    if (__builtin_mul_overflow(made, batch, &made) || __builtin_mul_overflow(made, tokens, &made) ||
        __builtin_mul_overflow(made, heads, &made) ||
        __builtin_add_overflow(made, ALIGNMENT - 1, &made))
        return 0;
    *bytes = made / ALIGNMENT * ALIGNMENT;
    return 1;
}

/* A tensor at the front of what is left of a workspace. */
static rope_status take(const rope_attention_own *own, rope_attention_call *call, int which,
                        int64_t heads, void **workspace, void **data, int64_t stride[4]) {
    const int64_t dim = own->problem.head_dim, tokens = tokens_of(call, which);
    size_t bytes;
    if (!bytes_of(own, call->rope.batch, tokens, heads, &bytes))
        return rope_fail(ROPE_ERROR_OVERFLOW,
                         "tokens %lld of %lld heads overflow; allowed is below 2^64 bytes",
                         (long long)tokens, (long long)heads);
    if (bytes > call->workspace_bytes)
        return rope_fail(ROPE_ERROR_INVALID_VALUE,
                         "workspace_bytes has %zu left; allowed is at least %zu for %s that have a "
                         "norm",
                         call->workspace_bytes, bytes, which ? "keys" : "queries");
    if (!*workspace)
        return rope_fail_null("workspace");
    *data = *workspace;
    stride[0] = tokens * heads * dim;
    stride[1] = heads * dim;
    stride[2] = dim;
    stride[3] = 1;
    *workspace = (char *)*workspace + bytes;
    call->workspace_bytes -= bytes;
    return ROPE_OK;
}

static rope_status add_bytes(const rope_attention_own *own, const rope_attention_bounds *b,
                             int which, size_t *all) {
    const int64_t tokens = which == ROPE_APPEND_K && b->k_tokens ? b->k_tokens : b->tokens,
                  heads = which == ROPE_APPEND_K ? b->k_heads : b->q_heads;
    const size_t copies = own->backward ? 2 : 1; /* with gradients that only weights need */
    size_t bytes;
    if (!own->norms->steps[which].norm)
        return ROPE_OK;
    if (bytes_of(own, b->batch, tokens, heads, &bytes) &&
        !__builtin_mul_overflow(bytes, copies, &bytes) && !__builtin_add_overflow(*all, bytes, all))
        return ROPE_OK;
    return rope_fail(ROPE_ERROR_OVERFLOW,
                     "bounds.batch %lld * %lld tokens of %lld heads overflow; allowed is what "
                     "needs less than 2^64 bytes",
                     (long long)b->batch, (long long)tokens, (long long)heads);
}

/* What gradients of norms need, behind attention's in the same place. */
static rope_status gradient_bytes(const rope_attention_own *own, const rope_attention_bounds *b,
                                  size_t *bytes) {
    rope_append_bounds bounds = {.struct_size = sizeof bounds,
                                 .batch = b->batch,
                                 .tokens = b->k_tokens > b->tokens ? b->k_tokens : b->tokens,
                                 .q_heads = b->q_heads,
                                 .k_heads = b->k_heads};
    *bytes = 0;
    return own->backward ? rope_plan_workspace(own->backward, &bounds, bytes) : ROPE_OK;
}

static rope_status workspace_of(const void *problem, const void *given, size_t *bytes) {
    const rope_attention_own *own = problem;
    size_t gradients;
    rope_status status = gradient_bytes(own, given, &gradients);
    *bytes = gradients > *bytes ? gradients : *bytes;
    for (int t = 0; t < ROPE_NORMED && status == ROPE_OK; t++)
        status = add_bytes(own, given, t, bytes);
    return status;
}

/* --- ahead of attention --- */

/* Tokens without positions. */
static rope_call tokens_alone(const rope_attention_call *call, int which) {
    const int64_t tokens = tokens_of(call, which);
    return (rope_call){.batch = call->rope.batch,
                       .tokens = tokens,
                       .position = {.tokens = tokens,
                                    .wide = call->rope.position.wide,
                                    .shard = call->rope.position.shard,
                                    .shard_size = 1}};
}

/* Both at once where they have as many tokens. */
static rope_status run_append(const rope_attention_own *own, const rope_attention_call *call,
                              const rope_append_operand norm[ROPE_NORMED], void *stream) {
    const int both = norm[0].heads && norm[1].heads && call->rope.tokens == call->k_tokens;
    rope_status status = ROPE_OK;
    for (int t = 0; t < (both ? 1 : ROPE_NORMED) && status == ROPE_OK; t++) {
        rope_append_call append = {.rope = tokens_alone(call, t)};
        append.tensor[t] = norm[t];
        if (both)
            append.tensor[ROPE_APPEND_K] = norm[ROPE_APPEND_K];
        if (norm[t].heads)
            status = rope_plan_run(own->append, &append, NULL, stream);
    }
    return status;
}

/* Queries and keys of a call become those of norms that have heads. */
static rope_status normalise(const rope_attention_own *own, rope_attention_call *call,
                             rope_append_operand norm[ROPE_NORMED], void **workspace,
                             void *stream) {
    rope_operand *q = &call->rope.tensor[0];
    rope_status status = ROPE_OK;
    for (int t = 0; t < ROPE_NORMED && status == ROPE_OK; t++) {
        rope_append_operand *o = &norm[t];
        if (!o->heads)
            continue;
        status = take(own, call, t, o->heads, workspace, &o->out, o->out_stride);
        *(t ? &call->k.in : &q->in) = o->out;
        memcpy(t ? call->k.in_stride : q->in_stride, o->out_stride, sizeof o->out_stride);
    }
    return status == ROPE_OK ? run_append(own, call, norm, stream) : status;
}

/* By a kernel that has norms too, if the call's does. */
static rope_status run_normed(const rope_plan *plan, const rope_attention_own_call *c,
                              void *workspace, void *stream) {
    const rope_attention_own *own = plan->problem;
    const rope_bound_kernel *k = rope_plan_kernel_for(plan, &c->call);
    rope_status (*runs)(const void *, const void *, const rope_append_steps *,
                        const rope_append_operand *, const void *, void *, void *) =
        ROPE_CANDIDATE_FUNCTION(k->backend, k->candidate, run_normed);
    return runs ? runs(&own->problem, k->kernel, own->norms->steps, c->norm, &c->call, workspace,
                       stream)
                : ROPE_DECLINED;
}

static rope_status run(const rope_plan *plan, const void *given, void *workspace, void *stream) {
    rope_attention_own_call c = *(const rope_attention_own_call *)given;
    rope_status status = run_normed(plan, &c, workspace, stream);
    if (status != ROPE_DECLINED)
        return status;
    status = normalise(plan->problem, &c.call, c.norm, &workspace, stream);
    return status == ROPE_OK ? rope_plan_run_kernels(plan, &c.call, workspace, stream) : status;
}

/* --- behind its backward --- */

/* Where gradients go that attention's backward makes and norms take: to the caller, or, where those
 * of weights alone are wanted, to the workspace. */
static rope_status place_gradients(const rope_attention_own *own,
                                   rope_attention_backward_own_call *c, void **workspace) {
    rope_attention_backward_call *call = &c->call;
    void **data[ROPE_NORMED] = {&call->dq, &call->dk};
    int64_t *stride[ROPE_NORMED] = {call->dq_stride, call->dk_stride};
    rope_status status = ROPE_OK;
    for (int t = 0; t < ROPE_NORMED && status == ROPE_OK; t++)
        if (c->weight[t] && !*data[t])
            status = take(own, &call->forward, t, c->norm[t].heads, workspace, data[t], stride[t]);
    return status;
}

/* Ahead of all that the caller sees written. */
static rope_status check_workspace(const rope_attention_own *own, const rope_attention_call *call,
                                   const void *workspace) {
    const rope_attention_bounds bounds = {.struct_size = sizeof bounds,
                                          .batch = call->rope.batch,
                                          .tokens = call->rope.tokens,
                                          .k_tokens = call->k_tokens,
                                          .q_heads = call->rope.tensor[0].heads,
                                          .k_heads = call->k.heads};
    size_t bytes;
    const rope_status status = gradient_bytes(own, &bounds, &bytes);
    if (status != ROPE_OK || (bytes <= call->workspace_bytes && (workspace || !bytes)))
        return status;
    return workspace ? rope_fail(ROPE_ERROR_INVALID_VALUE,
                                 "workspace_bytes has %zu left; allowed is at least %zu for "
                                 "gradients of norms",
                                 call->workspace_bytes, bytes)
                     : rope_fail_null("workspace");
}

/* to: what the caller wants of it, or NULL. */
static void add_gradient(const rope_attention_backward_own_call *c, int which, void *to,
                         rope_append_backward_call *made) {
    const void *from = which ? c->call.dk : c->call.dq;
    const int64_t *stride = which ? c->call.dk_stride : c->call.dq_stride;
    rope_operand *g = &made->gradient[which];
    if (!c->norm[which].heads || !from)
        return;
    made->forward.tensor[which] = c->norm[which];
    *g = (rope_operand){.in = from, .out = to, .heads = c->norm[which].heads};
    memcpy(g->in_stride, stride, sizeof g->in_stride);
    memcpy(g->out_stride, stride, sizeof g->out_stride);
    made->weight[which] = c->weight[which];
}

static rope_append_backward_call gradients_of(const rope_attention_call *call, int which) {
    const rope_position_map *map = which ? &call->k_position : &call->rope.position;
    rope_append_backward_call made = {.workspace_bytes = call->workspace_bytes, .attended = 1};
    made.forward.rope = tokens_alone(call, which);
    made.forward.rope.position.cu_seqlens = map->cu_seqlens;
    made.forward.rope.position.sequences = map->sequences;
    made.lengths = which ? call->k_lengths : call->q_lengths;
    made.other = which ? call->rope.position : call->k_position;
    made.other_lengths = which ? call->q_lengths : call->k_lengths;
    return made;
}

/* Both at once where they have the same tokens of the same sequences. */
static rope_status run_gradients(const rope_attention_own *own,
                                 const rope_attention_backward_own_call *c, void *const to[2],
                                 void *workspace, void *stream) {
    const rope_attention_call *f = &c->call.forward;
    const int both = f->rope.tokens == f->k_tokens && f->q_lengths == f->k_lengths &&
                     f->rope.position.cu_seqlens == f->k_position.cu_seqlens;
    rope_status status = ROPE_OK;
    for (int t = 0; t < (both ? 1 : ROPE_NORMED) && status == ROPE_OK; t++) {
        rope_append_backward_call made = gradients_of(f, t);
        add_gradient(c, t, to[t], &made);
        if (both)
            add_gradient(c, ROPE_APPEND_K, to[ROPE_APPEND_K], &made);
        if (made.gradient[0].heads || made.gradient[1].heads)
            status = rope_plan_run(own->backward, &made, workspace, stream);
    }
    return status;
}

/* Queries and keys that the forward wrote are normalised and rotated. */
static rope_status run_backward(const rope_plan *plan, const void *given, void *workspace,
                                void *stream) {
    const rope_attention_own *own = plan->problem;
    rope_attention_backward_own_call c = *(const rope_attention_backward_own_call *)given;
    rope_attention_call *f = &c.call.forward;
    rope_append_operand ahead[ROPE_NORMED] = {c.norm[0], c.norm[1]};
    void *const to[ROPE_NORMED] = {c.call.dq, c.call.dk};
    ahead[0].heads = f->rope.tensor[0].out ? 0 : ahead[0].heads;
    ahead[1].heads = f->k.out ? 0 : ahead[1].heads;
    rope_status status = normalise(own, f, ahead, &workspace, stream);
    if (status == ROPE_OK)
        status = place_gradients(own, &c, &workspace);
    if (status == ROPE_OK)
        status = check_workspace(own, f, workspace);
    if (status == ROPE_OK)
        status = rope_plan_run_kernels(plan, &c.call, workspace, stream);
    return status == ROPE_OK ? run_gradients(own, &c, to, workspace, stream) : status;
}

const rope_around *rope_attention_around(const rope_attention_own *own) {
    static const rope_around forward = {workspace_of, run}, backward = {workspace_of, run_backward};
    return !own->norms ? NULL : own->backward ? &backward : &forward;
}
