/* The memory of a generated case of rope_attention, and what may be wrong with it. */
#include "tests/attention/cases.h"
#include "tests/attention/norms.h"
#include "tests/rope/case_parts.h"

#include <math.h>
#include <string.h>

static void store_index(const attention_case *c, int32_t dtype, const void *array, int64_t i,
                        int64_t value) {
    case_store_index(dtype ? dtype : c->desc.rope.position_dtype, array, i, value);
}

/* --- lengths --- */

static void fill_lengths(attention_case *c) {
    const rope_attention_args *a = &c->args;
    for (int64_t s = 0; s < c->parts; s++) {
        if (a->q_lengths)
            store_index(c, 0, a->q_lengths, s, c->q_count[s]);
        if (a->k_lengths)
            store_index(c, 0, a->k_lengths, s, c->k_count[s]);
    }
    for (int64_t s = 0; s <= c->parts && a->k_cu_seqlens; s++)
        store_index(c, 0, a->k_cu_seqlens, s, c->k_boundary[s]);
    for (int64_t s = 0; s <= c->parts && a->rope.cu_seqlens; s++)
        store_index(c, 0, a->rope.cu_seqlens, s, c->base.boundary[s]);
}

/* Ids of keys are as those of queries: within a table, or of any magnitude. */
static void fill_key_ids(attention_case *c, const attention_wish *wish) {
    const rope_attention_args *a = &c->args;
    const int64_t size = c->desc.rope.position_dtype == ROPE_I32 ? 4 : 8;
    if (!a->k_position_ids)
        return;
    const int tabled = c->desc.rope.angle_mode == ROPE_ANGLE_TABLE;
    const int strict = wish->in_range || random_chance(&c->base.random, 80);
    int64_t high = a->rope.table_rows - 1 - a->rope.position_offset -
                   (a->rope.sequence_offsets ? 2 : 0) + (strict ? 0 : 9);
    const int64_t count = (int64_t)case_piece_bytes(&c->base, a->k_position_ids) / size;
    for (int64_t i = 0; i < count; i++)
        store_index(c, 0, a->k_position_ids, i,
                    tabled ? random_between(&c->base.random, strict ? 0 : -9, high > 0 ? high : 0)
                           : random_signed(&c->base.random, 30));
}

/* Ids of a tree's nodes that a window or chunks count: siblings share one, which is at least that
 * of the first node and at most a node's own index. Those of keys are those of their queries. */
static void fill_tree_ids(attention_case *c) {
    test_random *r = &c->base.random;
    const oracle_attention o = attention_oracle(c);
    const rope_attention_args *a = &c->args;
    const int64_t high =
        a->rope.table_rows - 1 - a->rope.position_offset - (a->rope.sequence_offsets ? 2 : 0);
    for (int64_t n = 0; n < c->parts; n++) {
        const oracle_part s = oracle_attention_part(&o, n);
        const int64_t first = oracle_attention_by_id(&o, &s), before = s.k_count - s.q_count,
                      begin = a->k_position_ids && first < before ? first : before;
        const int64_t width = random_between(r, 1, 4);
        for (int64_t j = begin; j < s.k_count && first < s.k_count; j++) {
            int64_t id = j < first ? j : first + (j - first) / width;
            if (c->desc.rope.angle_mode == ROPE_ANGLE_TABLE && id > high)
                id = high > 0 ? high : 0;
            if (j >= before)
                store_index(c, 0, a->rope.position_ids,
                            oracle_attention_id_at(&o, &s, ORACLE_Q, j - before, 0), id);
            if (a->k_position_ids && j >= 0)
                store_index(c, 0, a->k_position_ids, oracle_attention_id_at(&o, &s, ORACLE_K, j, 0),
                            id);
        }
    }
}

/* --- pages --- */

/* Whether a query of a sequence may see a key, but for a tree's bits. */
static int is_needed(const oracle_attention *o, const oracle_part *s, int64_t key) {
    for (int64_t i = 0; i < s->q_count; i++)
        if (oracle_attention_in_range(o, s, i, key))
            return 1;
    return 0;
}

/* Pages of no sequence that no query looks at may be anything. */
static void forget_pages(attention_case *c, const oracle_attention *o, const oracle_part *s) {
    test_random *r = &c->base.random;
    int64_t last = -1;
    for (int64_t k = s->k_begin; k < s->k_count; k++) {
        const int64_t at = oracle_attention_table_at(o, s, k);
        int needed = 0;
        if (at == last || c->desc.ring)
            continue;
        last = at;
        for (int64_t n = k; n < s->k_count && oracle_attention_table_at(o, s, n) == at; n++)
            needed |= is_needed(o, s, n);
        if (!needed)
            store_index(c, c->desc.table_dtype, c->args.block_table, at,
                        random_chance(r, 50) ? -1 : INT32_MAX);
    }
}

