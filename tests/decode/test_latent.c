/* The kernel that decodes latents in one launch beside the calls that it replaces, an append and
 * attention by the kernel `latent`: caches, results, lse and flag have the same bits. */
#include "tests/decode/compare.h"
#include "tests/oracle/oracle.h"
#include "tests/support/device.h"
#include "tests/support/harness.h"
#include "tests/support/random.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char one_launch[] = "decode_latent", calls[] = "latent";

enum { DIM = 576, VALUE_DIM = 512, SEQUENCES = 6, PLACES = 1792, OUTSIDE = 3, GENERATED = 40 };

/* Keys of each of six sequences, the new ones included: none, fewer than tokens, at ends of tiles
 * of 64 keys, in one split and in several, of which new keys are in two. */
static const int32_t lengths[SEQUENCES] = {0, 3, 64, 1281, 1729, 512};

enum { EVEN = 1, UNEVEN = 2 };

typedef struct latent {
    int32_t dtype, tokens, group, page_size;
    int32_t k_heads; /* 0: 1 */
    int32_t norm, one_plus;
    int32_t pairing_in, pairing_out;
    int32_t slots, full, window, chunk, sinks;
    int32_t sequences, places; /* 0: SEQUENCES, PLACES */
    int32_t even;              /* all have as many keys as the longest */
    int32_t packed; /* EVEN: of `tokens`, UNEVEN: of as many or fewer, and some outside */
} latent;

static const latent cases[] = {
    {ROPE_BF16, 1, 16, .page_size = 64, .norm = ROPE_NORM_ROUND_TWICE, .slots = 1},
    {ROPE_F16, 1, 128, .page_size = 16, .norm = ROPE_NORM_ROUND_ONCE, .one_plus = 1},
    {ROPE_BF16, 1, 128, .page_size = 64, .norm = ROPE_NORM_ROUND_TWICE, .slots = 1,
     .pairing_in = ROPE_PAIRING_INTERLEAVED, .pairing_out = ROPE_PAIRING_HALF_SPLIT},
    {ROPE_BF16, 1, 1, .page_size = 48},
    {ROPE_F16, 2, 16, .page_size = 32, .slots = 1, .pairing_in = ROPE_PAIRING_INTERLEAVED},
    {ROPE_BF16, 4, 70, .page_size = 64, .norm = ROPE_NORM_ROUND_TWICE, .slots = 1},
    {ROPE_BF16, 3, 64, .page_size = 16, .pairing_in = ROPE_PAIRING_HALF_SPLIT,
     .pairing_out = ROPE_PAIRING_INTERLEAVED},
    {ROPE_BF16, 4, 16, .page_size = 64, .full = 1, .sinks = 1},
    {ROPE_F16, 2, 24, .page_size = 128, .window = 300, .sinks = 1},
    {ROPE_BF16, 4, 8, .page_size = 16, .window = 2},
    {ROPE_BF16, 2, 16, .page_size = 64, .chunk = 100, .slots = 1},
    {ROPE_BF16, 1, 16, .page_size = 64, .k_heads = 2, .norm = ROPE_NORM_ROUND_TWICE},
    {ROPE_BF16, 1, 128, .page_size = 64, .sequences = 1, .places = 8192, .even = 1},
    {ROPE_BF16, 1, 16, .page_size = 64, .sequences = 40, .even = 1, .slots = 1},
    {ROPE_F16, 1, 128, .page_size = 64, .sequences = 70, .even = 1},
    {ROPE_BF16, 4, 128, .page_size = 64, .sequences = 24},
    {ROPE_BF16, 1, 16, .page_size = 16, .sequences = 200, .places = 512},
    {ROPE_BF16, 1, 16, .page_size = 64, .packed = EVEN, .norm = ROPE_NORM_ROUND_TWICE},
    {ROPE_F16, 4, 100, .page_size = 32, .packed = UNEVEN, .slots = 1},
    {ROPE_BF16, 3, 16, .page_size = 64, .packed = UNEVEN, .sequences = 40, .window = 700},
};

