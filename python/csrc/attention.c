#include "python/csrc/attention.h"

#include "python/csrc/cache.h"
#include "python/csrc/failure.h"
#include "python/csrc/layout.h"
#include "python/csrc/plans.h"

#include <inttypes.h>

static const char *const tensor_names[] = {"k", "v"};
static const char *const cache_names[] = {"k_cache", "v_cache"};
static const char *const scale_names[] = {"k_scale", "v_scale"};

static int is_cached(const attention_call *c) {
    return c->cache[KEYS].handle != NULL;
}

static int is_packed(const attention_call *c) {
    return c->inputs.cu_seqlens.handle != NULL;
}

static stored stored_of(const attention_call *c, int which) {
    return (stored){.name = cache_names[which],
                    .scale_name = scale_names[which],
                    .data = &c->cache[which],
                    .scale = c->scale[which].handle ? &c->scale[which] : NULL};
}

/* ---- checks that do not need the plan ---- */

/* Keys and values are two tensors or two caches. */
static const char *check_source(const attention_call *c) {
    const tensor *const given[STORES] = {&c->k, &c->v};
    const int cached = is_cached(c) || c->cache[VALUES].handle;
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
        const stored s = stored_of(c, i);
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
    if (!error && !is_cached(c))
        error = check_tensor(&c->q, &c->k, "k");
    if (!error && !is_cached(c))
        error = check_tensor(&c->q, &c->v, "v");
    if (!error && is_cached(c))
        error = check_stores(c);
    if (!error)
        error = check_sinks(c);
    if (!error)
        error = check_tree(c);
    return error ? error : inputs_check(&c->inputs, &c->q, position_dtype);
}

/* ---- the plan ---- */

static int32_t last_size(const tensor *t) {
    return (int32_t)t->sizes[t->dims - 1];
}

static const plan_entry *plan_of(const attention_call *c, int32_t position_dtype,
                                 const char **error) {
    plan_key key = {
        .text = c->text,
        .length = c->text_length,
        .head_dim = {last_size(&c->q), last_size(&c->q)},
        .v_head_dim = is_cached(c) ? cache_head_dim(&c->cache[VALUES]) : last_size(&c->v),
        .position_dtype = position_dtype,
        .operation = OPERATION_ATTENTION,
        .sink_dtype = c->sinks.handle ? c->sinks.dtype : 0,
        .tree = c->tree_bits.handle != NULL,
    };
    plan_key_put(&key, &c->q, &c->inputs.cos);
    if (!is_cached(c))
        return plan_for(&key, error);
    key.cache = c->block_table.handle ? ROPE_CACHE_TABLE : ROPE_CACHE_SEQUENCE;
    key.index_dtype = c->block_table.handle ? c->block_table.dtype : 0;
    key.page_size = cache_page_size(&c->cache[KEYS]);
    for (int i = 0; i < STORES; i++) {
        const stored s = stored_of(c, i);
        key.store_dtype[1 + i] = s.data->dtype;
        key.scale[1 + i] = scale_kind(&s);
        key.dim_block[i] = cache_dim_block(s.data);
    }
    return plan_for(&key, error);
}

/* ---- the library's call ---- */

static const char *put_queries(const attention_call *c, int32_t layout, rope_args *args) {
    const char *error = check_shape(&c->q, "q", layout, NULL, NULL);
    if (error)
        return error;
    args->batch = size_along(&c->q, layout, BATCH);
    args->tokens = size_along(&c->q, layout, TOKEN);
    args->q.heads = size_along(&c->q, layout, HEAD);
    args->q.in = tensor_read(&c->q);
    put_strides(&c->q, layout, args->q.in_stride);
    return NULL;
}

static const char *check_heads(const char *name, int64_t heads, int64_t q_heads) {
    if (heads > 0 && q_heads % heads == 0)
        return NULL;
    return fail("%s has %" PRId64 " heads; allowed is a divisor of %" PRId64 ", the heads of q",
                name, heads, q_heads);
}

static const char *put_tensors(const attention_call *c, int32_t layout, rope_attention_args *args) {
    const rope_args *rope = &args->rope;
    const tensor *k = &c->k, *v = &c->v;
    const char *error = check_shape(k, "k", layout, NULL, NULL);
    if (error)
        return error;
    const rope_args keys = {.batch = size_along(k, layout, BATCH),
                            .tokens = size_along(k, layout, TOKEN)};
    const int64_t heads = size_along(k, layout, HEAD);
    if (keys.batch != rope->batch)
        return fail("k has batch %" PRId64 "; allowed is that of q, %" PRId64, keys.batch,
                    rope->batch);
    if (last_size(k) != last_size(&c->q))
        return fail("k has head_dim %d; allowed is that of q, %d", last_size(k), last_size(&c->q));
    error = check_heads("k", heads, rope->q.heads);
    if (!error)
        error = check_shape(v, "v", layout, &keys, "k");
    if (error)
        return error;
    if (size_along(v, layout, HEAD) != heads)
        return fail("v has %" PRId64 " heads; allowed is that of k, %" PRId64,
                    size_along(v, layout, HEAD), heads);
    if (keys.tokens == 0 && rope->tokens > 0)
        return fail("k has 0 tokens; allowed is > 0");
    args->k_tokens = keys.tokens;
    args->rope.k.heads = args->v.heads = heads;
    args->rope.k.in = tensor_read(k);
    args->v.in = tensor_read(v);
    put_strides(k, layout, args->rope.k.in_stride);
    put_strides(v, layout, args->v.in_stride);
    return NULL;
}

