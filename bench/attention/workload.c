#include "bench/attention/workload.h"

#include "bench/append/shape.h"
#include "bench/output/message.h"
#include "bench/workload/placement.h"
#include "bench/workload/target.h"

#include <string.h>

/* Host and device memory of one workload, as of workload.c. */
#define SLABS 5
/* Alignment of a workspace. */
#define ALIGNMENT ((size_t)256)

_Static_assert(sizeof(rope_attention_args) != sizeof(rope_append_args) &&
                   sizeof(rope_attention_args) != sizeof(rope_args),
               "workload_run tells operations by the size of their arguments");

static bool rotates(const attention_state *s, int tensor) {
    return tensor == ATTENTION_Q   ? s->desc.rotation != ROPE_ATTENTION_ROTATE_NONE
           : tensor == ATTENTION_K ? s->desc.rotation == ROPE_ATTENTION_ROTATE_QK
                                   : false;
}

static int64_t heads_of(const options *o, int tensor) {
    return tensor == ATTENTION_Q ? o->q_heads : o->k_heads;
}

static int64_t dim_of(const options *o, int tensor) {
    return tensor == ATTENTION_V ? attention_v_head_dim(o) : o->desc.head_dim;
}

/* Pages of the cache, those of a sequence one after the other in the table. */
static int64_t table_pages(const options *o) {
    const int64_t size = attention_page_size(o);
    const int64_t pages = (attention_keys(o) + size - 1) / size;
    return o->appends.cache == ROPE_CACHE_SEQUENCE || pages == 0 ? 1 : pages;
}

static void lay_out(attention_state *s, size_t copied) {
    const options *o = s->o;
    const int32_t dtype = o->desc.dtype;
    for (int t = 0; t < ATTENTION_TENSORS; t++) {
        const int64_t heads = heads_of(o, t), dim = dim_of(o, t);
        const int64_t tokens = append_count(o->batch, o->tokens, heads, dim);
        const bool paged = t != ATTENTION_Q && s->desc.cache;
        s->in[t] = workload_take(&s->in_bytes, dtype,
                                 paged ? append_count(s->args.pages, s->desc.page_size, heads, dim)
                                       : tokens);
        if (rotates(s, t))
            s->rotated[t] = workload_take(&s->rotated_bytes, dtype, tokens);
    }
    s->out = workload_take(&s->out_bytes, dtype,
                           append_count(o->batch, o->tokens, o->q_heads, dim_of(o, ATTENTION_V)));
    s->out_bytes = s->out_bytes > copied ? s->out_bytes : copied;
}

/* --- lists of a call --- */

static bool place_keys(workload *w, attention_state *s) {
    const options *o = s->o;
    const int64_t count = append_sequences(o), keys = attention_keys(o);
    int64_t *lengths = staging_host(&w->memory, "lengths", count, sizeof *lengths);
    const int64_t *order = placement_pages(&w->memory, s->args.pages, o->seed);
    for (int64_t i = 0; lengths && i < count; i++)
        lengths[i] = keys;
    s->args.k_tokens = s->host.k_tokens = keys;
    if (o->appends.cache == ROPE_CACHE_TABLE)
        s->args.table_pages = s->host.table_pages = table_pages(o);
    return lengths && order &&
           placement_indices(&w->memory, o->desc.position_dtype, "lengths", lengths, count,
                             &s->host.k_lengths, &s->args.k_lengths) &&
           (o->appends.cache != ROPE_CACHE_TABLE ||
            placement_indices(&w->memory, o->desc.position_dtype, "block table", order,
                              s->args.pages, &s->host.block_table, &s->args.block_table));
}

static bool create_lists(workload *w, attention_state *s) {
    rope_args *device = &s->args.rope, *host = &s->host.rope;
    if (!placement_create(&w->memory, s->o, &w->desc, host, device))
        return false;
    if (s->desc.cache)
        return place_keys(w, s);
    s->args.k_cu_seqlens = device->cu_seqlens;
    s->host.k_cu_seqlens = host->cu_seqlens;
    return true;
}

/* --- calls --- */

static rope_tensor tensor_on(const attention_state *s, int tensor, const char *in, char *out) {
    rope_tensor t = {.heads = heads_of(s->o, tensor), .in = in, .out = out};
    if (in)
        workload_strides(s->o, t.heads, dim_of(s->o, tensor), t.in_stride);
    if (out)
        workload_strides(s->o, t.heads, dim_of(s->o, tensor), t.out_stride);
    return t;
}

