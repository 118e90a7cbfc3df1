#include "python/csrc/append.h"

#include "python/csrc/cache.h"
#include "python/csrc/failure.h"
#include "python/csrc/layout.h"
#include "python/csrc/longest.h"
#include "python/csrc/norm_weight.h"

#include <inttypes.h>

static const char *const names[] = {"q", "k", "v"};
static const char *const out_names[] = {"q_out", "k_out", "v_out"};
static const char *const cache_names[] = {"", "k_cache", "v_cache"};
static const char *const weight_names[] = {"q_weight", "k_weight", "v_weight"};
static const char *const scale_names[] = {"q_scale", "k_scale", "v_scale"};
static const char *const scale_out_names[] = {"q_scale_out", "k_scale_out", "v_scale_out"};

/* What is read as a part: its tensor, in place its result; NULL: absent. */
static const tensor *source(const append_call *c, int part) {
    return c->in[part].handle ? &c->in[part] : c->out[part].handle ? &c->out[part] : NULL;
}

/* What is written of a part, q's result or a cache, and its scale, given or written. */
static stored stored_of(const append_call *c, int part) {
    const tensor *given = &c->scale[part], *made = &c->scale_out[part];
    return (stored){
        .name = part == PART_Q ? out_names[part] : cache_names[part],
        .scale_name = given->handle ? scale_names[part] : scale_out_names[part],
        .data = part == PART_Q ? &c->out[part] : &c->cache[part],
        .scale = given->handle  ? given
                 : made->handle ? made
                                : NULL,
        .written = 1,
        .scale_written = !given->handle && made->handle,
    };
}

/* The first part, or the cache whose keys move. */
const tensor *append_lead(const append_call *c, const char **name) {
    for (int p = 0; p < PARTS; p++)
        if (source(c, p))
            return *name = c->in[p].handle ? names[p] : out_names[p], source(c, p);
    *name = cache_names[PART_K];
    return c->cache[PART_K].handle ? &c->cache[PART_K] : NULL;
}

int append_shares_cache(const append_call *c, int part) {
    return c->attended && part == PART_V && !source(c, PART_V);
}

/* ---- checks that do not need the plan ---- */

static const char *check_out(const tensor *lead, const tensor *in, const tensor *out, int part) {
    const char *name = out_names[part];
    char shape[128];
    if (!tensor_same_shape(in, out))
        return fail("%s has the shape [%s]; allowed is that of %s", name, shape_of(out, shape),
                    names[part]);
    if (part != PART_Q && out->dtype != in->dtype)
        return fail("%s is %s; allowed is %s, the type of %s", name, tensor_dtype_name(out),
                    tensor_dtype_name(in), names[part]);
    const char *error = check_repeats(out, name, " and is written");
    return error ? error : check_stored(lead, out, name);
}

static const char *check_part_scale(const append_call *c, const tensor *lead, int part) {
    const stored s = stored_of(c, part);
    const tensor *t = s.scale;
    const char *name = s.scale_name;
    if (c->scale[part].handle && c->scale_out[part].handle)
        return fail("%s and %s are given; allowed is one of them", scale_names[part],
                    scale_out_names[part]);
    if (t && part != PART_Q && !c->cache[part].handle)
        return fail("%s is given; allowed is None without %s", name, cache_names[part]);
    if (t && part == PART_Q && !c->out[PART_Q].handle)
        return fail("%s is given; allowed is None without q", name);
    return t ? check_scale(lead, &s) : NULL;
}

static const char *check_one(const append_call *c, const tensor *lead, const char *lead_name,
                             int part) {
    const tensor *in = source(c, part), *cache = &c->cache[part];
    const int moves = part == PART_K && lead == cache;
    const char *error = NULL;
    if (in)
        error =
            check_operand(lead, lead_name, in, c->in[part].handle ? names[part] : out_names[part],
                          ROPE_MAX_APPEND_HEAD_DIM);
    if (!error && in && c->out[part].handle)
        error = check_out(lead, in, &c->out[part], part);
    const int optional = part == PART_Q && c->attended;
    if (!error && in && !c->out[part].handle && !cache->handle && !optional)
        error = part == PART_Q ? fail("q_out is not given; allowed is a tensor")
                               : fail("%s and %s are None; allowed is one of them at least",
                                      cache_names[part], out_names[part]);
    if (!error && !in && !moves && cache->handle && !append_shares_cache(c, part))
        error = fail("%s is given; allowed is None without %s", cache_names[part], names[part]);
    if (!error && !in && !moves && c->weight[part].handle)
        error = fail("%s is given; allowed is None without %s", weight_names[part], names[part]);
    if (!error && cache->handle)
        error = check_stored(lead, cache, cache_names[part]);
    if (!error && c->weight[part].handle)
        error = check_weight(lead, &c->weight[part], weight_names[part]);
    return error ? error : check_part_scale(c, lead, part);
}

