/* The descriptor and the call of a generated case of rope_attention. */
#include "tests/attention/cases.h"

#include "tests/attention/norms.h"
#include "tests/rope/case_parts.h"

#include <math.h>
#include <string.h>

enum {
    ELEMENT_BUDGET = 40000,  /* elements of keys and values in all */
    PRODUCT_BUDGET = 400000, /* multiplications of a case */
    LARGE_BUDGET = 8000000,  /* of a large one */
    LONG_KEYS = 2600         /* most keys of a case of few queries */
};

void attention_pointers(rope_attention_args *args, const void **list[ATTENTION_POINTERS]) {
    const void **pointers[] = {&args->v.in,
                               (const void **)&args->out.data,
                               (const void **)&args->lse,
                               &args->q_lengths,
                               &args->k_lengths,
                               &args->k_cu_seqlens,
                               &args->k_position_ids,
                               &args->sinks,
                               &args->tree_bits,
                               (const void **)&args->k_cache.data,
                               (const void **)&args->k_cache.scale.data,
                               (const void **)&args->v_cache.data,
                               (const void **)&args->v_cache.scale.data,
                               &args->block_table,
                               &args->q_weight.data,
                               &args->k_weight.data};
    case_pointers(&args->rope, list);
    memcpy(list + CASE_POINTERS, pointers, sizeof pointers);
}

void attention_relocate(rope_attention_args *args, const void *from, const void *to) {
    const void **list[ATTENTION_POINTERS];
    attention_pointers(args, list);
    case_move_pointers(list, ATTENTION_POINTERS, from, to);
}

static int64_t one_of(test_random *r, const int64_t *list, int64_t count) {
    return list[random_between(r, 0, count - 1)];
}
#define ONE_OF(r, ...)                                                                             \
    one_of(r, (const int64_t[]){__VA_ARGS__}, sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t))

static int64_t index_size(const attention_case *c) {
    return c->base.desc.position_dtype == ROPE_I32 ? 4 : 8;
}

static void *reserve(attention_case *c, int64_t count, int64_t size) {
    return (void *)(uintptr_t)case_reserve(&c->base, count * size, size);
}

/* --- the descriptor --- */

static void choose_rope(test_random *r, attention_case *c) {
    const int plain = c->decode && random_chance(r, 75);
    const case_wish wish = {.single = 1,
                            .latent = !c->decode && !c->provided && random_chance(r, 6),
                            .angle_mode = plain ? ROPE_ANGLE_EXACT : 0,
                            .single_axis = plain};
    rope_desc *d = &c->base.desc;
    if (c->desc.rotation == ROPE_ATTENTION_ROTATE_NONE) {
        d->dtype = (int32_t)random_between(r, ROPE_F32, ROPE_BF16);
        d->head_dim = (int32_t)(c->provided ? ONE_OF(r, 64, 128)
                                : c->decode ? ONE_OF(r, 64, 64, 128, 128, 96, 192, 256)
                                            : ONE_OF(r, 2, 3, 5, 16, 17, 33, 64, 64, 80, 96, 127,
                                                     128, 128, 192, 256, 576));
        d->position_dtype = (int32_t)ONE_OF(r, 0, ROPE_I32, ROPE_I64);
        d->launch = (int32_t)random_between(r, 0, ROPE_LAUNCH_PROGRAMMATIC);
        return;
    }
    do {
        *d = (rope_desc){.struct_size = sizeof *d};
        case_choose_desc(&c->base, &wish);
    } while (c->provided && d->head_dim > 128);
    /* kernels of matrix instructions have room for 64 and 128, and most calls that many */
    if ((c->decode || c->provided) && d->head_dim <= 128) {
        d->rotary_dim = d->rotary_dim ? d->rotary_dim : d->head_dim;
        d->head_dim = c->decode && !c->provided && random_chance(r, 30) ? (d->head_dim + 7) / 8 * 8
                      : d->head_dim <= 64                               ? 64
                                                                        : 128;
    }
    if (plain) {
        d->pairing_out = d->pairing_in;
        d->arithmetic = 0;
        d->xpos_scale_base = 0;
        d->xpos_center = 0;
    }
    d->shard = random_chance(r, 50) ? ROPE_SHARD_NONE : 0;
    d->shard_rank = d->shard_size = d->k_head_dim = d->k_rotary_offset = 0;
    if (random_chance(r, 20)) {
        d->k_head_dim = d->head_dim;
        d->k_rotary_offset = d->rotary_offset;
    }
}

static void choose_mask(test_random *r, const attention_case *c, rope_attention_desc *d) {
    d->mask = (int32_t)random_between(r, 0, c->decode ? ROPE_MASK_FULL : ROPE_MASK_TREE);
    if (random_chance(r, 30))
        d->scale = random_real(r, 0.01, 0.5);
    if (random_chance(r, 20))
        d->soft_cap = random_chance(r, 25) ? ldexp(1, (int)random_between(r, -60, 60))
                                           : random_real(r, 2, 50);
    if (random_chance(r, c->decode ? 60 : 30))
        d->window = ONE_OF(r, 1, 2, 7, 31, 64, 100, 1000);
    if (d->mask == ROPE_MASK_FULL && random_chance(r, 40))
        d->window_right = ONE_OF(r, 1, 3, 17, 64);
    if (random_chance(r, 15))
        d->chunk = ONE_OF(r, 1, 3, 16, 64, 100);
}