rope_attention_args attention_args_on(const attention_state *s, const rope_attention_args *fixed,
                                      char *in, char *rotated, char *out) {
    rope_attention_args a = *fixed;
    rope_tensor *const tensors[] = {&a.rope.q, &a.rope.k, &a.v};
    const bool cached = s->desc.cache != 0;
    for (int t = 0; t < ATTENTION_TENSORS; t++) {
        const char *at =
            rotated && rotates(s, t) ? rotated + s->rotated[t].start : in + s->in[t].start;
        *tensors[t] = tensor_on(s, t, cached && t != ATTENTION_Q ? NULL : at, NULL);
    }
    if (cached) {
        a.k_cache.data = in + s->in[ATTENTION_K].start;
        a.v_cache.data = in + s->in[ATTENTION_V].start;
    }
    a.out.data = out + s->out.start;
    workload_strides(s->o, s->o->q_heads, dim_of(s->o, ATTENTION_V), a.out.stride);
    return a;
}

/* Device memory for calls of a plan, one at a time. */
static bool place_workspace(workload *w, const attention_state *s, const rope_plan *plan,
                            rope_attention_args *fixed) {
    const options *o = s->o;
    const rope_attention_bounds bounds = {
        .struct_size = sizeof bounds,
        .batch = o->batch,
        .tokens = o->tokens,
        .k_tokens = s->desc.cache ? attention_keys(o) : o->tokens,
        .sequences = s->args.rope.sequences,
        .q_heads = o->q_heads,
        .k_heads = o->k_heads,
    };
    void *memory;
    if (!succeeded(rope_attention_workspace(plan, &bounds, &fixed->workspace_bytes), "workspace"))
        return false;
    if (fixed->workspace_bytes == 0)
        return true;
    if (!staging_device(&w->memory, fixed->workspace_bytes + ALIGNMENT, &memory))
        return false;
    const size_t beyond = (size_t)((uintptr_t)memory % ALIGNMENT);
    fixed->workspace = (char *)memory + (beyond ? ALIGNMENT - beyond : 0);
    return true;
}

static char *set_of(void *slab, const workload *w, int64_t set) {
    return (char *)slab + (size_t)set * w->pitch;
}

/* A call of a plan over every set, behind a rotation where `rotated` is its result. */
static bool add_attention(workload *w, const rope_attention_desc *desc, const char *name,
                          char *rotated) {
    const attention_state *s = w->attention;
    workload_call *c = &w->calls[w->call_count];
    rope_attention_args fixed = s->args;
    if (rotated) {
        fixed.rope.cos = fixed.rope.sin = NULL;
        fixed.rope.table_rows = fixed.rope.position_offset = 0;
        fixed.rope.position_ids = fixed.rope.sequence_offsets = fixed.rope.sequence_lengths = NULL;
    }
    *c = (workload_call){.name = name, .size = sizeof(rope_attention_args)};
    c->sets = staging_host(&w->memory, "calls", w->set_count, c->size);
    if (!c->sets)
        return false;
    const rope_status status = rope_attention_plan_create(desc, &c->plan);
    w->declined = status == ROPE_ERROR_UNSUPPORTED;
    if (!succeeded(status, "plan"))
        return false;
    w->call_count++;
    if (!place_workspace(w, s, c->plan, &fixed))
        return false;
    c->workspace = fixed.workspace;
    for (int64_t i = 0; i < w->set_count; i++)
        ((rope_attention_args *)c->sets)[i] =
            attention_args_on(s, &fixed, set_of(w->source, w, i), rotated, set_of(w->target, w, i));
    return true;
}

/* Where the queries of a sequence begin, which rope_apply is told. */
static bool place_starts(workload *w, const attention_state *s, rope_args *args) {
    const options *o = s->o;
    const int64_t count = append_sequences(o);
    int64_t *starts = staging_host(&w->memory, "starts", count, sizeof *starts);
    const void *host;
    if (args->position_ids)
        return true;
    for (int64_t i = 0; starts && i < count; i++) {
        const attention_sequence of = attention_sequence_of(o, i);
        starts[i] =
            of.keys - of.queries + (o->sequence_offsets.count ? o->sequence_offsets.values[i] : 0);
    }
    return starts && placement_indices(&w->memory, o->desc.position_dtype, "starts", starts, count,
                                       &host, &args->sequence_offsets);
}

