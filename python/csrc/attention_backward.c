#include "python/csrc/attention_plan.h"
#include "python/csrc/attention_put.h"
#include "python/csrc/attention_results.h"
#include "python/csrc/failure.h"
#include "python/csrc/layout.h"
#include "python/csrc/longest.h"

#include <inttypes.h>
#include <string.h>

/* ---- what the forward gave ---- */

/* Of q's sizes, but for the last one. */
static const char *check_rows(const tensor *q, const char *name, const tensor *t, int64_t dims,
                              int64_t last) {
    char shape[128];
    int same = t->dims == dims;
    for (int64_t d = 0; d < dims && same; d++)
        same = t->sizes[d] == (d == q->dims - 1 ? last : q->sizes[d]);
    if (!same)
        return fail("%s has the shape [%s]; allowed is that of q with the head_dim of v", name,
                    shape_of(t, shape));
    const char *error = check_repeats(t, name, "");
    return error ? error : check_device(q, t, name);
}

static const char *check(const gradient_call *c, int32_t *position_dtype) {
    const attention_call *f = &c->forward;
    const tensor *const like_out[] = {&c->dout, &f->out};
    static const char *const names[] = {"dout", "out"};
    const char *error = attention_check_gradient(f);
    if (!error)
        error = attention_check(f, position_dtype);
    for (int i = 0; i < 2 && !error; i++) {
        if (like_out[i]->torch_dtype != f->q.torch_dtype)
            return fail("%s is %s; allowed is the type of q, %s", names[i],
                        tensor_dtype_name(like_out[i]), tensor_dtype_name(&f->q));
        error = check_rows(&f->q, names[i], like_out[i], f->q.dims, tensor_last_size(&f->v));
    }
    if (!error && f->lse.dtype != ROPE_F32)
        return fail("lse is %s; allowed is float32", tensor_dtype_name(&f->lse));
    return error ? error : check_rows(&f->q, "lse", &f->lse, f->q.dims - 1, 1);
}

/* q and k are what the forward wrote as q.out and k.out, where it rotated them without a norm. */
static void put_rotated(const gradient_call *c, const rope_attention_desc *desc, rope_args *args) {
    if (desc->rotation != ROPE_ATTENTION_ROTATE_NONE && !c->forward.weight[0].handle)
        args->q.out = tensor_write(&c->forward.q);
    if (desc->rotation == ROPE_ATTENTION_ROTATE_QK && !c->forward.weight[1].handle)
        args->k.out = tensor_write(&c->forward.k);
}

/* ---- gradients ---- */

static const char *make_sinks(gradient_call *c) {
    const tensor *sinks = &c->forward.sinks;
    const int32_t f32 = aoti_torch_dtype_float32();
    const int64_t stride = 1;
    if (!sinks->handle)
        return results_none(&c->forward.q, f32, &c->dsinks);
    const char *error = fail_as(ROPE_ERROR_OUT_OF_MEMORY,
                                tensor_new(sinks, 1, sinks->sizes, &stride, f32, &c->dsinks));
    return error ? error : fail_as(ROPE_ERROR_DEVICE, tensor_zero(&c->dsinks));
}

/* Of the shape of weights, whose heads lie apart. */
static const char *make_weight(const gradient_call *c, int which, tensor *made) {
    const tensor *weight = &c->forward.weight[which];
    const int32_t f32 = aoti_torch_dtype_float32();
    if (!weight->handle)
        return results_none(&c->forward.q, f32, made);
    const char *error = check_repeats(weight, which ? "k_weight" : "q_weight", "");
    const int64_t last = weight->sizes[weight->dims - 1],
                  strides[2] = {weight->dims == 2 ? last : 1, 1};
    if (!error)
        error = fail_as(ROPE_ERROR_OUT_OF_MEMORY,
                        tensor_new(weight, weight->dims, weight->sizes, strides, f32, made));
    return error ? error : fail_as(ROPE_ERROR_DEVICE, tensor_zero(made));
}