static const char *put_caches(const attention_call *c, rope_attention_args *args) {
    const stored k = stored_of(c, KEYS), v = stored_of(c, VALUES);
    const rope_args *rope = &args->rope;
    const int64_t sequences = rope->cu_seqlens ? rope->sequences : rope->batch;
    const int64_t heads = cache_heads(k.data);
    const char *error = check_heads("k_cache", heads, rope->q.heads);
    if (!error)
        error = put_cache(&k, heads, last_size(&c->q), &args->k_cache);
    if (!error)
        error = put_cache(&v, heads, 0, &args->v_cache);
    if (!error)
        error = put_pages(k.data, v.data, &args->pages);
    if (!error && c->block_table.handle)
        error = put_table(&c->block_table, sequences, &args->block_table, args->table_stride,
                          &args->table_pages);
    if (!error && !c->block_table.handle && args->pages < sequences)
        return fail("k_cache has %" PRId64 " pages; allowed without block_table is %" PRId64
                    ", one a sequence, or more",
                    args->pages, sequences);
    args->rope.k.heads = args->v.heads = heads;
    args->k_tokens = c->max_seqlen_k;
    if (!error && !args->k_tokens &&
        __builtin_mul_overflow(c->block_table.handle ? args->table_pages : 1,
                               cache_page_size(k.data), &args->k_tokens))
        return fail("block_table has %" PRId64 " columns; allowed is below 2^63 keys",
                    args->table_pages);
    return error;
}

/* Boundaries of keys that are not given are those of queries, where there are as many. */
static const char *put_boundaries(const attention_call *c, rope_attention_args *args) {
    const tensor *own = &c->inputs.cu_seqlens, *keys = &c->inputs.k_cu_seqlens;
    if (!keys->handle && is_packed(c) && !is_cached(c) && args->k_tokens != args->rope.tokens)
        return fail("k_cu_seqlens is not given; allowed where k has %" PRId64 " tokens and q has "
                    "%" PRId64 " is a tensor",
                    args->k_tokens, args->rope.tokens);
    if (!keys->handle) {
        args->k_cu_seqlens = is_cached(c) ? NULL : args->rope.cu_seqlens;
        return NULL;
    }
    if (!is_packed(c) || is_cached(c))
        return fail("k_cu_seqlens is given; allowed is None %s",
                    is_cached(c) ? "with k_cache" : "without cu_seqlens");
    if (keys->dims != 1 || keys->sizes[0] != own->sizes[0] ||
        (keys->sizes[0] > 1 && keys->strides[0] != 1))
        return fail("k_cu_seqlens has %" PRId64 " dimensions, gaps or another size; allowed is one "
                    "contiguous dimension of %" PRId64 ", as of cu_seqlens",
                    keys->dims, own->sizes[0]);
    args->k_cu_seqlens = tensor_read(keys);
    return NULL;
}

static const char *put_lengths(const attention_call *c, rope_attention_args *args) {
    const inputs *in = &c->inputs;
    const int64_t sequences = is_packed(c) ? args->rope.sequences : args->rope.batch;
    if (is_cached(c) && !in->k_lengths.handle)
        return fail("k_lengths is not given; allowed with k_cache is a tensor");
    if (is_packed(c) && in->q_lengths.handle)
        return fail("q_lengths is given; allowed is None with cu_seqlens");
    if (is_packed(c) && !is_cached(c) && in->k_lengths.handle)
        return fail("k_lengths is given; allowed with cu_seqlens is k_cu_seqlens");
    const char *error = put_list(&in->q_lengths, "q_lengths", sequences, &args->q_lengths);
    if (!error)
        error = put_list(&in->k_lengths, "k_lengths", sequences, &args->k_lengths);
    return error ? error : put_boundaries(c, args);
}

