#include "bench/append/workload.h"

#include "bench/append/separate.h"
#include "bench/output/message.h"
#include "bench/support/dtype.h"
#include "bench/support/random.h"
#include "bench/workload/placement.h"
#include "bench/workload/target.h"

#include <string.h>

/* Host and device memory of one workload, as of rope_workload.c. */
#define SLABS 5

/* --- layout of a set --- */

static int64_t scale_count(const append_state *s, int tensor) {
    const options *o = s->o;
    const int32_t kind = append_part_of(&s->desc, tensor)->scale;
    const int64_t heads = append_heads(o, tensor);
    if (kind < ROPE_SCALE_TOKEN_HEAD)
        return kind == ROPE_SCALE_HEAD ? heads : kind != 0;
    return tensor == APPEND_Q ? append_count(o->batch, o->tokens, heads, 1)
                              : append_count(s->pages, s->desc.page_size, heads, 1);
}

/* Scales lie behind what a copy writes. */
static void lay_out(append_state *s, size_t copied) {
    const options *o = s->o;
    for (int t = 0; t < APPEND_TENSORS; t++) {
        const int64_t heads = append_heads(o, t), dim = append_head_dim(o, t);
        const int64_t elements = append_count(o->batch, o->tokens, heads, dim);
        const int32_t dtype = o->desc.dtype, stored = append_store_dtype(o, t);
        if (!append_moves(o) && !append_in_place(o, t))
            s->in[t] = workload_take(&s->in_bytes, dtype, elements);
        s->between[t] = workload_take(&s->between_bytes, dtype, elements);
        if (append_is_cached(o, t))
            s->cache[t] = workload_take(&s->out_bytes, stored,
                                        append_count(s->pages, s->desc.page_size, heads, dim));
        else
            s->out[t] = workload_take(&s->out_bytes, t == APPEND_Q ? stored : dtype, elements);
    }
    s->out_bytes = workload_round_up(s->out_bytes > copied ? s->out_bytes : copied, WORKLOAD_LINE);
    for (int t = 0; t < APPEND_TENSORS; t++)
        s->scale[t] = workload_take(&s->out_bytes, ROPE_F32, scale_count(s, t));
}

/* --- what a set holds --- */

/* Finite numbers of any type. */
static void fill_cache(const workload_array *a, char *image, int64_t seed) {
    uint64_t state = (uint64_t)seed;
    if (a->dtype < ROPE_F8E4M3) {
        workload_fill(a->dtype, image + a->start, a->bytes, seed);
        return;
    }
    for (size_t i = 0; i < a->bytes; i++)
        image[a->start + i] = (char)((random_bits(&state) & 0xbf) | 1);
}

static void fill_image(const append_state *s, size_t pitch) {
    const options *o = s->o;
    memset(s->image, WORKLOAD_UNWRITTEN, pitch);
    if (append_in_place(o, APPEND_Q))
        workload_fill(o->desc.dtype, s->image + s->out[APPEND_Q].start, s->out[APPEND_Q].bytes,
                      o->seed);
    if (append_moves(o))
        fill_cache(&s->cache[APPEND_K], s->image, o->seed);
    for (int t = 0; t < APPEND_TENSORS; t++) {
        float *scales = (float *)(void *)(s->image + s->scale[t].start);
        for (size_t i = 0; i < s->scale[t].bytes / sizeof *scales; i++)
            scales[i] = (float)(8 + i % 7) / 256;
    }
}

static bool place_weight(workload *w, append_state *s, int tensor, rope_norm_weight *weight) {
    const rope_norm *norm = &append_part_of(&s->desc, tensor)->norm;
    const int32_t dtype = norm->weight_dtype ? norm->weight_dtype : s->o->desc.dtype;
    if (!norm->type || !norm->weight)
        return true;
    const int64_t heads = norm->scope == ROPE_NORM_TOKEN ? append_heads(s->o, tensor) : 1;
    const size_t bytes =
        (size_t)append_count(heads, append_head_dim(s->o, tensor), 1, 1) * dtype_bytes(dtype);
    void *host = staging_host(&w->memory, "weights", 1, bytes + 1);
    if (!host)
        return false;
    workload_fill(dtype, host, bytes, s->o->seed + 1 + tensor);
    return staging_copy(&w->memory, host, bytes + 1, &weight->data);
}

/* --- where tokens lie in the cache --- */

static int32_t index_dtype(const options *o, int32_t own) {
    return own ? own : o->desc.position_dtype;
}