/* Whether positions count in the mask. */
static int counts(const attention_case *c) {
    return c->desc.mask == ROPE_MASK_TREE && (c->desc.window || c->desc.chunk);
}

static void choose_store(test_random *r, rope_attention_store *store, int64_t dim) {
    store->dtype = (int32_t)ONE_OF(r, 0, 0, ROPE_F32, ROPE_F16, ROPE_BF16, ROPE_F8E4M3, ROPE_F8E5M2,
                                   ROPE_F8E4M3FNUZ, ROPE_I8);
    if (store->dtype >= ROPE_F8E4M3)
        store->scale = (int32_t)random_between(r, 0, ROPE_SCALE_TOKEN_HEAD_MAX);
    int32_t block = 1 << random_between(r, 0, 4);
    if (random_chance(r, 25) && dim % block == 0)
        store->dim_block = block;
}

static void choose_desc(test_random *r, attention_case *c) {
    rope_attention_desc *d = &c->desc;
    d->rotation = random_chance(r, 45)   ? (int32_t)random_between(r, 0, ROPE_ATTENTION_ROTATE_QK)
                  : random_chance(r, 45) ? ROPE_ATTENTION_ROTATE_Q
                                         : ROPE_ATTENTION_ROTATE_NONE;
    choose_rope(r, c);
    const int32_t dim = c->base.desc.head_dim;
    if (dim == 576 && random_chance(r, 60))
        d->v_head_dim = 512;
    else if (dim == 192 && random_chance(r, 60))
        d->v_head_dim = 128;
    else if (!c->decode && random_chance(r, 25))
        d->v_head_dim = (int32_t)ONE_OF(r, 1, 3, 16, 40, 64, 80, 128, 129);
    choose_mask(r, c, d);
    if (random_chance(r, 30))
        d->sink_dtype = random_chance(r, 50) ? ROPE_F32 : c->base.desc.dtype;
    if (random_chance(r, 45))
        return;
    d->cache = (int32_t)random_between(r, ROPE_CACHE_TABLE, ROPE_CACHE_SEQUENCE);
    if (d->cache == ROPE_CACHE_TABLE)
        d->table_dtype = (int32_t)ONE_OF(r, 0, ROPE_I32, ROPE_I64);
    if (c->decode || c->provided)
        return;
    choose_store(r, &d->k, dim);
    choose_store(r, &d->v, d->v_head_dim ? d->v_head_dim : dim);
}

/* What providers do not have is something else. */
static void choose_provided(attention_case *c, int gradients) {
    rope_attention_desc *d = &c->desc;
    rope_desc *rope = &c->base.desc;
    if (rope->dtype == ROPE_F32 || (gradients && rope->dtype == ROPE_F16)) {
        rope->dtype = ROPE_BF16;
        rope->table_dtype = 0;
        d->sink_dtype = d->sink_dtype ? ROPE_F32 : 0;
    }
    if (c->decode) /* one query with a sink is not cuDNN's */
        d->sink_dtype = 0;
    if (rope->angle_mode == ROPE_ANGLE_TABLE)
        rope->out_of_range = ROPE_OUT_OF_RANGE_CLAMP;
    if (d->mask == ROPE_MASK_TREE)
        d->mask = ROPE_MASK_FULL;
    if (d->cache && d->rotation <= ROPE_ATTENTION_ROTATE_QK)
        d->cache = d->table_dtype = 0;
    d->v_head_dim = 0;
    d->soft_cap = 0;
    d->chunk = 0;
}

static int64_t dims(const attention_case *c) {
    const oracle_attention o = {&c->desc, &c->args};
    return c->base.desc.head_dim +
           (c->desc.v_head_dim ? oracle_attention_head_dim(&o, ORACLE_V) : c->base.desc.head_dim);
}

/* What rope_attention_backward refuses. */
static void choose_differentiable(attention_case *c) {
    rope_desc *d = &c->base.desc;
    c->desc.cache = c->desc.table_dtype = 0;
    c->desc.k = c->desc.v = (rope_attention_store){0};
    if (c->desc.mask == ROPE_MASK_TREE)
        c->desc.mask = ROPE_MASK_FULL;
    if (d->direction == ROPE_INVERSE)
        d->direction = ROPE_TRANSPOSE;
    if (d->table_width == ROPE_TABLE_FULL)
        d->pairing_out = d->pairing_in;
}

/* --- sequences --- */

/* Around the ends of blocks, or anything. */
static int64_t choose_count(test_random *r, int64_t most) {
    const int64_t edge = ONE_OF(r, 1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 512, 1024, 2048) +
                         random_between(r, -1, 1);
    if (random_chance(r, 50) && edge <= most)
        return edge;
    return random_chance(r, 4) ? 0 : random_between(r, most > 0, most);
}

