#include "tests/decode/cases.h"

#include "tests/oracle/append_layout.h"
#include "tests/rope/case_parts.h"
#include "tests/support/repeat.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const int64_t windows[] = {0, 0, 0, 1, 3, 16, 64};

static int64_t index_size(const rope_desc *d) {
    return d->position_dtype == ROPE_I32 ? 4 : 8;
}

static int64_t sequence_count(const rope_args *a) {
    return a->cu_seqlens ? a->sequences : a->batch;
}

static int64_t v_head_dim(const decode_case *c) {
    return c->append.desc.v_head_dim ? c->append.desc.v_head_dim : c->append.base.desc.head_dim;
}

static void reserve(decode_case *c, const void *pointer, int64_t count, int64_t size) {
    const void *data = case_reserve(&c->append.base, (count + 1) * size, size);
    memcpy((void *)(uintptr_t)pointer, &data, sizeof(void *));
}

/* --- what attention has beside the append --- */

static void choose_mask(test_random *r, decode_case *c) {
    rope_decode_desc *d = &c->desc;
    d->mask = (int32_t)random_between(r, 0, ROPE_MASK_TREE);
    d->window = windows[random_between(r, 0, 6)];
    d->chunk = random_chance(r, 15) ? random_between(r, 1, 20) : 0;
    if (d->mask == ROPE_MASK_FULL)
        d->window_right = windows[random_between(r, 0, 6)];
    d->scale = random_chance(r, 40) ? random_real(r, 0.01, 0.5) : 0;
    d->soft_cap = random_chance(r, 25) ? random_real(r, 2, 50) : 0;
    if (random_chance(r, 40))
        d->sink_dtype = random_chance(r, 50) ? ROPE_F32 : c->append.base.desc.dtype;
}

static void choose_tree(test_random *r, decode_case *c) {
    const rope_args *a = &c->append.base.args;
    c->args.tree_keys = random_between(r, 1, 70);
    const int64_t words = (c->args.tree_keys + 31) / 32;
    reserve(c, &c->args.tree_bits, a->batch * a->tokens * words, 4);
}

/* Positions are in the append's base before the arena is made. */
static void choose_attention(append_case *append) {
    decode_case *c = (decode_case *)(void *)append;
    test_random *r = &append->base.random;
    const rope_args *a = &append->base.args;
    const rope_desc *d = &append->base.desc;
    const int64_t count[4] = {a->batch, a->tokens, a->q.heads, v_head_dim(c)},
                  plain[4] = {count[1] * count[2] * count[3], count[2] * count[3], count[3], 1};
    choose_mask(r, c);
    const int given = random_chance(r, 40);
    if (given)
        case_choose_strides(r, count, c->args.out.stride);
    c->args.out.data = (void *)(uintptr_t)case_reserve_view(
        &append->base, oracle_dtype_size(d->dtype), count, given ? c->args.out.stride : plain);
    if (random_chance(r, 50))
        reserve(c, &c->args.lse, a->batch * a->tokens * a->q.heads, 4);
    reserve(c, &c->args.k_lengths, sequence_count(a), index_size(d));
    if (c->desc.sink_dtype)
        reserve(c, &c->args.sinks, a->q.heads, oracle_dtype_size(c->desc.sink_dtype));
    if (c->desc.mask == ROPE_MASK_TREE)
        choose_tree(r, c);
    if (append->desc.cache == ROPE_CACHE_TABLE && !append->desc.ring && random_chance(r, 30))
        reserve(c, &c->args.append.slots, a->batch * a->tokens, 8);
}

/* --- memory --- */

static int64_t index_at(const rope_desc *d, const void *list, int64_t i) {
    int32_t narrow;
    int64_t wide;
    if (d->position_dtype == ROPE_I32) {
        memcpy(&narrow, (const int32_t *)list + i, sizeof narrow);
        return narrow;
    }
    memcpy(&wide, (const int64_t *)list + i, sizeof wide);
    return wide;
}

