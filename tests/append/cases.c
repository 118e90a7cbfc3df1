#include "tests/append/cases.h"

#include "tests/oracle/append_layout.h"
#include "tests/rope/case_parts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    ELEMENT_BUDGET = 20000, /* elements of one tensor, and twice those of a cache */
    SITE_BUDGET = 160,      /* tokens of a call */
    Q = 0,
    K = 1,
    V = 2
};

static rope_append_part *part_of(append_case *c, int32_t tensor) {
    return tensor == Q ? &c->desc.q : tensor == K ? &c->desc.k : &c->desc.v;
}

static rope_tensor *tensor_of(append_case *c, int32_t tensor) {
    return tensor == V ? &c->args.v : case_tensor(&c->base.args, tensor);
}

static rope_cache *cache_of(append_case *c, int32_t tensor) {
    return tensor == K ? &c->args.k_cache : &c->args.v_cache;
}

static rope_scale *scale_of(append_case *c, int32_t tensor) {
    return tensor == Q ? &c->args.q_scale : &cache_of(c, tensor)->scale;
}

static rope_norm_weight *weight_of(append_case *c, int32_t tensor) {
    return tensor == Q ? &c->args.q_weight : tensor == K ? &c->args.k_weight : &c->args.v_weight;
}

static int64_t head_dim(const append_case *c, int32_t tensor) {
    if (tensor == V)
        return c->desc.v_head_dim ? c->desc.v_head_dim : c->base.desc.head_dim;
    return case_head_dim(&c->base.desc, tensor);
}

static int moves_keys(const append_case *c) {
    return c->desc.k_source == ROPE_SOURCE_CACHE;
}

void append_pointers(rope_append_args *args, const void **list[APPEND_POINTERS]) {
    const void **pointers[] = {&args->v.in,
                               (const void **)&args->v.out,
                               &args->q_weight.data,
                               &args->k_weight.data,
                               &args->v_weight.data,
                               (const void **)&args->q_scale.data,
                               (const void **)&args->k_cache.data,
                               (const void **)&args->k_cache.scale.data,
                               (const void **)&args->v_cache.data,
                               (const void **)&args->v_cache.scale.data,
                               &args->slots,
                               &args->block_table,
                               &args->cache_starts};
    case_pointers(&args->rope, list);
    memcpy(list + CASE_POINTERS, pointers, sizeof pointers);
}

void append_relocate(rope_append_args *args, const void *from, const void *to) {
    const void **list[APPEND_POINTERS];
    append_pointers(args, list);
    case_move_pointers(list, APPEND_POINTERS, from, to);
}

/* A size that vectors divide where all of the case's are to be. */
static int64_t whole(const append_case *c, int64_t size) {
    return c->vectors ? (size + 7) / 8 * 8 : size;
}

/* Heads that nothing rotates may have any dimension. */
static void choose_plain_desc(test_random *r, const append_case *c, rope_desc *d) {
    static const int32_t dims[] = {2, 3, 5, 7, 16, 17, 33, 64, 80, 127, 128, 128, 192, 257, 1000};
    d->dtype = (int32_t)random_between(r, ROPE_F32, ROPE_BF16);
    d->head_dim = random_chance(r, 2) ? ROPE_MAX_APPEND_HEAD_DIM
                                      : (int32_t)whole(c, dims[random_between(r, 0, 14)]);
    if (random_chance(r, 25))
        d->k_head_dim = (int32_t)whole(c, random_between(r, 2, 300));
    d->position_dtype = random_chance(r, 50) ? ROPE_I32 : random_chance(r, 50) ? ROPE_I64 : 0;
    d->launch = (int32_t)random_between(r, 0, ROPE_LAUNCH_PROGRAMMATIC);
}

/* Of whole vectors and heads of at most 512 elements. */
static void round_norm(rope_norm *norm, int64_t dim) {
    norm->scope = norm->scope == ROPE_NORM_TOKEN ? 0 : norm->scope;
    norm->offset = norm->offset / 8 * 8;
    norm->dim = (norm->dim + 7) / 8 * 8;
    if (norm->dim > dim - norm->offset)
        norm->dim = 0;
    if (dim - norm->offset > 512 && (norm->dim == 0 || norm->dim > 512))
        norm->dim = 512;
}

static void choose_norm(test_random *r, rope_norm *norm, int32_t dtype, int64_t dim, int latent) {
    norm->type = (int32_t)random_between(r, ROPE_NORM_RMS, ROPE_NORM_LAYER);
    norm->scope = (int32_t)random_between(r, 0, ROPE_NORM_TOKEN);
    if (latent) {
        norm->dim = 512;
    } else if (random_chance(r, 35)) {
        norm->offset = (int32_t)random_between(r, 0, dim - 1);
        norm->dim = random_chance(r, 40) ? 0 : (int32_t)random_between(r, 1, dim - norm->offset);
    }
    norm->eps = random_chance(r, 10) ? 0 : random_chance(r, 50) ? 1e-6 : random_real(r, 0, 1e-3);
    norm->weight = (int32_t)random_between(r, 0, ROPE_NORM_ONE_PLUS_WEIGHT);
    if (norm->weight == 0)
        return;
    norm->weight_dtype = random_chance(r, 50) ? dtype : (int32_t)random_between(r, 0, ROPE_F32);
    norm->rounding = (int32_t)random_between(r, 0, ROPE_NORM_ROUND_TWICE);
}