static void fill_table(attention_case *c) {
    static int64_t pages[ATTENTION_MAX_PARTS * 4096];
    const oracle_attention o = attention_oracle(c);
    const rope_attention_args *a = &c->args;
    const int64_t *given = a->table_stride;
    const int64_t row = given[0] ? given[0] : a->table_pages, step = given[1] ? given[1] : 1;
    if (!a->block_table)
        return;
    random_order(&c->base.random, pages, a->pages);
    for (int64_t i = 0; i < c->parts * a->table_pages; i++)
        store_index(c, c->desc.table_dtype, a->block_table,
                    i / a->table_pages * row + i % a->table_pages * step, pages[i]);
    const int forgets = random_chance(&c->base.random, 50);
    for (int64_t s = 0; s < c->parts && forgets; s++) {
        const oracle_part part = oracle_attention_part(&o, s);
        forget_pages(c, &o, &part);
    }
}

/* --- numbers --- */

static void fill_pieces(attention_case *c) {
    const void *poisoned[] = {c->args.rope.k.in,          c->args.v.in,
                              c->args.k_cache.data,       c->args.v_cache.data,
                              c->args.k_cache.scale.data, c->args.v_cache.scale.data};
    for (int i = 0; i < 6; i++)
        for (int32_t p = 0; p < c->base.pieces && poisoned[i]; p++) {
            const case_piece *piece = &c->base.piece[p];
            const unsigned char *begin = c->base.arena + piece->offset, *at = poisoned[i];
            if (at >= begin && at <= begin + piece->bytes)
                memset(c->base.arena + piece->offset, c->provided ? 0x3c : 0xff, piece->bytes);
        }
}

static double any_number(test_random *r, int32_t dtype, double scale) {
    if (dtype == ROPE_I8)
        return (double)random_between(r, -128, 127);
    return random_real(r, -scale, scale);
}

static double odd_number(test_random *r) {
    static const double list[] = {NAN, INFINITY, -INFINITY, 0x1p127, -0x1p127};
    return list[random_between(r, 0, 4)];
}

static double small_number(test_random *r, int32_t dtype) {
    static const double list[] = {0, -0.0, 0x1p-149, -0x1p-149, 0x1p-140, 0x1p-126};
    return dtype == ROPE_F16 ? list[random_between(r, 0, 3)] * 0x1p120
                             : list[random_between(r, 0, 5)];
}

/* A head. Wild ones have elements that are no numbers, or are near 0. */
static void fill_head(attention_case *c, const oracle_attention *o, const oracle_part *s,
                      int32_t tensor, int64_t i, int64_t head, double scale) {
    test_random *r = &c->base.random;
    const int64_t dim = oracle_attention_head_dim(o, tensor);
    const int odd = c->base.wild && random_chance(r, 2),
              small = c->base.wild && random_chance(r, 6);
    const int64_t at = random_between(r, 0, dim - 1);
    for (int64_t e = 0; e < dim; e++) {
        const oracle_element x = oracle_attention_at(o, s, tensor, i, head, e);
        double value = any_number(r, x.dtype, scale);
        if (odd && e == at)
            value = odd_number(r);
        else if (small && random_chance(r, 50))
            value = small_number(r, x.dtype);
        if (x.has_place)
            oracle_store(x.dtype, x.array, x.at, value);
    }
}

static void fill_scales(attention_case *c, const oracle_attention *o, const oracle_part *s) {
    test_random *r = &c->base.random;
    for (int32_t tensor = ORACLE_K; tensor <= ORACLE_V; tensor++)
        for (int64_t k = s->k_begin; k < s->k_count; k++)
            for (int64_t h = 0; h < c->args.rope.k.heads; h++) {
                const oracle_element x = oracle_attention_at(o, s, tensor, k, h, 0);
                if (x.scale)
                    *x.scale = random_chance(r, 20) ? 0.0625F : (float)random_real(r, 0.002, 0.1);
            }
}

static void fill_tensors(attention_case *c) {
    test_random *r = &c->base.random;
    const oracle_attention o = attention_oracle(c);
    const double scale[3] = {random_chance(r, 75)   ? 2
                             : random_chance(r, 50) ? 0.5
                                                    : 20,
                             2, random_chance(r, 80) ? 2 : 1000};
    for (int64_t n = 0; n < c->parts; n++) {
        const oracle_part s = oracle_attention_part(&o, n);
        for (int64_t i = 0; i < s.q_count; i++)
            for (int64_t h = 0; h < c->args.rope.q.heads; h++)
                fill_head(c, &o, &s, ORACLE_Q, i, h, scale[ORACLE_Q]);
        for (int32_t tensor = ORACLE_K; tensor <= ORACLE_V; tensor++)
            for (int64_t i = s.k_begin; i < s.k_count; i++)
                for (int64_t h = 0; h < c->args.rope.k.heads; h++)
                    fill_head(c, &o, &s, tensor, i, h, scale[tensor]);
        fill_scales(c, &o, &s);
    }
}

