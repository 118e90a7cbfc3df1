/* libFuzzer target: bytes become the fields of a descriptor and of a call of "attention", then of
 * "attention_backward". */
#include "bench/fuzz/fields.h"

#include <ropekit/attention.h>

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

static double v[FUZZ_TENSOR_ELEMENTS], out[FUZZ_TENSOR_ELEMENTS], caches[2][FUZZ_CACHE_ELEMENTS];
static double gradients[4][FUZZ_TENSOR_ELEMENTS];
static double weights[FUZZ_TENSOR_ELEMENTS];
static float dsinks[FUZZ_SIZE_MOST], dweights[2][FUZZ_SIZE_MOST * FUZZ_DIM_MOST];
static float lse[FUZZ_TENSOR_ELEMENTS], scales[2][FUZZ_SCALES], sinks[FUZZ_SIZE_MOST];
static uint32_t bits[(2 * FUZZ_SIZE_MOST + 1) * FUZZ_SMALL_STRIDE_MOST];

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void take_store(fuzz_bytes *b, rope_attention_store *store) {
    store->dtype = fuzz_take_some(b, 11);
    store->scale = store->dtype > ROPE_I64 ? fuzz_take(b, 5) : 0;
    store->dim_block = fuzz_take_some(b, FUZZ_DIM_MOST);
}

/* What the tool has no option for, or has with append's. */
static void take_other_fields(fuzz_bytes *b, rope_attention_desc *d) {
    d->v_head_dim = fuzz_take_some(b, FUZZ_DIM_MOST);
    d->sink_dtype = fuzz_take_some(b, 3);
    d->nondeterministic = fuzz_take_some(b, 2);
    d->mask = fuzz_take(b, 3) ? d->mask : ROPE_MASK_TREE;
    d->cache = fuzz_take(b, 1) ? fuzz_take(b, 4) : 0;
    if (d->cache == 0)
        return;
    take_store(b, &d->k);
    take_store(b, &d->v);
    d->page_size = fuzz_take(b, FUZZ_SIZE_MOST);
    d->ring = fuzz_take_some(b, FUZZ_ROWS);
    d->table_dtype = d->cache == ROPE_CACHE_TABLE ? fuzz_take_some(b, ROPE_I64) : 0;
}

/* Mostly without what the rest of the descriptor would leave unread. */
static void take_desc(fuzz_bytes *b, rope_attention_desc *d) {
    options o = {0};
    fuzz_take_fields(b, &o, offsetof(options, attends), sizeof o.attends);
    *d = o.attends;
    d->struct_size = sizeof *d;
    d->rope = fuzz_take_desc(b, false);
    d->rope.k_head_dim = d->rope.k_rotary_offset = 0;
    d->rope.shard = d->rope.shard_rank = d->rope.shard_size = 0;
    if (d->rotation == ROPE_ATTENTION_ROTATE_NONE)
        d->rope = fuzz_without_rotation(&d->rope);
    take_other_fields(b, d);
    if (d->mask != ROPE_MASK_FULL)
        d->window_right = 0;
}

static void take_cache(fuzz_bytes *b, const rope_attention_store *store, int which,
                       rope_cache *cache) {
    cache->data = fuzz_take(b, 15) ? caches[which] : NULL;
    fuzz_take_strides(b, cache->stride, 5, FUZZ_STRIDE_MOST);
    fuzz_take_scale(b, store->scale, scales[which], &cache->scale);
}

static void take_caches(fuzz_bytes *b, const rope_attention_desc *d, rope_attention_args *a) {
    take_cache(b, &d->k, 0, &a->k_cache);
    take_cache(b, &d->v, 1, &a->v_cache);
    a->pages = fuzz_take(b, FUZZ_SIZE_MOST);
    if (d->cache != ROPE_CACHE_TABLE)
        return;
    a->block_table = fuzz_take(b, 15) ? fuzz_indices[fuzz_take(b, 3)] : NULL;
    a->table_pages = fuzz_take(b, FUZZ_SIZE_MOST);
    fuzz_take_strides(b, a->table_stride, 2, FUZZ_STRIDE_MOST);
}