static int64_t sequences_of(const latent *o) {
    return o->sequences ? o->sequences : SEQUENCES;
}

static int64_t k_heads_of(const latent *o) {
    return o->k_heads ? o->k_heads : 1;
}

static int64_t q_heads_of(const latent *o) {
    return k_heads_of(o) * o->group;
}

static int64_t pages_of(const latent *o) {
    const int64_t places = o->places ? o->places : PLACES;
    return (places + o->page_size - 1) / o->page_size;
}

static int32_t held_of(const latent *o) {
    return (int32_t)pages_of(o) * o->page_size;
}

static int32_t keys_of(const latent *o, int64_t s) {
    if (o->even)
        return held_of(o) - 5;
    const int32_t keys = lengths[s % SEQUENCES];
    return keys < held_of(o) ? keys : keys % held_of(o);
}

/* New tokens of a sequence. */
static int32_t tokens_of(const latent *o, int64_t s) {
    return o->packed == UNEVEN ? (int32_t)((s * 3 + 1) % (o->tokens + 1)) : o->tokens;
}

/* Those of all sequences ahead of one. */
static int64_t tokens_ahead(const latent *o, int64_t sequence) {
    int64_t tokens = 0;
    for (int64_t s = 0; s < sequence; s++)
        tokens += tokens_of(o, s);
    return tokens;
}

static int64_t all_tokens(const latent *o) {
    return tokens_ahead(o, sequences_of(o)) + (o->packed == UNEVEN ? OUTSIDE : 0);
}

/* The parts of an arena; lists have room for indices of 64 bits. */
typedef struct parts {
    size_t q, k, weight, sinks, cache, numbers, table, slots, lengths, starts, boundaries, out, lse,
        flag, bytes;
} parts;

static size_t add(size_t *end, int64_t bytes) {
    const size_t at = *end;
    *end += ((size_t)bytes + 255) / 256 * 256;
    return at;
}

static parts parts_of(const latent *o) {
    const int64_t tokens = all_tokens(o), sequences = sequences_of(o), q = tokens * q_heads_of(o);
    parts p = {0};
    p.q = add(&p.bytes, q * DIM * 2);
    p.k = add(&p.bytes, tokens * k_heads_of(o) * DIM * 2);
    p.weight = add(&p.bytes, VALUE_DIM * 2);
    p.sinks = add(&p.bytes, q_heads_of(o) * 2);
    p.cache = add(&p.bytes, sequences * held_of(o) * k_heads_of(o) * DIM * 2);
    p.out = add(&p.bytes, q * VALUE_DIM * 2);
    p.numbers = p.bytes;
    p.table = add(&p.bytes, sequences * pages_of(o) * 8);
    p.slots = add(&p.bytes, tokens * 8);
    p.lengths = add(&p.bytes, sequences * 8);
    p.starts = add(&p.bytes, sequences * 8);
    p.boundaries = add(&p.bytes, (sequences + 1) * 8);
    p.lse = add(&p.bytes, q * 4);
    p.flag = add(&p.bytes, 4);
    return p;
}

static int32_t *list_of(const decode_case *c, size_t part) {
    return (int32_t *)(void *)(c->append.base.arena + part);
}

/* Pages of a sequence lie anywhere. */
static void fill_lists(decode_case *c, const latent *o, const parts *p) {
    int32_t *table = list_of(c, p->table), *slots = list_of(c, p->slots),
            *keys = list_of(c, p->lengths), *starts = list_of(c, p->starts),
            *boundaries = list_of(c, p->boundaries);
    const int32_t pages = (int32_t)pages_of(o), all = (int32_t)sequences_of(o) * pages,
                  size = o->page_size,
                  step = all % 7    ? 7
                         : all % 11 ? 11
                                    : 1;
    for (int32_t i = 0; i < all; i++)
        table[i] = (int32_t)(((int64_t)i * step + 3) % all);
    for (int32_t s = 0; s < sequences_of(o); s++) {
        keys[s] = keys_of(o, s);
        starts[s] = keys[s] - tokens_of(o, s);
        boundaries[s + 1] = boundaries[s] + tokens_of(o, s);
        for (int32_t t = 0; t < tokens_of(o, s); t++) {
            const int32_t n = starts[s] + t;
            slots[boundaries[s] + t] = n < 0 ? -1 : table[s * pages + n / size] * size + n % size;
        }
    }
    for (int64_t i = boundaries[sequences_of(o)]; i < all_tokens(o); i++)
        slots[i] = -1;
}