static void fill_bits(attention_case *c) {
    test_random *r = &c->base.random;
    const oracle_attention o = attention_oracle(c);
    const int64_t words = (c->args.tree_keys + 31) / 32;
    for (int64_t h = 0; c->args.sinks && h < c->args.rope.q.heads; h++)
        oracle_store(c->desc.sink_dtype, (void *)(uintptr_t)c->args.sinks, h,
                     random_chance(r, 15) ? -INFINITY : random_real(r, -6, 6));
    for (int64_t n = 0; n < c->parts && c->args.tree_bits; n++) {
        const oracle_part s = oracle_attention_part(&o, n);
        for (int64_t i = 0; i < s.q_count; i++) {
            uint32_t *bits =
                (uint32_t *)(uintptr_t)c->args.tree_bits + oracle_attention_bits_at(&o, &s, i);
            const int none = random_chance(r, 15);
            for (int64_t w = 0; w < words; w++)
                bits[w] = none ? 0 : (uint32_t)random_bits(r);
        }
    }
}

/* --- faults --- */

static int64_t bad_count(test_random *r, int64_t most) {
    const int64_t list[] = {-1, most + 1, INT32_MAX, INT32_MIN};
    return list[random_between(r, 0, 3)];
}

/* The first or the last sequence's boundaries fall. */
static void break_boundary(attention_case *c, const void *list) {
    const int first = random_chance(&c->base.random, 50);
    store_index(c, 0, list, first ? 0 : c->parts, first ? INT32_MAX : -1);
}

/* A page or a scale of a key that a query looks at. */
static void break_key(attention_case *c, const oracle_attention *o, int of_scale) {
    static const float bad[] = {0, -0.5F, INFINITY, NAN, -0.0F};
    test_random *r = &c->base.random;
    const oracle_part s = oracle_attention_part(o, random_between(r, 0, c->parts - 1));
    if (s.k_count <= s.k_begin)
        return;
    const int64_t key = random_between(r, s.k_begin, s.k_count - 1);
    if (!is_needed(o, &s, key))
        return;
    const oracle_element x = oracle_attention_at(o, &s, (int32_t)random_between(r, 1, 2), key,
                                                 c->args.rope.k.heads - 1, 0);
    if (of_scale && x.scale)
        *x.scale = bad[random_between(r, 0, 4)];
    else if (!of_scale && c->args.block_table)
        store_index(c, c->desc.table_dtype, c->args.block_table,
                    oracle_attention_table_at(o, &s, key),
                    random_chance(r, 50) ? c->args.pages : -1);
}

static void add_fault(attention_case *c) {
    test_random *r = &c->base.random;
    const oracle_attention o = attention_oracle(c);
    const rope_attention_args *a = &c->args;
    const int64_t part = c->parts ? random_between(r, 0, c->parts - 1) : -1;
    if (part < 0)
        return;
    const int64_t kind = c->decode && random_chance(r, 50) ? 4 : random_between(r, 0, 5);
    if (kind == 0 && a->q_lengths)
        store_index(c, 0, a->q_lengths, part, bad_count(r, a->rope.tokens));
    if (kind == 1 && a->k_lengths)
        store_index(c, 0, a->k_lengths, part, c->desc.ring ? -1 : bad_count(r, INT32_MAX - 1));
    if (kind == 2 && a->rope.cu_seqlens)
        break_boundary(c, a->rope.cu_seqlens);
    if (kind == 3 && a->k_cu_seqlens)
        break_boundary(c, a->k_cu_seqlens);
    if (kind >= 4)
        break_key(c, &o, kind == 5);
}

void attention_fill(attention_case *c, const attention_wish *wish) {
    case_fill_tensors(&c->base);
    fill_pieces(c);
    case_fill_table(&c->base);
    case_fill_positions(&c->base, &(case_wish){.in_range = wish->in_range});
    fill_key_ids(c, wish);
    fill_lengths(c);
    if (c->args.tree_keys && random_chance(&c->base.random, 80))
        fill_tree_ids(c);
    fill_table(c);
    fill_tensors(c);
    fill_bits(c);
    attention_fill_weights(c);
    if (c->args.rope.position_flag)
        *c->args.rope.position_flag = 0;
    if (!wish->in_range && random_chance(&c->base.random, c->decode ? 40 : 20))
        add_fault(c);
}
