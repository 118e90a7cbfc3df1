#include "bench/operation/operation.h"
#include "bench/output/message.h"
#include "bench/support/random.h"
#include "bench/workload/placement.h"
#include "bench/workload/target.h"

#include <ropekit/backend.h>

#include <string.h>

/* Alignment of a workspace. */
#define ALIGNMENT ((size_t)256)

/* --- arguments --- */

rope_attention_args attention_args_on(const workload *w, const rope_attention_args *fixed, char *in,
                                      char *between, char *out) {
    const options *o = w->o;
    const bool cached = w->attention.cache != 0;
    rope_attention_args a = *fixed;
    rope_tensor *const tensors[] = {&a.rope.q, &a.rope.k, &a.v};
    for (int t = CHECK_Q; t <= CHECK_V; t++) {
        const bool turns = shape_rotates(o, t);
        char *at = between && turns ? between + w->between[t].start : in + w->in[t].start;
        char *saved = !between && turns && o->backward ? out + w->out[t].start : NULL;
        *tensors[t] = workload_tensor(o, t, cached && t != CHECK_Q ? NULL : at, saved);
    }
    for (int t = CHECK_K; cached && t <= CHECK_V; t++) {
        rope_cache *cache = t == CHECK_K ? &a.k_cache : &a.v_cache;
        cache->data = in + w->in[t].start;
        if (shape_part(o, t)->scale)
            cache->scale.data = in + w->scale[t].start;
    }
    if (cached && o->v_in_k) {
        const int64_t row = o->desc.head_dim * o->k_heads;
        const int64_t stride[5] = {w->attention.page_size * row, row, o->desc.head_dim, 0, 1};
        memcpy(a.v_cache.stride, stride, sizeof stride);
    }
    a.out.data = out + w->out[CHECK_OUT].start;
    shape_strides(o, o->q_heads, shape_dim(o, CHECK_V), a.out.stride);
    if (o->backward)
        a.lse = (float *)(void *)(out + w->out[CHECK_LSE].start);
    if (o->backward && a.rope.sequences == 0) { /* as cuDNN's backward reads it where it lies */
        const int64_t by_heads[3] = {o->q_heads * o->tokens, 1, o->tokens};
        memcpy(a.lse_stride, by_heads, sizeof by_heads);
    }
    return a;
}

rope_attention_backward_args attention_backward_args_on(const workload *w,
                                                        const rope_attention_args *forward,
                                                        char *in, char *between, char *out) {
    const options *o = w->o;
    rope_attention_backward_args a = ROPE_ATTENTION_BACKWARD_ARGS_INIT;
    rope_attention_out *const gradients[] = {&a.dq, &a.dk, &a.dv};
    a.forward = forward;
    a.dout = in + w->in[CHECK_OUT].start;
    shape_strides(o, o->q_heads, shape_dim(o, CHECK_V), a.dout_stride);
    for (int t = CHECK_Q; t <= CHECK_V; t++) {
        gradients[t]->data = between && shape_rotates(o, t) ? between + w->gradient[t].start
                                                            : out + w->out[CHECK_DQ + t].start;
        shape_strides(o, shape_heads(o, t), shape_dim(o, t), gradients[t]->stride);
    }
    return a;
}

/* --- calls --- */

typedef rope_status workspace_of(const rope_plan *plan, const rope_attention_bounds *bounds,
                                 size_t *bytes);
typedef rope_status plan_create(const rope_attention_desc *desc, rope_plan **plan);

/* Attention or its backward. */
typedef struct direction {
    const char *name;
    const workload_operation *operation;
    plan_create *create;
    workspace_of *bytes_of;
} direction;

static const direction forward = {"attention", &workload_attention, rope_attention_plan_create,
                                  rope_attention_workspace};
static const direction backward = {"backward", &workload_attention_backward,
                                   rope_attention_backward_plan_create,
                                   rope_attention_backward_workspace};

rope_attention_bounds attention_bounds(const workload *w) {
    const options *o = w->o;
    return (rope_attention_bounds){
        .struct_size = sizeof(rope_attention_bounds),
        .batch = o->batch,
        .tokens = o->tokens,
        .k_tokens = w->attention.cache ? shape_keys(o) : o->tokens,
        .sequences = w->on_device.attention.rope.sequences,
        .q_heads = o->q_heads,
        .k_heads = o->k_heads,
    };
}

bool attention_workspace(workload *w, workload_call *c, size_t bytes) {
    void *memory;
    w->workspace_needed = bytes > w->workspace_most ? bytes : 0;
    if (w->workspace_needed)
        return false;
    if (bytes == 0)
        return true;
    if (!staging_device(&w->memory, bytes + ALIGNMENT, &memory))
        return false;
    c->workspace = (char *)memory + -(uintptr_t)memory % ALIGNMENT;
    return true;
}