/* Positions of keys that are not given are those of queries, where these are the same tokens. */
static const char *put_key_positions(const attention_call *c, const rope_attention_desc *desc,
                                     rope_attention_args *args) {
    const inputs *in = &c->inputs;
    const rope_args *rope = &args->rope;
    const int rotate = desc->rotation == ROPE_ATTENTION_ROTATE_QK;
    const int same = !is_cached(c) && args->k_tokens == rope->tokens && !in->k_lengths.handle &&
                     !in->k_cu_seqlens.handle;
    const int32_t axes = desc->rope.axes > 1 ? desc->rope.axes : 1;
    const int64_t extent[3] = {axes, is_cached(c) && is_packed(c) ? rope->sequences : rope->batch,
                               args->k_tokens};
    if (in->k_position_ids.handle && !rotate)
        return fail("k_positions is given; allowed is None where keys do not rotate");
    if (in->k_position_ids.handle && !in->position_ids.handle)
        return fail("k_positions is given alone; allowed is positions and k_positions together");
    if (in->k_position_ids.handle)
        return put_positions(&in->k_position_ids, "k_positions", extent, &args->k_position_ids,
                             args->k_position_stride);
    if (!rotate || !in->position_ids.handle)
        return NULL;
    if (!same)
        return fail("k_positions is not given; allowed with positions is a tensor, unless k has "
                    "the tokens of q");
    args->k_position_ids = rope->position_ids;
    for (int i = 0; i < 3; i++)
        args->k_position_stride[i] = rope->position_stride[i];
    return NULL;
}

/* Where nothing rotates, nothing reads a position. */
static const char *check_rotation_unread(const inputs *in) {
    const struct {
        const char *name;
        int given;
    } unread[] = {{"positions", in->position_ids.handle != NULL},
                  {"k_positions", in->k_position_ids.handle != NULL},
                  {"sequence_offsets", in->sequence_offsets.handle != NULL},
                  {"sequence_lengths", in->sequence_lengths.handle != NULL},
                  {"cos", in->cos.handle != NULL},
                  {"position_offset", in->position_offset != 0}};
    for (size_t i = 0; i < sizeof unread / sizeof unread[0]; i++)
        if (unread[i].given)
            return fail("%s is given; allowed is None where neither q nor k rotates",
                        unread[i].name);
    return NULL;
}

static const char *put_tree(const attention_call *c, rope_attention_args *args) {
    const tensor *t = &c->tree_bits;
    const int rows = t->handle && t->dims == 3;
    char shape[128];
    if (!t->handle)
        return NULL;
    const int64_t words = t->sizes[1 + rows], most = 32 * words;
    if (t->sizes[rows] != args->rope.tokens || words == 0 ||
        (rows && t->sizes[0] != args->rope.batch && t->sizes[0] != 1))
        return fail("tree_mask has the shape [%s] in words; allowed is [%" PRId64 ", words] or "
                    "[%" PRId64 ", %" PRId64 ", words], batch and tokens",
                    shape_of(t, shape), args->rope.tokens, args->rope.batch, args->rope.tokens);
    if (c->tree_keys < 0 || c->tree_keys > most)
        return fail("tree_keys is %" PRId64 "; allowed is 1..%" PRId64 ", 32 for each word",
                    c->tree_keys, most);
    args->tree_bits = tensor_read(t);
    args->tree_keys = c->tree_keys ? c->tree_keys : most;
    args->tree_stride[0] = rows && t->sizes[0] > 1 ? t->strides[0] : 0;
    args->tree_stride[1] = args->rope.tokens > 1 ? t->strides[rows] : words;
    if (args->tree_stride[1] == 0)
        return fail("tree_mask repeats one token; allowed is a tensor with a stride");
    return NULL;
}

static const char *put_sinks(const attention_call *c, rope_attention_args *args) {
    const tensor *t = &c->sinks;
    if (t->handle && t->sizes[0] != args->rope.q.heads)
        return fail("sinks has %" PRId64 " entries; allowed is %" PRId64 ", one a head of q",
                    t->sizes[0], args->rope.q.heads);
    args->sinks = t->handle ? tensor_read(t) : NULL;
    return NULL;
}

static const char *put_given(const attention_call *c, const plan_entry *entry, int32_t layout,
                             rope_attention_args *args) {
    const rope_attention_desc *desc = &entry->config.attention;
    const char *error = put_queries(c, layout, &args->rope);
    if (!error && desc->rotation == ROPE_ATTENTION_ROTATE_NONE)
        error = check_rotation_unread(&c->inputs);
    if (!error)
        error = inputs_put(&c->inputs, &c->q, &desc->rope, &args->rope);
    if (!error)
        error = is_cached(c) ? put_caches(c, args) : put_tensors(c, layout, args);
    if (!error)
        error = put_lengths(c, args);
    if (!error)
        error = put_key_positions(c, desc, args);
    if (!error)
        error = put_sinks(c, args);
    return error ? error : put_tree(c, args);
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
    const int partly = is_packed(c) || c->inputs.q_lengths.handle;
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
    error = put_given(c, entry, layout, &args);
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
