#include "tests/decode/latent_cases.h"

#include "tests/oracle/oracle.h"
#include "tests/support/random.h"
#include "tests/support/repeat.h"

#include <stdlib.h>
#include <string.h>

/* Keys of each of six sequences, the new ones included: none, fewer than tokens, at ends of tiles
 * of 64 keys, in one split and in several, of which new keys are in two. */
static const int32_t lengths[LATENT_SEQUENCES] = {0, 3, 64, 1281, 1729, 512};

int64_t latent_sequences(const latent *o) {
    return o->sequences ? o->sequences : LATENT_SEQUENCES;
}

int64_t latent_k_heads(const latent *o) {
    return o->k_heads ? o->k_heads : 1;
}

int64_t latent_q_heads(const latent *o) {
    return latent_k_heads(o) * o->group;
}

int64_t latent_pages(const latent *o) {
    const int64_t places = o->places ? o->places : LATENT_PLACES;
    return (places + o->page_size - 1) / o->page_size;
}

int32_t latent_held(const latent *o) {
    return (int32_t)latent_pages(o) * o->page_size;
}

static int32_t keys_of(const latent *o, int64_t s) {
    if (o->even)
        return latent_held(o) - 5;
    const int32_t keys = lengths[s % LATENT_SEQUENCES];
    return keys < latent_held(o) ? keys : keys % latent_held(o);
}

int32_t latent_tokens(const latent *o, int64_t s) {
    return o->packed == LATENT_UNEVEN ? (int32_t)((s * 3 + 1) % (o->tokens + 1)) : o->tokens;
}

int64_t latent_tokens_ahead(const latent *o, int64_t sequence) {
    int64_t tokens = 0;
    for (int64_t s = 0; s < sequence; s++)
        tokens += latent_tokens(o, s);
    return tokens;
}

int64_t latent_all_tokens(const latent *o) {
    return latent_tokens_ahead(o, latent_sequences(o)) +
           (o->packed == LATENT_UNEVEN ? LATENT_OUTSIDE : 0);
}

static size_t add(size_t *end, int64_t bytes) {
    const size_t at = *end;
    *end += ((size_t)bytes + 255) / 256 * 256;
    return at;
}

latent_parts latent_parts_of(const latent *o) {
    const int64_t tokens = latent_all_tokens(o), sequences = latent_sequences(o),
                  q = tokens * latent_q_heads(o);
    latent_parts p = {0};
    p.q = add(&p.bytes, q * LATENT_DIM * 2);
    p.k = add(&p.bytes, tokens * latent_k_heads(o) * LATENT_DIM * 2);
    p.weight = add(&p.bytes, LATENT_VALUE_DIM * 2);
    p.sinks = add(&p.bytes, latent_q_heads(o) * 2);
    p.cache = add(&p.bytes, sequences * latent_held(o) * latent_k_heads(o) * LATENT_DIM * 2);
    p.out = add(&p.bytes, q * LATENT_VALUE_DIM * 2);
    p.numbers = p.bytes;
    p.table = add(&p.bytes, sequences * latent_pages(o) * 8);
    p.slots = add(&p.bytes, tokens * 8);
    p.lengths = add(&p.bytes, sequences * 8);
    p.starts = add(&p.bytes, sequences * 8);
    p.boundaries = add(&p.bytes, (sequences + 1) * 8);
    p.lse = add(&p.bytes, q * 4);
    p.flag = add(&p.bytes, 4);
    return p;
}

int32_t *latent_list(const decode_case *c, size_t part) {
    return (int32_t *)(void *)(c->append.base.arena + part);
}

/* Pages of a sequence lie anywhere. */
static void fill_lists(decode_case *c, const latent *o, const latent_parts *p) {
    int32_t *table = latent_list(c, p->table), *slots = latent_list(c, p->slots),
            *keys = latent_list(c, p->lengths), *starts = latent_list(c, p->starts),
            *boundaries = latent_list(c, p->boundaries);
    const int32_t pages = (int32_t)latent_pages(o), all = (int32_t)latent_sequences(o) * pages,
                  size = o->page_size,
                  step = all % 7    ? 7
                         : all % 11 ? 11
                                    : 1;
    for (int32_t i = 0; i < all; i++)
        table[i] = (int32_t)(((int64_t)i * step + 3) % all);
    for (int32_t s = 0; s < latent_sequences(o); s++) {
        keys[s] = keys_of(o, s);
        starts[s] = keys[s] - latent_tokens(o, s);
        boundaries[s + 1] = boundaries[s] + latent_tokens(o, s);
        for (int32_t t = 0; t < latent_tokens(o, s); t++) {
            const int32_t n = starts[s] + t;
            slots[boundaries[s] + t] = n < 0 ? -1 : table[s * pages + n / size] * size + n % size;
        }
    }
    for (int64_t i = boundaries[latent_sequences(o)]; i < latent_all_tokens(o); i++)
        slots[i] = -1;
}