static void choose_store(test_random *r, rope_append_part *part) {
    static const int32_t types[] = {0,           ROPE_F32,    ROPE_F16,        ROPE_BF16,
                                    ROPE_F8E4M3, ROPE_F8E5M2, ROPE_F8E4M3FNUZ, ROPE_I8};
    part->store_dtype = types[random_between(r, 0, 7)];
    if (part->store_dtype >= ROPE_F8E4M3)
        part->scale = (int32_t)random_between(r, 0, ROPE_SCALE_TOKEN_HEAD_MAX);
}

static void choose_part(test_random *r, append_case *c, int32_t tensor, int latent) {
    rope_append_part *part = part_of(c, tensor);
    if (moves_keys(c) && tensor != K)
        return;
    if (!moves_keys(c) && random_chance(r, 55))
        choose_norm(r, &part->norm, c->base.desc.dtype, head_dim(c, tensor),
                    latent && head_dim(c, tensor) > 512);
    if (c->vectors && part->norm.type)
        round_norm(&part->norm, head_dim(c, tensor));
    if (random_chance(r, 25))
        part->factor = random_chance(r, 50) ? random_real(r, 0.01, 2) : random_real(r, -4, 4);
    if (tensor == Q || c->desc.cache)
        choose_store(r, part);
}

static int32_t divisor(test_random *r, const append_case *c, int64_t dim) {
    int64_t d = (int64_t)1 << random_between(r, c->vectors ? 3 : 0, c->vectors ? 5 : 4);
    return dim % d == 0 ? (int32_t)d : 0;
}

/* Heads that attention takes. */
static void keep_attended(append_case *c) {
    rope_desc *d = &c->base.desc;
    d->k_head_dim = d->k_rotary_offset = 0;
    d->shard = d->shard_rank = d->shard_size = 0;
    if (d->head_dim > ROPE_MAX_ATTENTION_HEAD_DIM)
        d->head_dim = 64; /* nothing rotates */
}

static void choose_desc(test_random *r, append_case *c, const append_wish *wish) {
    rope_append_desc *d = &c->desc;
    case_wish rope = {.single = 1,
                      .in_range = wish->in_range,
                      .latent = random_chance(r, 8),
                      .vectors = c->vectors};
    int off = wish->rotation ? wish->rotation == ROPE_ROTATION_OFF
                             : wish->source != ROPE_SOURCE_CACHE && random_chance(r, 35);
    if (off)
        choose_plain_desc(r, c, &c->base.desc);
    else
        case_choose_desc(&c->base, &rope);
    d->rotation = off ? ROPE_ROTATION_OFF : (int32_t)random_between(r, 0, ROPE_ROTATION_ON);
    d->k_source = wish->source                   ? wish->source
                  : !off && random_chance(r, 15) ? ROPE_SOURCE_CACHE
                                                 : (int32_t)random_between(r, 0, 1);
    if (wish->attended)
        keep_attended(c);
    if (wish->attended)
        d->cache = (int32_t)random_between(r, ROPE_CACHE_TABLE, ROPE_CACHE_SEQUENCE);
    else if (!wish->gradients && (moves_keys(c) || random_chance(r, 75)))
        d->cache = (int32_t)random_between(r, ROPE_CACHE_SLOTS, ROPE_CACHE_SEQUENCE);
    if (!moves_keys(c) && random_chance(r, 25))
        d->v_head_dim = (int32_t)whole(c, random_between(r, 2, 300));
    for (int32_t i = Q; i <= V; i++)
        choose_part(r, c, i, !off && rope.latent);
    if (wish->attended)
        d->q.store_dtype = d->q.scale = 0;
    if (d->cache && random_chance(r, 30))
        d->k_dim_block = divisor(r, c, head_dim(c, K));
    if (d->cache && !moves_keys(c) && random_chance(r, 15))
        d->v_dim_block = divisor(r, c, head_dim(c, V));
    if (d->cache == ROPE_CACHE_SLOTS)
        d->slot_dtype = random_chance(r, 30) ? 0 : (int32_t)random_between(r, ROPE_I32, ROPE_I64);
    if (d->cache == ROPE_CACHE_TABLE)
        d->table_dtype = random_chance(r, 30) ? 0 : (int32_t)random_between(r, ROPE_I32, ROPE_I64);
}

/* What has no gradient becomes something that has one. */
static void keep_gradients(append_case *c) {
    rope_desc *d = &c->base.desc;
    c->desc.q.store_dtype = c->desc.q.scale = 0;
    if (d->direction == ROPE_INVERSE)
        d->direction = ROPE_TRANSPOSE;
    if (d->table_width == ROPE_TABLE_FULL)
        d->pairing_out = d->pairing_in;
}

