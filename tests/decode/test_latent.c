/* The kernel that decodes latents in one launch beside the calls that it replaces, an append and
 * attention by the kernel `latent`: caches, results, lse and flag have the same bits. */
#include "tests/decode/compare.h"
#include "tests/decode/latent_cases.h"
#include "tests/support/device.h"
#include "tests/support/harness.h"
#include "tests/support/random.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char one_launch[] = "decode_latent", calls[] = "latent";

enum { GENERATED = 40 };

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
    {ROPE_BF16, 1, 128, .page_size = 64, .sequences = 3, .places = 8192, .even = 1, .sinks = 1},
    {ROPE_F16, 1, 16, .page_size = 16, .sequences = 2, .places = 8192, .even = 1},
    {ROPE_BF16, 2, 16, .page_size = 64, .sequences = 5, .places = 4000},
    {ROPE_BF16, 1, 8, .page_size = 256, .sequences = 1, .places = 20000, .even = 1},
    {ROPE_BF16, 1, 16, .page_size = 64, .sequences = 40, .even = 1, .slots = 1},
    {ROPE_F16, 1, 128, .page_size = 64, .sequences = 70, .even = 1},
    {ROPE_BF16, 4, 128, .page_size = 64, .sequences = 24},
    {ROPE_BF16, 1, 16, .page_size = 16, .sequences = 200, .places = 512},
    {ROPE_BF16, 1, 16, .page_size = 64, .packed = LATENT_EVEN, .norm = ROPE_NORM_ROUND_TWICE},
    {ROPE_F16, 4, 100, .page_size = 32, .packed = LATENT_UNEVEN, .slots = 1},
    {ROPE_BF16, 3, 16, .page_size = 64, .packed = LATENT_UNEVEN, .sequences = 40, .window = 700},
};

static void describe_one(const latent *o) {
    char text[300];
    snprintf(text, sizeof text,
             "dtype=%d tokens=%d group=%dx%d sequences=%lldx%d page=%d norm=%d,%d pairing=%d,%d "
             "slots=%d full=%d window=%d chunk=%d sinks=%d even=%d packed=%d",
             o->dtype, o->tokens, o->group, o->k_heads, (long long)latent_sequences(o),
             latent_held(o), o->page_size, o->norm, o->one_plus, o->pairing_in, o->pairing_out,
             o->slots, o->full, o->window, o->chunk, o->sinks, o->even, o->packed);
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
    const latent_parts p = latent_parts_of(&cases[0]);
    decode_case c;
    latent_make(&c, &cases[0], &p, 0);
    unsigned char *result = malloc(p.bytes);
    const rope_status status = decode_run(&c, one_launch, 0, result);
    free(result);
    free(c.append.base.arena);
    if (status == ROPE_ERROR_INVALID_VALUE || status == ROPE_ERROR_UNSUPPORTED)
        SKIP("no %s here: %s", one_launch, rope_last_error());
    CHECK_STATUS(ROPE_OK, status);
}

/* --- bits --- */

static void check_bytes(const latent_parts *p, const unsigned char *expected,
                        const unsigned char *result, const char *what) {
    const size_t begin[] = {0, p->cache, p->out, p->table, p->lse, p->flag, p->bytes};
    const char *const names[] = {"inputs", "the cache", "out", "lists", "lse", "the flag"};
    for (int i = 0; i < 6; i++)
        for (size_t at = begin[i]; at < begin[i + 1]; at++)
            CHECK(expected[at] == result[at], "%s: byte %zu of %s differs", what, at - begin[i],
                  names[i]);
}

/* What a call and the calls that it replaces leave are the same bytes. */
static void check_calls(const decode_case *c, const latent_parts *p, unsigned char *result) {
    unsigned char *expected = malloc(p->bytes);
    CHECK_STATUS(ROPE_OK, decode_run(c, one_launch, 0, result));
    CHECK_STATUS(ROPE_OK, decode_run(c, calls, 0, expected));
    check_bytes(p, expected, result, "beside the calls");
    free(expected);
}

/* A sequence in a call of its own has the bits that it has among others. */
static void check_alone(const decode_case *c, const latent *o, const latent_parts *p,
                        const unsigned char *expected) {
    const size_t row = (size_t)latent_q_heads(o) * o->tokens;
    const int64_t step = 1 + latent_sequences(o) / 6;
    unsigned char *result = malloc(p->bytes);
    for (int64_t s = 0; !o->packed && s < latent_sequences(o); s += step) {
        decode_case alone = *c;
        rope_append_args *a = &alone.args.append;
        a->rope.q.in = (const char *)a->rope.q.in + (size_t)s * row * LATENT_DIM * 2;
        a->rope.k.in =
            (const char *)a->rope.k.in + s * o->tokens * latent_k_heads(o) * LATENT_DIM * 2;
        a->rope.sequence_offsets = (const int32_t *)a->rope.sequence_offsets + s;
        a->block_table = (const int32_t *)a->block_table + s * latent_pages(o);
        if (o->slots)
            a->slots = (const int32_t *)a->slots + s * o->tokens;
        alone.args.k_lengths = (const int32_t *)alone.args.k_lengths + s;
        a->rope.batch = 1;
        CHECK_STATUS(ROPE_OK, decode_run(&alone, one_launch, 0, result));
        CHECK(memcmp(result + p->out, expected + p->out + (size_t)s * row * LATENT_VALUE_DIM * 2,
                     row * LATENT_VALUE_DIM * 2) == 0,
              "sequence %lld alone has other bits", (long long)s);
    }
    free(result);
}