static const char *make_weights(gradient_call *c, rope_attention_backward_args *args) {
    const char *error = make_weight(c, 0, &c->dweight[0]);
    if (!error)
        error = make_weight(c, 1, &c->dweight[1]);
    if (error)
        return error;
    args->dq_weight = c->forward.weight[0].handle ? tensor_write(&c->dweight[0]) : NULL;
    args->dk_weight = c->forward.weight[1].handle ? tensor_write(&c->dweight[1]) : NULL;
    return NULL;
}

/* What no sequence has is not written, and nothing where there are no queries. */
static const char *make_gradients(gradient_call *c, int32_t layout,
                                  rope_attention_backward_args *args) {
    const attention_call *f = &c->forward;
    const int packed = attention_is_packed(f), none = tensor_read(&f->q) == NULL,
              rows = packed || f->inputs.q_lengths.handle,
              keys = packed || f->inputs.k_lengths.handle || none;
    const char *error =
        results_like(&f->q, layout, f->q.dims, tensor_last_size(&f->q), rows, &c->dq);
    if (!error)
        error = results_like(&f->k, layout, f->k.dims, tensor_last_size(&f->k), keys, &c->dk);
    if (!error)
        error = results_like(&f->v, layout, f->v.dims, tensor_last_size(&f->v), keys, &c->dv);
    if (!error)
        error = make_sinks(c);
    if (!error)
        error = make_weights(c, args);
    if (error)
        return error;
    results_put(&c->dq, layout, &args->dq);
    results_put(&c->dk, layout, &args->dk);
    results_put(&c->dv, layout, &args->dv);
    args->dsinks = f->sinks.handle ? tensor_write(&c->dsinks) : NULL;
    args->dout = tensor_read(&c->dout);
    put_strides(&c->dout, layout, args->dout_stride);
    return NULL;
}

/* ---- the call ---- */

static const char *run(gradient_call *c);

static const char *run_widened(gradient_call *c) {
    gradient_call wide = *c;
    AtenTensorHandle made[INDICES] = {NULL};
    const char *error = inputs_widen(&wide.forward.inputs, made);
    if (!error)
        error = run(&wide);
    c->dq = wide.dq;
    c->dk = wide.dk;
    c->dv = wide.dv;
    c->dsinks = wide.dsinks;
    memcpy(c->dweight, wide.dweight, sizeof c->dweight);
    inputs_release_widened(made);
    return error;
}

static const char *run(gradient_call *c) {
    const attention_call *f = &c->forward;
    int32_t position_dtype = 0;
    const char *error = check(c, &position_dtype);
    if (!error && !position_dtype)
        return run_widened(c);
    const plan_entry *entry =
        error ? NULL : attention_plan(f, OPERATION_ATTENTION_BACKWARD, position_dtype, &error);
    if (!entry)
        return error;
    rope_attention_args forward = ROPE_ATTENTION_ARGS_INIT;
    rope_attention_backward_args args = ROPE_ATTENTION_BACKWARD_ARGS_INIT;
    const int32_t layout = layout_of(entry->config.layout, &f->q);
    error = attention_put(f, entry, layout, &forward);
    if (!error)
        error = make_gradients(c, layout, &args);
    if (error || !args.dout) /* no queries */
        return error;
    put_rotated(c, &entry->config.attention, &forward.rope);
    results_put(&f->out, layout, &forward.out);
    results_put_lse(&f->lse, layout, &forward);
    args.forward = &forward;
    tensor memory = {0};
    entry = longest_of_attention(entry, &forward, &error);
    if (!error)
        error =
            results_workspace(&f->q, entry, rope_attention_backward_workspace, &forward, &memory);
    if (!error)
        error = fail_of_library(rope_attention_backward(entry->plan, &args));
    plan_return(entry);
    tensor_release(&memory);
    return error;
}

const char *gradient_run(gradient_call *c) {
    return fail_last(run(c));
}

void gradient_release_results(const gradient_call *c) {
    const tensor *const made[] = {&c->dq,     &c->dk,         &c->dv,
                                  &c->dsinks, &c->dweight[0], &c->dweight[1]};
    for (int i = 0; i < 6; i++)
        tensor_release(made[i]);
}
