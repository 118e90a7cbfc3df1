#include "python/csrc/attention.h"

#include "python/csrc/attention_put.h"
#include "python/csrc/failure.h"
#include "python/csrc/layout.h"

#include <inttypes.h>

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

static const char *check_all(const attention_call *c, int32_t *position_dtype) {
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

/* ---- the plan ---- */

static const plan_entry *plan_of(const attention_call *c, int32_t position_dtype,
                                 const char **error) {
    plan_key key = {
        .text = c->text,
        .length = c->text_length,
        .head_dim = {tensor_last_size(&c->q), tensor_last_size(&c->q)},
        .v_head_dim =
            attention_is_cached(c) ? cache_head_dim(&c->cache[VALUES]) : tensor_last_size(&c->v),
        .position_dtype = position_dtype,
        .operation = OPERATION_ATTENTION,
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

/* In the order of q's dimensions, in memory by token, which a product with the next matrix reads.
 */
static const char *make_result(const attention_call *c, int32_t layout, int64_t dims, int64_t last,
                               int32_t torch_dtype, tensor *made) {
    static const int32_t in_order[] = {0, 1, 2, 3}, by_token[] = {0, 2, 1, 3};
    const int32_t *order = layout == LAYOUT_BHSD ? by_token : in_order;
    int64_t sizes[TENSOR_DIMS], strides[TENSOR_DIMS], stride = 1;
    for (int64_t i = c->q.dims - 1; i >= 0; i--) {
        const int32_t d = order[i];
        sizes[d] = d == c->q.dims - 1 ? last : c->q.sizes[d];
        strides[d] = stride;
        stride *= sizes[d] > 1 ? sizes[d] : 1;
    }
    const char *error = tensor_new(&c->q, dims, sizes, strides, torch_dtype, made);
    return fail_as(ROPE_ERROR_OUT_OF_MEMORY, error);
}

/* Queries that no sequence has are not written. */
static const char *make_results(attention_call *c, int32_t layout, int64_t v_head_dim,
                                rope_attention_args *args) {
    const int partly = attention_is_packed(c) || c->inputs.q_lengths.handle;
    const char *error = make_result(c, layout, c->q.dims, v_head_dim, c->q.torch_dtype, &c->out);
    if (!error && c->wants_lse)
        error = make_result(c, layout, c->q.dims - 1, 1, aoti_torch_dtype_float32(), &c->lse);
    if (!error && partly)
        error = fail_as(ROPE_ERROR_DEVICE, tensor_zero(&c->out));
    if (!error && partly && c->wants_lse)
        error = fail_as(ROPE_ERROR_DEVICE, tensor_minus_infinity(&c->lse));
    if (error)
        return error;
    args->out.data = tensor_write(&c->out);
    put_strides(&c->out, layout, args->out.stride);
    if (!c->wants_lse)
        return NULL;
    tensor heads = c->lse; /* with a dimension of elements */
    int64_t strides[TENSOR_DIMS], stride[4];
    for (int64_t d = 0; d < TENSOR_DIMS; d++)
        strides[d] = d < heads.dims ? heads.strides[d] : 1;
    heads.strides = strides;
    put_strides(&heads, layout, stride);
    args->lse = tensor_write(&c->lse);
    for (int i = 0; i < 3; i++)
        args->lse_stride[i] = stride[i];
    return NULL;
}

/* Memory of the call, given back to PyTorch's allocator, which knows the stream, right after it. */
static const char *run_in_workspace(const plan_entry *entry, const tensor *lead,
                                    rope_attention_args *args) {
    enum { ALIGNMENT = 256 };
    const rope_args *rope = &args->rope;
    const rope_attention_bounds bounds = {sizeof bounds,  rope->batch,     rope->tokens,
                                          args->k_tokens, rope->sequences, rope->q.heads,
                                          rope->k.heads};
    tensor memory = {0};
    const char *error =
        fail_of_library(rope_attention_workspace(entry->plan, &bounds, &args->workspace_bytes));
    if (error)
        return error;
    if (args->workspace_bytes) {
        const int64_t size = (int64_t)args->workspace_bytes + ALIGNMENT - 1, stride = 1;
        error = fail_as(ROPE_ERROR_OUT_OF_MEMORY,
                        tensor_new(lead, 1, &size, &stride, aoti_torch_dtype_uint8(), &memory));
    }
    if (!error && memory.handle) {
        const uintptr_t first = (uintptr_t)tensor_write(&memory);
        args->workspace = (char *)first + (ALIGNMENT - first % ALIGNMENT) % ALIGNMENT;
    }
    if (!error)
        error = fail_of_library(rope_attention(entry->plan, args));
    if (memory.handle)
        aoti_torch_delete_tensor_object(memory.handle);
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
    inputs_release_widened(made);
    return error;
}

static const char *run(attention_call *c) {
    int32_t position_dtype = 0;
    const char *error = check_all(c, &position_dtype);
    if (!error && !position_dtype)
        return run_widened(c);
    const plan_entry *entry = error ? NULL : plan_of(c, position_dtype, &error);
    if (!entry)
        return error;
    rope_attention_args args = ROPE_ATTENTION_ARGS_INIT;
    const int32_t layout = layout_of(entry->config.layout, &c->q);
    error = attention_put(c, entry, layout, &args);
    if (!error)
        error = make_results(c, layout, entry->key.v_head_dim, &args);
    if (error || !args.out.data) /* no queries */
        return error;
    return run_in_workspace(entry, &c->q, &args);
}

const char *attention_run(attention_call *c) {
    return fail_last(run(c));
}

void attention_release_results(const attention_call *c) {
    if (c->out.handle)
        aoti_torch_delete_tensor_object(c->out.handle);
    if (c->lse.handle)
        aoti_torch_delete_tensor_object(c->lse.handle);
}