/* Whether a GPU of few multiprocessors leaves it to the calls: as many blocks of many splits. */
static int may_be_left(const latent *o) {
    enum { LEAST = 256, FEW = 4, BLOCKS = 4 * 78 };
    const int64_t splits = latent_held(o) / LEAST + 3;
    return splits > FEW &&
           latent_sequences(o) * o->tokens * latent_k_heads(o) * (1 + o->group / 64) * splits >
               BLOCKS;
}

static void check_case(const latent *o, int64_t index) {
    const latent_parts p = latent_parts_of(o);
    decode_case c;
    describe_one(o);
    latent_make(&c, o, &p, index);
    unsigned char *result = malloc(p.bytes), *again = malloc(p.bytes);
    const int left = decode_run(&c, one_launch, 0, result) == ROPE_ERROR_UNSUPPORTED;
    CHECK(!left || may_be_left(o), "declined: %s", rope_last_error());
    if (!left)
        check_calls(&c, &p, result);
    for (int graph = 0; !left && graph < 2; graph++) {
        CHECK_STATUS(ROPE_OK, decode_run(&c, one_launch, graph, again));
        check_bytes(&p, result, again, graph ? "from a graph" : "a second time");
    }
    if (!left)
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
    o.packed = ONE_OF(r, 0, 0, LATENT_EVEN, LATENT_UNEVEN);
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

static void check_broken(decode_case *c, const latent_parts *p, int flag) {
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
        const latent_parts p = latent_parts_of(o);
        decode_case c;
        latent_make(&c, o, &p, i);
        latent_list(&c, p.table)[(i ? 4 : 2) * latent_pages(o)] = -1;
        check_broken(&c, &p, 1);
    }
}

static void widen(const decode_case *c, size_t part, int64_t count) {
    while (count-- > 0) {
        const int64_t x = latent_list(c, part)[count];
        memcpy(c->append.base.arena + part + 8 * count, &x, sizeof x);
    }
}

static void widen_lists(decode_case *c, const latent *o, const latent_parts *p) {
    rope_append_desc *a = &c->desc.append;
    widen(c, p->lengths, LATENT_SEQUENCES);
    widen(c, p->starts, LATENT_SEQUENCES);
    widen(c, p->boundaries, LATENT_SEQUENCES + 1);
    widen(c, p->slots, latent_all_tokens(o));
    widen(c, p->table, LATENT_SEQUENCES * latent_pages(o));
    a->rope.position_dtype = a->table_dtype = ROPE_I64;
    a->slot_dtype = o->slots ? ROPE_I64 : 0;
}

/* Sequences whose keys are below 0 or more than their pages hold, and whose new tokens have no
 * place: behind the pages, or in none by their slots. Positions are ids. */
TEST(decode_latent, lists) {
    latent_required();
    for (int i = 0; i < 4; i++) {
        const latent o = {ROPE_BF16, 2, 16, .page_size = 64, .slots = i & 1};
        const latent_parts p = latent_parts_of(&o);
        decode_case c;
        latent_make(&c, &o, &p, i);
        rope_append_args *a = &c.args.append;
        latent_list(&c, p.lengths)[1] = -1;
        latent_list(&c, p.lengths)[2] = latent_held(&o) + 1;
        latent_list(&c, p.starts)[3] = latent_held(&o);
        latent_list(&c, p.slots)[8] = -1;
        latent_list(&c, p.slots)[10] = LATENT_SEQUENCES * latent_held(&o);
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
    const latent o = {ROPE_BF16, 4, 16, .page_size = 64, .packed = LATENT_UNEVEN};
    const latent_parts p = latent_parts_of(&o);
    decode_case c;
    latent_make(&c, &o, &p, 0);
    unsigned char *result = malloc(p.bytes), *expected = malloc(p.bytes);
    CHECK_STATUS(ROPE_OK, decode_run(&c, one_launch, 0, expected));
    c.args.most_tokens = o.tokens - 1; /* sequence 1 has more */
    CHECK_STATUS(ROPE_OK, decode_run(&c, one_launch, 0, result));
    const size_t row = (size_t)o.group * LATENT_VALUE_DIM * 2,
                 first = (size_t)latent_tokens_ahead(&o, 1) * row,
                 behind = (size_t)latent_tokens_ahead(&o, 2) * row;
    const unsigned char *given = c.append.base.arena + p.out, *out = result + p.out;
    CHECK(latent_tokens(&o, 1) == o.tokens && latent_list(&c, p.boundaries)[2] > 0,
          "not the sequence");
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
    for (int i = 0; i < 4; i++) {
        latent o = cases[0];
        o.tokens = i == 0 ? 5 : 1;
        o.page_size = i == 1 ? 20 : 64;
        const latent_parts p = latent_parts_of(&o);
        decode_case c;
        latent_make(&c, &o, &p, 0);
        if (i == 2)
            c.args.append.rope.q.out = (void *)(uintptr_t)c.args.append.rope.q.in;
        if (i == 3)
            c.desc.append.k.store_dtype = c.desc.append.v.store_dtype = ROPE_F8E4M3;
        unsigned char *result = malloc(p.bytes);
        const rope_status status = decode_run(&c, one_launch, 0, result);
        CHECK(status == ROPE_ERROR_UNSUPPORTED || status == ROPE_ERROR_INVALID_VALUE,
              "%d is taken: status %d", i, status);
        CHECK_STATUS(ROPE_OK, decode_run(&c, NULL, 0, result));
        free(result);
        free(c.append.base.arena);
    }
}