static void choose_counts(test_random *r, attention_case *c, const attention_wish *wish) {
    const int few = c->decode || (!wish->large && random_chance(r, 35));
    const int64_t most_keys = few ? LONG_KEYS : 320, dim = dims(c);
    rope_args *a = &c->base.args;
    c->parts = random_chance(r, 3) ? 0 : few ? random_between(r, 1, 2) : random_between(r, 1, 4);
    const int64_t parts = c->parts ? c->parts : 1;
    a->k.heads = ONE_OF(r, 1, 1, 2, 3);
    int64_t keys = ELEMENT_BUDGET / (parts * dim * a->k.heads);
    keys = keys < 3 ? 3 : keys > most_keys ? most_keys : keys;
    a->q.heads = a->k.heads * (wish->large ? ONE_OF(r, 1, 2, 5, 7) : ONE_OF(r, 1, 1, 2, 3, 4, 8));
    const int same = random_chance(r, 40);
    for (int64_t s = 0; s < c->parts; s++) {
        c->k_count[s] = s && same ? c->k_count[0] : choose_count(r, keys);
        const int64_t n = c->k_count[s] ? c->k_count[s] : 1;
        int64_t most =
            (wish->large ? LARGE_BUDGET : PRODUCT_BUDGET) / (parts * n * dim * a->q.heads);
        most = most < 1 ? 1 : most > 250 ? 250 : !wish->large && most > 150 ? 150 : most;
        if (few && most > 3)
            most = 3;
        c->q_count[s] = s && same                           ? c->q_count[0]
                        : most >= n && random_chance(r, 50) ? n
                                                            : choose_count(r, most);
        if (c->decode)
            c->q_count[s] = 1;
        /* a query ahead of the first key may have a position below 0, which no table has */
        const int tabled = wish->in_range && c->base.desc.angle_mode == ROPE_ANGLE_TABLE;
        if (c->q_count[s] > c->k_count[s] && (tabled || random_chance(r, 80)))
            c->q_count[s] = c->k_count[s];
        if (c->alike && c->q_count[s] == 1) /* cuDNN's backward has none of one query and one key */
            c->q_count[s] = 2;
    }
}

static int64_t largest(const int64_t *list, int64_t count) {
    int64_t most = 0;
    for (int64_t i = 0; i < count; i++)
        most = list[i] > most ? list[i] : most;
    return most;
}

static int are_equal(const int64_t *list, int64_t count) {
    int equal = 1;
    for (int64_t i = 1; i < count; i++)
        equal &= list[i] == list[0];
    return equal;
}

/* Boundaries, which attention_fill writes: gaps ahead of the first and behind the last, and where
 * lengths say what is used also behind others. */
static int64_t packed_tokens(test_random *r, attention_case *c, const int64_t *counts,
                             int64_t *boundary, const void **lengths) {
    if (!c->alike && random_chance(r, 35))
        *lengths = reserve(c, c->parts + 1, index_size(c));
    boundary[0] = random_chance(r, 70) ? 0 : random_between(r, 1, 3);
    for (int64_t s = 0; s < c->parts; s++)
        boundary[s + 1] = boundary[s] + counts[s] + (*lengths ? random_between(r, 0, 3) : 0);
    return boundary[c->parts] + (random_chance(r, 70) ? 0 : random_between(r, 1, 3));
}

static void choose_queries(test_random *r, attention_case *c, int packed) {
    rope_args *a = &c->base.args;
    const int differ = packed && c->alike && random_chance(r, 30);
    for (int64_t s = 0; c->alike && s < c->parts; s++)
        c->k_count[s] = c->q_count[s] = c->q_count[differ ? s : 0];
    if (packed) {
        a->batch = 1;
        a->sequences = c->parts;
        a->tokens = packed_tokens(r, c, c->q_count, c->base.boundary, &c->args.q_lengths);
        a->cu_seqlens = reserve(c, c->parts + 1, index_size(c));
        return;
    }
    a->batch = c->parts;
    a->tokens = largest(c->q_count, c->parts);
    if (c->alike || (are_equal(c->q_count, c->parts) && random_chance(r, 70)))
        return;
    a->tokens += c->few || random_chance(r, 50) ? 0 : random_between(r, 1, 3);
    c->args.q_lengths = reserve(c, c->parts + 1, index_size(c));
}

/* Keys of a ring that a sequence has gone round. */
static void choose_ring(test_random *r, attention_case *c) {
    if (!c->desc.cache || c->decode || c->few || c->provided || !random_chance(r, 25))
        return;
    const int64_t most = largest(c->k_count, c->parts);
    c->desc.ring = random_between(r, 1, most + 2);
    for (int64_t s = 0; s < c->parts; s++)
        if (random_chance(r, 40))
            c->k_count[s] += c->desc.ring * random_between(r, 1, random_chance(r, 80) ? 3 : 900);
}

