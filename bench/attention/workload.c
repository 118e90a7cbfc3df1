#include "bench/attention/workload.h"

#include "bench/append/shape.h"
#include "bench/attention/calls.h"
#include "bench/output/message.h"
#include "bench/workload/placement.h"
#include "bench/workload/target.h"

#include <string.h>

/* Host and device memory of one workload, as of workload.c. */
#define SLABS 5
/* Bytes of a set that are given from the host where nothing is checked. */
#define GIVEN_BYTES ((size_t)8 << 20)

/* Pages of the cache, those of a sequence one after the other in the table. */
static int64_t table_pages(const options *o) {
    const int64_t size = attention_page_size(o);
    const int64_t pages = (attention_keys(o) + size - 1) / size;
    return o->appends.cache == ROPE_CACHE_SEQUENCE || pages == 0 ? 1 : pages;
}

static void lay_out(attention_state *s, size_t copied) {
    const options *o = s->o;
    const int32_t dtype = o->desc.dtype;
    const int64_t rows = append_count(o->batch, o->tokens, o->q_heads, 1);
    for (int t = 0; t < ATTENTION_TENSORS; t++) {
        const int64_t heads = attention_heads_of(o, t), dim = attention_dim_of(o, t);
        const int64_t tokens = append_count(o->batch, o->tokens, heads, dim);
        const bool paged = t != ATTENTION_Q && s->desc.cache, turns = attention_rotates(s, t);
        if (t == ATTENTION_V && o->v_in_k) {
            s->in[t] = s->in[ATTENTION_K];
            continue;
        }
        s->in[t] = workload_take(&s->in_bytes, dtype,
                                 paged ? append_count(s->args.pages, s->desc.page_size, heads, dim)
                                       : tokens);
        if (turns)
            s->rotated[t] = workload_take(&s->rotated_bytes, dtype, tokens);
        if (turns && o->backward) {
            s->saved[t] = workload_take(&s->out_bytes, dtype, tokens);
            s->gradient[t] = workload_take(&s->rotated_bytes, dtype, tokens);
        }
        if (o->backward)
            s->result[RESULT_DQ + t] = workload_take(&s->out_bytes, dtype, tokens);
    }
    const int64_t out = append_count(rows, attention_v_head_dim(o), 1, 1);
    s->result[RESULT_OUT] = workload_take(&s->out_bytes, dtype, out);
    if (o->backward) {
        s->result[RESULT_LSE] = workload_take(&s->out_bytes, ROPE_F32, rows);
        s->dout = workload_take(&s->in_bytes, dtype, out);
    }
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

/* --- a workload --- */

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

static bool describe(attention_state *s) {
    const options *o = s->o;
    if (!o->appends.cache && o->keys && o->keys != o->tokens) {
        message("--keys is %lld; allowed without --kv-cache is --tokens, %lld", (long long)o->keys,
                (long long)o->tokens);
        return false;
    }
    if (o->v_in_k && (!o->appends.cache || attention_v_head_dim(o) > o->desc.head_dim)) {
        message("v-in-k is given; allowed is none without --kv-cache, nor with --v-head-dim "
                "beyond --head-dim");
        return false;
    }
    if (o->nondeterministic && !o->backward) {
        message("nondeterministic is given; allowed is none without --backward");
        return false;
    }
    if (!check_boundaries(o))
        return false;
    s->desc = o->attends;
    s->desc.struct_size = sizeof s->desc;
    s->desc.rotation = attention_rotation(o);
    s->desc.v_head_dim = o->appends.v_head_dim;
    s->desc.nondeterministic = o->nondeterministic;
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

/* Gives the first bytes of a slab, and has the device repeat them. */
static bool repeat(const workload *w, void *slab, size_t given, size_t bytes) {
    const attention_state *s = w->attention;
    const int64_t copies = (int64_t)(bytes / given) - 1;
    rope_timing copy = {.struct_size = sizeof copy,
                        .kind = ROPE_TIME_COPY,
                        .iterations = copies,
                        .args_count = copies,
                        .target = (char *)slab + given,
                        .source = slab,
                        .bytes = given,
                        .pitch = given};
    return succeeded(rope_device_copy_in(w->device, slab, s->data, given), "copy in") &&
           (copies == 0 || succeeded(rope_time(w->device, &copy), "copy")) &&
           succeeded(rope_device_copy_in(w->device, (char *)slab + bytes / given * given, s->data,
                                         bytes % given),
                     "copy in");
}

static bool create_repeated(workload *w, attention_state *s) {
    const size_t bytes = w->pitch * (size_t)w->set_count,
                 given = w->pitch < GIVEN_BYTES ? w->pitch : GIVEN_BYTES;
    s->data = staging_host(&w->memory, "tensors", 1, given);
    if (!s->data || !staging_device(&w->memory, bytes, &w->source) ||
        !staging_device(&w->memory, bytes, &w->target))
        return false;
    workload_fill(s->o->desc.dtype, s->data, given, s->o->seed);
    return repeat(w, w->source, given, bytes) && repeat(w, w->target, given, bytes);
}

static bool create_memory(workload *w, attention_state *s) {
    const size_t bytes = w->pitch * (size_t)w->set_count;
    if (s->by_kernel)
        return create_repeated(w, s);
    if (!staging_fits("tensors on host and device", SLABS, w->pitch))
        return false;
    s->data = staging_host(&w->memory, "tensors", 1, w->pitch);
    if (!s->data || !staging_device(&w->memory, bytes, &w->source) ||
        !staging_device(&w->memory, bytes, &w->target) ||
        !staging_device(&w->memory, s->rotated_bytes + 1, &s->scratch))
        return false;
    workload_fill(s->o->desc.dtype, s->data, w->pitch, s->o->seed);
    for (int64_t i = 0; i < w->set_count; i++)
        if (!succeeded(
                rope_device_copy_in(w->device, workload_set(w, w->source, i), s->data, w->pitch),
                "copy in") ||
            !succeeded(
                rope_device_copy_in(w->device, workload_set(w, w->target, i), s->data, w->pitch),
                "copy in"))
            return false;
    return true;
}

static bool create_set(workload *w, const options *o, bool by_kernel) {
    attention_state *s = w->attention = staging_host(&w->memory, "a set", 1, sizeof *s);
    if (!s)
        return false;
    rope_attention_args fixed = ROPE_ATTENTION_ARGS_INIT;
    s->o = o;
    s->by_kernel = by_kernel;
    s->workspace_most = SIZE_MAX;
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
    return create_lists(w, s);
}

bool attention_create(workload *w, const options *o) {
    if (!create_set(w, o, false) || !attention_add_calls(w))
        return false;
    w->timed_count = w->call_count;
    return true;
}

bool attention_create_tensors(workload *w, const options *o, rope_device *device, int64_t sets) {
    workload_begin(w, o, device, sets);
    return create_set(w, o, true) && (!o->backward || attention_add_forward(w));
}