/* Its new tokens are the last keys of a sequence. */
static void fill_lengths(decode_case *c) {
    const rope_append_args *a = &c->append.args;
    const rope_desc *d = &c->append.desc.rope;
    const int64_t *boundary = c->append.base.boundary;
    for (int64_t s = 0; s < sequence_count(&a->rope); s++) {
        int64_t start = a->rope.position_offset;
        if (a->cache_starts)
            start = index_at(d, a->cache_starts, s);
        else if (a->rope.sequence_offsets)
            start += index_at(d, a->rope.sequence_offsets, s);
        case_store_index(d->position_dtype, c->args.k_lengths, s,
                         start +
                             (a->rope.cu_seqlens ? boundary[s + 1] - boundary[s] : a->rope.tokens));
    }
}

/* Old keys and values, in the arena, are of ordinary size. */
static void fill_cache(decode_case *c, const rope_cache *cache, const rope_append_part *part) {
    const int32_t dtype = part->store_dtype ? part->store_dtype : c->append.desc.rope.dtype;
    const size_t bytes = case_piece_bytes(&c->append.base, cache->data);
    test_random *r = &c->append.base.random;
    for (int64_t i = 0; i < (int64_t)bytes / oracle_dtype_size(dtype); i++)
        oracle_store(dtype, cache->data, i, random_real(r, -2, 2));
}

static void fill_masks(decode_case *c) {
    test_random *r = &c->append.base.random;
    uint32_t *words = (uint32_t *)(uintptr_t)c->args.tree_bits;
    const size_t bytes = words ? case_piece_bytes(&c->append.base, words) : 0;
    for (size_t i = 0; i < bytes / 4; i++)
        words[i] = (uint32_t)random_bits(r);
    for (int64_t h = 0; c->args.sinks && h < c->append.args.rope.q.heads; h++)
        oracle_store(c->desc.sink_dtype, (void *)(uintptr_t)c->args.sinks, h,
                     random_chance(r, 20) ? -INFINITY : random_real(r, -3, 3));
}

/* Scales that the call is to write, of the tokens' places, are none yet. */
static void spoil_scales(decode_case *c, int32_t tensor) {
    const oracle_tensor t = oracle_append_tensor(&c->append.desc, &c->append.args, tensor);
    const rope_args *a = &c->append.args.rope;
    if (t.part->scale != ROPE_SCALE_TOKEN_HEAD_MAX)
        return;
    for (int64_t i = 0; i < a->batch * a->tokens; i++) {
        const oracle_place place =
            oracle_append_place(&c->append.desc, &c->append.args, i / a->tokens, i % a->tokens);
        for (int64_t h = 0; h < t.heads && place.status == ORACLE_PLACE_GIVEN; h++)
            ((float *)t.scale->data)[oracle_scale_at(&t, place.page, place.slot, h)] = NAN;
    }
}

/* The same places by slots. */
static void use_slots(decode_case *c) {
    rope_append_desc *d = &c->desc.append;
    rope_append_args *a = &c->args.append;
    for (int64_t i = 0; i < a->rope.batch * a->rope.tokens; i++) {
        const oracle_place place = oracle_append_place(&c->append.desc, &c->append.args,
                                                       i / a->rope.tokens, i % a->rope.tokens);
        case_store_index(ROPE_I64, a->slots, i,
                         place.status == ORACLE_PLACE_GIVEN ? place.page * d->page_size + place.slot
                                                            : -1);
    }
    d->cache = ROPE_CACHE_SLOTS;
    d->slot_dtype = ROPE_I64;
    a->cache_starts = NULL;
    if (d->rotation == ROPE_ROTATION_OFF) {
        a->rope.position_offset = 0;
        a->rope.sequence_offsets = NULL;
    }
}

enum { POINTERS = APPEND_POINTERS + 6 };

static void pointers_of(rope_decode_args *args, const void **list[POINTERS]) {
    const void **own[] = {(const void **)&args->out.data,
                          (const void **)&args->lse,
                          &args->k_lengths,
                          &args->k_position_ids,
                          &args->sinks,
                          &args->tree_bits};
    append_pointers(&args->append, list);
    memcpy(list + APPEND_POINTERS, own, sizeof own);
}