/* Places of new keys, and behind them, hold NaNs. */
static void spoil_rest(decode_case *c, const latent *o, const parts *p) {
    const int32_t *table = list_of(c, p->table), *starts = list_of(c, p->starts);
    const size_t token = (size_t)k_heads_of(o) * DIM * 2;
    for (int32_t s = 0; s < sequences_of(o); s++)
        for (int32_t n = starts[s] < 0 ? 0 : starts[s]; n < held_of(o); n++) {
            const int64_t page = table[s * pages_of(o) + n / o->page_size],
                          at = page * o->page_size + n % o->page_size;
            memset(c->append.base.arena + p->cache + (size_t)at * token, 0xff, token);
        }
}

static void describe(decode_case *c, const latent *o) {
    rope_append_desc *a = &c->desc.append;
    c->desc = (rope_decode_desc)ROPE_DECODE_DESC_INIT;
    a->rope.dtype = o->dtype;
    a->rope.head_dim = DIM;
    a->rope.rotary_dim = DIM - VALUE_DIM;
    a->rope.rotary_offset = VALUE_DIM;
    a->rope.pairing_in = o->pairing_in;
    a->rope.pairing_out = o->pairing_out;
    a->rope.position_dtype = ROPE_I32;
    a->v_head_dim = VALUE_DIM;
    if (o->norm)
        a->k.norm =
            (rope_norm){.type = ROPE_NORM_RMS,
                        .scope = ROPE_NORM_HEAD,
                        .dim = VALUE_DIM,
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

static void set_args(decode_case *c, const latent *o, const parts *p) {
    unsigned char *arena = c->append.base.arena;
    rope_append_args *a = &c->args.append;
    const int64_t head = DIM, slot = k_heads_of(o) * head,
                  stride[5] = {o->page_size * slot, slot, head, head, 1};
    c->args = (rope_decode_args)ROPE_DECODE_ARGS_INIT;
    a->rope.batch = o->packed ? 1 : sequences_of(o);
    a->rope.tokens = o->packed ? all_tokens(o) : o->tokens;
    if (o->packed) {
        a->rope.cu_seqlens = arena + p->boundaries;
        a->rope.sequences = sequences_of(o);
        c->args.most_tokens = o->tokens;
    }
    a->rope.q = (rope_tensor){.in = arena + p->q, .heads = q_heads_of(o)};
    a->rope.k = (rope_tensor){.in = arena + p->k, .heads = k_heads_of(o)};
    if (o->norm)
        a->k_weight.data = arena + p->weight;
    a->k_cache.data = a->v_cache.data = arena + p->cache;
    memcpy(a->k_cache.stride, stride, sizeof stride);
    memcpy(a->v_cache.stride, stride, sizeof stride);
    a->rope.sequence_offsets = arena + p->starts;
    a->pages = sequences_of(o) * pages_of(o);
    a->block_table = arena + p->table;
    a->table_pages = pages_of(o);
    a->slots = o->slots ? arena + p->slots : NULL;
    c->args.k_lengths = arena + p->lengths;
    c->args.sinks = o->sinks ? arena + p->sinks : NULL;
    c->args.out.data = arena + p->out;
    c->args.lse = (float *)(void *)(arena + p->lse);
    a->rope.position_flag = (int32_t *)(void *)(arena + p->flag);
}

static void make(decode_case *c, const latent *o, const parts *p, int64_t index) {
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

static void describe_one(const latent *o) {
    char text[300];
    snprintf(text, sizeof text,
             "dtype=%d tokens=%d group=%dx%d sequences=%lldx%d page=%d norm=%d,%d pairing=%d,%d "
             "slots=%d full=%d window=%d chunk=%d sinks=%d even=%d packed=%d",
             o->dtype, o->tokens, o->group, o->k_heads, (long long)sequences_of(o), held_of(o),
             o->page_size, o->norm, o->one_plus, o->pairing_in, o->pairing_out, o->slots, o->full,
             o->window, o->chunk, o->sinks, o->even, o->packed);
    test_describe(text);
}

/* Skips the test where the first case does not run. */
static void latent_required(void) {
    const char *name;
    int32_t i = 0;
    decode_required();
    device_not_provided("it has no such kernel");
    while ((name = device_kernel_of("decode", i)) && strcmp(name, one_launch) != 0)
        i++;
    if (!name)
        SKIP("%s has no %s", device_backend(), one_launch);
    const parts p = parts_of(&cases[0]);
    decode_case c;
    make(&c, &cases[0], &p, 0);
    unsigned char *result = malloc(p.bytes);
    const rope_status status = decode_run(&c, one_launch, 0, result);
    free(result);
    free(c.append.base.arena);
    if (status == ROPE_ERROR_INVALID_VALUE || status == ROPE_ERROR_UNSUPPORTED)
        SKIP("no %s here: %s", one_launch, rope_last_error());
    CHECK_STATUS(ROPE_OK, status);
}

/* --- bits --- */

static void check_bytes(const parts *p, const unsigned char *expected, const unsigned char *result,
                        const char *what) {
    const size_t begin[] = {0, p->cache, p->out, p->table, p->lse, p->flag, p->bytes};
    const char *const names[] = {"inputs", "the cache", "out", "lists", "lse", "the flag"};
    for (int i = 0; i < 6; i++)
        for (size_t at = begin[i]; at < begin[i + 1]; at++)
            CHECK(expected[at] == result[at], "%s: byte %zu of %s differs", what, at - begin[i],
                  names[i]);
}

/* What a call and the calls that it replaces leave are the same bytes. */
static void check_calls(const decode_case *c, const parts *p, unsigned char *result) {
    unsigned char *expected = malloc(p->bytes);
    CHECK_STATUS(ROPE_OK, decode_run(c, one_launch, 0, result));
    CHECK_STATUS(ROPE_OK, decode_run(c, calls, 0, expected));
    check_bytes(p, expected, result, "beside the calls");
    free(expected);
}

/* A sequence in a call of its own has the bits that it has among others. */
static void check_alone(const decode_case *c, const latent *o, const parts *p,
                        const unsigned char *expected) {
    const size_t row = (size_t)q_heads_of(o) * o->tokens;
    const int64_t step = 1 + sequences_of(o) / 6;
    unsigned char *result = malloc(p->bytes);
    for (int64_t s = 0; !o->packed && s < sequences_of(o); s += step) {
        decode_case alone = *c;
        rope_append_args *a = &alone.args.append;
        a->rope.q.in = (const char *)a->rope.q.in + (size_t)s * row * DIM * 2;
        a->rope.k.in = (const char *)a->rope.k.in + s * o->tokens * k_heads_of(o) * DIM * 2;
        a->rope.sequence_offsets = (const int32_t *)a->rope.sequence_offsets + s;
        a->block_table = (const int32_t *)a->block_table + s * pages_of(o);
        if (o->slots)
            a->slots = (const int32_t *)a->slots + s * o->tokens;
        alone.args.k_lengths = (const int32_t *)alone.args.k_lengths + s;
        a->rope.batch = 1;
        CHECK_STATUS(ROPE_OK, decode_run(&alone, one_launch, 0, result));
        CHECK(memcmp(result + p->out, expected + p->out + (size_t)s * row * VALUE_DIM * 2,
                     row * VALUE_DIM * 2) == 0,
              "sequence %lld alone has other bits", (long long)s);
    }
    free(result);
}

static void check_case(const latent *o, int64_t index) {
    const parts p = parts_of(o);
    decode_case c;
    describe_one(o);
    make(&c, o, &p, index);
    unsigned char *result = malloc(p.bytes), *again = malloc(p.bytes);
    check_calls(&c, &p, result);
    for (int graph = 0; graph < 2; graph++) {
        CHECK_STATUS(ROPE_OK, decode_run(&c, one_launch, graph, again));
        check_bytes(&p, result, again, graph ? "from a graph" : "a second time");
    }
    check_alone(&c, o, &p, result);
    free(result);
    free(again);
    free(c.append.base.arena);
}

TEST(decode_latent, as_the_calls_that_it_replaces) {
    latent_required();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        check_case(&cases[i], (int64_t)i);
}

#define ONE_OF(r, ...)                                                                             \
    ((const int32_t[]){__VA_ARGS__})[random_between(                                               \
        r, 0, (int64_t)(sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t)) - 1)]

static latent generate(test_random *r) {
    latent o = {.dtype = ONE_OF(r, ROPE_BF16, ROPE_F16),
                .tokens = (int32_t)random_between(r, 1, 4),
                .group = ONE_OF(r, 1, 8, 16, 40, 64, 65, 128)};
    o.page_size = ONE_OF(r, 16, 32, 48, 64, 256);
    o.norm = ONE_OF(r, 0, ROPE_NORM_ROUND_ONCE, ROPE_NORM_ROUND_TWICE);
    o.one_plus = ONE_OF(r, 0, 0, 1);
    o.pairing_in = ONE_OF(r, ROPE_PAIRING_HALF_SPLIT, ROPE_PAIRING_INTERLEAVED);
    o.pairing_out = ONE_OF(r, ROPE_PAIRING_HALF_SPLIT, ROPE_PAIRING_INTERLEAVED);
    o.slots = ONE_OF(r, 0, 1);
    o.full = ONE_OF(r, 0, 0, 1);
    o.sinks = ONE_OF(r, 0, 1);
    o.window = ONE_OF(r, 0, 0, 1, 20, 600);
    o.chunk = ONE_OF(r, 0, 0, 0, 100, 600);
    o.sequences = ONE_OF(r, 1, 2, 6, 13);
    o.places = ONE_OF(r, 40, 300, 1000, 1792);
    o.packed = ONE_OF(r, 0, 0, EVEN, UNEVEN);
    return o;
}

TEST(decode_latent, generated) {
    latent_required();
    for (int64_t i = -1; test_next(&i, GENERATED);) {
        test_random r = random_stream(test_seed() + 6, i);
        const latent o = generate(&r);
        check_case(&o, 1000 + i);
    }
}

/* --- what a call cannot have --- */

static void check_broken(decode_case *c, const parts *p, int flag) {
    unsigned char *result = malloc(p->bytes);
    int32_t found;
    check_calls(c, p, result);
    memcpy(&found, result + p->flag, sizeof found);
    CHECK(found == flag, "the flag is %d", found);
    free(result);
    free(c->append.base.arena);
}

/* A sequence whose table has a page that the cache lacks is left out, and says so. */
TEST(decode_latent, a_page_that_is_not_there_raises_the_flag) {
    latent_required();
    for (int i = 0; i < 2; i++) { /* of one split, and of several */
        const latent *o = &cases[0];
        const parts p = parts_of(o);
        decode_case c;
        make(&c, o, &p, i);
        list_of(&c, p.table)[(i ? 4 : 2) * pages_of(o)] = -1;
        check_broken(&c, &p, 1);
    }
}

static void widen(const decode_case *c, size_t part, int64_t count) {
    while (count-- > 0) {
        const int64_t x = list_of(c, part)[count];
        memcpy(c->append.base.arena + part + 8 * count, &x, sizeof x);
    }
}

static void widen_lists(decode_case *c, const latent *o, const parts *p) {
    rope_append_desc *a = &c->desc.append;
    widen(c, p->lengths, SEQUENCES);
    widen(c, p->starts, SEQUENCES);
    widen(c, p->boundaries, SEQUENCES + 1);
    widen(c, p->slots, all_tokens(o));
    widen(c, p->table, SEQUENCES * pages_of(o));
    a->rope.position_dtype = a->table_dtype = ROPE_I64;
    a->slot_dtype = o->slots ? ROPE_I64 : 0;
}

/* Sequences whose keys are below 0 or more than their pages hold, and whose new tokens have no
 * place: behind the pages, or in none by their slots. Positions are ids. */
TEST(decode_latent, lists) {
    latent_required();
    for (int i = 0; i < 4; i++) {
        const latent o = {ROPE_BF16, 2, 16, .page_size = 64, .slots = i & 1};
        const parts p = parts_of(&o);
        decode_case c;
        make(&c, &o, &p, i);
        rope_append_args *a = &c.args.append;
        list_of(&c, p.lengths)[1] = -1;
        list_of(&c, p.lengths)[2] = held_of(&o) + 1;
        list_of(&c, p.starts)[3] = held_of(&o);
        list_of(&c, p.slots)[8] = -1;
        list_of(&c, p.slots)[10] = SEQUENCES * held_of(&o);
        if (!o.slots)
            a->cache_starts = a->rope.sequence_offsets;
        a->rope.position_ids = a->rope.sequence_offsets = c.append.base.arena + p.boundaries;
        if (i & 2)
            widen_lists(&c, &o, &p);
        check_broken(&c, &p, 1);
    }
}

/* A packed sequence of more tokens than the call says is left out, with its keys. */
TEST(decode_latent, a_sequence_of_too_many_tokens) {
    latent_required();
    const latent o = {ROPE_BF16, 4, 16, .page_size = 64, .packed = UNEVEN};
    const parts p = parts_of(&o);
    decode_case c;
    make(&c, &o, &p, 0);
    unsigned char *result = malloc(p.bytes), *expected = malloc(p.bytes);
    CHECK_STATUS(ROPE_OK, decode_run(&c, one_launch, 0, expected));
    c.args.most_tokens = o.tokens - 1; /* sequence 1 has more */
    CHECK_STATUS(ROPE_OK, decode_run(&c, one_launch, 0, result));
    const size_t row = (size_t)o.group * VALUE_DIM * 2, first = (size_t)tokens_ahead(&o, 1) * row,
                 behind = (size_t)tokens_ahead(&o, 2) * row;
    const unsigned char *given = c.append.base.arena + p.out, *out = result + p.out;
    CHECK(tokens_of(&o, 1) == o.tokens && list_of(&c, p.boundaries)[2] > 0, "not the sequence");
    CHECK(memcmp(out + first, given + first, behind - first) == 0, "it has results");
    CHECK(memcmp(out, expected + p.out, first) == 0 &&
              memcmp(out + behind, expected + p.out + behind, p.lse - p.out - behind) == 0,
          "others differ");
    CHECK(result[p.flag] == 1, "there is no flag");
    free(expected);
    free(result);
    free(c.append.base.arena);
}

/* Calls that it leaves to the others. */
TEST(decode_latent, calls_that_it_declines) {
    latent_required();
    for (int i = 0; i < 3; i++) {
        latent o = cases[0];
        o.tokens = i == 0 ? 5 : 1;
        o.page_size = i == 1 ? 20 : 64;
        const parts p = parts_of(&o);
        decode_case c;
        make(&c, &o, &p, 0);
        if (i == 2)
            c.args.append.rope.q.out = (void *)(uintptr_t)c.args.append.rope.q.in;
        unsigned char *result = malloc(p.bytes);
        const rope_status status = decode_run(&c, one_launch, 0, result);
        CHECK(status == ROPE_ERROR_UNSUPPORTED || status == ROPE_ERROR_INVALID_VALUE,
              "%d is taken: status %d", i, status);
        CHECK_STATUS(ROPE_OK, decode_run(&c, NULL, 0, result));
        free(result);
        free(c.append.base.arena);
    }
}
