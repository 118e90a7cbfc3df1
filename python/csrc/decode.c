#include "python/csrc/decode.h"

#include "python/csrc/attention_explain.h"
#include "python/csrc/attention_plan.h"
#include "python/csrc/attention_put.h"
#include "python/csrc/attention_results.h"
#include "python/csrc/cache.h"
#include "python/csrc/failure.h"
#include "python/csrc/layout.h"
#include "python/csrc/longest.h"

#include <ropekit/decode.h>

#include <inttypes.h>
#include <string.h>

/* What attention reads of the append's arguments. */
static void share(decode_call *c) {
    attention_call *to = &c->attention;
    const append_call *from = &c->append;
    to->q = from->in[PART_Q];
    to->cache[KEYS] = from->cache[PART_K];
    to->cache[VALUES] = from->cache[PART_V];
    to->block_table = from->block_table;
    to->inputs = from->inputs;
}

/* Values within keys are cached, and have their scale, with those. */
static const char *check_values(const append_call *c) {
    const tensor *k = &c->cache[PART_K], *v = &c->cache[PART_V];
    if (!append_shares_cache(c, PART_V))
        return NULL;
    if (c->scale[PART_V].handle || c->scale_out[PART_V].handle)
        return fail("%s is given; allowed is None without v",
                    c->scale[PART_V].handle ? "v_scale" : "v_scale_out");
    if (v->dims != k->dims)
        return fail("v_cache has %" PRId64 " dimensions; allowed without v is %" PRId64
                    ", those of k_cache",
                    v->dims, k->dims);
    int same = tensor_read(k) == tensor_read(v) && k->dtype == v->dtype;
    for (int64_t d = 0; d < k->dims && same; d++)
        same = v->sizes[d] <= k->sizes[d] && (v->sizes[d] <= 1 || k->strides[d] == v->strides[d]);
    return same ? NULL
                : fail("v_cache lies elsewhere than k_cache; allowed without v is its first "
                       "elements");
}

static const char *check_all(const decode_call *c, int32_t *position_dtype) {
    const append_call *append = &c->append;
    const char *error = append_check(append, &append->in[PART_Q], "q", position_dtype);
    if (!error)
        error = check_values(append);
    if (!error)
        error = attention_check_masks(&c->attention);
    if (!error && c->max_seqlen_q && !append->inputs.cu_seqlens.handle)
        return fail("max_seqlen_q is %" PRId64 "; allowed is None without cu_seqlens",
                    c->max_seqlen_q);
    if (!error && append->slots.handle && !append->block_table.handle)
        return fail("block_table is not given; allowed with slots is a tensor");
    return error;
}

static const plan_entry *plan_of(const decode_call *c, int32_t position_dtype, const char **error) {
    plan_key key = append_key(&c->append, &c->append.in[PART_Q], position_dtype);
    key.operation = OPERATION_DECODE;
    key.store_dtype[PART_Q] = 0;
    if (append_shares_cache(&c->append, PART_V))
        key.scale[PART_V] = key.scale[PART_K];
    key.sink_dtype = c->attention.sinks.handle ? c->attention.sinks.dtype : 0;
    key.tree = c->attention.tree_bits.handle != NULL;
    return plan_for(&key, error);
}

/* Of rows whose tokens nothing else places, they are the last keys of their sequences. */
static void place_rows(const inputs *in, const plan_entry *entry, const void *k_lengths,
                       rope_append_args *args) {
    rope_args *rope = &args->rope;
    const int unread = args->slots && entry->config.append.rotation == ROPE_ROTATION_OFF;
    if (unread || in->position_ids.handle || in->sequence_offsets.handle ||
        in->cache_starts.handle || in->cu_seqlens.handle || in->position_offset)
        return;
    rope->sequence_offsets = k_lengths;
    rope->position_offset = -rope->tokens;
}

/* The most keys of a sequence. */
static const char *put_key_tokens(const decode_call *c, rope_attention_args *args) {
    const int64_t pages = c->append.block_table.handle ? c->append.block_table.sizes[1] : 1;
    args->k_tokens = c->attention.max_seqlen_k;
    if (!args->k_tokens &&
        __builtin_mul_overflow(pages, cache_page_size(&c->append.cache[PART_K]), &args->k_tokens))
        return fail("block_table has %" PRId64 " columns; allowed is below 2^63 keys", pages);
    return NULL;
}