static void take_call(fuzz_bytes *b, const rope_attention_desc *d, rope_attention_args *a) {
    fuzz_take_args(b, &a->rope);
    fuzz_take_tensor(b, &a->v, v, NULL);
    a->v.out = NULL;
    a->v.heads = fuzz_take(b, 7) ? a->rope.k.heads : a->v.heads;
    a->out.data = fuzz_take(b, 15) ? out : NULL;
    fuzz_take_strides(b, a->out.stride, 4, FUZZ_STRIDE_MOST);
    a->lse = fuzz_take(b, 1) ? lse : NULL;
    fuzz_take_strides(b, a->lse_stride, 3, FUZZ_STRIDE_MOST);
    a->k_tokens = fuzz_take(b, FUZZ_SIZE_MOST);
    a->q_lengths = fuzz_take(b, 1) ? fuzz_indices[fuzz_take(b, 3)] : NULL;
    a->k_lengths = fuzz_take(b, 1) || d->cache ? fuzz_indices[fuzz_take(b, 3)] : NULL;
    a->k_cu_seqlens = fuzz_take(b, 1) ? fuzz_indices[fuzz_take(b, 3)] : NULL;
    a->k_position_ids = fuzz_take(b, 1) ? fuzz_indices[fuzz_take(b, 3)] : NULL;
    fuzz_take_strides(b, a->k_position_stride, 3, FUZZ_SMALL_STRIDE_MOST);
    for (int i = 0; i < FUZZ_SIZE_MOST; i++)
        sinks[i] = (float)fuzz_take_number(b);
    a->sinks = fuzz_take(b, 15) ? sinks : NULL;
    memset(bits, fuzz_take(b, 255), sizeof bits);
    a->tree_bits = fuzz_take(b, 15) ? bits : NULL;
    a->tree_keys = fuzz_take(b, FUZZ_ROWS);
    fuzz_take_strides(b, a->tree_stride, 2, FUZZ_SMALL_STRIDE_MOST);
    if (d->cache)
        take_caches(b, d, a);
    a->rope.q.out = fuzz_take(b, 3) ? NULL : a->rope.q.out;
    a->rope.k.out = fuzz_take(b, 3) ? NULL : a->rope.k.out;
}

static void take_norm(fuzz_bytes *b, rope_norm *norm, rope_norm_weight *weight) {
    norm->type = fuzz_take(b, 3);
    if (norm->type == 0)
        return;
    norm->scope = fuzz_take(b, 3);
    norm->offset = fuzz_take_some(b, FUZZ_DIM_MOST);
    norm->dim = fuzz_take_some(b, FUZZ_DIM_MOST);
    norm->rounding = fuzz_take(b, 3);
    norm->eps = fuzz_take_number(b);
    norm->weight = fuzz_take(b, 3);
    if (norm->weight == 0)
        return;
    norm->weight_dtype = fuzz_take_some(b, ROPE_BF16);
    weight->data = fuzz_take(b, 15) ? weights : NULL;
    weight->head_stride = fuzz_take_some(b, FUZZ_STRIDE_MOST);
}

static void drop_views(const rope_attention_desc *d, rope_attention_args *a) {
    rope_tensor *tensors[] = {&a->rope.q, &a->rope.k, &a->v};
    if (d->rotation == ROPE_ATTENTION_ROTATE_NONE)
        a->rope.q.out = NULL;
    if (d->rotation > ROPE_ATTENTION_ROTATE_QK || d->cache)
        a->rope.k.out = NULL;
    for (int i = 0; i < 3; i++) {
        if (!tensors[i]->out)
            memset(tensors[i]->out_stride, 0, sizeof tensors[i]->out_stride);
        if (i && d->cache)
            *tensors[i] = (rope_tensor){.heads = tensors[i]->heads};
    }
}

static void drop_sequences(const rope_attention_desc *d, rope_attention_args *a) {
    if (a->rope.cu_seqlens)
        a->rope.batch = 1;
    if (!a->rope.cu_seqlens || d->cache)
        a->k_cu_seqlens = NULL;
    else if (!a->k_cu_seqlens)
        a->k_cu_seqlens = fuzz_indices[2];
    if (!a->lse)
        memset(a->lse_stride, 0, sizeof a->lse_stride);
}

/* A ring's keys have ids of any index. */
static void drop_positions(const rope_attention_desc *d, rope_attention_args *a) {
    const int counts = d->mask == ROPE_MASK_TREE && (d->window || d->chunk),
              rotates = d->rotation <= ROPE_ATTENTION_ROTATE_QK;
    if (d->rotation == ROPE_ATTENTION_ROTATE_NONE) {
        a->rope.position_ids = counts ? a->rope.position_ids : NULL;
        a->rope.sequence_offsets = NULL;
        a->rope.position_offset = 0;
    }
    if (d->ring && rotates)
        a->rope.position_ids = NULL;
    if (!(rotates || (counts && !d->ring)) || !a->rope.position_ids)
        a->k_position_ids = NULL;
    else if (rotates && !a->k_position_ids)
        a->k_position_ids = fuzz_indices[3];
    if (!a->k_position_ids)
        memset(a->k_position_stride, 0, sizeof a->k_position_stride);
    if (d->sink_dtype == 0)
        a->sinks = NULL;
    if (d->mask == ROPE_MASK_TREE)
        return;
    a->tree_bits = NULL;
    a->tree_keys = 0;
    memset(a->tree_stride, 0, sizeof a->tree_stride);
}