static void choose_keys(test_random *r, attention_case *c, int packed) {
    int64_t kept = 0;
    choose_ring(r, c);
    for (int64_t s = 0; s < c->parts; s++) {
        int64_t n = c->k_count[s];
        n = c->desc.ring && n > c->desc.ring ? c->desc.ring : n;
        kept = n > kept ? n : kept;
    }
    if (packed && c->alike) {
        c->args.k_tokens = c->base.args.tokens;
        c->args.k_cu_seqlens = c->base.args.cu_seqlens;
        memcpy(c->k_boundary, c->base.boundary, (size_t)(c->parts + 1) * sizeof *c->k_boundary);
    } else if (packed && !c->desc.cache) {
        c->args.k_tokens = packed_tokens(r, c, c->k_count, c->k_boundary, &c->args.k_lengths);
        c->args.k_tokens += c->args.k_tokens == 0;
        c->args.k_cu_seqlens = reserve(c, c->parts + 1, index_size(c));
    } else if (c->desc.cache) {
        c->args.k_tokens = random_chance(r, 50) ? 0 : kept + random_between(r, 1, 3);
        c->args.k_lengths = reserve(c, c->parts + 1, index_size(c));
    } else {
        c->args.k_tokens = kept ? kept : 1;
        const int same = are_equal(c->k_count, c->parts) && kept;
        if (c->alike || (same && (c->few || random_chance(r, 60)) &&
                         !(c->provided && kept != c->base.args.tokens))) /* engines of each */
            return;
        c->args.k_tokens += random_chance(r, 50) ? 0 : random_between(r, 1, 3);
        c->args.k_lengths = reserve(c, c->parts + 1, index_size(c));
    }
}

static void choose_pages(test_random *r, attention_case *c) {
    rope_attention_desc *d = &c->desc;
    int64_t kept = d->ring;
    for (int64_t s = 0; !d->ring && s < c->parts; s++)
        kept = c->k_count[s] > kept ? c->k_count[s] : kept;
    const int64_t parts = c->parts ? c->parts : 1;
    if (d->cache == ROPE_CACHE_SEQUENCE) {
        d->page_size = kept + random_between(r, kept == 0, 3);
        c->args.pages = parts + random_between(r, 0, 2);
        return;
    }
    if (!c->few)
        d->page_size = ONE_OF(r, 1, 2, 3, 8, 16, 16, 32, 64);
    c->args.table_pages =
        (kept + d->page_size - 1) / d->page_size + random_between(r, 0, c->few ? 0 : 2);
    c->args.table_pages += c->args.table_pages == 0;
    c->args.pages = parts * c->args.table_pages + random_between(r, 0, 3);
    int64_t step = 1, row = c->args.table_pages;
    if (random_chance(r, 40)) {
        step = random_between(r, 1, 2);
        row = row * step + random_between(r, 0, 3);
        c->args.table_stride[0] = row;
        c->args.table_stride[1] = step;
    }
    int32_t dtype = d->table_dtype ? d->table_dtype : c->base.desc.position_dtype;
    c->args.block_table = reserve(c, parts * row + 1, dtype == ROPE_I32 ? 4 : 8);
}

/* --- positions --- */

static void reserve_key_ids(test_random *r, attention_case *c) {
    const oracle_attention o = {&c->desc, &c->args};
    const int64_t axes = c->base.desc.axes ? c->base.desc.axes : 1;
    const int64_t rows = c->desc.cache ? c->parts : c->base.args.batch;
    c->args.rope.tokens = c->base.args.tokens; /* which key_tokens may read */
    const int64_t tokens = oracle_attention_key_tokens(&o), step = random_chance(r, 30) ? 2 : 1;
    int64_t longest = tokens;
    for (int64_t s = 0; s < c->parts; s++)
        longest = c->k_count[s] > longest ? c->k_count[s] : longest;
    if (step == 2 || longest > tokens) {
        c->args.k_position_stride[0] = longest * step * (rows ? rows : 1);
        c->args.k_position_stride[1] = longest * step;
        c->args.k_position_stride[2] = step;
    }
    c->args.k_position_ids = reserve(c, axes * rows * longest * step + 1, index_size(c));
}

static void choose_positions(test_random *r, attention_case *c, const attention_wish *wish) {
    rope_args *a = &c->base.args;
    const rope_args given = *a;
    if (c->desc.rotation != ROPE_ATTENTION_ROTATE_NONE) {
        case_choose_positions(r, &c->base);
        int64_t longest = largest(c->k_count, c->parts);
        a->tokens = longest > a->tokens ? longest : a->tokens;
        a->cu_seqlens = NULL; /* a table is as long as the keys */
        case_choose_table(r, &c->base, &(case_wish){.in_range = wish->in_range});
        a->tokens = given.tokens;
        a->cu_seqlens = given.cu_seqlens;
    } else if (counts(c) && random_chance(r, 60)) {
        a->position_ids = reserve(c, a->batch * a->tokens + 1, index_size(c));
    }
    if (a->position_ids &&
        (c->desc.rotation <= ROPE_ATTENTION_ROTATE_QK || (counts(c) && random_chance(r, 40))))
        reserve_key_ids(r, c);
}

/* --- tensors --- */

static void choose_in(test_random *r, attention_case *c, rope_tensor *t, const int64_t count[4],
                      int broadcast) {
    const int64_t plain[4] = {count[1] * count[2] * count[3], count[2] * count[3], count[3], 1};
    const int given = !c->dense && random_chance(r, 60);
    if (given) {
        case_choose_strides(r, count, t->in_stride);
        if (broadcast && random_chance(r, 8))
            t->in_stride[random_between(r, 0, 2)] = 0;
        if (random_chance(r, 6))
            t->in_stride[1] = -t->in_stride[1];
    }
    t->in = case_reserve_view(&c->base, oracle_dtype_size(c->base.desc.dtype), count,
                              given ? t->in_stride : plain);
}