static int64_t slot_of(const append_state *s, const int64_t *order, int64_t token,
                       uint64_t *state) {
    const options *o = s->o;
    const int64_t size = s->desc.page_size;
    if (o->appends.cache == ROPE_CACHE_SLOTS && o->position_ids == IDS_RANDOM)
        return order[token] * size + random_below(state, size - 1);
    if (o->appends.cache == ROPE_CACHE_SLOTS)
        return order[token / size] * size + token % size;
    const int64_t ring = s->desc.ring ? s->desc.ring : INT64_MAX;
    const int64_t row = token / o->tokens, index = token % o->tokens % ring;
    return o->appends.cache == ROPE_CACHE_SEQUENCE
               ? row * size + index
               : order[row * s->args.table_pages + index / size] * size + index % size;
}

static bool place_slots(workload *w, append_state *s, const int64_t *order) {
    const options *o = s->o;
    const int64_t tokens = o->batch * o->tokens;
    uint64_t state = (uint64_t)o->seed;
    const void *host;
    if (o->appends.cache != ROPE_CACHE_SLOTS && !append_moves(o))
        return true;
    s->places = staging_host(&w->memory, "slots", tokens, sizeof *s->places);
    for (int64_t i = 0; s->places && i < tokens; i++)
        s->places[i] = slot_of(s, order, i, &state);
    return s->places && (o->appends.cache != ROPE_CACHE_SLOTS ||
                         placement_indices(&w->memory, index_dtype(o, o->appends.slot_dtype),
                                           "slots", s->places, tokens, &host, &s->args.slots));
}

static bool place_cache(workload *w, append_state *s) {
    const options *o = s->o;
    const void *host;
    if (!append_is_cached(o, APPEND_K) && !append_is_cached(o, APPEND_V))
        return true;
    s->args.pages = s->pages;
    const int64_t *order = placement_pages(&w->memory, s->pages, o->seed);
    int64_t *starts =
        staging_host(&w->memory, "cache starts", append_sequences(o) + 1, sizeof *starts);
    if (!order || !starts)
        return false;
    if (o->appends.cache == ROPE_CACHE_TABLE) {
        s->args.table_pages = append_pages_for(o, append_kept_tokens(o));
        if (!placement_indices(&w->memory, index_dtype(o, o->appends.table_dtype), "block table",
                               order, s->pages, &host, &s->args.block_table))
            return false;
    }
    return (o->appends.cache == ROPE_CACHE_SLOTS ||
            placement_indices(&w->memory, index_dtype(o, 0), "cache starts", starts,
                              append_sequences(o), &host, &s->args.cache_starts)) &&
           place_slots(w, s, order);
}

/* --- calls --- */

static void set_cache(const append_state *s, rope_append_args *a, int tensor, char *out) {
    const options *o = s->o;
    rope_cache *c = tensor == APPEND_K ? &a->k_cache : &a->v_cache;
    const int64_t heads = append_heads(o, tensor), dim = append_head_dim(o, tensor);
    const int64_t size = s->desc.page_size;
    const int32_t block = tensor == APPEND_K ? s->desc.k_dim_block : s->desc.v_dim_block;
    const int64_t x = block ? block : dim;
    const int64_t hnd[5] = {size * heads * dim, x, size * dim, size * x, 1};
    c->data = out + s->cache[tensor].start;
    if (o->page_layout == PAGES_HND)
        memcpy(c->stride, hnd, sizeof hnd);
    if (append_part_of(&s->desc, tensor)->scale)
        c->scale.data = out + s->scale[tensor].start;
}

/* The whole call over one set. */
static rope_append_args call_on(const append_state *s, const char *in, char *out) {
    const options *o = s->o;
    rope_append_args a = s->args;
    for (int t = 0; t < APPEND_TENSORS; t++) {
        if (append_heads(o, t) == 0)
            continue;
        const bool cached = append_is_cached(o, t);
        char *to = cached ? NULL : out + s->out[t].start;
        append_set_tensor(o, &a, t,
                          append_moves(o)         ? NULL
                          : append_in_place(o, t) ? to
                                                  : in + s->in[t].start,
                          to);
        if (cached)
            set_cache(s, &a, t, out);
    }
    if (s->desc.q.scale && append_heads(o, APPEND_Q))
        a.q_scale.data = out + s->scale[APPEND_Q].start;
    return a;
}

/* --- a workload --- */