/* Whether anything but a rotation asks for a token's index in its sequence. */
static int indexes_sequences(const append_case *c) {
    return c->desc.cache == ROPE_CACHE_TABLE || c->desc.cache == ROPE_CACHE_SEQUENCE;
}

static void choose_positions(test_random *r, append_case *c) {
    rope_args *a = &c->base.args;
    int rotates = c->desc.rotation != ROPE_ROTATION_OFF;
    case_choose_tokens(r, &c->base);
    if (!a->cu_seqlens && random_chance(r, 10)) { /* a few tokens of many heads */
        a->batch = random_between(r, 1, 2);
        a->tokens = 1;
    }
    if (a->batch * a->tokens > SITE_BUDGET && !a->cu_seqlens)
        a->tokens = SITE_BUDGET / a->batch;
    if (c->base.desc.shard == ROPE_SHARD_ZIGZAG && !a->cu_seqlens)
        a->tokens += a->tokens % 2;
    if (rotates)
        case_choose_positions(r, &c->base);
    int64_t sequences = a->cu_seqlens ? a->sequences : a->batch;
    int64_t size = c->base.desc.position_dtype == ROPE_I32 ? 4 : 8;
    if (indexes_sequences(c)) {
        if (random_chance(r, 60)) {
            c->args.cache_starts = case_reserve(&c->base, (sequences + 1) * size, size);
        } else {
            a->position_offset = random_between(r, 0, 3);
            if (!rotates && random_chance(r, 40))
                a->sequence_offsets = case_reserve(&c->base, (sequences + 1) * size, size);
        }
    } else if (!rotates && !c->desc.cache) {
        a->cu_seqlens = NULL;
        a->sequences = 0;
    }
}

/* How many heads each tensor has, at least one of them. */
static void choose_heads(test_random *r, append_case *c) {
    const rope_args *a = &c->base.args;
    int64_t sites = a->batch * a->tokens > 0 ? a->batch * a->tokens : 1;
    int32_t needed = moves_keys(c) ? K : (int32_t)random_between(r, c->desc.cache ? K : Q, V);
    for (int32_t i = Q; i <= V; i++) {
        int64_t most = ELEMENT_BUDGET / (sites * head_dim(c, i)), cap = sites < 3 ? 48 : 8;
        most = most < 1 ? 1 : most > cap ? cap : most;
        int absent = i != needed && (moves_keys(c) || random_chance(r, 15));
        tensor_of(c, i)->heads = absent ? 0 : random_between(r, 1, most);
    }
}

/* Key heads that groups of query heads share. */
static void share_heads(test_random *r, append_case *c) {
    int64_t most = tensor_of(c, Q)->heads;
    most = most ? most : 1;
    const int64_t heads = random_between(r, 1, most);
    tensor_of(c, K)->heads = tensor_of(c, V)->heads = heads;
    tensor_of(c, Q)->heads = heads * random_between(r, 1, most / heads);
}

/* Tensors without a cache have an out; those with one may do without. */
static void choose_caches(test_random *r, append_case *c, int attended) {
    int both = tensor_of(c, K)->heads && tensor_of(c, V)->heads;
    int32_t without =
        both && !attended && random_chance(r, 10) ? (int32_t)random_between(r, K, V) : Q;
    for (int32_t i = K; i <= V; i++)
        c->cached[i] = c->desc.cache && tensor_of(c, i)->heads && i != without;
}

/* As case_choose_strides, of whole vectors where the case has them. */
static void choose_strides(test_random *r, const append_case *c, const int64_t count[4],
                           int64_t stride[4]) {
    static const int32_t orders[3][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}};
    const int32_t *order = orders[random_between(r, 0, 2)];
    int padded = random_chance(r, 50);
    if (!c->vectors) {
        case_choose_strides(r, count, stride);
        return;
    }
    stride[3] = 1;
    int64_t next = count[3];
    for (int i = 2; i >= 0; i--) {
        next += padded ? 8 * random_between(r, 0, 2) : 0;
        stride[order[i]] = next;
        next *= count[order[i]] ? count[order[i]] : 1;
    }
}

static void choose_view(test_random *r, append_case *c, int32_t tensor, const append_wish *wish) {
    const rope_args *a = &c->base.args;
    rope_tensor *t = tensor_of(c, tensor);
    const rope_append_part *part = part_of(c, tensor);
    int32_t dtype = c->base.desc.dtype;
    int32_t out_dtype = tensor == Q && part->store_dtype ? part->store_dtype : dtype;
    int64_t dim = head_dim(c, tensor);
    const int64_t count[4] = {a->batch, a->tokens, t->heads, dim};
    const int64_t plain[4] = {a->tokens * t->heads * dim, t->heads * dim, dim, 1};
    int in_place = !wish->out_of_place && out_dtype == dtype && random_chance(r, 40);
    int given_in = random_chance(r, 60), given_out = random_chance(r, 60);
    if (given_in) {
        choose_strides(r, c, count, t->in_stride);
        if (!in_place && !wish->out_of_place && random_chance(r, 8))
            t->in_stride[random_between(r, 0, 2)] = 0;
        if (random_chance(r, 6))
            t->in_stride[1] = -t->in_stride[1];
    }
    t->in = case_reserve_view(&c->base, oracle_dtype_size(dtype), count,
                              given_in ? t->in_stride : plain);
    if (c->cached[tensor] && random_chance(r, 60))
        return;
    if (in_place) {
        t->out = (void *)(uintptr_t)t->in;
        memcpy(t->out_stride, t->in_stride, random_chance(r, 50) ? sizeof t->out_stride : 0);
        return;
    }
    if (given_out)
        choose_strides(r, c, count, t->out_stride);
    if (given_out && random_chance(r, 6))
        t->out_stride[0] = -t->out_stride[0];
    t->out = (void *)(uintptr_t)case_reserve_view(&c->base, oracle_dtype_size(out_dtype), count,
                                                  given_out ? t->out_stride : plain);
}

