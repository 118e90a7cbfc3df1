#include "bench/operation/operation.h"
#include "bench/output/message.h"
#include "bench/support/dtype.h"
#include "bench/support/random.h"
#include "bench/workload/placement.h"
#include "bench/workload/target.h"

#include <string.h>

/* --- layout of a set --- */

static int64_t scale_count(const options *o, int tensor) {
    const int32_t kind = shape_part(o, tensor)->scale;
    const int64_t heads = shape_heads(o, tensor);
    if (kind < ROPE_SCALE_TOKEN_HEAD)
        return kind == ROPE_SCALE_HEAD ? heads : kind != 0;
    return tensor == CHECK_Q ? shape_product(o->batch, o->tokens, heads, 1)
                             : shape_product(shape_pages(o), shape_page_size(o), heads, 1);
}

/* Scales lie behind what a copy writes. */
static void lay_out(workload *w) {
    const options *o = w->o;
    for (int t = CHECK_Q; t <= CHECK_V; t++) {
        const int64_t elements = shape_elements(o, t);
        const int32_t dtype = o->desc.dtype, stored = shape_store_dtype(o, t);
        if (!shape_in_place(o, t))
            w->in[t] = workload_take(&w->in_bytes, dtype, elements);
        if (shape_is_cached(o, t))
            w->cache[t] = workload_take(&w->out_bytes, stored,
                                        shape_product(shape_pages(o), shape_page_size(o),
                                                      shape_heads(o, t), shape_dim(o, t)));
        else
            w->out[t] = workload_take(&w->out_bytes, t == CHECK_Q ? stored : dtype, elements);
    }
    w->out_bytes = w->out_bytes > w->floor_bytes ? w->out_bytes : w->floor_bytes;
    w->out_bytes += -w->out_bytes % sizeof(float);
    for (int t = CHECK_Q; t <= CHECK_V; t++)
        w->scale[t] = workload_take(&w->out_bytes, ROPE_F32, scale_count(o, t));
}

/* --- what a set holds --- */

/* Inputs that are overwritten, finite numbers in caches whose keys move, and scales. */
static void fill(workload *w) {
    const options *o = w->o;
    const workload_array *q = &w->out[CHECK_Q], *k = &w->cache[CHECK_K];
    uint64_t state = (uint64_t)o->seed;
    if (shape_in_place(o, CHECK_Q))
        workload_fill(o->desc.dtype, w->outputs + q->start, q->bytes, o->seed);
    if (shape_moves(o) && k->dtype < ROPE_F8E4M3)
        workload_fill(k->dtype, w->outputs + k->start, k->bytes, o->seed);
    else if (shape_moves(o))
        for (size_t i = 0; i < k->bytes; i++)
            w->outputs[k->start + i] = (char)((random_bits(&state) & 0xbf) | 1);
    for (int t = CHECK_Q; t <= CHECK_V; t++) {
        float *scales = (float *)(void *)(w->outputs + w->scale[t].start);
        for (size_t i = 0; i < w->scale[t].bytes / sizeof *scales; i++)
            scales[i] = (float)(8 + i % 7) / 256;
    }
}

static bool place_weight(workload *w, int tensor, rope_norm_weight *host,
                         rope_norm_weight *device) {
    const options *o = w->o;
    const rope_norm *norm = &shape_part(o, tensor)->norm;
    const int32_t dtype = norm->weight_dtype ? norm->weight_dtype : o->desc.dtype;
    if (!norm->type || !norm->weight)
        return true;
    const int64_t heads = norm->scope == ROPE_NORM_TOKEN ? shape_heads(o, tensor) : 1;
    const size_t bytes =
        (size_t)shape_product(heads, shape_dim(o, tensor), 1, 1) * dtype_bytes(dtype);
    void *weights = staging_host(&w->memory, "weights", 1, bytes + 1);
    if (!weights)
        return false;
    workload_fill(dtype, weights, bytes, o->seed + 1 + tensor);
    host->data = weights;
    return staging_copy(&w->memory, weights, bytes + 1, &device->data);
}

static bool place_weights(workload *w) {
    rope_append_args *host = &w->on_host.append, *device = &w->on_device.append;
    return place_weight(w, CHECK_Q, &host->q_weight, &device->q_weight) &&
           place_weight(w, CHECK_K, &host->k_weight, &device->k_weight) &&
           place_weight(w, CHECK_V, &host->v_weight, &device->v_weight);
}

/* --- where tokens lie in the cache --- */

static bool place_list(workload *w, int32_t dtype, const char *name, const int64_t *values,
                       int64_t count, const void **host, const void **device) {
    return values && placement_indices(&w->memory, dtype ? dtype : w->o->desc.position_dtype, name,
                                       values, count, host, device);
}

/* With random ids each token has a page of its own. */
static bool place_slots(workload *w, const int64_t *order) {
    const options *o = w->o;
    const int64_t size = w->append.page_size, tokens = o->batch * o->tokens;
    const bool apart = o->position_ids == IDS_RANDOM;
    uint64_t state = (uint64_t)o->seed;
    int64_t *slots = staging_host(&w->memory, "slots", tokens, sizeof *slots);
    for (int64_t i = 0; slots && i < tokens; i++)
        slots[i] = apart ? order[i] * size + random_below(&state, size - 1)
                         : order[i / size] * size + i % size;
    return place_list(w, o->appends.slot_dtype, "slots", slots, tokens, &w->on_host.append.slots,
                      &w->on_device.append.slots);
}