static const char *check_places(const append_call *c, const tensor *lead) {
    const char *error = NULL;
    if (c->slots.handle)
        error = check_index(lead, &c->slots, "slots");
    if (!error && c->slots.handle && c->block_table.handle && !c->attended)
        return fail("slots and block_table are given; allowed is one of them");
    if (!error)
        error = check_table(lead, &c->block_table);
    if (!error && !c->cache[PART_K].handle && !c->cache[PART_V].handle &&
        (c->slots.handle || c->block_table.handle || c->inputs.cache_starts.handle))
        return fail("%s is given; allowed is None without k_cache or v_cache",
                    c->slots.handle         ? "slots"
                    : c->block_table.handle ? "block_table"
                                            : "cache_starts");
    return error ? error : check_repeats(&c->slots, "slots", "");
}

const char *append_check(const append_call *c, const tensor *lead, const char *lead_name,
                         int32_t *position_dtype) {
    const char *error = NULL;
    for (int p = 0; p < PARTS && !error; p++)
        error = check_one(c, lead, lead_name, p);
    if (!error)
        error = check_places(c, lead);
    return error ? error : inputs_check(&c->inputs, lead, position_dtype);
}

/* ---- the plan ---- */

static int32_t head_dim_of(const append_call *c, int part) {
    const tensor *t = source(c, part), *cache = &c->cache[part];
    if (t)
        return (int32_t)t->sizes[t->dims - 1];
    return cache_head_dim(cache);
}

static int32_t cache_kind(const append_call *c) {
    if (!c->cache[PART_K].handle && !c->cache[PART_V].handle)
        return 0;
    return c->slots.handle         ? ROPE_CACHE_SLOTS
           : c->block_table.handle ? ROPE_CACHE_TABLE
                                   : ROPE_CACHE_SEQUENCE;
}

plan_key append_key(const append_call *c, const tensor *lead, int32_t position_dtype) {
    const tensor *first = &c->cache[c->cache[PART_K].handle ? PART_K : PART_V];
    plan_key key = {
        .text = c->config.data,
        .length = c->config.length,
        .head_dim = {head_dim_of(c, PART_Q), head_dim_of(c, PART_K)},
        .v_head_dim = head_dim_of(c, PART_V),
        .position_dtype = position_dtype,
        .operation = OPERATION_APPEND,
        .k_source = lead == &c->cache[PART_K] ? ROPE_SOURCE_CACHE : ROPE_SOURCE_TENSOR,
        .cache = cache_kind(c),
        .page_size = cache_page_size(first),
    };
    plan_key_put(&key, lead, &c->inputs.cos);
    key.slot_dtype = c->slots.handle ? c->slots.dtype : 0;
    key.table_index_dtype = c->block_table.handle ? c->block_table.dtype : 0;
    for (int p = 0; p < PARTS; p++) {
        const stored s = stored_of(c, p);
        key.store_dtype[p] = s.data->handle ? s.data->dtype : 0;
        key.scale[p] = scale_kind(&s);
        key.weight_dtype[p] = c->weight[p].handle ? c->weight[p].dtype : 0;
        if (p != PART_Q)
            key.dim_block[p - PART_K] = cache_dim_block(s.data);
    }
    return key;
}

/* ---- the library's call ---- */

static const char *put_part(const append_call *c, int part, int32_t layout, rope_tensor *target) {
    const tensor *in = source(c, part), *out = &c->out[part];
    target->heads = size_along(in, layout, HEAD);
    target->in = tensor_read(in);
    put_strides(in, layout, target->in_stride);
    if (!out->handle)
        return NULL;
    target->out = tensor_write(out);
    put_strides(out, layout, target->out_stride);
    return NULL;
}

static const char *put_slots(const append_call *c, rope_append_args *args) {
    const tensor *t = &c->slots;
    const int64_t batch = args->rope.batch, tokens = args->rope.tokens;
    char shape[128];
    const int rows = t->dims == 2;
    if (t->dims < 1 || t->dims > 2 || t->sizes[rows] != (rows ? tokens : batch * tokens) ||
        (rows && t->sizes[0] != batch))
        return fail("slots has the shape [%s]; allowed is [%" PRId64 ", %" PRId64 "] or [%" PRId64
                    "], batch and tokens",
                    shape_of(t, shape), batch, tokens, batch * tokens);
    args->slots = tensor_read(t);
    args->slot_stride[1] = t->strides[rows];
    args->slot_stride[0] = rows ? t->strides[0] : tokens * t->strides[0];
    return NULL;
}

static const char *put_caches(const append_call *c, rope_append_args *args,
                              const int64_t heads[PARTS]) {
    const stored k = stored_of(c, PART_K), v = stored_of(c, PART_V);
    const rope_args *rope = &args->rope;
    const int64_t v_heads = heads[append_shares_cache(c, PART_V) ? PART_K : PART_V];
    const char *error = put_cache(&k, heads[PART_K], head_dim_of(c, PART_K), &args->k_cache);
    if (!error)
        error = put_cache(&v, v_heads, head_dim_of(c, PART_V), &args->v_cache);
    if (error || (!args->k_cache.data && !args->v_cache.data))
        return error;
    error = put_pages(k.data, v.data, &args->pages);
    if (!error && c->slots.handle)
        error = put_slots(c, args);
    if (!error && c->block_table.handle)
        error = put_table(&c->block_table, rope->cu_seqlens ? rope->sequences : rope->batch,
                          &args->block_table, args->table_stride, &args->table_pages);
    return error ? error : inputs_starts(&c->inputs, rope, &args->cache_starts);
}

