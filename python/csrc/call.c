#include "python/csrc/call.h"

#include "python/csrc/failure.h"
#include "python/csrc/layout.h"
#include "python/csrc/longest.h"

#include <inttypes.h>

/* ---- checks that do not need the plan ---- */

static const char *check_rotated(const tensor *t, const char *name) {
    if (t->dtype < ROPE_F32 || t->dtype > ROPE_F64)
        return fail("%s is %s; allowed is float32, float16, bfloat16 or float64", name,
                    tensor_dtype_name(t));
    if (t->dims < dims_of(LAYOUT_THD))
        return fail("%s has %" PRId64 " dimensions; allowed is 4, or 3 for layout thd", name,
                    t->dims);
    int64_t head_dim = t->sizes[t->dims - 1];
    if (head_dim < 2 || head_dim > ROPE_MAX_HEAD_DIM)
        return fail("%s has head_dim %" PRId64 "; allowed is 2..%d", name, head_dim,
                    ROPE_MAX_HEAD_DIM);
    return NULL;
}

static const char *check_pair(const call *c) {
    const tensor *q = &c->q, *k = &c->k;
    const char *error = check_rotated(q, "q");
    if (error || !k->handle)
        return error;
    error = check_rotated(k, "k");
    if (!error && k->torch_dtype != q->torch_dtype)
        error = fail("k is %s and q is %s; allowed is one type", tensor_dtype_name(k),
                     tensor_dtype_name(q));
    return error ? error : check_device(q, k, "k");
}

/* ---- the library's call ---- */

static int32_t head_dim(const tensor *t) {
    return t->handle ? (int32_t)t->sizes[t->dims - 1] : 0;
}

static const plan_entry *plan_of(const call *c, int32_t position_dtype, const char **error) {
    plan_key key = {.text = c->config.data,
                    .length = c->config.length,
                    .head_dim = {head_dim(&c->q), head_dim(&c->k)},
                    .position_dtype = position_dtype};
    plan_key_put(&key, &c->q, &c->inputs.cos);
    return plan_for(&key, error);
}

/* A result, or the tensor itself in place. Copied to the result first: what is slower otherwise,
 * and an element that is all of `in`, as the gradient of a sum. */
static const char *put_tensor(const tensor *in, const tensor *out, int32_t layout,
                              rope_tensor *target) {
    if (in != out && (tensor_repeats(in) || tensor_wants_copy(out))) {
        if (aoti_torch_copy_(out->handle, in->handle, 1))
            return fail_as(ROPE_ERROR_DEVICE, "the tensor could not be copied");
        in = out;
    }
    target->heads = size_along(in, layout, HEAD);
    target->out = tensor_write(out);
    target->in = in == out ? target->out : tensor_read(in);
    put_strides(in, layout, target->in_stride);
    put_strides(out, layout, target->out_stride);
    return NULL;
}

static const char *put_result(const call *c, const tensor *in, tensor *out, int32_t layout,
                              rope_tensor *target) {
    const char *error = NULL;
    if (!in->handle)
        return NULL;
    if (c->in_place)
        error = check_repeats(in, in == &c->k ? "k" : "q", " and is written");
    else
        error = fail_as(ROPE_ERROR_OUT_OF_MEMORY, tensor_like(in, out));
    return error ? error : put_tensor(in, c->in_place ? in : out, layout, target);
}

static const char *put_results(call *c, const config_text *config, rope_args *args) {
    rope_tensor *first = config->role == ROLE_K && !c->k.handle ? &args->k : &args->q;
    const char *error = put_result(c, &c->q, &c->q_out, config->layout, first);
    return error ? error : put_result(c, &c->k, &c->k_out, config->layout, &args->k);
}

static const char *put_all(call *c, const plan_entry *entry, rope_args *args) {
    int32_t layout = entry->config.layout;
    const char *error = check_shape(&c->q, "q", layout, NULL, NULL);
    if (error)
        return error;
    args->batch = size_along(&c->q, layout, BATCH);
    args->tokens = size_along(&c->q, layout, TOKEN);
    if (c->k.handle)
        error = check_shape(&c->k, "k", layout, args, "q");
    if (!error)
        error = inputs_put(&c->inputs, &c->q, &entry->config.desc, args);
    return error ? error : put_results(c, &entry->config, args);
}

static const char *run(call *c);

static const char *run_widened(call *c) {
    call wide = *c;
    AtenTensorHandle made[INDICES] = {NULL};
    const char *error = inputs_widen(&wide.inputs, made);
    if (!error)
        error = run(&wide);
    c->q_out = wide.q_out;
    c->k_out = wide.k_out;
    inputs_release_widened(made);
    return error;
}

static const char *run(call *c) {
    int32_t position_dtype = 0;
    const char *error = check_pair(c);
    if (!error)
        error = inputs_check(&c->inputs, &c->q, &position_dtype);
    if (!error && !position_dtype)
        return run_widened(c);
    const plan_entry *entry = error ? NULL : plan_of(c, position_dtype, &error);
    if (!entry)
        return error;
    rope_args args = ROPE_ARGS_INIT;
    error = put_all(c, entry, &args);
    entry = error ? NULL : longest_of_tokens(entry, &args, &error);
    if (!error)
        error = fail_of_library(rope_apply(entry->plan, &args));
    plan_return(entry);
    return error;
}

const char *call_run(call *c) {
    return fail_last(run(c));
}

void call_release_results(const call *c) {
    tensor_release(&c->q_out);
    tensor_release(&c->k_out);
}