/* Sequences begin at index 0 of their own. */
static bool place_cache(workload *w) {
    const options *o = w->o;
    rope_append_args *host = &w->on_host.append, *device = &w->on_device.append;
    const int64_t pages = shape_pages(o), sequences = shape_sequences(o);
    if (!shape_is_cached(o, CHECK_K) && !shape_is_cached(o, CHECK_V))
        return true;
    host->pages = device->pages = pages;
    const int64_t *order = placement_pages(&w->memory, pages, o->seed);
    const int64_t *starts = staging_host(&w->memory, "cache starts", sequences + 1, sizeof *starts);
    if (o->appends.cache == ROPE_CACHE_SLOTS)
        return order && place_slots(w, order);
    if (o->appends.cache == ROPE_CACHE_TABLE) {
        host->table_pages = device->table_pages = shape_table_pages(o);
        if (!place_list(w, o->appends.table_dtype, "block table", order, pages, &host->block_table,
                        &device->block_table))
            return false;
    }
    return place_list(w, 0, "cache starts", starts, sequences, &host->cache_starts,
                      &device->cache_starts);
}

/* Keys move by the position offset, where no ids say how far each. */
static bool place_distance(workload *w) {
    static const int64_t none[ROPE_MAX_AXES] = {0};
    rope_args *host = &w->on_host.append.rope, *device = &w->on_device.append.rope;
    if (!shape_moves(w->o) || device->position_ids)
        return true;
    host->position_stride[0] = device->position_stride[0] = 1;
    host->position_ids = none;
    return staging_copy(&w->memory, none, sizeof none, &device->position_ids);
}

/* --- calls --- */

static void set_cache(const workload *w, int tensor, char *out, rope_cache *c) {
    const options *o = w->o;
    const int64_t heads = shape_heads(o, tensor), dim = shape_dim(o, tensor);
    const int64_t size = w->append.page_size;
    const int32_t block = tensor == CHECK_K ? w->append.k_dim_block : w->append.v_dim_block;
    const int64_t x = block ? block : dim;
    const int64_t hnd[5] = {size * heads * dim, x, size * dim, size * x, 1};
    c->data = out + w->cache[tensor].start;
    if (o->page_layout == PAGES_HND)
        memcpy(c->stride, hnd, sizeof hnd);
    if (shape_part(o, tensor)->scale)
        c->scale.data = out + w->scale[tensor].start;
}

rope_append_args append_args_on(const workload *w, const rope_append_args *fixed, char *in,
                                char *out) {
    const options *o = w->o;
    rope_append_args a = *fixed;
    rope_tensor *const tensors[] = {&a.rope.q, &a.rope.k, &a.v};
    for (int t = CHECK_Q; t <= CHECK_V; t++) {
        const bool cached = shape_is_cached(o, t);
        char *const to = cached ? NULL : out + w->out[t].start;
        if (shape_heads(o, t) == 0)
            continue;
        *tensors[t] = workload_tensor(o, t,
                                      shape_moves(o)         ? NULL
                                      : shape_in_place(o, t) ? to
                                                             : in + w->in[t].start,
                                      to);
        if (cached)
            set_cache(w, t, out, t == CHECK_K ? &a.k_cache : &a.v_cache);
    }
    if (o->appends.q.scale && shape_heads(o, CHECK_Q))
        a.q_scale.data = out + w->scale[CHECK_Q].start;
    return a;
}

static bool create_plan(workload *w) {
    const options *o = w->o;
    if (shape_moves(o) && (o->cu_seqlens.count || o->desc.shard_size > 1)) {
        message("--k-source is cache; allowed is tensor with --cu-seqlens or --shard");
        return false;
    }
    w->append = o->appends;
    w->append.struct_size = sizeof w->append;
    if (w->append.cache)
        w->append.page_size = shape_page_size(o);
    workload_call *c = workload_next(w, "rope_append", &workload_append);
    w->call_count = c && target_desc(o, &w->append.rope) &&
                    succeeded(rope_append_plan_create(&w->append, &c->plan), "plan");
    return w->call_count;
}

bool append_create(workload *w) {
    const options *o = w->o;
    rope_append_args fixed = ROPE_APPEND_ARGS_INIT;
    fixed.rope.batch = o->batch;
    fixed.rope.tokens = o->tokens;
    fixed.rope.position_offset = o->position_offset;
    w->on_device.append = w->on_host.append = fixed;
    w->floor_bytes = shape_bytes(o);
    if (!create_plan(w))
        return false;
    lay_out(w);
    if (!workload_allocate(w))
        return false;
    fill(w);
    if (!workload_upload(w) ||
        !placement_create(&w->memory, o, &w->desc, &w->on_host.append.rope,
                          &w->on_device.append.rope) ||
        !place_distance(w) || !place_weights(w) || !place_cache(w))
        return false;
    for (int64_t i = 0; i < w->set_count; i++)
        ((rope_append_args *)w->calls[0].sets)[i] = append_args_on(
            w, &w->on_device.append, workload_set(w, w->source, i), workload_set(w, w->target, i));
    return true;
}
