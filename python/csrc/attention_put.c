#include "python/csrc/attention_put.h"

#include "python/csrc/failure.h"
#include "python/csrc/layout.h"
#include "python/csrc/norm_weight.h"

#include <inttypes.h>

int attention_is_cached(const attention_call *c) {
    return c->cache[KEYS].handle != NULL;
}

int attention_is_packed(const attention_call *c) {
    return c->inputs.cu_seqlens.handle != NULL;
}

stored attention_store(const attention_call *c, int which) {
    static const char *const names[] = {"k_cache", "v_cache"};
    static const char *const scale_names[] = {"k_scale", "v_scale"};
    return (stored){.name = names[which],
                    .scale_name = scale_names[which],
                    .data = &c->cache[which],
                    .scale = c->scale[which].handle ? &c->scale[which] : NULL};
}

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

static const char *check_heads(const char *name, int64_t heads, int64_t q_heads,
                               const char *where) {
    if (heads > 0 && q_heads % heads == 0)
        return NULL;
    if (heads == 0)
        return fail("%s has 0 heads; allowed is > 0", name);
    return fail("%s has %" PRId64 " heads; allowed is a divisor of %" PRId64 ", the heads of q%s",
                name, heads, q_heads, where);
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
    if (tensor_last_size(k) != tensor_last_size(&c->q))
        return fail("k has head_dim %d; allowed is that of q, %d", tensor_last_size(k),
                    tensor_last_size(&c->q));
    error = check_heads("k", heads, rope->q.heads, " in this layout");
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
    const stored k = attention_store(c, KEYS), v = attention_store(c, VALUES);
    const rope_args *rope = &args->rope;
    const int64_t sequences = rope->cu_seqlens ? rope->sequences : rope->batch;
    const int64_t heads = cache_heads(k.data);
    const char *error = check_heads("k_cache", heads, rope->q.heads, "");
    if (!error)
        error = put_cache(&k, heads, tensor_last_size(&c->q), &args->k_cache);
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
    if (!keys->handle && attention_is_packed(c) && !attention_is_cached(c) &&
        args->k_tokens != args->rope.tokens)
        return fail("k_cu_seqlens is not given; allowed where k has %" PRId64 " tokens and q has "
                    "%" PRId64 " is a tensor",
                    args->k_tokens, args->rope.tokens);
    if (!keys->handle) {
        args->k_cu_seqlens = attention_is_cached(c) ? NULL : args->rope.cu_seqlens;
        return NULL;
    }
    if (!attention_is_packed(c) || attention_is_cached(c))
        return fail("k_cu_seqlens is given; allowed is None %s",
                    attention_is_cached(c) ? "with k_cache" : "without cu_seqlens");
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
    const int64_t sequences = attention_is_packed(c) ? args->rope.sequences : args->rope.batch;
    if (attention_is_cached(c) && !in->k_lengths.handle)
        return fail("k_lengths is not given; allowed with k_cache is a tensor");
    const char *error = put_list(&in->q_lengths, "q_lengths", sequences, &args->q_lengths);
    if (!error)
        error = put_list(&in->k_lengths, "k_lengths", sequences, &args->k_lengths);
    return error ? error : put_boundaries(c, args);
}

/* Whether positions count in the mask. */
static int mask_counts(const rope_attention_desc *desc) {
    return desc->mask == ROPE_MASK_TREE && (desc->window || desc->chunk);
}

/* Positions of keys that are not given are those of queries, where these are the same tokens. */
static const char *put_key_positions(const attention_call *c, const rope_attention_desc *desc,
                                     rope_attention_args *args) {
    const inputs *in = &c->inputs;
    const rope_args *rope = &args->rope;
    const int rotate = desc->rotation == ROPE_ATTENTION_ROTATE_QK;
    const int same = !attention_is_cached(c) && args->k_tokens == rope->tokens &&
                     !in->k_lengths.handle && !in->k_cu_seqlens.handle;
    const int32_t axes = desc->rope.axes > 1 ? desc->rope.axes : 1;
    const int64_t extent[3] = {
        axes, attention_is_cached(c) && attention_is_packed(c) ? rope->sequences : rope->batch,
        args->k_tokens};
    if (in->k_position_ids.handle && !rotate && !mask_counts(desc))
        return fail("k_positions is given; allowed is None where keys do not rotate, unless there "
                    "is a tree_mask with a window or chunk");
    if (in->k_position_ids.handle && desc->ring)
        return fail("k_positions is given; allowed with a ring is None: an index may be beyond it");
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

/* Where nothing rotates, nothing but a tree's window reads a position. */
static const char *check_rotation_unread(const inputs *in, int ids_count) {
    const struct {
        const char *name;
        int given;
    } unread[] = {{"positions", in->position_ids.handle && !ids_count},
                  {"k_positions", in->k_position_ids.handle && !ids_count},
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

static const char *put_weights(const attention_call *c, const rope_attention_desc *desc,
                               rope_attention_args *args) {
    const int64_t dim = tensor_last_size(&c->q);
    const char *error = put_weight(&c->weight[0], "q_weight", &desc->q_norm, args->rope.q.heads,
                                   dim, &args->q_weight);
    return error ? error
                 : put_weight(&c->weight[1], "k_weight", &desc->k_norm, args->rope.k.heads, dim,
                              &args->k_weight);
}

const char *attention_put_masks(const attention_call *c, const plan_entry *entry,
                                rope_attention_args *args) {
    const char *error = put_lengths(c, args);
    if (!error)
        error = put_key_positions(c, &entry->config.attention, args);
    if (!error)
        error = put_sinks(c, args);
    return error ? error : put_tree(c, args);
}

const char *attention_put(const attention_call *c, const plan_entry *entry, int32_t layout,
                          rope_attention_args *args) {
    const rope_attention_desc *desc = &entry->config.attention;
    const char *error = put_queries(c, layout, &args->rope);
    if (!error && desc->rotation == ROPE_ATTENTION_ROTATE_NONE)
        error = check_rotation_unread(&c->inputs, mask_counts(desc));
    if (!error)
        error = inputs_put(&c->inputs, &c->q, &desc->rope, &args->rope);
    if (!error)
        error = attention_is_cached(c) ? put_caches(c, args) : put_tensors(c, layout, args);
    if (!error)
        error = put_weights(c, desc, args);
    return error ? error : attention_put_masks(c, entry, args);
}