static rope_attention_bounds bounds_of(const rope_attention_args *a, const rope_attention_desc *d) {
    const int64_t pages = d->cache == ROPE_CACHE_TABLE ? a->table_pages : 1;
    return (rope_attention_bounds){sizeof(rope_attention_bounds),
                                   a->rope.batch,
                                   a->rope.tokens,
                                   a->k_tokens || !d->cache ? a->k_tokens : pages * d->page_size,
                                   a->rope.sequences,
                                   a->rope.q.heads,
                                   a->rope.k.heads};
}

/* In memory that ends where the workspace does. */
static void run(const rope_plan *plan, rope_attention_args *a, const rope_attention_desc *d) {
    const rope_attention_bounds bounds = bounds_of(a, d);
    void *memory = NULL;
    if (rope_attention_workspace(plan, &bounds, &a->workspace_bytes) != ROPE_OK)
        return;
    if (a->workspace_bytes && posix_memalign(&memory, 256, a->workspace_bytes) != 0)
        return;
    a->workspace = memory;
    rope_attention(plan, a);
    free(memory);
}

static void take_gradient(fuzz_bytes *b, int which, rope_attention_out *gradient) {
    gradient->data = fuzz_take(b, 7) ? gradients[which] : NULL;
    if (gradient->data)
        fuzz_take_strides(b, gradient->stride, 4, FUZZ_STRIDE_MOST);
}

static void run_backward(fuzz_bytes *b, rope_attention_desc *d, rope_attention_args *a) {
    rope_attention_backward_args args = ROPE_ATTENTION_BACKWARD_ARGS_INIT;
    const rope_attention_bounds bounds = bounds_of(a, d);
    rope_plan *plan = NULL;
    void *memory = NULL;
    rope_attention_out dout = {0};
    take_gradient(b, 0, &dout);
    take_gradient(b, 1, &args.dq);
    take_gradient(b, 2, &args.dk);
    take_gradient(b, 3, &args.dv);
    args.dout = dout.data;
    memcpy(args.dout_stride, dout.stride, sizeof dout.stride);
    args.dsinks = d->sink_dtype && fuzz_take(b, 3) ? dsinks : NULL;
    args.dq_weight = d->q_norm.weight && fuzz_take(b, 3) ? dweights[0] : NULL;
    args.dk_weight = d->k_norm.weight && fuzz_take(b, 3) ? dweights[1] : NULL;
    a->lse = fuzz_take(b, 15) ? lse : NULL;
    a->rope.q.in = a->rope.q.out && fuzz_take(b, 1) ? NULL : a->rope.q.in;
    args.forward = a;
    if (rope_attention_backward_plan_create(d, &plan) == ROPE_OK &&
        rope_attention_backward_workspace(plan, &bounds, &a->workspace_bytes) == ROPE_OK &&
        posix_memalign(&memory, 256, a->workspace_bytes) == 0) {
        a->workspace = memory;
        rope_attention_backward(plan, &args);
    }
    free(memory);
    rope_plan_destroy(plan);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fuzz_bytes b = {data, data + size};
    rope_attention_desc desc;
    rope_attention_args args = ROPE_ATTENTION_ARGS_INIT;
    rope_plan *plan = NULL;
    take_desc(&b, &desc);
    take_call(&b, &desc, &args);
    const int exact = fuzz_take(&b, 15) < 15;
    if (exact) {
        drop_views(&desc, &args);
        drop_sequences(&desc, &args);
        fuzz_drop_unread(&desc.rope, &args.rope);
    }
    if (exact || desc.ring)
        drop_positions(&desc, &args);
    take_norm(&b, &desc.q_norm, &args.q_weight);
    if (!exact || (!desc.cache && desc.rotation != ROPE_ATTENTION_ROTATE_Q))
        take_norm(&b, &desc.k_norm, &args.k_weight);
    if (rope_attention_plan_create(&desc, &plan) == ROPE_OK)
        run(plan, &args, &desc);
    rope_plan_destroy(plan);
    run_backward(&b, &desc, &args);
    return 0;
}
