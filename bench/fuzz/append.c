/* libFuzzer target: bytes become the fields of a descriptor and of a call of "append", of its
 * gradients, or of "decode". */
#include "bench/fuzz/fields.h"

#include <ropekit/decode.h>

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

static double v[2][FUZZ_TENSOR_ELEMENTS], caches[2][FUZZ_CACHE_ELEMENTS],
    weights[FUZZ_TENSOR_ELEMENTS];
static double gradients[3][2][FUZZ_TENSOR_ELEMENTS];
static float sums[3][FUZZ_SIZE_MOST * FUZZ_DIM_MOST];
static float scales[3][FUZZ_SCALES];
static double attended[FUZZ_TENSOR_ELEMENTS];
static float lse[FUZZ_TENSOR_ELEMENTS], sinks[FUZZ_SIZE_MOST];
static uint32_t bits[(2 * FUZZ_SIZE_MOST + 1) * FUZZ_SMALL_STRIDE_MOST];

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void drop_unread_part(rope_append_part *part, bool stores) {
    if (part->norm.type == 0)
        part->norm = (rope_norm){0};
    if (part->norm.weight == 0)
        part->norm.weight_dtype = 0;
    if (!stores)
        part->store_dtype = 0;
    if (part->store_dtype <= ROPE_I64)
        part->scale = 0;
}

/* What the rest of a descriptor would leave unread. */
static void drop_unread_fields(rope_append_desc *d) {
    if (d->cache == 0) {
        d->k_source = d->k_dim_block = d->v_dim_block = 0;
        d->page_size = 0;
    }
    if (d->cache == 0 || d->cache == ROPE_CACHE_SLOTS)
        d->ring = 0;
    if (d->cache != ROPE_CACHE_SLOTS)
        d->slot_dtype = 0;
    if (d->cache != ROPE_CACHE_TABLE)
        d->table_dtype = 0;
    drop_unread_part(&d->q, true);
    drop_unread_part(&d->k, d->cache);
    drop_unread_part(&d->v, d->cache);
    if (d->k_source == ROPE_SOURCE_CACHE) {
        d->v_head_dim = d->v_dim_block = 0;
        d->q = d->v = (rope_append_part){0};
        d->k.norm = (rope_norm){0};
    }
    if (d->rotation == ROPE_ROTATION_OFF)
        d->rope = fuzz_without_rotation(&d->rope);
}

static void take_desc(fuzz_bytes *b, rope_append_desc *d) {
    options o = {0};
    fuzz_take_fields(b, &o, offsetof(options, appends), sizeof o.appends);
    *d = o.appends;
    d->struct_size = sizeof *d;
    d->rope = fuzz_take_desc(b, false);
    if (fuzz_take(b, 15) < 15)
        drop_unread_fields(d);
}

static void take_weight(fuzz_bytes *b, const rope_norm *norm, rope_norm_weight *weight) {
    if (norm->weight == 0)
        return;
    weight->data = fuzz_take(b, 15) ? weights : NULL;
    weight->head_stride = fuzz_take_some(b, FUZZ_STRIDE_MOST);
}

static void take_cache(fuzz_bytes *b, const rope_append_part *part, int which, rope_cache *cache) {
    if (fuzz_take(b, 7) == 0)
        return;
    cache->data = caches[which];
    fuzz_take_strides(b, cache->stride, 5, FUZZ_STRIDE_MOST);
    fuzz_take_scale(b, part->scale, scales[1 + which], &cache->scale);
}

static void take_mapping(fuzz_bytes *b, const rope_append_desc *d, rope_append_args *a) {
    if (!a->k_cache.data && !a->v_cache.data)
        return;
    a->pages = fuzz_take(b, FUZZ_SIZE_MOST);
    if (d->cache == ROPE_CACHE_SLOTS) {
        a->slots = fuzz_take(b, 15) ? fuzz_indices[fuzz_take(b, 3)] : NULL;
        fuzz_take_strides(b, a->slot_stride, 2, FUZZ_STRIDE_MOST);
    }
    if (d->cache == ROPE_CACHE_TABLE) {
        a->block_table = fuzz_take(b, 15) ? fuzz_indices[fuzz_take(b, 3)] : NULL;
        a->table_pages = fuzz_take(b, FUZZ_SIZE_MOST);
        fuzz_take_strides(b, a->table_stride, 2, FUZZ_STRIDE_MOST);
    }
    if (d->cache != ROPE_CACHE_SLOTS)
        a->cache_starts = fuzz_take(b, 1) ? fuzz_indices[fuzz_take(b, 3)] : NULL;
}