static bool place_workspace(workload *w, const direction *d, workload_call *c,
                            rope_attention_args *fixed) {
    const rope_attention_bounds bounds = attention_bounds(w);
    if (!succeeded(d->bytes_of(c->plan, &bounds, &fixed->workspace_bytes), "workspace") ||
        !attention_workspace(w, c, fixed->workspace_bytes))
        return false;
    fixed->workspace = c->workspace;
    return true;
}

/* Adds a call over every set, with `between` of what lies there. */
static bool add(workload *w, const direction *d, char *between) {
    rope_attention_args fixed = w->on_device.attention;
    workload_call *c = workload_next(w, d->name, d->operation);
    rope_attention_args *args =
        d == &forward ? c->sets : staging_host(&w->memory, "calls", w->set_count, sizeof *args);
    if (!c || !args)
        return false;
    const rope_status status = d->create(between ? &w->alone : &w->attention, &c->plan);
    w->declined = status == ROPE_ERROR_UNSUPPORTED;
    if (status != ROPE_OK) {
        if (!w->declined || !w->by_kernel)
            succeeded(status, "plan");
        return false;
    }
    w->call_count++;
    if (between) {
        rope_args *r = &fixed.rope;
        r->cos = r->sin = r->position_ids = r->sequence_offsets = r->sequence_lengths = NULL;
        r->table_rows = r->position_offset = 0;
    }
    if (!place_workspace(w, d, c, &fixed))
        return false;
    for (int64_t i = 0; i < w->set_count; i++) {
        char *in = workload_set(w, w->source, i), *out = workload_set(w, w->target, i);
        args[i] = attention_args_on(w, &fixed, in, between, out);
        if (d == &backward)
            ((rope_attention_backward_args *)c->sets)[i] =
                attention_backward_args_on(w, &args[i], in, between, out);
    }
    return true;
}

static bool add_both(workload *w, char *between) {
    return add(w, &forward, between) && (!w->o->backward || add(w, &backward, between));
}

/* The backward reads what the forward wrote, in every set. */
static bool fill_results(const workload *w) {
    const rope_attention_args *sets = w->calls[0].sets;
    bool filled = true;
    for (int64_t i = 0; filled && i < w->set_count; i++)
        filled = succeeded(rope_attention(w->calls[0].plan, &sets[i]), "rope_attention");
    return filled && succeeded(rope_device_synchronize(w->device), "rope_attention");
}

/* --- steps --- */

/* Where the queries of a sequence begin, which rope_apply is told. */
bool attention_place_starts(workload *w, rope_args *args) {
    const options *o = w->o;
    const int64_t count = shape_sequences(o);
    int64_t *starts = staging_host(&w->memory, "starts", count, sizeof *starts);
    const void *host;
    if (args->position_ids)
        return true;
    for (int64_t i = 0; starts && i < count; i++) {
        const shape_sequence of = shape_sequence_of(o, i);
        starts[i] =
            of.keys - of.queries + (o->sequence_offsets.count ? o->sequence_offsets.values[i] : 0);
    }
    return starts && placement_indices(&w->memory, o->desc.position_dtype, "starts", starts, count,
                                       &host, &args->sequence_offsets);
}

/* rope_apply of what the call rotates: of inputs, or of their gradients back. */
static bool add_rotation(workload *w, const rope_desc *desc, bool back) {
    workload_call *c = workload_next(w, back ? "transpose" : "rotation", &workload_apply);
    rope_args args = w->on_device.attention.rope;
    rope_desc any = *desc;
    /* It names a kernel of attention; the reference alone rotates by one of the same name. */
    if (any.kernel && strcmp(any.kernel, "reference") != 0)
        any.kernel = NULL;
    if (!c || !succeeded(rope_plan_create(&any, &c->plan), c->name))
        return false;
    w->call_count++;
    if (w->attention.cache && !attention_place_starts(w, &args))
        return false;
    for (int64_t i = 0; i < w->set_count; i++) {
        rope_tensor *const tensors[] = {&args.q, &args.k};
        for (int t = CHECK_Q; t <= CHECK_K; t++) {
            char *between = (char *)w->scratch + (back ? w->gradient : w->between)[t].start;
            char *in = workload_set(w, w->source, i) + w->in[t].start;
            char *out = workload_set(w, w->target, i) + w->out[CHECK_DQ + t].start;
            *tensors[t] = !shape_rotates(w->o, t) ? (rope_tensor){0}
                          : back                  ? workload_tensor(w->o, t, between, out)
                                                  : workload_tensor(w->o, t, in, between);
        }
        ((rope_args *)c->sets)[i] = args;
    }
    return true;
}