/* q, k and v as parts of each token's row of one projection. */
static void choose_fused_inputs(test_random *r, append_case *c) {
    const rope_args *a = &c->base.args;
    int64_t size = oracle_dtype_size(c->base.desc.dtype), start[ORACLE_TENSORS], row = 0;
    for (int32_t i = Q; i <= V; i++) {
        start[i] = row;
        row += tensor_of(c, i)->heads * head_dim(c, i) + whole(c, random_between(r, 0, 3));
    }
    const char *in = case_reserve(&c->base, row * a->tokens * a->batch * size, size);
    for (int32_t i = Q; i <= V; i++) {
        rope_tensor *t = tensor_of(c, i);
        int64_t dim = head_dim(c, i);
        const int64_t stride[4] = {a->tokens * row, row, dim, 1};
        const int64_t count[4] = {a->batch, a->tokens, t->heads, dim};
        const int64_t plain[4] = {a->tokens * t->heads * dim, t->heads * dim, dim, 1};
        if (t->heads == 0)
            continue;
        t->in = in + start[i] * size;
        memcpy(t->in_stride, stride, sizeof stride);
        int32_t dtype =
            i == Q && c->desc.q.store_dtype ? c->desc.q.store_dtype : c->base.desc.dtype;
        if (!c->cached[i])
            t->out = (void *)(uintptr_t)case_reserve_view(&c->base, oracle_dtype_size(dtype), count,
                                                          plain);
        memcpy(t->out_stride, plain, t->out ? sizeof plain : 0);
    }
}

static void choose_weights(test_random *r, append_case *c) {
    for (int32_t i = Q; i <= V; i++) {
        const rope_norm *norm = &part_of(c, i)->norm;
        int64_t heads = tensor_of(c, i)->heads;
        int32_t dtype = norm->weight_dtype ? norm->weight_dtype : c->base.desc.dtype;
        int64_t dim = norm->dim ? norm->dim : head_dim(c, i) - norm->offset;
        if (norm->weight == 0 || heads == 0)
            continue;
        rope_norm_weight *w = weight_of(c, i);
        int64_t stride = norm->scope == ROPE_NORM_TOKEN ? dim : 0;
        if (random_chance(r, 30))
            stride = w->head_stride = dim + whole(c, random_between(r, 0, 5));
        w->data = case_reserve(&c->base, (stride * (heads - 1) + dim) * oracle_dtype_size(dtype),
                               oracle_dtype_size(dtype));
    }
}

static int64_t sequence_count(const append_case *c) {
    return c->base.args.cu_seqlens ? c->base.args.sequences : c->base.args.batch;
}

/* Indices that the longest sequence has, from the first index of the call's tokens on. */
static int64_t longest_sequence(const append_case *c) {
    const rope_args *a = &c->base.args;
    int64_t ranks = c->base.desc.shard_size ? c->base.desc.shard_size : 1;
    int64_t most = a->cu_seqlens ? 0 : a->tokens * ranks;
    for (int64_t s = 0; a->cu_seqlens && s < a->sequences; s++) {
        int64_t length = c->base.boundary[s + 1] - c->base.boundary[s];
        most = length > most ? length : most;
    }
    return most;
}

/* Elements of a token in the widest cache. */
static int64_t widest_row(append_case *c) {
    int64_t k = tensor_of(c, K)->heads * head_dim(c, K);
    int64_t v = tensor_of(c, V)->heads * head_dim(c, V);
    return k > v ? k : v > 0 ? v : 1;
}

enum { LARGEST_START = 12, OFFSETS = 5 /* of position_offset and sequence_offsets, at most */ };