static void take_call(fuzz_bytes *b, const rope_append_desc *d, rope_append_args *a) {
    fuzz_take_args(b, &a->rope);
    fuzz_take_tensor(b, &a->v, v[0], v[1]);
    take_weight(b, &d->q.norm, &a->q_weight);
    take_weight(b, &d->k.norm, &a->k_weight);
    take_weight(b, &d->v.norm, &a->v_weight);
    fuzz_take_scale(b, d->q.scale, scales[0], &a->q_scale);
    if (d->cache)
        take_cache(b, &d->k, 0, &a->k_cache);
    if (d->cache && d->k_source != ROPE_SOURCE_CACHE)
        take_cache(b, &d->v, 1, &a->v_cache);
    take_mapping(b, d, a);
    a->rope.k.out = a->k_cache.data && fuzz_take(b, 1) ? NULL : a->rope.k.out;
    a->v.out = a->v_cache.data && fuzz_take(b, 1) ? NULL : a->v.out;
}

static void drop_unread(const rope_append_desc *d, rope_append_args *a) {
    fuzz_drop_unread(&d->rope, &a->rope);
    if (!a->rope.k.out)
        memset(a->rope.k.out_stride, 0, sizeof a->rope.k.out_stride);
    if (!a->v.out)
        memset(a->v.out_stride, 0, sizeof a->v.out_stride);
    if (d->k_source == ROPE_SOURCE_CACHE) {
        a->rope.q = a->v = (rope_tensor){0};
        a->rope.k = (rope_tensor){.heads = a->rope.k.heads};
    }
    if (d->rotation != ROPE_ROTATION_OFF)
        return;
    a->rope.position_ids = NULL;
    memset(a->rope.position_stride, 0, sizeof a->rope.position_stride);
    if ((a->k_cache.data || a->v_cache.data) && d->cache != ROPE_CACHE_SLOTS && !a->cache_starts)
        return;
    a->rope.position_offset = 0;
    a->rope.sequence_offsets = NULL;
}

static void take_gradient(fuzz_bytes *b, int which, const rope_tensor *of, const rope_norm *norm,
                          rope_append_gradient *g) {
    rope_tensor t = {0};
    fuzz_take_tensor(b, &t, gradients[which][0], gradients[which][1]);
    if (!t.in || (of->heads == 0 && fuzz_take(b, 15)))
        return;
    g->in = t.in;
    g->out = t.out;
    memcpy(g->in_stride, t.in_stride, sizeof g->in_stride);
    if (g->out)
        memcpy(g->out_stride, t.out_stride, sizeof g->out_stride);
    if (norm->weight || fuzz_take(b, 15) == 1)
        g->weight = fuzz_take(b, 3) ? sums[which] : NULL;
}

/* In memory that ends where the workspace does. */
static void run_with_workspace(fuzz_bytes *b, const rope_plan *plan,
                               rope_append_backward_args *args) {
    const rope_append_args *f = args->forward;
    const rope_append_bounds bounds = {sizeof bounds,   f->rope.batch,   f->rope.tokens,
                                       f->rope.q.heads, f->rope.k.heads, f->v.heads};
    void *memory = NULL;
    if (rope_append_backward_workspace(plan, &bounds, &args->workspace_bytes) != ROPE_OK)
        return;
    if (fuzz_take(b, 7) == 1)
        args->workspace_bytes /= 2;
    if (args->workspace_bytes && posix_memalign(&memory, 256, args->workspace_bytes) != 0)
        return;
    args->workspace = memory;
    rope_append_backward(plan, args);
    free(memory);
}

static void run_backward(fuzz_bytes *b, const rope_append_desc *desc,
                         const rope_append_args *forward) {
    rope_append_backward_args args = ROPE_APPEND_BACKWARD_ARGS_INIT;
    rope_append_args read = *forward;
    rope_plan *plan = NULL;
    args.forward = &read;
    take_gradient(b, 0, &read.rope.q, &desc->q.norm, &args.q);
    take_gradient(b, 1, &read.rope.k, &desc->k.norm, &args.k);
    take_gradient(b, 2, &read.v, &desc->v.norm, &args.v);
    read.rope.q.out = read.rope.k.out = read.v.out = NULL;
    if (rope_append_backward_plan_create(desc, &plan) == ROPE_OK)
        run_with_workspace(b, plan, &args);
    rope_plan_destroy(plan);
}

