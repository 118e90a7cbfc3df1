/* Attention behind an append of its tokens: rope_decode. */
#include "bench/operation/operation.h"
#include "bench/output/message.h"
#include "bench/workload/target.h"

#include <string.h>

static rope_decode_desc describe(const workload *w) {
    const rope_attention_desc *a = &w->attention;
    const int off = a->rotation == ROPE_ATTENTION_ROTATE_NONE;
    rope_decode_desc d = ROPE_DECODE_DESC_INIT;
    d.append.rope = a->rope;
    d.append.rotation = off ? ROPE_ROTATION_OFF : ROPE_ROTATION_ON;
    d.append.v_head_dim = a->v_head_dim;
    d.append.k.store_dtype = a->k.dtype;
    d.append.k.scale = a->k.scale;
    d.append.v.store_dtype = a->v.dtype;
    d.append.v.scale = a->v.scale;
    d.append.cache = a->cache;
    d.append.page_size = a->page_size;
    d.mask = a->mask;
    d.scale = a->scale;
    d.soft_cap = a->soft_cap;
    d.window = a->window;
    d.window_right = a->window_right;
    d.chunk = a->chunk;
    return d;
}

/* What no set has of its own. */
static rope_decode_args fixed_of(const workload *w, const rope_args *at) {
    const rope_attention_args *a = &w->on_device.attention;
    rope_decode_args args = ROPE_DECODE_ARGS_INIT;
    args.append.rope = a->rope;
    if (!a->rope.position_ids && w->attention.rotation != ROPE_ATTENTION_ROTATE_NONE)
        args.append.rope.sequence_offsets = at->sequence_offsets;
    args.append.cache_starts = at->sequence_offsets;
    args.append.pages = a->pages;
    args.append.block_table = a->block_table;
    args.append.table_pages = a->table_pages;
    args.k_tokens = a->k_tokens;
    args.k_lengths = a->k_lengths;
    return args;
}

static rope_decode_args args_on(const workload *w, const rope_decode_args *fixed, char *in,
                                char *out) {
    const rope_attention_args a = attention_args_on(w, &w->on_device.attention, in, NULL, out);
    rope_decode_args args = *fixed;
    args.append.rope.q = a.rope.q;
    args.append.rope.k = workload_tensor(w->o, CHECK_K, in + w->fresh[CHECK_K].start, NULL);
    if (!w->o->v_in_k)
        args.append.v = workload_tensor(w->o, CHECK_V, in + w->fresh[CHECK_V].start, NULL);
    args.append.k_cache = a.k_cache;
    args.append.v_cache = a.v_cache;
    args.out = a.out;
    return args;
}

/* Nobody has keys and values yet where the tokens go. */
static bool leave_out(workload *w) {
    const options *o = w->o;
    const int64_t size = w->attention.page_size, pages = w->on_host.attention.table_pages;
    for (int64_t i = 0; i < o->batch * o->tokens; i++) {
        const int64_t n = shape_keys(o) - o->tokens + i % o->tokens,
                      at = i / o->tokens * pages + n / size;
        const void *table = w->on_host.attention.block_table;
        const int64_t page = !table                               ? i / o->tokens
                             : o->desc.position_dtype == ROPE_I32 ? ((const int32_t *)table)[at]
                                                                  : ((const int64_t *)table)[at];
        for (int t = CHECK_K; t <= CHECK_V; t++) {
            const size_t token = w->in[t].bytes / (size_t)(shape_pages(o) * size);
            memset(w->inputs + w->in[t].start + (size_t)(page * size + n % size) * token, 0xff,
                   token);
        }
    }
    return workload_upload(w);
}

/* The host's set then has the keys and values of the tokens in its cache too. */
static bool append(workload *w) {
    const workload_call *c = &w->calls[0];
    const rope_decode_args *sets = c->sets;
    return succeeded(rope_decode(c->plan, &sets[0]), "rope_decode") &&
           succeeded(rope_device_synchronize(w->device), "rope_decode") &&
           succeeded(rope_device_copy_out(w->device, w->inputs, w->source, w->in_bytes),
                     "copy from the device");
}

bool decode_add(workload *w) {
    const rope_decode_desc desc = describe(w);
    const rope_attention_bounds bounds = attention_bounds(w);
    workload_call *c = workload_next(w, "decode", &workload_decode);
    rope_args at = {0};
    size_t bytes;
    if (!c || !succeeded(rope_decode_plan_create(&desc, &c->plan), "plan"))
        return false;
    w->call_count++;
    if (!succeeded(rope_decode_workspace(c->plan, &bounds, &bytes), "workspace") ||
        !attention_workspace(w, c, bytes) || !attention_place_starts(w, &at))
        return false;
    rope_decode_args fixed = fixed_of(w, &at);
    fixed.workspace = c->workspace;
    fixed.workspace_bytes = bytes;
    for (int64_t i = 0; i < w->set_count; i++)
        ((rope_decode_args *)c->sets)[i] =
            args_on(w, &fixed, workload_set(w, w->source, i), workload_set(w, w->target, i));
    return leave_out(w) && append(w) && attention_add_rotation(w);
}