/* Pages and their size, for which every token has a place. */
static void choose_pages(test_random *r, append_case *c) {
    rope_append_desc *d = &c->desc;
    int64_t sequences = sequence_count(c), spare = 2 * ELEMENT_BUDGET / widest_row(c) + 1;
    int64_t used = longest_sequence(c) + (c->args.cache_starts ? LARGEST_START : OFFSETS);
    d->page_size = random_between(r, 1, spare < 24 ? spare : 24);
    if (d->cache == ROPE_CACHE_SLOTS) {
        int64_t sites = c->base.args.batch * c->base.args.tokens;
        c->args.pages = (sites + sites / 4) / d->page_size + random_between(r, 1, 3);
        return;
    }
    if (random_chance(r, 40)) {
        d->ring = random_between(r, 1, used + 3);
        used = d->ring < used ? d->ring : used;
    }
    if (d->cache == ROPE_CACHE_SEQUENCE) {
        d->page_size = (d->ring > used ? d->ring : used) + random_between(r, 0, 3);
        c->args.pages = sequences + random_between(r, 1, 2);
        return;
    }
    c->args.table_pages = (used + d->page_size - 1) / d->page_size + random_between(r, 0, 2);
    c->args.pages = sequences * c->args.table_pages + random_between(r, 1, 3);
}

/* An array of two dimensions, contiguous or padded. */
static const void *reserve_table(test_random *r, append_case *c, int32_t dtype, int64_t rows,
                                 int64_t columns, int64_t stride[2]) {
    int32_t type = dtype ? dtype : c->base.desc.position_dtype;
    int64_t size = type == ROPE_I32 ? 4 : 8;
    int64_t step = 1, row = columns;
    if (random_chance(r, 40)) {
        step = random_between(r, 1, 2);
        row = columns * step + random_between(r, 0, 3);
        stride[0] = row;
        stride[1] = step;
    }
    return case_reserve(&c->base, (rows * row + 1) * size, size);
}

static void choose_maps(test_random *r, append_case *c) {
    const rope_args *a = &c->base.args;
    if (c->desc.cache == ROPE_CACHE_SLOTS)
        c->args.slots =
            reserve_table(r, c, c->desc.slot_dtype, a->batch, a->tokens, c->args.slot_stride);
    if (c->desc.cache == ROPE_CACHE_TABLE)
        c->args.block_table = reserve_table(r, c, c->desc.table_dtype, sequence_count(c),
                                            c->args.table_pages, c->args.table_stride);
}

/* The five dimensions of a cache from the innermost out: NHD, HND, K in blocks and V with tokens
 * innermost as vLLM has them, and one more. */
static void choose_cache_strides(test_random *r, append_case *c, int32_t tensor, int pages_apart,
                                 int64_t stride[5]) {
    static const int32_t orders[5][5] = {
        {4, 3, 2, 1, 0}, {4, 3, 1, 2, 0}, {4, 1, 3, 2, 0}, {1, 4, 3, 2, 0}, {4, 3, 2, 0, 1}};
    int64_t dim = head_dim(c, tensor);
    int32_t block = tensor == K ? c->desc.k_dim_block : c->desc.v_dim_block;
    block = block ? block : (int32_t)dim;
    const int64_t count[5] = {c->args.pages, c->desc.page_size, tensor_of(c, tensor)->heads,
                              dim / block, block};
    int64_t choice = random_between(r, 0, pages_apart ? 3 : 4), next = random_chance(r, 8) ? 2 : 1;
    const int32_t *order = orders[c->vectors && choice == 3 ? 0 : choice];
    next = c->vectors ? 1 : next;
    int padded = random_chance(r, 30);
    for (int i = 0; i < 5; i++) {
        stride[order[i]] = next;
        next = next * count[order[i]] + (padded ? whole(c, random_between(r, 0, 3)) : 0);
    }
}

static int64_t cache_extent(append_case *c, int32_t tensor, const int64_t stride[5],
                            int64_t pages) {
    int64_t dim = head_dim(c, tensor);
    int32_t block = tensor == K ? c->desc.k_dim_block : c->desc.v_dim_block;
    block = block ? block : (int32_t)dim;
    return (pages - 1) * stride[0] + (c->desc.page_size - 1) * stride[1] +
           (tensor_of(c, tensor)->heads - 1) * stride[2] + (dim / block - 1) * stride[3] +
           (block - 1) * stride[4] + 1;
}

static int32_t store_dtype(append_case *c, int32_t tensor) {
    int32_t dtype = part_of(c, tensor)->store_dtype;
    return dtype ? dtype : c->base.desc.dtype;
}

/* K and V of a page behind each other in one tensor. */
static void reserve_joint_cache(test_random *r, append_case *c) {
    int64_t size = oracle_dtype_size(store_dtype(c, K));
    choose_cache_strides(r, c, K, 1, c->args.k_cache.stride);
    choose_cache_strides(r, c, V, 1, c->args.v_cache.stride);
    int64_t k = cache_extent(c, K, c->args.k_cache.stride, 1);
    int64_t v = cache_extent(c, V, c->args.v_cache.stride, 1), page = k + v;
    c->args.k_cache.stride[0] = c->args.v_cache.stride[0] = page;
    const char *data = case_reserve(&c->base, page * c->args.pages * size, size);
    c->args.k_cache.data = (void *)(uintptr_t)data;
    c->args.v_cache.data = (void *)(uintptr_t)(data + k * size);
}