/* What receives a rotated tensor: itself, or another one. */
static void choose_out(test_random *r, attention_case *c, rope_tensor *t, const int64_t count[4],
                       int in_place) {
    const int64_t plain[4] = {count[1] * count[2] * count[3], count[2] * count[3], count[3], 1};
    if (in_place) {
        t->out = (void *)(uintptr_t)t->in;
        memcpy(t->out_stride, t->in_stride, sizeof t->out_stride);
        return;
    }
    const int given = !c->dense && random_chance(r, 50);
    if (given)
        case_choose_strides(r, count, t->out_stride);
    t->out = (void *)(uintptr_t)case_reserve_view(&c->base, oracle_dtype_size(c->base.desc.dtype),
                                                  count, given ? t->out_stride : plain);
}

static void choose_rotated(test_random *r, attention_case *c, rope_tensor *t,
                           const int64_t count[4]) {
    const int of_queries = t == &c->base.args.q,
              reads = c->gradients && attention_norm(c, of_queries ? ORACLE_Q : ORACLE_K)->type,
              in_place = random_chance(r, 40) && !reads; /* what the norm's gradient reads */
    const int writes = !c->few && random_chance(r, 25);
    choose_in(r, c, t, count, !(writes && in_place));
    if (writes)
        choose_out(r, c, t, count, in_place);
}

/* q, k and v as parts of each token's row of one projection. */
static void choose_fused(test_random *r, attention_case *c, const int64_t count[3][4]) {
    rope_tensor *t[3] = {&c->base.args.q, &c->base.args.k, &c->args.v};
    int64_t size = oracle_dtype_size(c->base.desc.dtype), start[3], row = 0;
    for (int i = 0; i < 3; i++) {
        start[i] = row;
        row += count[i][2] * count[i][3] + random_between(r, 0, 3);
    }
    const char *in = reserve(c, row * count[0][1] * count[0][0], size);
    for (int i = 0; i < 3; i++) {
        const int64_t stride[4] = {count[0][1] * row, row, count[i][3], 1};
        t[i]->in = in + start[i] * size;
        memcpy(t[i]->in_stride, stride, sizeof stride);
    }
}

static void choose_tensors(test_random *r, attention_case *c) {
    rope_args *a = &c->base.args;
    const int64_t dim = a->q.heads ? c->base.desc.head_dim : 0, tokens = c->args.k_tokens;
    const int64_t v_dim = c->desc.v_head_dim ? c->desc.v_head_dim : dim;
    const int64_t count[3][4] = {{a->batch, a->tokens, a->q.heads, dim},
                                 {a->batch, tokens, a->k.heads, dim},
                                 {a->batch, tokens, a->k.heads, v_dim}};
    if (!c->desc.cache || random_chance(r, 50))
        c->args.v.heads = a->k.heads;
    if (!c->desc.cache && !c->provided && a->tokens == tokens && random_chance(r, 30)) {
        choose_fused(r, c, count);
        return;
    }
    if (c->desc.rotation == ROPE_ATTENTION_ROTATE_NONE)
        choose_in(r, c, &a->q, count[0], 1);
    else
        choose_rotated(r, c, &a->q, count[0]);
    if (c->desc.cache)
        return;
    if (c->desc.rotation <= ROPE_ATTENTION_ROTATE_QK)
        choose_rotated(r, c, &a->k, count[1]);
    else
        choose_in(r, c, &a->k, count[1], 1);
    if (!a->k.out && v_dim <= dim && random_chance(r, 12)) { /* MLA: values are a part of keys */
        const int64_t *in = a->k.in_stride,
                      plain[4] = {tokens * a->k.heads * dim, a->k.heads * dim, dim, 1};
        c->args.v.in = a->k.in;
        memcpy(c->args.v.in_stride, in[3] ? in : plain, sizeof plain);
        return;
    }
    choose_in(r, c, &c->args.v, count[2], 1);
}

/* --- caches --- */

/* The five dimensions of a cache from the innermost out, as in tests/append/cases.c. */
static void cache_strides(test_random *r, const int64_t count[5], int pages_apart,
                          int64_t stride[5]) {
    static const int32_t orders[5][5] = {
        {4, 3, 2, 1, 0}, {4, 3, 1, 2, 0}, {4, 1, 3, 2, 0}, {1, 4, 3, 2, 0}, {4, 3, 2, 0, 1}};
    const int32_t *order = orders[random_between(r, 0, pages_apart ? 3 : 4)];
    const int padded = random_chance(r, 30);
    int64_t next = random_chance(r, 8) ? 2 : 1;
    for (int i = 0; i < 5; i++) {
        stride[order[i]] = next;
        next = next * count[order[i]] + (padded ? random_between(r, 0, 3) : 0);
    }
}

static int64_t cache_extent(const int64_t count[5], const int64_t stride[5], int first) {
    int64_t extent = 1;
    for (int d = first; d < 5; d++)
        extent += stride[d] * (count[d] - 1);
    return extent;
}

