#include "python/csrc/attention.h"

#include "python/csrc/attention_explain.h"
#include "python/csrc/attention_plan.h"
#include "python/csrc/attention_put.h"
#include "python/csrc/attention_results.h"
#include "python/csrc/failure.h"
#include "python/csrc/layout.h"
#include "python/csrc/longest.h"

#include <string.h>

/* Queries that no sequence has are not written. */
static const char *make_results(attention_call *c, int32_t layout, int64_t v_head_dim,
                                rope_attention_args *args) {
    const int partly = attention_is_packed(c) || c->inputs.q_lengths.handle;
    const char *error = results_like(&c->q, layout, c->q.dims, v_head_dim, partly, &c->out);
    if (!error && c->wants_lse)
        error = results_lse(&c->q, layout, partly, &c->lse);
    if (error)
        return error;
    results_put(&c->out, layout, &args->out);
    if (c->wants_lse)
        results_put_lse(&c->lse, layout, args);
    return NULL;
}

/* Of what does not rotate, or has a norm, the tensor itself serves a backward. */
static const char *make_rotated(attention_call *c, int32_t layout, const rope_attention_desc *desc,
                                rope_args *args) {
    const tensor *const in[STORES] = {&c->q, &c->k};
    rope_tensor *const to[STORES] = {&args->q, &args->k};
    const char *error = NULL;
    for (int i = 0; i < STORES && !error; i++) {
        const int turns =
            !c->weight[i].handle && (desc->rotation == ROPE_ATTENTION_ROTATE_QK ||
                                     (i == 0 && desc->rotation == ROPE_ATTENTION_ROTATE_Q));
        error = turns ? results_like(in[i], layout, in[i]->dims, tensor_last_size(in[i]), 0,
                                     &c->rotated[i])
                      : results_none(&c->q, c->q.torch_dtype, &c->rotated[i]);
        if (error || !turns)
            continue;
        to[i]->out = tensor_write(&c->rotated[i]);
        put_strides(&c->rotated[i], layout, to[i]->out_stride);
    }
    return error;
}

static const char *run(attention_call *c);

static const char *run_widened(attention_call *c) {
    attention_call wide = *c;
    AtenTensorHandle made[INDICES] = {NULL};
    const char *error = inputs_widen(&wide.inputs, made);
    if (!error)
        error = run(&wide);
    c->out = wide.out;
    c->lse = wide.lse;
    memcpy(c->rotated, wide.rotated, sizeof c->rotated);
    inputs_release_widened(made);
    return error;
}

static const char *run(attention_call *c) {
    int32_t position_dtype = 0;
    const char *error = c->wants_rotated ? attention_check_gradient(c) : NULL;
    if (!error)
        error = attention_check(c, &position_dtype);
    if (!error && !position_dtype)
        return run_widened(c);
    const plan_entry *entry =
        error ? NULL : attention_plan(c, OPERATION_ATTENTION, position_dtype, &error);
    if (!entry || (c->wants_rotated &&
                   !attention_plan(c, OPERATION_ATTENTION_BACKWARD, position_dtype, &error)))
        return error;
    rope_attention_args args = ROPE_ATTENTION_ARGS_INIT;
    const int32_t layout = layout_of(entry->config.layout, &c->q);
    error = attention_put(c, entry, layout, &args);
    if (!error)
        error = make_results(c, layout, entry->key.v_head_dim, &args);
    if (!error && c->wants_rotated)
        error = make_rotated(c, layout, &entry->config.attention, &args.rope);
    if (!error && c->explains)
        attention_explain(c, entry, &args, layout, position_dtype);
    if (error || c->explains || !args.out.data) /* no queries */
        return error;
    tensor memory = {0};
    entry = longest_of_attention(entry, &args, &error);
    if (!error)
        error = results_workspace(&c->q, entry, rope_attention_workspace, &args, &memory);
    if (!error)
        error = fail_of_library(rope_attention(entry->plan, &args));
    plan_return(entry);
    tensor_release(&memory);
    return error;
}

const char *attention_run(attention_call *c) {
    return fail_last(run(c));
}

void attention_release_results(const attention_call *c) {
    tensor_release(&c->out);
    tensor_release(&c->lse);
    for (int i = 0; i < STORES; i++)
        tensor_release(&c->rotated[i]);
}