static void reserve_cache(test_random *r, append_case *c, int32_t tensor) {
    rope_cache *cache = cache_of(c, tensor);
    int64_t size = oracle_dtype_size(store_dtype(c, tensor));
    int64_t extent =
        c->args.pages * c->desc.page_size * tensor_of(c, tensor)->heads * head_dim(c, tensor);
    if (random_chance(r, 70)) {
        choose_cache_strides(r, c, tensor, 0, cache->stride);
        extent = cache_extent(c, tensor, cache->stride, c->args.pages);
    }
    cache->data = (void *)(uintptr_t)case_reserve(&c->base, extent * size, size);
}

static void reserve_scale(test_random *r, append_case *c, int32_t tensor) {
    const rope_args *a = &c->base.args;
    int32_t kind = part_of(c, tensor)->scale;
    int64_t heads = tensor_of(c, tensor)->heads, count[3] = {1, 1, 1}, stride[3], next = 1;
    rope_scale *scale = scale_of(c, tensor);
    if (kind >= ROPE_SCALE_HEAD)
        count[2] = heads;
    if (kind >= ROPE_SCALE_TOKEN_HEAD) {
        count[0] = tensor == Q ? a->batch : c->args.pages;
        count[1] = tensor == Q ? a->tokens : c->desc.page_size;
    }
    int given = kind > ROPE_SCALE_TENSOR && random_chance(r, 40), swap = random_chance(r, 50);
    for (int i = 2; i >= 0; i--) {
        int d = swap && i ? 3 - i : i; /* heads, or tokens of a page, innermost */
        stride[d] = given ? next : 0;
        next = next * (count[d] ? count[d] : 1) + (given ? random_between(r, 0, 1) : 0);
    }
    if (kind == ROPE_SCALE_HEAD)
        stride[0] = stride[1] = 0;
    memcpy(scale->stride, stride, sizeof stride);
    scale->data = (void *)(uintptr_t)case_reserve(&c->base, next * 4, 4);
}

static void choose_stores(test_random *r, append_case *c) {
    int both = c->cached[K] && c->cached[V];
    int same = both && oracle_dtype_size(store_dtype(c, K)) == oracle_dtype_size(store_dtype(c, V));
    if (c->desc.cache) {
        choose_pages(r, c);
        choose_maps(r, c);
    }
    if (same && random_chance(r, 30))
        reserve_joint_cache(r, c);
    else
        for (int32_t i = K; i <= V; i++)
            if (c->cached[i])
                reserve_cache(r, c, i);
    for (int32_t i = Q; i <= V; i++)
        if (part_of(c, i)->scale && tensor_of(c, i)->heads && (i == Q || c->cached[i]))
            reserve_scale(r, c, i);
}

static int64_t *shuffled(test_random *r, int64_t count) {
    int64_t *list = calloc((size_t)count + 1, sizeof *list);
    random_order(r, list, count);
    return list;
}

static int32_t index_dtype(const append_case *c, int32_t dtype) {
    return dtype ? dtype : c->base.desc.position_dtype;
}

static void fill_slots(test_random *r, append_case *c) {
    const rope_args *a = &c->base.args;
    const int64_t *given = c->args.slot_stride;
    int64_t row = given[0] ? given[0] : a->tokens, step = given[1] ? given[1] : 1;
    int64_t *slot = shuffled(r, c->args.pages * c->desc.page_size);
    if (random_chance(r, 30)) /* a prefill: one after the other */
        for (int64_t i = 0; i < a->batch * a->tokens; i++)
            slot[i] = i;
    for (int64_t i = 0; i < a->batch * a->tokens; i++)
        case_store_index(index_dtype(c, c->desc.slot_dtype), c->args.slots,
                         i / a->tokens * row + i % a->tokens * step,
                         random_chance(r, 10) ? -random_between(r, 1, 3) : slot[i]);
    free(slot);
}

static void fill_table(test_random *r, append_case *c) {
    const int64_t *given = c->args.table_stride, pages = c->args.table_pages;
    int64_t row = given[0] ? given[0] : pages, step = given[1] ? given[1] : 1;
    int64_t *page = shuffled(r, c->args.pages);
    for (int64_t i = 0; i < sequence_count(c) * pages; i++)
        case_store_index(index_dtype(c, c->desc.table_dtype), c->args.block_table,
                         i / pages * row + i % pages * step, page[i]);
    free(page);
}

/* Sequences that no token is of have entries, too. */
static void fill_starts(test_random *r, append_case *c) {
    int64_t sequences = sequence_count(c);
    int32_t dtype = c->base.desc.position_dtype;
    for (int64_t s = 0; c->args.cache_starts && s < sequences; s++)
        case_store_index(dtype, c->args.cache_starts, s, random_between(r, 0, LARGEST_START));
    for (int64_t s = 0; indexes_sequences(c) && !c->args.cache_starts &&
                        c->base.args.sequence_offsets && s < sequences;
         s++)
        case_store_index(dtype, c->base.args.sequence_offsets, s, random_between(r, 0, 2));
}

/* Any bits, or with tame those of finite numbers. */
static void fill_8bit(append_case *c, int32_t dtype, unsigned char *at, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) {
        at[i] = (unsigned char)random_bits(&c->base.random);
        if (!c->base.wild && !isfinite(oracle_load(dtype, at, (int64_t)i)))
            at[i] = 0x31;
    }
}