static bool create_plan(workload *w, append_state *s) {
    const options *o = s->o;
    s->desc = o->appends;
    s->desc.struct_size = sizeof s->desc;
    if (append_moves(o) && (o->cu_seqlens.count || o->desc.shard_size > 1)) {
        message("--k-source is cache; allowed is tensor with --cu-seqlens or --shard");
        return false;
    }
    if (s->desc.cache)
        s->desc.page_size = append_page_size(o);
    w->call_count = 1;
    w->calls[0].size = sizeof(rope_append_args);
    return target_desc(o, &s->desc.rope) &&
           succeeded(rope_append_plan_create(&s->desc, &w->calls[0].plan), "plan");
}

static bool create_memory(workload *w, append_state *s) {
    const options *o = s->o;
    const size_t bytes = w->pitch * (size_t)w->set_count;
    if (!staging_fits("tensors on host and device", SLABS, w->pitch))
        return false;
    char *data = staging_host(&w->memory, "tensors", 1, w->pitch);
    s->image = data ? staging_host(&w->memory, "tensors", 1, w->pitch) : NULL;
    w->calls[0].sets = staging_host(&w->memory, "calls", w->set_count, w->calls[0].size);
    if (!s->image || !w->calls[0].sets || !staging_device(&w->memory, bytes, &w->target) ||
        !staging_device(&w->memory, s->between_bytes + 1, &s->scratch) ||
        (!append_moves(o) && !staging_device(&w->memory, bytes, &w->source)))
        return false;
    workload_fill(o->desc.dtype, data, w->pitch, o->seed);
    fill_image(s, w->pitch);
    for (int64_t i = 0; i < w->set_count; i++) {
        const size_t start = (size_t)i * w->pitch;
        if (!succeeded(
                rope_device_copy_in(w->device, (char *)w->target + start, s->image, w->pitch),
                "copy in") ||
            (w->source &&
             !succeeded(rope_device_copy_in(w->device, (char *)w->source + start, data, w->pitch),
                        "copy in")))
            return false;
    }
    return true;
}

/* All keys move by the position offset. */
static bool place_distance(workload *w, append_state *s) {
    static const int64_t none[ROPE_MAX_AXES] = {0};
    if (!append_moves(s->o) || s->args.rope.position_ids)
        return true;
    s->args.rope.position_stride[0] = 1;
    return staging_copy(&w->memory, none, sizeof none, &s->args.rope.position_ids);
}

static bool create_call(workload *w, append_state *s) {
    const options *o = s->o;
    rope_append_args made = ROPE_APPEND_ARGS_INIT;
    s->args = made;
    s->args.rope.batch = o->batch;
    s->args.rope.tokens = o->tokens;
    s->args.rope.position_offset = o->position_offset;
    w->host = s->args.rope;
    if (!placement_create(&w->memory, o, &w->desc, &w->host, &s->args.rope) ||
        !place_distance(w, s) || !place_weight(w, s, APPEND_Q, &s->args.q_weight) ||
        !place_weight(w, s, APPEND_K, &s->args.k_weight) ||
        !place_weight(w, s, APPEND_V, &s->args.v_weight) || !place_cache(w, s))
        return false;
    for (int64_t i = 0; i < w->set_count; i++) {
        const size_t start = (size_t)i * w->pitch;
        ((rope_append_args *)w->calls[0].sets)[i] =
            call_on(s, w->source ? (char *)w->source + start : NULL, (char *)w->target + start);
    }
    return true;
}

bool append_create(workload *w, const options *o) {
    append_state *s = w->append = staging_host(&w->memory, "a set", 1, sizeof *s);
    if (!s)
        return false;
    s->o = o;
    if (!create_plan(w, s))
        return false;
    w->tensor_bytes = w->floor_bytes = append_tensor_bytes(o);
    s->pages = s->desc.cache ? append_count_pages(o) : 0;
    lay_out(s, w->floor_bytes);
    w->pitch =
        workload_round_up(s->in_bytes > s->out_bytes ? s->in_bytes : s->out_bytes, WORKLOAD_PAGE);
    bool ready = create_memory(w, s) && create_call(w, s);
    for (int step = append_moves(o) ? STEP_ROTATION : STEP_NORM; ready && step < STEPS; step++)
        ready = append_add_step(w, step);
    w->timed_count = append_moves(o) ? 1 : w->call_count;
    return ready;
}

bool append_restore(const workload *w) {
    return succeeded(rope_device_copy_in(w->device, w->target, w->append->image, w->pitch),
                     "copy in");
}