/* Places of new keys, and behind them, hold NaNs. */
static void spoil_rest(decode_case *c, const latent *o, const latent_parts *p) {
    const int32_t *table = latent_list(c, p->table), *starts = latent_list(c, p->starts);
    const size_t token = (size_t)latent_k_heads(o) * LATENT_DIM * 2;
    for (int32_t s = 0; s < latent_sequences(o); s++)
        for (int32_t n = starts[s] < 0 ? 0 : starts[s]; n < latent_held(o); n++) {
            const int64_t page = table[s * latent_pages(o) + n / o->page_size],
                          at = page * o->page_size + n % o->page_size;
            memset(c->append.base.arena + p->cache + (size_t)at * token, 0xff, token);
        }
}

static void describe(decode_case *c, const latent *o) {
    rope_append_desc *a = &c->desc.append;
    c->desc = (rope_decode_desc)ROPE_DECODE_DESC_INIT;
    a->rope.dtype = o->dtype;
    a->rope.head_dim = LATENT_DIM;
    a->rope.rotary_dim = LATENT_DIM - LATENT_VALUE_DIM;
    a->rope.rotary_offset = LATENT_VALUE_DIM;
    a->rope.pairing_in = o->pairing_in;
    a->rope.pairing_out = o->pairing_out;
    a->rope.position_dtype = ROPE_I32;
    a->v_head_dim = LATENT_VALUE_DIM;
    if (o->norm)
        a->k.norm =
            (rope_norm){.type = ROPE_NORM_RMS,
                        .scope = ROPE_NORM_HEAD,
                        .dim = LATENT_VALUE_DIM,
                        .weight = o->one_plus ? ROPE_NORM_ONE_PLUS_WEIGHT : ROPE_NORM_WEIGHT,
                        .rounding = o->norm,
                        .eps = 1e-6};
    a->cache = o->slots ? ROPE_CACHE_SLOTS : ROPE_CACHE_TABLE;
    a->page_size = o->page_size;
    c->desc.mask = o->full ? ROPE_MASK_FULL : 0;
    c->desc.window = o->window;
    c->desc.chunk = o->chunk;
    c->desc.sink_dtype = o->sinks ? o->dtype : 0;
}

static void set_args(decode_case *c, const latent *o, const latent_parts *p) {
    unsigned char *arena = c->append.base.arena;
    rope_append_args *a = &c->args.append;
    const int64_t head = LATENT_DIM, slot = latent_k_heads(o) * head,
                  stride[5] = {o->page_size * slot, slot, head, head, 1};
    c->args = (rope_decode_args)ROPE_DECODE_ARGS_INIT;
    a->rope.batch = o->packed ? 1 : latent_sequences(o);
    a->rope.tokens = o->packed ? latent_all_tokens(o) : o->tokens;
    if (o->packed) {
        a->rope.cu_seqlens = arena + p->boundaries;
        a->rope.sequences = latent_sequences(o);
        c->args.most_tokens = o->tokens;
    }
    a->rope.q = (rope_tensor){.in = arena + p->q, .heads = latent_q_heads(o)};
    a->rope.k = (rope_tensor){.in = arena + p->k, .heads = latent_k_heads(o)};
    if (o->norm)
        a->k_weight.data = arena + p->weight;
    a->k_cache.data = a->v_cache.data = arena + p->cache;
    memcpy(a->k_cache.stride, stride, sizeof stride);
    memcpy(a->v_cache.stride, stride, sizeof stride);
    a->rope.sequence_offsets = arena + p->starts;
    a->pages = latent_sequences(o) * latent_pages(o);
    a->block_table = arena + p->table;
    a->table_pages = latent_pages(o);
    a->slots = o->slots ? arena + p->slots : NULL;
    c->args.k_lengths = arena + p->lengths;
    c->args.sinks = o->sinks ? arena + p->sinks : NULL;
    c->args.out.data = arena + p->out;
    c->args.lse = (float *)(void *)(arena + p->lse);
    a->rope.position_flag = (int32_t *)(void *)(arena + p->flag);
}

void latent_make(decode_case *c, const latent *o, const latent_parts *p, int64_t index) {
    memset(c, 0, sizeof *c);
    c->append.base.random = random_stream(test_seed(), index);
    c->append.base.bytes = p->bytes;
    unsigned char *arena = c->append.base.arena = aligned_alloc(256, p->bytes);
    memset(arena, 0, p->bytes);
    for (size_t i = 0; i < p->numbers / 2; i++)
        oracle_store(o->dtype, arena, (int64_t)i, random_real(&c->append.base.random, -2, 2));
    fill_lists(c, o, p);
    spoil_rest(c, o, p);
    describe(c, o);
    set_args(c, o, p);
}