/* Keys that are read. A cache that K and V share is of one size of elements. */
static void fill_keys(append_case *c) {
    int32_t dtype = store_dtype(c, K);
    unsigned char *at = c->args.k_cache.data;
    size_t bytes = at ? case_piece_bytes(&c->base, at) : 0;
    if (!moves_keys(c))
        return;
    if (oracle_dtype_size(dtype) == 1)
        fill_8bit(c, dtype, at, bytes);
    else
        case_fill_data(&c->base.random, c->base.wild, at, bytes, dtype, 4);
}

static void fill_weights(append_case *c) {
    for (int32_t i = Q; i <= V; i++) {
        const rope_norm *norm = &part_of(c, i)->norm;
        void *data = (void *)(uintptr_t)weight_of(c, i)->data;
        if (data)
            case_fill_data(&c->base.random, c->base.wild, data, case_piece_bytes(&c->base, data),
                           norm->weight_dtype ? norm->weight_dtype : c->base.desc.dtype, 1.5);
    }
}

static float any_scale(test_random *r) {
    return random_chance(r, 20) ? 0.0625F : (float)random_real(r, 0.002, 0.2);
}

static float bad_scale(test_random *r) {
    static const float bad[] = {0, -0.5F, INFINITY, NAN, -INFINITY, -0.0F};
    return bad[random_between(r, 0, 5)];
}

/* Scales of other keys, too. */
static void fill_all_scales(append_case *c) {
    for (int32_t i = K; i <= V; i++) {
        float *scale = scale_of(c, i)->data;
        const size_t count = scale ? case_piece_bytes(&c->base, scale) / sizeof *scale : 0;
        for (size_t n = 0; n < count; n++)
            scale[n] = any_scale(&c->base.random);
    }
}

/* The i-th token's place, of q that in its scales. */
static oracle_place place_of(const append_case *c, int32_t tensor, int64_t i) {
    int64_t batch = i / c->args.rope.tokens, token = i % c->args.rope.tokens;
    if (tensor == Q)
        return (oracle_place){ORACLE_PLACE_GIVEN, batch, token};
    return oracle_append_place(&c->desc, &c->args, batch, token);
}

/* Scales that are read; those of places without a token stay what they were. With a fault one of
 * the last token that has a place is no scale. */
static void fill_scales(test_random *r, append_case *c, int32_t tensor, int fault) {
    oracle_tensor t = oracle_append_tensor(&c->desc, &c->args, tensor);
    int given = t.part->scale && t.part->scale <= ROPE_SCALE_TOKEN_HEAD;
    float *scale = t.scale->data;
    int64_t last = -1;
    if (!scale || (!given && !moves_keys(c)))
        return;
    for (int64_t h = 0; t.part->scale <= ROPE_SCALE_HEAD && h < t.heads; h++)
        scale[oracle_scale_at(&t, 0, 0, h)] = any_scale(r);
    for (int64_t i = 0; i < c->args.rope.batch * c->args.rope.tokens; i++) {
        oracle_place place = place_of(c, tensor, i);
        if (place.status != ORACLE_PLACE_GIVEN)
            continue;
        for (int64_t h = 0; h < t.heads; h++)
            scale[oracle_scale_at(&t, place.page, place.slot, h)] = any_scale(r);
        last = oracle_scale_at(&t, place.page, place.slot, random_between(r, 0, t.heads - 1));
    }
    if (fault && given && last >= 0)
        scale[last] = bad_scale(r);
}

static void break_slot(test_random *r, append_case *c, int64_t i) {
    const int64_t *given = c->args.slot_stride, tokens = c->args.rope.tokens;
    int64_t row = given[0] ? given[0] : tokens, step = given[1] ? given[1] : 1;
    case_store_index(index_dtype(c, c->desc.slot_dtype), c->args.slots,
                     i / tokens * row + i % tokens * step,
                     random_chance(r, 50) ? c->args.pages * c->desc.page_size : INT32_MAX);
}

/* Every page of a sequence. */
static void break_pages(test_random *r, append_case *c, int64_t sequence) {
    const int64_t *given = c->args.table_stride;
    int64_t row = given[0] ? given[0] : c->args.table_pages, step = given[1] ? given[1] : 1;
    int64_t bad = random_chance(r, 50) ? c->args.pages : random_chance(r, 50) ? -1 : INT32_MAX;
    for (int64_t p = 0; p < c->args.table_pages; p++)
        case_store_index(index_dtype(c, c->desc.table_dtype), c->args.block_table,
                         sequence * row + p * step, bad);
}

/* Sequences begin where their pages end, or elsewhere outside. */
static void break_starts(test_random *r, append_case *c) {
    int64_t pages = c->desc.cache == ROPE_CACHE_TABLE ? c->args.table_pages : 1;
    int64_t end = pages * c->desc.page_size;
    for (int64_t s = 0; s < sequence_count(c); s++) {
        int64_t bad = random_chance(r, 60)   ? end - random_between(r, 0, 2)
                      : random_chance(r, 50) ? -random_between(r, 1, 1000000)
                                             : INT32_MAX;
        case_store_index(c->base.desc.position_dtype, c->args.cache_starts, s, bad);
    }
}