void decode_relocate(rope_decode_args *args, const void *from, const void *to) {
    const void **list[POINTERS];
    pointers_of(args, list);
    case_move_pointers(list, POINTERS, from, to);
}

/* Of a sequence. */
static int64_t most_tokens(const decode_case *c) {
    const int64_t *boundary = c->append.base.boundary;
    int64_t most = 1;
    for (int64_t s = 0; s < c->args.append.rope.sequences; s++)
        most = boundary[s + 1] - boundary[s] > most ? boundary[s + 1] - boundary[s] : most;
    return most;
}

/* Rotated queries that nobody wants. */
static void leave_queries_out(rope_tensor *q) {
    q->out = NULL;
    memset(q->out_stride, 0, sizeof q->out_stride);
}

void decode_make(decode_case *c, uint64_t seed, int64_t index, int32_t faults) {
    const append_wish wish = {
        .source = ROPE_SOURCE_TENSOR, .tame = 1, .in_range = !faults, .attended = choose_attention};
    memset(c, 0, sizeof *c);
    c->desc.struct_size = sizeof c->desc;
    c->args.struct_size = sizeof c->args;
    append_make(&c->append, seed, index, &wish);
    decode_relocate(&c->args, NULL, c->append.base.arena);
    const void *slots = c->args.append.slots;
    c->desc.append = c->append.desc;
    c->args.append = c->append.args;
    c->args.append.slots = slots;
    fill_lengths(c);
    if (c->args.append.k_cache.data)
        fill_cache(c, &c->append.args.k_cache, &c->append.desc.k);
    if (c->args.append.v_cache.data)
        fill_cache(c, &c->append.args.v_cache, &c->append.desc.v);
    fill_masks(c);
    spoil_scales(c, 1);
    spoil_scales(c, 2);
    if (slots)
        use_slots(c);
    if (random_chance(&c->append.base.random, 60))
        leave_queries_out(&c->args.append.rope.q);
    if (c->args.append.rope.cu_seqlens && random_chance(&c->append.base.random, 60))
        c->args.most_tokens = most_tokens(c);
}

void decode_free(decode_case *c) {
    append_free(&c->append);
}

void decode_describe(const decode_case *c, const char *kernel) {
    const rope_decode_desc *d = &c->desc;
    const rope_append_args *a = &c->args.append;
    const rope_args *rope = &a->rope;
    char text[600];
    snprintf(text, sizeof text,
             "kernel=%s dtype=%d heads=%lld/%lldx%d,%lld batch=%lld tokens=%lld sequences=%lld "
             "cache=%d pages=%lldx%lld ring=%lld store=%d/%d,%d/%d%s%s mask=%d window=%lld,%lld "
             "chunk=%lld sinks=%d tree=%lld%s",
             kernel ? kernel : "(chosen)", d->append.rope.dtype, (long long)rope->q.heads,
             (long long)rope->k.heads, d->append.rope.head_dim, (long long)v_head_dim(c),
             (long long)rope->batch, (long long)rope->tokens, (long long)rope->sequences,
             d->append.cache, (long long)a->pages, (long long)d->append.page_size,
             (long long)d->append.ring, d->append.k.store_dtype, d->append.k.scale,
             d->append.v.store_dtype, d->append.v.scale, rope->q.out ? " q.out" : "",
             rope->position_ids ? " ids" : "", d->mask, (long long)d->window,
             (long long)d->window_right, (long long)d->chunk, d->sink_dtype,
             (long long)c->args.tree_keys, c->args.lse ? " lse" : "");
    test_describe(text);
}

/* --- the two calls --- */

static rope_attention_store store_of(const rope_append_part *part, int32_t dim_block) {
    return (rope_attention_store){part->store_dtype, part->scale, dim_block};
}