static void take_masks(fuzz_bytes *b, rope_decode_desc *d, rope_decode_args *a) {
    d->mask = fuzz_take(b, 3);
    d->window = fuzz_take_some(b, FUZZ_ROWS);
    d->chunk = fuzz_take_some(b, FUZZ_ROWS);
    d->scale = fuzz_take(b, 3) ? 0 : fuzz_take_number(b);
    d->soft_cap = fuzz_take(b, 3) ? 0 : fuzz_take_number(b);
    d->sink_dtype = fuzz_take_some(b, 3);
    a->sinks = d->sink_dtype ? sinks : NULL;
    if (d->mask != ROPE_MASK_TREE)
        return;
    memset(bits, fuzz_take(b, 255), sizeof bits);
    a->tree_bits = bits;
    a->tree_keys = fuzz_take(b, FUZZ_ROWS);
    fuzz_take_strides(b, a->tree_stride, 2, FUZZ_SMALL_STRIDE_MOST);
    if ((d->window || d->chunk) && a->append.rope.position_ids && fuzz_take(b, 1))
        a->k_position_ids = fuzz_indices[fuzz_take(b, 3)];
}

/* What an append has and decode refuses. */
static void drop_refused(rope_append_desc *d, rope_append_args *a) {
    const int64_t heads = 1 + (a->rope.k.heads & 1);
    d->k_source = d->q.store_dtype = d->q.scale = 0;
    d->rope.k_head_dim = d->rope.k_rotary_offset = 0;
    d->rope.shard = d->rope.shard_rank = d->rope.shard_size = 0;
    a->q_scale = (rope_scale){0};
    a->rope.k.heads = a->v.heads = heads;
    a->rope.q.heads = heads * (1 + (a->rope.q.heads & 1));
    a->k_cache.data = caches[0];
    a->v_cache.data = caches[1];
}

/* Its workspace ends where the memory does. */
static void run_decode(fuzz_bytes *b, const rope_append_desc *append,
                       const rope_append_args *appended) {
    rope_decode_desc desc = ROPE_DECODE_DESC_INIT;
    rope_decode_args args = ROPE_DECODE_ARGS_INIT;
    rope_plan *plan = NULL;
    void *memory = NULL;
    desc.append = *append;
    args.append = *appended;
    if (fuzz_take(b, 7))
        drop_refused(&desc.append, &args.append);
    if (fuzz_take(b, 1)) {
        args.append.rope.q.out = NULL;
        memset(args.append.rope.q.out_stride, 0, sizeof args.append.rope.q.out_stride);
    }
    take_masks(b, &desc, &args);
    args.k_lengths = fuzz_indices[fuzz_take(b, 3)];
    args.out.data = fuzz_take(b, 15) ? attended : NULL;
    fuzz_take_strides(b, args.out.stride, 4, FUZZ_STRIDE_MOST);
    args.lse = fuzz_take(b, 1) ? lse : NULL;
    if (append->cache == ROPE_CACHE_SLOTS) {
        args.append.block_table = fuzz_indices[fuzz_take(b, 3)];
        args.append.table_pages = fuzz_take(b, FUZZ_SIZE_MOST);
    }
    const rope_args *rope = &args.append.rope;
    const int64_t pages = args.append.block_table ? args.append.table_pages : 1;
    const rope_attention_bounds bounds = {
        sizeof bounds,   rope->batch,   rope->tokens, pages * append->page_size,
        rope->sequences, rope->q.heads, rope->k.heads};
    if (rope_decode_plan_create(&desc, &plan) == ROPE_OK &&
        rope_decode_workspace(plan, &bounds, &args.workspace_bytes) == ROPE_OK &&
        posix_memalign(&memory, 256, args.workspace_bytes) == 0) {
        args.workspace = memory;
        rope_decode(plan, &args);
    }
    free(memory);
    rope_plan_destroy(plan);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_bytes b = {data, data + size};
    rope_append_desc desc;
    rope_append_args args = ROPE_APPEND_ARGS_INIT;
    rope_plan *plan = NULL;
    take_desc(&b, &desc);
    take_call(&b, &desc, &args);
    if (fuzz_take(&b, 15) < 15)
        drop_unread(&desc, &args);
    if (!desc.cache && fuzz_take(&b, 1)) {
        run_backward(&b, &desc, &args);
        return 0;
    }
    if (desc.cache && fuzz_take(&b, 1)) {
        run_decode(&b, &desc, &args);
        return 0;
    }
    if (rope_append_plan_create(&desc, &plan) == ROPE_OK)
        rope_append(plan, &args);
    rope_plan_destroy(plan);
    return 0;
}