/* An index that leads nowhere, for a token that has a place. */
static void break_place(test_random *r, append_case *c) {
    int64_t sites = c->args.rope.batch * c->args.rope.tokens;
    int64_t i = sites > 0 ? random_between(r, 0, sites - 1) : -1;
    if (i < 0 || place_of(c, K, i).status != ORACLE_PLACE_GIVEN)
        return;
    if (c->desc.cache == ROPE_CACHE_SLOTS)
        break_slot(r, c, i);
    else if (c->args.cache_starts && random_chance(r, 60))
        break_starts(r, c);
    else if (c->desc.cache == ROPE_CACHE_TABLE)
        break_pages(r, c,
                    c->args.rope.cu_seqlens ? sequence_count(c) - 1 : i / c->args.rope.tokens);
}

/* The first head of the first token: zeros, or the least subnormals of dtype. */
static void fill_tiny_head(test_random *r, append_case *c, int32_t tensor) {
    const rope_args *a = &c->base.args;
    rope_tensor *t = tensor_of(c, tensor);
    int64_t step = t->in_stride[3] ? t->in_stride[3] : 1;
    double least = random_chance(r, 50) ? 0 : c->base.desc.dtype == ROPE_F16 ? 0x1p-24 : 0x1p-133;
    if (!t->in || a->batch * a->tokens * t->heads == 0)
        return;
    for (int64_t i = 0; i < head_dim(c, tensor); i++)
        oracle_store(c->base.desc.dtype, (void *)(uintptr_t)t->in, i * step,
                     i % 2 ? least : -least);
}

static void fill(append_case *c, const append_wish *wish) {
    test_random *r = &c->base.random;
    case_wish rope = {.in_range = wish->in_range};
    case_fill_tensors(&c->base);
    case_fill_table(&c->base);
    for (int32_t i = Q; i <= V; i++)
        if (random_chance(r, 10))
            fill_tiny_head(r, c, i);
    fill_keys(c);
    fill_weights(c);
    case_fill_positions(&c->base, &rope);
    if (c->args.slots)
        fill_slots(r, c);
    if (c->args.block_table)
        fill_table(r, c);
    fill_starts(r, c);
    if (c->base.args.position_flag)
        *c->base.args.position_flag = 0;
}

static void clear_scales(append_case *c) {
    for (int32_t i = Q; i <= V; i++)
        if (scale_of(c, i)->data)
            memset(scale_of(c, i)->data, 0xa5, case_piece_bytes(&c->base, scale_of(c, i)->data));
}

static void add_faults(append_case *c, const append_wish *wish) {
    test_random *r = &c->base.random;
    int fault = !wish->in_range && random_chance(r, 12);
    int of_place = fault && random_chance(r, 60);
    int32_t of_scale = fault && !of_place ? (int32_t)random_between(r, Q, V) : -1;
    clear_scales(c);
    if (wish->attended)
        fill_all_scales(c);
    for (int32_t i = Q; i <= V; i++)
        fill_scales(r, c, i, of_scale == i);
    if (of_place && c->desc.cache)
        break_place(r, c);
}

void append_make(append_case *c, uint64_t seed, int64_t index, const append_wish *wish) {
    static const append_wish any;
    wish = wish ? wish : &any;
    memset(c, 0, sizeof *c);
    test_case *base = &c->base;
    test_random *r = &base->random;
    base->index = index;
    base->random = random_stream(seed, index);
    c->desc.struct_size = sizeof c->desc;
    c->args.struct_size = sizeof c->args;
    base->desc.struct_size = sizeof base->desc;
    base->args.struct_size = sizeof base->args;
    base->wild = !wish->tame && random_chance(r, 25);
    c->vectors = random_chance(r, 50);
    base->alignment = c->vectors ? 32 : 0;
    choose_desc(r, c, wish);
    if (wish->gradients)
        keep_gradients(c);
    choose_positions(r, c);
    choose_heads(r, c);
    if (wish->attended)
        share_heads(r, c);
    choose_caches(r, c, wish->attended != NULL);
    if (moves_keys(c))
        ;
    else if (!wish->out_of_place && random_chance(r, 25))
        choose_fused_inputs(r, c);
    else
        for (int32_t i = Q; i <= V; i++)
            if (tensor_of(c, i)->heads)
                choose_view(r, c, i, wish);
    choose_weights(r, c);
    choose_stores(r, c);
    if (wish->gradients)
        wish->gradients(c);
    if (wish->attended)
        wish->attended(c);
    case_choose_table(r, base, &(case_wish){.in_range = wish->in_range});
    if (random_chance(r, 30))
        base->args.position_flag = (int32_t *)(uintptr_t)case_reserve(base, 4, 4);
    case_make_arena(base);
    append_relocate(&c->args, NULL, base->arena);
    fill(c, wish);
    c->desc.rope = base->desc;
    c->args.rope = base->args;
    add_faults(c, wish);
}

void append_free(append_case *c) {
    case_free(&c->base);
}