/* rope_apply of what the call rotates. */
static bool add_rotation(workload *w) {
    const attention_state *s = w->attention;
    workload_call *c = &w->calls[w->call_count];
    rope_args args = s->args.rope;
    *c = (workload_call){.name = "rotation", .size = sizeof(rope_args)};
    c->sets = staging_host(&w->memory, "calls", w->set_count, c->size);
    rope_desc desc = s->desc.rope;
    desc.kernel = NULL; /* it names one of attention */
    if (!c->sets || !succeeded(rope_plan_create(&desc, &c->plan), c->name))
        return false;
    w->call_count++;
    if (s->desc.cache && !place_starts(w, s, &args))
        return false;
    for (int64_t i = 0; i < w->set_count; i++) {
        rope_tensor *const tensors[] = {&args.q, &args.k};
        for (int t = ATTENTION_Q; t <= ATTENTION_K; t++)
            *tensors[t] = rotates(s, t) ? tensor_on(s, t, set_of(w->source, w, i) + s->in[t].start,
                                                    (char *)s->scratch + s->rotated[t].start)
                                        : (rope_tensor){0};
        ((rope_args *)c->sets)[i] = args;
    }
    return true;
}

/* --- a workload --- */

static bool describe(attention_state *s) {
    const options *o = s->o;
    if (!o->appends.cache && o->keys && o->keys != o->tokens) {
        message("--keys is %lld; allowed without --kv-cache is --tokens, %lld", (long long)o->keys,
                (long long)o->tokens);
        return false;
    }
    s->desc = o->attends;
    s->desc.struct_size = sizeof s->desc;
    s->desc.rotation = attention_rotation(o);
    s->desc.v_head_dim = o->appends.v_head_dim;
    s->desc.cache = o->appends.cache;
    s->desc.page_size = o->appends.cache ? attention_page_size(o) : o->appends.page_size;
    if (!target_desc(o, &s->desc.rope))
        return false;
    if (s->desc.rotation == ROPE_ATTENTION_ROTATE_NONE)
        s->desc.rope = target_without_rotation(&s->desc.rope);
    s->alone = s->desc;
    s->alone.rope = target_without_rotation(&s->desc.rope);
    s->alone.rotation = ROPE_ATTENTION_ROTATE_NONE;
    return true;
}

bool attention_accepts(const options *o) {
    attention_state s = {.o = o};
    rope_plan *plan = NULL;
    const bool accepts = describe(&s) && rope_attention_plan_create(&s.desc, &plan) == ROPE_OK;
    rope_plan_destroy(plan);
    return accepts;
}

static bool create_memory(workload *w, attention_state *s) {
    const size_t bytes = w->pitch * (size_t)w->set_count;
    if (!staging_fits("tensors on host and device", SLABS, w->pitch))
        return false;
    s->data = staging_host(&w->memory, "tensors", 1, w->pitch);
    if (!s->data || !staging_device(&w->memory, bytes, &w->source) ||
        !staging_device(&w->memory, bytes, &w->target) ||
        !staging_device(&w->memory, s->rotated_bytes + 1, &s->scratch))
        return false;
    workload_fill(s->o->desc.dtype, s->data, w->pitch, s->o->seed);
    for (int64_t i = 0; i < w->set_count; i++)
        if (!succeeded(rope_device_copy_in(w->device, set_of(w->source, w, i), s->data, w->pitch),
                       "copy in") ||
            !succeeded(rope_device_copy_in(w->device, set_of(w->target, w, i), s->data, w->pitch),
                       "copy in"))
            return false;
    return true;
}

bool attention_create(workload *w, const options *o) {
    attention_state *s = w->attention = staging_host(&w->memory, "a set", 1, sizeof *s);
    if (!s)
        return false;
    rope_attention_args fixed = ROPE_ATTENTION_ARGS_INIT;
    s->o = o;
    if (!describe(s))
        return false;
    fixed.rope.batch = o->batch;
    fixed.rope.tokens = o->tokens;
    fixed.rope.position_offset = o->position_offset;
    fixed.pages = s->desc.cache ? append_count(append_sequences(o), table_pages(o), 1, 1) : 0;
    s->args = s->host = fixed;
    w->tensor_bytes = w->floor_bytes = attention_tensor_bytes(o);
    lay_out(s, w->floor_bytes);
    w->pitch =
        workload_round_up(s->in_bytes > s->out_bytes ? s->in_bytes : s->out_bytes, WORKLOAD_PAGE);
    if (!create_memory(w, s))
        return false;
    w->flops = attention_flops(o);
    if (!create_lists(w, s) || !add_attention(w, &s->desc, "attention", NULL))
        return false;
    const bool apart = s->desc.rotation != ROPE_ATTENTION_ROTATE_NONE;
    const bool ready =
        !apart || (add_rotation(w) && add_attention(w, &s->alone, "attention", s->scratch));
    w->timed_count = w->call_count;
    return ready;
}