static void reserve_scale(test_random *r, attention_case *c, const rope_attention_store *store,
                          rope_scale *scale) {
    int64_t count[3] = {1, 1, 1}, stride[3], next = 1;
    if (store->scale >= ROPE_SCALE_HEAD)
        count[2] = c->base.args.k.heads;
    if (store->scale >= ROPE_SCALE_TOKEN_HEAD) {
        count[0] = c->args.pages;
        count[1] = c->desc.page_size;
    }
    const int given = store->scale > ROPE_SCALE_TENSOR && random_chance(r, 40),
              swap = random_chance(r, 50);
    for (int i = 2; i >= 0; i--) {
        const int d = swap && i ? 3 - i : i;
        stride[d] = given ? next : 0;
        next = next * count[d] + (given ? random_between(r, 0, 1) : 0);
    }
    if (store->scale == ROPE_SCALE_HEAD)
        stride[0] = stride[1] = 0;
    memcpy(scale->stride, stride, sizeof stride);
    scale->data = reserve(c, next, 4);
}

static void count_cache(const attention_case *c, int32_t tensor, int64_t count[5]) {
    const rope_attention_store *store = tensor == ORACLE_K ? &c->desc.k : &c->desc.v;
    const int64_t dim =
        tensor == ORACLE_V && c->desc.v_head_dim ? c->desc.v_head_dim : c->base.desc.head_dim;
    const int64_t block = store->dim_block ? store->dim_block : dim;
    const int64_t all[5] = {c->args.pages, c->desc.page_size, c->base.args.k.heads, dim / block,
                            block};
    memcpy(count, all, sizeof all);
}

static int64_t store_size(const attention_case *c, const rope_attention_store *store) {
    return oracle_dtype_size(store->dtype ? store->dtype : c->base.desc.dtype);
}

static void reserve_cache(test_random *r, attention_case *c, int32_t tensor) {
    rope_cache *cache = tensor == ORACLE_K ? &c->args.k_cache : &c->args.v_cache;
    int64_t count[5], extent = 1;
    count_cache(c, tensor, count);
    for (int d = 0; d < 5; d++)
        extent *= count[d];
    if (!c->dense && random_chance(r, 70)) {
        cache_strides(r, count, 0, cache->stride);
        extent = cache_extent(count, cache->stride, 0);
    }
    cache->data = reserve(c, extent, store_size(c, tensor == ORACLE_K ? &c->desc.k : &c->desc.v));
}

/* K and V of a page behind each other in one tensor. */
static void reserve_joint(test_random *r, attention_case *c) {
    const int64_t size = store_size(c, &c->desc.k);
    int64_t count[2][5], extent[2];
    rope_cache *cache[2] = {&c->args.k_cache, &c->args.v_cache};
    for (int i = 0; i < 2; i++) {
        count_cache(c, ORACLE_K + i, count[i]);
        cache_strides(r, count[i], 1, cache[i]->stride);
        extent[i] = cache_extent(count[i], cache[i]->stride, 1);
    }
    cache[0]->stride[0] = cache[1]->stride[0] = extent[0] + extent[1];
    char *data = reserve(c, (extent[0] + extent[1]) * c->args.pages, size);
    cache[0]->data = data;
    cache[1]->data = data + extent[0] * size;
}

static void choose_caches(test_random *r, attention_case *c) {
    rope_attention_desc *d = &c->desc;
    const int64_t dim = c->base.desc.head_dim, v_dim = d->v_head_dim ? d->v_head_dim : dim;
    const int latent = v_dim <= dim && !c->provided && random_chance(r, 15);
    if (latent) { /* MLA: values are a part of keys */
        d->v = d->k;
        d->k.dim_block = d->v.dim_block = 0;
    }
    choose_pages(r, c);
    if (latent || store_size(c, &d->k) != store_size(c, &d->v) || c->decode || c->few ||
        c->provided || random_chance(r, 60)) {
        reserve_cache(r, c, ORACLE_K);
        if (!latent)
            reserve_cache(r, c, ORACLE_V);
    } else {
        reserve_joint(r, c);
    }
    if (d->k.scale)
        reserve_scale(r, c, &d->k, &c->args.k_cache.scale);
    if (latent) {
        const int64_t all = c->base.args.k.heads * dim,
                      plain[5] = {d->page_size * all, all, dim, 0, 1};
        c->args.v_cache = c->args.k_cache;
        if (!c->args.v_cache.stride[4])
            memcpy(c->args.v_cache.stride, plain, sizeof plain);
    } else if (d->v.scale) {
        reserve_scale(r, c, &d->v, &c->args.v_cache.scale);
    }
}

/* --- results and masks --- */