/* A tensor of the caller's is as a new one would be, of any strides. */
static const char *check_into(const decode_call *c, int32_t last) {
    const tensor *q = &c->append.in[PART_Q], *into = &c->into;
    char given[128], sizes[128];
    if (into->torch_dtype != q->torch_dtype)
        return fail("out is %s; allowed is the type of q, %s", tensor_dtype_name(into),
                    tensor_dtype_name(q));
    if (into->dims != q->dims || tensor_last_size(into) != last ||
        memcmp(into->sizes, q->sizes, (size_t)(q->dims - 1) * sizeof *q->sizes) != 0)
        return fail("out has the shape [%s]; allowed is that of q, [%s], with heads of %d",
                    shape_of(into, given), shape_of(q, sizes), last);
    return check_device(q, into, "out");
}

static const char *make_out(decode_call *c, int32_t layout, const plan_entry *entry,
                            rope_decode_args *args) {
    const tensor *q = &c->append.in[PART_Q];
    const int partly = attention_is_packed(&c->attention);
    const int32_t last = entry->key.v_head_dim;
    const char *error = c->into.handle
                            ? check_into(c, last)
                            : results_like(q, layout, q->dims, last, partly, &c->attention.out);
    if (c->into.handle)
        c->attention.out = c->into;
    if (!error)
        results_put(&c->attention.out, layout, &args->out);
    return error;
}

/* What attention has beside the append goes by its own arguments. */
static const char *put_attention(const decode_call *c, const plan_entry *entry,
                                 rope_attention_args *attention, rope_decode_args *args) {
    attention->rope = args->append.rope;
    const char *error = put_key_tokens(c, attention);
    if (!error)
        error = attention_put_masks(&c->attention, entry, attention);
    args->k_tokens = attention->k_tokens;
    args->k_lengths = attention->k_lengths;
    args->k_position_ids = attention->k_position_ids;
    memcpy(args->k_position_stride, attention->k_position_stride, sizeof args->k_position_stride);
    args->sinks = attention->sinks;
    args->tree_bits = attention->tree_bits;
    memcpy(args->tree_stride, attention->tree_stride, sizeof args->tree_stride);
    args->tree_keys = attention->tree_keys;
    args->most_tokens = c->max_seqlen_q;
    return error;
}

static const char *put_all(decode_call *c, const plan_entry *entry, rope_attention_args *attention,
                           rope_decode_args *args) {
    const tensor *q = &c->append.in[PART_Q];
    const char *error = append_put(&c->append, q, entry, &args->append);
    if (append_shares_cache(&c->append, PART_V))
        args->append.v_cache.scale = args->append.k_cache.scale;
    if (!error)
        error = put_attention(c, entry, attention, args);
    if (error)
        return error;
    place_rows(&c->append.inputs, entry, args->k_lengths, &args->append);
    error = longest_check_cached(entry, &args->append.rope);
    return error ? error : make_out(c, layout_of(entry->config.layout, q), entry, args);
}

static const char *carry_out(const decode_call *c, const plan_entry *entry,
                             rope_attention_args *attention, rope_decode_args *args) {
    tensor memory = {0};
    const char *error =
        results_workspace(&c->append.in[PART_Q], entry, rope_decode_workspace, attention, &memory);
    args->workspace = attention->workspace;
    args->workspace_bytes = attention->workspace_bytes;
    if (!error && c->attention.explains)
        decode_explain(entry, args);
    else if (!error)
        error = fail_of_library(rope_decode(entry->plan, args));
    tensor_release(&memory);
    return error;
}

static const char *run(decode_call *c);

static const char *run_widened(decode_call *c) {
    decode_call wide = *c;
    AtenTensorHandle made[INDICES] = {NULL};
    const char *error = inputs_widen(&wide.append.inputs, made);
    if (!error)
        error = run(&wide);
    c->attention.out = wide.attention.out;
    inputs_release_widened(made);
    return error;
}

static const char *run(decode_call *c) {
    int32_t position_dtype = 0;
    share(c);
    const char *error = check_all(c, &position_dtype);
    if (!error && !position_dtype)
        return run_widened(c);
    const plan_entry *entry = error ? NULL : plan_of(c, position_dtype, &error);
    if (!entry)
        return error;
    rope_decode_args args = ROPE_DECODE_ARGS_INIT;
    rope_attention_args attention = ROPE_ATTENTION_ARGS_INIT;
    error = put_all(c, entry, &attention, &args);
    if (error || (!args.out.data && args.append.rope.q.heads)) /* no tokens */
        return error;
    entry = longest_of_tokens(entry, &args.append.rope, &error);
    if (!error)
        error = carry_out(c, entry, &attention, &args);
    plan_return(entry);
    return error;
}

const char *decode_run(decode_call *c) {
    c->append.attended = 1;
    return fail_last(run(c));
}

void decode_release_results(const decode_call *c) {
    if (!c->into.handle)
        tensor_release(&c->attention.out);
}