bool attention_add_rotation(workload *w) {
    return w->attention.rotation == ROPE_ATTENTION_ROTATE_NONE ||
           add_rotation(w, &w->attention.rope, false);
}

static bool add_steps(workload *w) {
    const rope_desc back = target_transposed(&w->attention.rope);
    return w->attention.rotation == ROPE_ATTENTION_ROTATE_NONE ||
           (add_rotation(w, &w->attention.rope, false) && add_both(w, w->scratch) &&
            (!w->o->backward || add_rotation(w, &back, true)));
}

/* --- a set --- */

/* Of [batch, token, ...], what is read, written and handed on. */
static void lay_out(workload *w) {
    const options *o = w->o;
    const int32_t dtype = o->desc.dtype;
    const int64_t rows = shape_product(o->batch, o->tokens, o->q_heads, 1);
    const int64_t out = shape_product(rows, shape_dim(o, CHECK_V), 1, 1);
    for (int t = CHECK_Q; t <= CHECK_V; t++) {
        const int64_t tokens = shape_elements(o, t);
        const int64_t paged = shape_product(w->on_device.attention.pages, w->attention.page_size,
                                            shape_heads(o, t), shape_dim(o, t));
        const bool turns = shape_rotates(o, t), pages = t != CHECK_Q && w->attention.cache;
        if (t == CHECK_V && o->v_in_k) {
            w->in[t] = w->in[CHECK_K];
            w->scale[t] = w->scale[CHECK_K];
            continue;
        }
        w->in[t] = workload_take(&w->in_bytes, pages ? shape_store_dtype(o, t) : dtype,
                                 pages ? paged : tokens);
        if (pages)
            w->scale[t] = workload_take(&w->in_bytes, ROPE_F32, shape_part(o, t)->scale != 0);
        if (o->decode && t != CHECK_Q)
            w->fresh[t] = workload_take(&w->in_bytes, dtype, tokens);
        if (turns)
            w->between[t] = workload_take(&w->scratch_bytes, dtype, tokens);
        if (turns && o->backward) {
            w->out[t] = workload_take(&w->out_bytes, dtype, tokens);
            w->gradient[t] = workload_take(&w->scratch_bytes, dtype, tokens);
        }
        if (o->backward)
            w->out[CHECK_DQ + t] = workload_take(&w->out_bytes, dtype, tokens);
    }
    w->out[CHECK_OUT] = workload_take(&w->out_bytes, dtype, out);
    if (o->backward) {
        w->out[CHECK_LSE] = workload_take(&w->out_bytes, ROPE_F32, rows);
        w->in[CHECK_OUT] = workload_take(&w->in_bytes, dtype, out); /* its gradient */
    }
}

static bool place_lists(workload *w) {
    const options *o = w->o;
    rope_attention_args *device = &w->on_device.attention, *host = &w->on_host.attention;
    const int32_t dtype = o->desc.position_dtype;
    const int64_t count = shape_sequences(o);
    if (!placement_create(&w->memory, o, &w->desc, &host->rope, &device->rope))
        return false;
    device->k_cu_seqlens = w->attention.cache ? NULL : device->rope.cu_seqlens;
    host->k_cu_seqlens = w->attention.cache ? NULL : host->rope.cu_seqlens;
    if (!w->attention.cache)
        return true;
    int64_t *lengths = staging_host(&w->memory, "lengths", count, sizeof *lengths);
    const int64_t *order = placement_pages(&w->memory, device->pages, o->seed);
    for (int64_t i = 0; lengths && i < count; i++)
        lengths[i] = shape_keys(o);
    device->k_tokens = host->k_tokens = shape_keys(o);
    if (!lengths || !order ||
        !placement_indices(&w->memory, dtype, "lengths", lengths, count, &host->k_lengths,
                           &device->k_lengths))
        return false;
    if (o->appends.cache != ROPE_CACHE_TABLE)
        return true;
    device->table_pages = host->table_pages = shape_table_pages(o);
    return placement_indices(&w->memory, dtype, "block table", order, device->pages,
                             &host->block_table, &device->block_table);
}

/* The oracle has whole sequences alone. */
static bool check_boundaries(const options *o) {
    const int64_t *boundary = o->cu_seqlens.values;
    for (int64_t i = 0; i < o->cu_seqlens.count; i++)
        if (boundary[i] < 0 || boundary[i] > o->tokens) {
            message("cu_seqlens[%lld] is %lld; allowed here with --attention is 0..%lld (--tokens)",
                    (long long)i, (long long)boundary[i], (long long)o->tokens);
            return false;
        }
    return true;
}

