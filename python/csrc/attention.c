#include "python/csrc/attention.h"

#include "python/csrc/attention_explain.h"
#include "python/csrc/attention_put.h"
#include "python/csrc/attention_results.h"
#include "python/csrc/failure.h"
#include "python/csrc/layout.h"

#include <inttypes.h>
#include <string.h>

static const char *const tensor_names[] = {"k", "v"};
static const char *const cache_names[] = {"k_cache", "v_cache"};
static const char *const scale_names[] = {"k_scale", "v_scale"};

/* ---- checks that do not need the plan ---- */

/* Keys and values are two tensors or two caches. */
static const char *check_source(const attention_call *c) {
    const tensor *const given[STORES] = {&c->k, &c->v};
    const int cached = attention_is_cached(c) || c->cache[VALUES].handle;
    for (int i = 0; i < STORES; i++) {
        if (cached && given[i]->handle)
            return fail("%s is given; allowed is None with %s", tensor_names[i], cache_names[i]);
        if (!cached && !given[i]->handle)
            return fail("%s and %s are None; allowed is one of them", tensor_names[i],
                        cache_names[i]);
        if (cached && !c->cache[i].handle)
            return fail("%s is not given; allowed is a tensor with %s", cache_names[i],
                        cache_names[!i]);
        if (!cached && c->scale[i].handle)
            return fail("%s is given; allowed is None without %s", scale_names[i], cache_names[i]);
    }
    if (!cached && c->block_table.handle)
        return fail("block_table is given; allowed is None without k_cache");
    if (!cached && c->max_seqlen_k)
        return fail("max_seqlen_k is %" PRId64 "; allowed is None without k_cache",
                    c->max_seqlen_k);
    if (c->max_seqlen_k < 0)
        return fail("max_seqlen_k is %" PRId64 "; allowed is > 0, or None", c->max_seqlen_k);
    return NULL;
}

static const char *check_tensor(const tensor *q, const tensor *t, const char *name) {
    const char *error = check_operand(q, "q", t, name, ROPE_MAX_ATTENTION_HEAD_DIM);
    return error ? error : check_repeats(t, name, "");
}

static const char *check_stores(const attention_call *c) {
    const char *error = NULL;
    for (int i = 0; i < STORES && !error; i++) {
        const stored s = attention_store(c, i);
        error = check_stored(&c->q, s.data, s.name);
        if (!error && s.scale)
            error = check_scale(&c->q, &s);
    }
    return error ? error : check_table(&c->q, &c->block_table);
}

static const char *check_sinks(const attention_call *c) {
    const tensor *t = &c->sinks;
    if (!t->handle)
        return NULL;
    if (t->dtype != ROPE_F32 && t->dtype != c->q.dtype)
        return fail("sinks is %s; allowed is float32 or the type of q, %s", tensor_dtype_name(t),
                    tensor_dtype_name(&c->q));
    if (t->dims != 1 || (t->sizes[0] > 1 && t->strides[0] != 1))
        return fail("sinks has %" PRId64 " dimensions or gaps; allowed is one contiguous dimension",
                    t->dims);
    return check_device(&c->q, t, "sinks");
}

static const char *check_tree(const attention_call *c) {
    const tensor *t = &c->tree_bits;
    if (!t->handle)
        return c->tree_keys ? fail("tree_keys is %" PRId64 "; allowed is None without tree_mask",
                                   c->tree_keys)
                            : NULL;
    if (t->dtype != ROPE_I32)
        return fail("tree_mask is %s; allowed is bool, or int32 words of bits",
                    tensor_dtype_name(t));
    if (t->dims < 2 || t->dims > 3 || (t->sizes[t->dims - 1] > 1 && t->strides[t->dims - 1] != 1))
        return fail("tree_mask has %" PRId64 " dimensions or gaps; allowed is [batch, tokens, "
                    "words] or [tokens, words] whose words lie side by side",
                    t->dims);
    return check_device(&c->q, t, "tree_mask");
}

const char *attention_check(const attention_call *c, int32_t *position_dtype) {
    const char *error = check_source(c);
    if (!error)
        error = check_tensor(&c->q, &c->q, "q");
    if (!error && !attention_is_cached(c))
        error = check_tensor(&c->q, &c->k, "k");
    if (!error && !attention_is_cached(c))
        error = check_tensor(&c->q, &c->v, "v");
    if (!error && attention_is_cached(c))
        error = check_stores(c);
    if (!error)
        error = check_sinks(c);
    if (!error)
        error = check_tree(c);
    return error ? error : inputs_check(&c->inputs, &c->q, position_dtype);
}

const char *attention_check_gradient(const attention_call *c) {
    if (c->cache[KEYS].handle || c->cache[VALUES].handle)
        return fail("k_cache is given; allowed with a gradient is None, with k and v");
    return c->tree_bits.handle ? fail("tree_mask is given; allowed with a gradient is None") : NULL;
}

/* ---- the plan ---- */

const plan_entry *attention_plan(const attention_call *c, int32_t operation, int32_t position_dtype,
                                 const char **error) {
    plan_key key = {
        .text = c->text,
        .length = c->text_length,
        .head_dim = {tensor_last_size(&c->q), tensor_last_size(&c->q)},
        .v_head_dim =
            attention_is_cached(c) ? cache_head_dim(&c->cache[VALUES]) : tensor_last_size(&c->v),
        .position_dtype = position_dtype,
        .operation = operation,
        .sink_dtype = c->sinks.handle ? c->sinks.dtype : 0,
        .tree = c->tree_bits.handle != NULL,
    };
    plan_key_put(&key, &c->q, &c->inputs.cos);
    if (!attention_is_cached(c))
        return plan_for(&key, error);
    key.cache = c->block_table.handle ? ROPE_CACHE_TABLE : ROPE_CACHE_SEQUENCE;
    key.index_dtype = c->block_table.handle ? c->block_table.dtype : 0;
    key.page_size = cache_page_size(&c->cache[KEYS]);
    for (int i = 0; i < STORES; i++) {
        const stored s = attention_store(c, i);
        key.store_dtype[1 + i] = s.data->dtype;
        key.scale[1 + i] = scale_kind(&s);
        key.dim_block[i] = cache_dim_block(s.data);
    }
    return plan_for(&key, error);
}

/* ---- results ---- */

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

/* Of what does not rotate the tensor itself serves a backward. */
static const char *make_rotated(attention_call *c, int32_t layout, const rope_attention_desc *desc,
                                rope_args *args) {
    const tensor *const in[STORES] = {&c->q, &c->k};
    rope_tensor *const to[STORES] = {&args->q, &args->k};
    const char *error = NULL;
    for (int i = 0; i < STORES && !error; i++) {
        const int turns = desc->rotation == ROPE_ATTENTION_ROTATE_QK ||
                          (i == 0 && desc->rotation == ROPE_ATTENTION_ROTATE_Q);
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
    error = results_workspace(&c->q, entry, rope_attention_workspace, &args, &memory);
    if (!error)
        error = fail_of_library(rope_attention(entry->plan, &args));
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