static void choose_results(test_random *r, attention_case *c, int lse) {
    const rope_args *a = &c->base.args;
    const int64_t dim = c->desc.v_head_dim ? c->desc.v_head_dim : c->base.desc.head_dim;
    const int64_t count[4] = {a->batch, a->tokens, a->q.heads, dim};
    const int64_t plain[4] = {a->tokens * a->q.heads * dim, a->q.heads * dim, dim, 1};
    const int given = !c->few && !c->provided && random_chance(r, 50);
    if (given)
        case_choose_strides(r, count, c->args.out.stride);
    if (given && random_chance(r, 10))
        c->args.out.stride[0] = -c->args.out.stride[0];
    c->args.out.data = (void *)(uintptr_t)case_reserve_view(
        &c->base, oracle_dtype_size(c->base.desc.dtype), count, given ? c->args.out.stride : plain);
    const int none = c->provided && a->tokens == 1 ? 90 : 40; /* few have one there */
    if (!c->few && random_chance(r, none) && !lse)
        return;
    int64_t *stride = c->args.lse_stride, extent = a->batch * a->tokens * a->q.heads;
    const int lengths = a->sequences || c->args.q_lengths || c->args.k_lengths,
              pad = c->provided ? 0 : 2;
    if (!(c->provided && lengths) && random_chance(r, 50)) { /* [batch, head, token], padded */
        stride[1] = c->provided ? 1 : random_between(r, 1, 2);
        stride[2] = stride[1] * a->tokens + random_between(r, 0, pad);
        stride[0] = stride[2] * a->q.heads + random_between(r, 0, pad);
        extent = stride[0] * a->batch + 1;
        if (stride[2] == 0)
            stride[2] = 1;
    }
    c->args.lse = reserve(c, extent + 1, 4);
}

static void choose_bits(test_random *r, attention_case *c) {
    const rope_args *a = &c->base.args;
    if (c->desc.sink_dtype)
        c->args.sinks = reserve(c, a->q.heads, oracle_dtype_size(c->desc.sink_dtype));
    if (c->desc.mask != ROPE_MASK_TREE)
        return;
    c->args.tree_keys = ONE_OF(r, 1, 2, 31, 32, 33, 64, 65, 70, 130);
    int64_t row = (c->args.tree_keys + 31) / 32, batch;
    const int given = random_chance(r, 40);
    if (given)
        row += random_between(r, 0, 2);
    batch = row * a->tokens + (given ? random_between(r, 0, 2) : 0);
    if (given) {
        c->args.tree_stride[0] = batch;
        c->args.tree_stride[1] = row;
    }
    c->args.tree_bits = reserve(c, batch * a->batch + 1, 4);
}

/* A call may say what its parts would default to. */
static void choose_defaults(test_random *r, attention_case *c) {
    if (!c->desc.cache && c->args.k_tokens == c->base.args.tokens && random_chance(r, 60))
        c->args.k_tokens = 0;
    if (random_chance(r, c->decode ? 80 : 30))
        c->base.args.position_flag = reserve(c, 1, 4);
}

/* Rows of few queries, some of fewer than the call's, whose keys end within pages and at multiples
 * of 16, are fewer than queries, none, once so many that kernels split them, and once of a ring. */
static void choose_few(test_random *r, attention_case *c) {
    enum { PARTS = 3 };
    static const struct {
        int64_t dim, page_size, ring, window, sinks, k_heads, group;
        int64_t q_count[PARTS], k_count[PARTS];
    } rows[ATTENTION_FEW_ROWS] = {
        {128, 16, 0, 0, 0, 1, 8, {1, 1, 1}, {64, 77, 1}},
        {64, 48, 0, 0, ROPE_F32, 2, 4, {3, 1, 2}, {96, 200, 5}},
        {128, 32, 0, 40, 0, 1, 2, {8, 3, 0}, {160, 161, 30}},
        {128, 0, 0, 0, ROPE_F32, 1, 2, {8, 8, 8}, {33, 48, 5}},
        {64, 0, 0, 20, 0, 2, 3, {1, 1, 1}, {100, 100, 100}},
        {128, 0, 0, 0, 0, 1, 4, {2, 3, 1}, {80, 47, 0}},
        {128, 16, 0, 0, 0, 1, 3, {3, 1, 2}, {750, 16, 400}},
        {64, 16, 0, 0, ROPE_F32, 1, 4, {8, 5, 1}, {112, 111, 17}},
        {128, 16, 64, 0, 0, 1, 4, {1, 1, 1}, {203, 64, 40}},
    };
    const int64_t i = c->base.index % ATTENTION_FEW_ROWS;
    rope_desc *rope = &c->base.desc;
    rope->dtype = i & 1 ? ROPE_F16 : ROPE_BF16;
    rope->head_dim = (int32_t)rows[i].dim;
    rope->position_dtype = (int32_t)ONE_OF(r, 0, ROPE_I32, ROPE_I64);
    c->desc.rotation = ROPE_ATTENTION_ROTATE_Q;
    c->desc.window = rows[i].window;
    c->desc.sink_dtype = (int32_t)rows[i].sinks;
    c->desc.cache = rows[i].page_size ? ROPE_CACHE_TABLE : 0;
    c->desc.page_size = rows[i].page_size;
    c->desc.ring = rows[i].ring;
    c->desc.table_dtype = c->desc.cache ? (int32_t)ONE_OF(r, 0, ROPE_I32, ROPE_I64) : 0;
    c->base.args.k.heads = rows[i].k_heads;
    c->base.args.q.heads = rows[i].k_heads * rows[i].group;
    c->parts = PARTS;
    memcpy(c->q_count, rows[i].q_count, sizeof rows[i].q_count);
    memcpy(c->k_count, rows[i].k_count, sizeof rows[i].k_count);
}