/* Of keys that move, which have no tensor, what lists their tokens tells. */
static void put_extent(const append_call *c, rope_args *args) {
    const tensor *ids = &c->inputs.position_ids, *starts = &c->inputs.cache_starts;
    const tensor *list = c->slots.handle ? &c->slots : ids;
    const int listed = list->handle && list->dims > 0;
    args->tokens = listed ? list->sizes[list->dims - 1] : 0;
    args->batch = listed && list->dims > 1             ? list->sizes[list->dims - 2]
                  : c->inputs.cu_seqlens.handle        ? 1
                  : c->slots.handle                    ? 1
                  : c->block_table.handle              ? c->block_table.sizes[0]
                  : starts->handle && starts->dims > 0 ? starts->sizes[0]
                                                       : 1;
}

static const char *put_parts(const append_call *c, const plan_entry *entry, int32_t layout,
                             rope_append_args *args, int64_t heads[PARTS]) {
    rope_tensor *const targets[] = {&args->rope.q, &args->rope.k, &args->v};
    rope_norm_weight *const weights[] = {&args->q_weight, &args->k_weight, &args->v_weight};
    const rope_append_desc *desc = &entry->config.append;
    const rope_norm *const norms[] = {&desc->q.norm, &desc->k.norm, &desc->v.norm};
    const char *like = NULL, *error = NULL;
    for (int p = 0; p < PARTS && !error; p++) {
        const tensor *t = source(c, p);
        if (!t)
            continue;
        error = check_shape(t, names[p], layout, like ? &args->rope : NULL, like);
        if (error)
            return error;
        like = like ? like : names[p];
        args->rope.batch = size_along(t, layout, BATCH);
        args->rope.tokens = size_along(t, layout, TOKEN);
        error = put_part(c, p, layout, targets[p]);
        heads[p] = targets[p]->heads;
        if (!error)
            error = put_weight(&c->weight[p], weight_names[p], norms[p], heads[p],
                               t->sizes[t->dims - 1], weights[p]);
    }
    return error;
}

static const char *put_q_scale(const append_call *c, int32_t layout, const rope_append_args *args,
                               rope_scale *target) {
    static const int32_t orders[][3] = {[LAYOUT_BSHD] = {0, 1, 2},
                                        [LAYOUT_BHSD] = {0, 2, 1},
                                        [LAYOUT_SBHD] = {1, 0, 2},
                                        [LAYOUT_THD] = {-1, 0, 1}};
    const int64_t over[3] = {args->rope.batch, args->rope.tokens, args->rope.q.heads};
    const stored s = stored_of(c, PART_Q);
    return put_scale(&s, over, orders[layout], target);
}

const char *append_put(const append_call *c, const tensor *lead, const plan_entry *entry,
                       rope_append_args *args) {
    const tensor *keys = &c->cache[PART_K];
    const int moves = lead == keys;
    const int32_t layout = layout_of(entry->config.layout, lead);
    int64_t heads[PARTS] = {0};
    const char *error = NULL;
    if (moves && !c->inputs.position_ids.handle)
        return fail("positions is not given; allowed without q, k and v is a tensor");
    if (moves) {
        put_extent(c, &args->rope);
        args->rope.k.heads = heads[PART_K] = cache_heads(keys);
    } else {
        error = put_parts(c, entry, layout, args, heads);
    }
    if (!error)
        error = inputs_put(&c->inputs, lead, &entry->config.append.rope, &args->rope);
    if (!error)
        error = put_caches(c, args, heads);
    return error ? error : put_q_scale(c, layout, args, &args->q_scale);
}

static const char *run(append_call *c);

static const char *run_widened(const append_call *c) {
    append_call wide = *c;
    AtenTensorHandle made[INDICES] = {NULL};
    const char *error = inputs_widen(&wide.inputs, made);
    if (!error)
        error = run(&wide);
    inputs_release_widened(made);
    return error;
}

static const char *run(append_call *c) {
    int32_t position_dtype = 0;
    const char *lead_name = NULL;
    const tensor *lead = append_lead(c, &lead_name);
    if (!lead)
        return fail("q, k and v are None; allowed is one of them at least");
    const char *error = append_check(c, lead, lead_name, &position_dtype);
    if (!error && !position_dtype)
        return run_widened(c);
    if (error)
        return error;
    const plan_key key = append_key(c, lead, position_dtype);
    const plan_entry *entry = plan_for(&key, &error);
    if (!entry)
        return error;
    rope_append_args args = ROPE_APPEND_ARGS_INIT;
    error = append_put(c, lead, entry, &args);
    if (!error)
        error = longest_check_cached(entry, &args.rope);
    entry = error ? NULL : longest_of_tokens(entry, &args.rope, &error);
    if (!error)
        error = fail_of_library(rope_append(entry->plan, &args));
    plan_return(entry);
    return error;
}

const char *append_run(append_call *c) {
    return fail_last(run(c));
}
