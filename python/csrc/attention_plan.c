#include "python/csrc/attention_plan.h"

#include "python/csrc/attention_put.h"
#include "python/csrc/failure.h"
#include "python/csrc/layout.h"
#include "python/csrc/norm_weight.h"

#include <inttypes.h>

static const char *const tensor_names[] = {"k", "v"};
static const char *const cache_names[] = {"k_cache", "v_cache"};
static const char *const scale_names[] = {"k_scale", "v_scale"};

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

static const char *check_weights(const attention_call *c) {
    static const char *const names[STORES] = {"q_weight", "k_weight"};
    const char *error = NULL;
    if (attention_is_cached(c) && c->weight[1].handle)
        return fail(
            "k_weight is given; allowed with k_cache is None: its keys have had their norm");
    for (int i = 0; i < STORES && !error; i++)
        if (c->weight[i].handle)
            error = check_weight(&c->q, &c->weight[i], names[i]);
    return error;
}

const char *attention_check_masks(const attention_call *c) {
    const char *error = check_sinks(c);
    return error ? error : check_tree(c);
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
        error = check_weights(c);
    if (!error)
        error = attention_check_masks(c);
    return error ? error : inputs_check(&c->inputs, &c->q, position_dtype);
}

const char *attention_check_gradient(const attention_call *c) {
    if (c->cache[KEYS].handle || c->cache[VALUES].handle)
        return fail("k_cache is given; allowed with a gradient is None, with k and v");
    return c->tree_bits.handle ? fail("tree_mask is given; allowed with a gradient is None") : NULL;
}

const plan_entry *attention_plan(const attention_call *c, int32_t operation, int32_t position_dtype,
                                 const char **error) {
    plan_key key = {
        .text = c->config.data,
        .length = c->config.length,
        .head_dim = {tensor_last_size(&c->q), tensor_last_size(&c->q)},
        .v_head_dim =
            attention_is_cached(c) ? cache_head_dim(&c->cache[VALUES]) : tensor_last_size(&c->v),
        .position_dtype = position_dtype,
        .operation = operation,
        .sink_dtype = c->sinks.handle ? c->sinks.dtype : 0,
        .tree = c->tree_bits.handle != NULL,
        .weight_dtype = {c->weight[0].handle ? c->weight[0].dtype : 0,
                         c->weight[1].handle ? c->weight[1].dtype : 0},
    };
    plan_key_put(&key, &c->q, &c->inputs.cos);
    if (!attention_is_cached(c))
        return plan_for(&key, error);
    key.cache = c->block_table.handle ? ROPE_CACHE_TABLE : ROPE_CACHE_SEQUENCE;
    key.table_index_dtype = c->block_table.handle ? c->block_table.dtype : 0;
    key.page_size = cache_page_size(&c->cache[KEYS]);
    for (int i = 0; i < STORES; i++) {
        const stored s = attention_store(c, i);
        key.store_dtype[1 + i] = s.data->dtype;
        key.scale[1 + i] = scale_kind(&s);
        key.dim_block[i] = cache_dim_block(s.data);
    }
    return plan_for(&key, error);
}