void decode_split_desc(const rope_decode_desc *desc, rope_append_desc *append,
                       rope_attention_desc *attention) {
    const int slots = desc->append.cache == ROPE_CACHE_SLOTS;
    const rope_desc *rope = &desc->append.rope;
    *append = desc->append;
    append->table_dtype = slots ? 0 : append->table_dtype;
    *attention = (rope_attention_desc){
        .struct_size = sizeof *attention,
        .rope = {.struct_size = sizeof *rope,
                 .dtype = rope->dtype,
                 .head_dim = rope->head_dim,
                 .position_dtype = rope->position_dtype},
        .rotation = ROPE_ATTENTION_ROTATE_NONE,
        .v_head_dim = desc->append.v_head_dim,
        .mask = desc->mask,
        .sink_dtype = desc->sink_dtype,
        .scale = desc->scale,
        .soft_cap = desc->soft_cap,
        .window = desc->window,
        .window_right = desc->window_right,
        .chunk = desc->chunk,
        .cache = slots ? ROPE_CACHE_TABLE : desc->append.cache,
        .table_dtype = desc->append.table_dtype,
        .page_size = desc->append.page_size,
        .ring = desc->append.ring,
        .k = store_of(&desc->append.k, desc->append.k_dim_block),
        .v = store_of(&desc->append.v, desc->append.v_dim_block),
    };
}

/* Whether positions count in the mask. */
static int counts(const rope_decode_desc *d) {
    return d->mask == ROPE_MASK_TREE && (d->window || d->chunk);
}

static rope_args queries_of(const decode_case *c, const rope_args *rope) {
    const int in_place = rope->q.in == rope->q.out;
    rope_args q = {.struct_size = sizeof q,
                   .batch = rope->batch,
                   .tokens = rope->tokens,
                   .q = {.in = rope->q.out, .heads = rope->q.heads},
                   .k = {.heads = rope->k.heads},
                   .cu_seqlens = rope->cu_seqlens,
                   .sequences = rope->sequences};
    const int64_t *s = rope->q.out_stride,
                  *stride = in_place && !s[0] && !s[1] && !s[2] && !s[3] ? rope->q.in_stride : s;
    memcpy(q.q.in_stride, stride, sizeof q.q.in_stride);
    if (counts(&c->desc)) {
        q.position_ids = rope->position_ids;
        memcpy(q.position_stride, rope->position_stride, sizeof q.position_stride);
    }
    return q;
}

void decode_split_args(const decode_case *c, const rope_decode_args *args, rope_append_args *append,
                       rope_attention_args *attention) {
    const rope_append_args *a = &args->append;
    *append = *a;
    if (a->slots) {
        append->block_table = NULL;
        append->table_pages = append->table_stride[0] = append->table_stride[1] = 0;
    }
    *attention = (rope_attention_args){.struct_size = sizeof *attention,
                                       .rope = queries_of(c, &a->rope),
                                       .v = {.heads = a->v.heads},
                                       .out = args->out,
                                       .lse = args->lse,
                                       .k_lengths = args->k_lengths,
                                       .k_position_ids = args->k_position_ids,
                                       .sinks = args->sinks,
                                       .tree_bits = args->tree_bits,
                                       .tree_keys = args->tree_keys,
                                       .k_cache = a->k_cache,
                                       .v_cache = a->v_cache,
                                       .pages = a->pages,
                                       .block_table = a->block_table,
                                       .table_stride = {a->table_stride[0], a->table_stride[1]},
                                       .table_pages = a->table_pages};
}

rope_attention_bounds decode_bounds(const decode_case *c) {
    const rope_append_args *a = &c->args.append;
    const int64_t pages = a->block_table ? a->table_pages : 1;
    return (rope_attention_bounds){.struct_size = sizeof(rope_attention_bounds),
                                   .batch = a->rope.batch,
                                   .tokens = a->rope.tokens,
                                   .k_tokens = pages * c->desc.append.page_size,
                                   .sequences = a->rope.sequences,
                                   .q_heads = a->rope.q.heads,
                                   .k_heads = a->rope.k.heads};
}