static bool check_keys(const options *o) {
    if (!o->appends.cache && o->keys && o->keys != o->tokens) {
        message("--keys is %lld; allowed without --kv-cache is --tokens, %lld", (long long)o->keys,
                (long long)o->tokens);
        return false;
    }
    if (o->decode && o->keys < o->tokens) {
        message("--keys is %lld; allowed with --decode is --tokens, %lld, or more",
                (long long)o->keys, (long long)o->tokens);
        return false;
    }
    return true;
}

static bool describe(workload *w) {
    const options *o = w->o;
    rope_attention_desc *d = &w->attention;
    *d = o->attends;
    d->struct_size = sizeof *d;
    d->rotation = shape_rotation(o);
    d->v_head_dim = o->appends.v_head_dim;
    d->nondeterministic = o->nondeterministic;
    d->cache = o->appends.cache;
    d->page_size = o->appends.cache ? shape_page_size(o) : o->appends.page_size;
    d->k.dtype = o->appends.k.store_dtype;
    d->k.scale = o->appends.k.scale;
    d->v.dtype = o->appends.v.store_dtype;
    d->v.scale = o->appends.v.scale;
    if (!check_keys(o) || !check_boundaries(o) || !target_desc(o, &d->rope))
        return false;
    if (d->rotation == ROPE_ATTENTION_ROTATE_NONE)
        d->rope = target_without_rotation(&d->rope);
    w->alone = *d;
    w->alone.rope = target_without_rotation(&d->rope);
    w->alone.rotation = ROPE_ATTENTION_ROTATE_NONE;
    return true;
}

/* Codes below infinity and NaN, and scales. */
static void fill_narrow(const workload *w) {
    uint64_t state = (uint64_t)w->o->seed;
    for (int t = CHECK_K; t <= CHECK_V; t++) {
        char *codes = w->inputs + w->in[t].start;
        for (size_t i = 0; w->in[t].dtype >= ROPE_F8E4M3 && i < w->in[t].bytes; i++)
            codes[i] = (char)(random_bits(&state) & 0xbf);
        if (w->scale[t].bytes)
            *(float *)(void *)(w->inputs + w->scale[t].start) = 1.0F / 4;
    }
}

static bool create_set(workload *w) {
    const options *o = w->o;
    rope_attention_args fixed = ROPE_ATTENTION_ARGS_INIT;
    if (!describe(w))
        return false;
    fixed.rope.batch = o->batch;
    fixed.rope.tokens = o->tokens;
    fixed.rope.position_offset = o->position_offset;
    fixed.pages = shape_pages(o);
    w->on_device.attention = w->on_host.attention = fixed;
    w->floor_bytes = shape_bytes(o);
    lay_out(w);
    if (!workload_allocate(w))
        return false;
    fill_narrow(w);
    w->flops = shape_flops(o); /* goes through the tokens, of which there is room for so many */
    return workload_upload(w) && place_lists(w);
}

bool attention_create(workload *w) {
    if (w->o->decode)
        return create_set(w) && decode_add(w);
    if (!create_set(w) || !add_both(w, NULL) || (w->o->backward && !fill_results(w)))
        return false;
    w->parts = w->call_count;
    return add_steps(w);
}

/* --- kernels one by one --- */

bool attention_create_tensors(workload *w, const options *o, rope_device *device, int64_t sets) {
    workload_begin(w, o, device, sets);
    w->by_kernel = true;
    return create_set(w) && (!o->backward || (add(w, &forward, NULL) && fill_results(w)));
}

void attention_limit_workspace(workload *w, const char *backend) {
    const direction *d = w->o->backward ? &backward : &forward;
    const rope_attention_bounds bounds = attention_bounds(w);
    rope_plan *first;
    size_t bytes;
    w->attention.rope.backend = backend;
    w->attention.rope.kernel = NULL;
    if (d->create(&w->attention, &first) != ROPE_OK)
        return;
    if (d->bytes_of(first, &bounds, &bytes) == ROPE_OK)
        w->workspace_most = rope_plan_workspace_most(first, &bounds, bytes);
    rope_plan_destroy(first);
}

bool attention_add_kernel(workload *w, const char *backend, const char *kernel) {
    w->attention.rope.backend = backend;
    w->attention.rope.kernel = kernel;
    w->workspace_needed = 0;
    return add(w, w->o->backward ? &backward : &forward, NULL);
}