/* Sequences of tens of queries and thousands of keys, of which a GPU is not full: more of them than
 * kernels share out among blocks by parts of their keys, and some that are short. */
static void choose_long(test_random *r, attention_case *c) {
    static const struct {
        int64_t dim, page_size, window, sinks, k_heads, group;
        int64_t q_count[ATTENTION_MAX_PARTS], k_count[ATTENTION_MAX_PARTS];
    } rows[ATTENTION_LONG_ROWS] = {
        {128, 16, 0, 0, 2, 4, {40, 33, 7, 60, 17}, {3300, 3500, 3100, 5000, 1900}},
        {64, 0, 0, ROPE_F32, 1, 4, {70, 20, 40, 5, 0}, {3073, 4000, 3600, 3200, 300}},
        {128, 0, 3400, ROPE_F32, 1, 8, {24, 33, 130, 1, 3}, {5500, 3600, 3200, 4500, 3100}},
        {96, 48, 0, 0, 1, 2, {30, 100, 9, 12, 64}, {3600, 3075, 3500, 6000, 80}},
        {64, 32, 3300, 0, 2, 3, {20, 40, 60, 8, 33}, {3400, 3200, 3100, 4000, 5100}},
        {128, 0, 0, 0, 1, 7, {30, 2, 65, 20, 40}, {3500, 3500, 3500, 3500, 3500}},
    };
    const int64_t i = c->base.index % ATTENTION_LONG_ROWS;
    rope_desc *rope = &c->base.desc;
    rope->dtype = (i ^ c->base.index / ATTENTION_LONG_ROWS) & 1 ? ROPE_F16 : ROPE_BF16;
    rope->head_dim = (int32_t)rows[i].dim;
    rope->position_dtype = (int32_t)ONE_OF(r, 0, ROPE_I32, ROPE_I64);
    c->desc.rotation = rows[i].page_size || random_chance(r, 50) ? ROPE_ATTENTION_ROTATE_Q : 0;
    c->desc.mask = (int32_t)(random_chance(r, 30) ? ROPE_MASK_FULL : 0);
    c->desc.window = rows[i].window;
    c->desc.sink_dtype = (int32_t)rows[i].sinks;
    c->desc.cache = rows[i].page_size ? ROPE_CACHE_TABLE : 0;
    c->desc.page_size = rows[i].page_size;
    c->desc.table_dtype = c->desc.cache ? (int32_t)ONE_OF(r, 0, ROPE_I32, ROPE_I64) : 0;
    c->base.args.k.heads = rows[i].k_heads;
    c->base.args.q.heads = rows[i].k_heads * rows[i].group;
    c->parts = ATTENTION_MAX_PARTS;
    memcpy(c->q_count, rows[i].q_count, sizeof rows[i].q_count);
    memcpy(c->k_count, rows[i].k_count, sizeof rows[i].k_count);
}

static void choose_sizes(test_random *r, attention_case *c, const attention_wish *wish) {
    choose_desc(r, c);
    if (wish->provided)
        choose_provided(c, wish->gradients != NULL);
    c->alike = wish->provided && wish->gradients && random_chance(r, 90);
    if (wish->gradients)
        choose_differentiable(c);
    attention_choose_norms(c);
    choose_counts(r, c, wish);
}

void attention_make(attention_case *c, uint64_t seed, int64_t index, const attention_wish *wish) {
    static const attention_wish any;
    test_case *base = &c->base;
    test_random *r = &base->random;
    wish = wish ? wish : &any;
    memset(c, 0, sizeof *c);
    base->index = index;
    c->of_norms = random_stream(seed + 77, index);
    c->gradients = wish->gradients != NULL;
    base->random = random_stream(seed, index);
    c->desc.struct_size = sizeof c->desc;
    c->args.struct_size = sizeof c->args;
    base->desc.struct_size = sizeof base->desc;
    base->args.struct_size = sizeof base->args;
    base->wild = !wish->tame && random_chance(r, 30);
    c->few = wish->few || wish->long_keys;
    c->decode = !wish->large && !c->few && random_chance(r, wish->gradients ? 10 : 35);
    c->provided = wish->provided;
    c->dense = c->decode || c->few || c->provided || random_chance(r, 15);
    base->alignment = c->dense ? 16 : 0;
    if (wish->few)
        choose_few(r, c);
    else if (wish->long_keys)
        choose_long(r, c);
    else
        choose_sizes(r, c, wish);
    const int packed = c->parts == 0 || (!c->decode && !wish->few && random_chance(r, 35));
    choose_queries(r, c, packed);
    choose_keys(r, c, packed);
    if (c->desc.cache)
        choose_caches(r, c);
    choose_positions(r, c, wish);
    choose_tensors(r, c);
    choose_results(r, c, wish->gradients != NULL);
    choose_bits(r, c);
    attention_choose_weights(c);
    choose_defaults(r, c);
    c->desc.nondeterministic = random_chance(r, 25);
    if (wish->gradients)
        wish->gradients(c);
    case_make_arena(base);
    attention_relocate(&c->args, NULL, base->arena);
    c->desc.rope = base->desc;
    c->args.rope = base->args;
    attention_fill(c, wish);
}

void attention_free(attention_case *c) {
    case_free(&c->base);
}
