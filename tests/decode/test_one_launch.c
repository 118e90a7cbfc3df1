/* Kernels that decode in one launch beside the calls that they replace: the bytes of both caches
 * are the same, and results differ by no more than either kernel may err; those of the portable
 * kernel do not differ. */
#include "tests/decode/compare.h"
#include "tests/oracle/oracle.h"
#include "tests/support/device.h"
#include "tests/support/harness.h"
#include "tests/support/random.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char sm90[] = "decode_sm90", portable[] = "decode_portable";
static const char *kernel; /* that is tested */

/* An emulated device has grids of so few blocks, and takes long. */
enum { EMULATED_SEQUENCES = 64, EMULATED_PLACES = 2048 };

enum { SEQUENCES = 5, K_HEADS = 2, PLACES = 2048, OUTSIDE = 3, GENERATED = 60 };

/* Keys of each of five sequences, the new ones included: none, fewer than tokens, at ends of chunks
 * of 16 keys, in one split and in several. */
static const int32_t lengths[SEQUENCES] = {0, 3, 32, 500, 1729};

typedef struct one_launch {
    int32_t dtype, tokens, group, page_size;
    int32_t norm, pairing, slots;
    int32_t by_sequence; /* ROPE_CACHE_SEQUENCE */
    int32_t window, sinks, soft_cap;
    int32_t sequences, places; /* 0: SEQUENCES, PLACES */
    int32_t even;              /* all have as many keys as the longest */
    int32_t dim;               /* 0: 128 */
    int32_t store, scale;      /* of the cache; 0: elements */
    int32_t ring, chunk, tree; /* 0: none */
    int32_t table, model;      /* the caller's cos and sin; the model's arithmetic */
    int32_t packed; /* sequences, EVEN: of `tokens`, UNEVEN: of as many or fewer, and some tokens
                       that belong to none */
} one_launch;

enum { EVEN = 1, UNEVEN = 2 };

static const one_launch cases[] = {
    {ROPE_BF16, 1, 4, .page_size = 16},
    {ROPE_F16, 1, 1, .page_size = 48, .norm = ROPE_NORM_ROUND_TWICE},
    {ROPE_BF16, 1, 8, .page_size = 16, .pairing = ROPE_PAIRING_INTERLEAVED, .slots = 1},
    {ROPE_BF16, 1, 7, .page_size = 256, .norm = ROPE_NORM_ROUND_ONCE},
    {ROPE_BF16, 1, 16, .page_size = 32},
    {ROPE_F16, 2, 4, .page_size = 16, .slots = 1},
    {ROPE_BF16, 8, 2, .page_size = 16, .norm = ROPE_NORM_ROUND_TWICE},
    {ROPE_BF16, 3, 1, .by_sequence = 1},
    {ROPE_BF16, 1, 8, .page_size = 16, .window = 128, .sinks = 1},
    {ROPE_F16, 4, 4, .page_size = 32, .slots = 1, .window = 37},
    {ROPE_BF16, 8, 1, .page_size = 16, .window = 1024, .sinks = 1},
    {ROPE_BF16, 1, 2, .page_size = 16, .window = 1, .soft_cap = 2},
    {ROPE_BF16, 2, 4, .page_size = 64, .norm = ROPE_NORM_ROUND_ONCE, .soft_cap = 30},
    /* many items a block */
    {ROPE_BF16, 1, 4, .page_size = 16, .sequences = 640, .places = 64},
    {ROPE_F16, 2, 8, .page_size = 16, .sequences = 640, .places = 64, .slots = 1},
    {ROPE_BF16, 1, 3, .page_size = 32, .sequences = 96, .places = 950},
    /* more splits than blocks */
    {ROPE_BF16, 1, 4, .page_size = 16, .sequences = 70, .places = 1750, .even = 1},
    {ROPE_F16, 2, 4, .page_size = 16, .sequences = 34, .places = 1750, .even = 1, .sinks = 1},
    {ROPE_BF16, 4, 4, .page_size = 16, .sequences = 34, .places = 1750, .even = 1},
    {ROPE_BF16, 1, 4, .page_size = 16, .sequences = 34, .places = 1750, .even = 1,
     .store = ROPE_I8},
    /* more parts than are joined at once, and series of many splits */
    {ROPE_BF16, 1, 4, .page_size = 16, .sequences = 3, .places = 9000, .even = 1},
    {ROPE_BF16, 1, 4, .page_size = 16, .sequences = 18, .places = 9000, .even = 1},
    /* heads of 64 */
    {ROPE_BF16, 1, 4, .page_size = 16, .norm = ROPE_NORM_ROUND_TWICE, .dim = 64},
    {ROPE_F16, 1, 8, .page_size = 32, .pairing = ROPE_PAIRING_INTERLEAVED, .slots = 1, .dim = 64},
    {ROPE_BF16, 8, 2, .page_size = 16, .norm = ROPE_NORM_ROUND_ONCE, .dim = 64},
    {ROPE_F16, 4, 4, .page_size = 16, .window = 37, .sinks = 1, .dim = 64},
    {ROPE_BF16, 3, 1, .by_sequence = 1, .soft_cap = 30, .dim = 64},
    {ROPE_BF16, 1, 7, .page_size = 48, .sequences = 96, .places = 950, .dim = 64},
    /* caches of 8 bits */
    {ROPE_BF16, 1, 4, .page_size = 16, .store = ROPE_F8E4M3},
    {ROPE_BF16, 1, 8, .page_size = 48, .store = ROPE_F8E4M3, .scale = ROPE_SCALE_TOKEN_HEAD_MAX},
    {ROPE_F16, 4, 4, .page_size = 16, .window = 37, .store = ROPE_F8E4M3, .scale = ROPE_SCALE_HEAD},
    {ROPE_F16, 2, 1, .by_sequence = 1, .store = ROPE_I8, .scale = ROPE_SCALE_TOKEN_HEAD},
    {ROPE_BF16, 8, 2, .page_size = 32, .slots = 1, .store = ROPE_I8, .scale = ROPE_SCALE_TENSOR},
    {ROPE_BF16, 1, 4, .page_size = 16, .sequences = 320, .places = 64, .store = ROPE_I8,
     .scale = ROPE_SCALE_TOKEN_HEAD_MAX},
    {ROPE_BF16, 1, 7, .page_size = 48, .sequences = 96, .places = 950, .dim = 64,
     .norm = ROPE_NORM_ROUND_TWICE, .store = ROPE_F8E4M3, .scale = ROPE_SCALE_TENSOR},
    {ROPE_F16, 8, 2, .page_size = 16, .window = 128, .sinks = 1, .dim = 64, .store = ROPE_I8,
     .scale = ROPE_SCALE_TOKEN_HEAD_MAX},
    {ROPE_BF16, 1, 8, .page_size = 16, .store = ROPE_F8E5M2, .scale = ROPE_SCALE_TOKEN_HEAD_MAX},
    {ROPE_F16, 2, 4, .page_size = 32, .dim = 64, .store = ROPE_F8E5M2},
    {ROPE_BF16, 8, 4, .page_size = 16, .store = ROPE_F8E5M2, .scale = ROPE_SCALE_HEAD},
    /* rings, and chunks */
    {ROPE_BF16, 1, 4, .page_size = 16, .ring = 512},
    {ROPE_F16, 4, 2, .page_size = 32, .window = 100, .ring = 160},
    {ROPE_BF16, 1, 8, .by_sequence = 1, .sinks = 1, .dim = 64, .ring = 1024},
    {ROPE_BF16, 2, 4, .page_size = 48, .ring = 48, .store = ROPE_F8E4M3,
     .scale = ROPE_SCALE_TOKEN_HEAD_MAX},
    {ROPE_F16, 8, 1, .page_size = 16, .ring = 128, .store = ROPE_I8, .scale = ROPE_SCALE_TENSOR},
    {ROPE_BF16, 1, 4, .page_size = 16, .chunk = 512},
    {ROPE_F16, 1, 8, .page_size = 16, .ring = 2048, .chunk = 128, .dim = 64},
    {ROPE_F16, 8, 2, .page_size = 16, .chunk = 32},
    {ROPE_BF16, 8, 1, .page_size = 16, .window = 3},
    /* trees */
    {ROPE_BF16, 4, 4, .page_size = 16, .tree = 4},
    {ROPE_F16, 8, 2, .page_size = 16, .slots = 1, .dim = 64, .tree = 100},
    {ROPE_BF16, 3, 1, .by_sequence = 1, .tree = 20, .store = ROPE_F8E4M3},
    {ROPE_BF16, 8, 1, .page_size = 32, .ring = 128, .tree = 33, .store = ROPE_I8,
     .scale = ROPE_SCALE_TOKEN_HEAD_MAX},
    /* bands of rows */
    {ROPE_BF16, 8, 4, .page_size = 16},
    {ROPE_F16, 5, 7, .page_size = 32, .slots = 1, .norm = ROPE_NORM_ROUND_TWICE},
    {ROPE_BF16, 1, 40, .page_size = 16, .dim = 64},
    {ROPE_F16, 8, 16, .page_size = 16, .window = 37, .sinks = 1},
    {ROPE_BF16, 6, 6, .page_size = 48, .tree = 30, .dim = 64},
    {ROPE_BF16, 4, 8, .page_size = 16, .store = ROPE_F8E4M3, .scale = ROPE_SCALE_TOKEN_HEAD_MAX},
    {ROPE_BF16, 8, 4, .page_size = 16, .sequences = 96, .places = 950, .packed = UNEVEN},
    {ROPE_F16, 7, 8, .page_size = 16, .ring = 64, .packed = UNEVEN, .store = ROPE_I8,
     .scale = ROPE_SCALE_HEAD},
    /* packed sequences */
    {ROPE_BF16, 1, 4, .page_size = 16, .packed = EVEN},
    {ROPE_BF16, 1, 8, .page_size = 16, .slots = 1, .norm = ROPE_NORM_ROUND_TWICE, .packed = UNEVEN},
    {ROPE_F16, 4, 4, .page_size = 32, .window = 37, .sinks = 1, .packed = UNEVEN},
    {ROPE_BF16, 8, 2, .page_size = 16, .slots = 1, .dim = 64, .packed = UNEVEN},
    {ROPE_BF16, 8, 1, .page_size = 16, .tree = 33, .packed = UNEVEN},
    {ROPE_F16, 8, 2, .page_size = 48, .ring = 96, .packed = EVEN},
    {ROPE_BF16, 5, 3, .by_sequence = 1, .chunk = 100, .packed = UNEVEN},
    {ROPE_BF16, 1, 4, .page_size = 16, .sequences = 640, .places = 64, .packed = UNEVEN},
    {ROPE_BF16, 4, 4, .page_size = 16, .sequences = 96, .places = 950, .packed = UNEVEN},
    {ROPE_BF16, 4, 2, .page_size = 16, .packed = UNEVEN, .store = ROPE_F8E4M3,
     .scale = ROPE_SCALE_TOKEN_HEAD_MAX},
    {ROPE_F16, 8, 2, .page_size = 16, .slots = 1, .packed = UNEVEN, .store = ROPE_I8,
     .scale = ROPE_SCALE_TENSOR},
    /* tables of cos and sin */
    {ROPE_BF16, 1, 4, .page_size = 16, .table = 1, .model = 1},
    {ROPE_F16, 1, 8, .by_sequence = 1, .norm = ROPE_NORM_ROUND_TWICE, .table = 1, .model = 1},
    {ROPE_BF16, 1, 7, .page_size = 32, .pairing = ROPE_PAIRING_INTERLEAVED, .table = 1, .model = 1,
     .dim = 64},
    {ROPE_F16, 1, 2, .page_size = 16, .slots = 1, .table = 1},
    {ROPE_BF16, 1, 4, .page_size = 16, .model = 1},
    {ROPE_BF16, 8, 2, .page_size = 16, .table = 1, .model = 1},
    {ROPE_F16, 3, 4, .page_size = 16, .table = 1, .dim = 64, .store = ROPE_F8E4M3},
    {ROPE_BF16, 4, 4, .page_size = 16, .packed = UNEVEN, .table = 1, .model = 1},
};

static int64_t dim_of(const one_launch *o) {
    return o->dim ? o->dim : 128;
}

/* The parts of an arena. */
typedef struct parts {
    size_t q, k, v, weight, sinks, cache[2], cos, sin, scale[2], table, slots, lengths, starts,
        boundaries, bits, out, lse, flag, bytes;
} parts;

static size_t add(size_t *end, size_t bytes) {
    const size_t at = *end;
    *end += (bytes + 255) / 256 * 256;
    return at;
}

static int64_t sequences_of(const one_launch *o) {
    return o->sequences ? o->sequences : SEQUENCES;
}

static int64_t places_of(const one_launch *o) {
    return o->places ? o->places : PLACES;
}

static int32_t keys_of(const one_launch *o, int64_t sequence) {
    return lengths[o->even ? SEQUENCES - 1 : sequence % SEQUENCES] % (int32_t)places_of(o);
}

/* New tokens of a sequence. */
static int32_t tokens_of(const one_launch *o, int64_t sequence) {
    return o->packed == UNEVEN ? (int32_t)((sequence * 3 + 1) % (o->tokens + 1)) : o->tokens;
}

/* Those of all sequences ahead of one, and where they are packed all of the row. */
static int64_t tokens_ahead(const one_launch *o, int64_t sequence) {
    int64_t tokens = 0;
    for (int64_t s = 0; s < sequence; s++)
        tokens += tokens_of(o, s);
    return tokens;
}

static int64_t all_tokens(const one_launch *o) {
    return tokens_ahead(o, sequences_of(o)) + (o->packed == UNEVEN ? OUTSIDE : 0);
}

static int64_t page_size_of(const one_launch *o) {
    return o->by_sequence ? PLACES - 7 : o->page_size; /* no multiple of 16 */
}

static int64_t pages_of(const one_launch *o) {
    const int64_t places = o->ring ? o->ring : places_of(o);
    return o->by_sequence ? 1 : (places + o->page_size - 1) / o->page_size;
}

/* Bytes of a head in the cache. */
static size_t stored_of(const one_launch *o) {
    return (size_t)dim_of(o) * (o->store ? 1 : 2);
}

/* Whether each token and head has a scale of its own. */
static int scales_tokens(const one_launch *o) {
    return o->scale == ROPE_SCALE_TOKEN_HEAD || o->scale == ROPE_SCALE_TOKEN_HEAD_MAX;
}

/* Words of a query's bits. */
static size_t words_of(const one_launch *o) {
    return (size_t)(o->tree + 31) / 32;
}

/* Keys of a tree that no query sees. */
static int is_unseen(int64_t of_tree) {
    return of_tree >= 0 && of_tree % 5 == 2;
}

static parts parts_of(const one_launch *o) {
    const size_t head = (size_t)dim_of(o) * 2, sequences = (size_t)sequences_of(o),
                 tokens = (size_t)all_tokens(o), pages = sequences * (size_t)pages_of(o);
    const size_t q = tokens * K_HEADS * (size_t)o->group, k = tokens * K_HEADS;
    parts p = {0};
    p.q = add(&p.bytes, q * head);
    p.k = add(&p.bytes, k * head);
    p.v = add(&p.bytes, k * head);
    p.weight = add(&p.bytes, 2 * head);
    p.sinks = add(&p.bytes, (size_t)(K_HEADS * o->group) * 2);
    for (int i = 0; i < 2; i++)
        p.cache[i] = add(&p.bytes, pages * (size_t)page_size_of(o) * K_HEADS * stored_of(o));
    p.cos = add(&p.bytes, tokens * head);
    p.sin = add(&p.bytes, tokens * head);
    for (int i = 0; i < 2; i++)
        p.scale[i] =
            add(&p.bytes, K_HEADS * 4 * (scales_tokens(o) ? pages * (size_t)page_size_of(o) : 1));
    /* lists have room for indices of 64 bits */
    p.table = add(&p.bytes, pages * 8);
    p.slots = add(&p.bytes, tokens * 8);
    p.lengths = add(&p.bytes, sequences * 8);
    p.starts = add(&p.bytes, sequences * 8);
    p.boundaries = add(&p.bytes, (sequences + 1) * 8);
    p.bits = add(&p.bytes, tokens * words_of(o) * 4);
    p.out = add(&p.bytes, q * head);
    p.lse = add(&p.bytes, q * 4);
    p.flag = add(&p.bytes, 4);
    return p;
}

static void fill_numbers(decode_case *c, const one_launch *o, size_t from, size_t bytes) {
    for (size_t i = 0; i < bytes / 2; i++)
        oracle_store(o->dtype, c->append.base.arena + from, (int64_t)i,
                     random_real(&c->append.base.random, -2, 2));
}

/* Codes, and scales that make elements of at most 2 of them. */
static void fill_codes(decode_case *c, const one_launch *o, const parts *p) {
    const double largest = !o->scale                 ? 2
                           : o->store == ROPE_I8     ? 127
                           : o->store == ROPE_F8E4M3 ? 448
                                                     : 57344;
    test_random *r = &c->append.base.random;
    for (int i = 0; i < 2 && o->store; i++) {
        unsigned char *codes = c->append.base.arena + p->cache[i];
        float *scales = (float *)(void *)(c->append.base.arena + p->scale[i]);
        for (size_t n = 0; n < p->cache[1] - p->cache[0]; n++)
            oracle_store(o->store, codes, (int64_t)n, random_real(r, -largest, largest));
        for (size_t n = 0; n < (p->scale[1] - p->scale[0]) / 4; n++)
            scales[n] = (float)(random_real(r, 1, 2) / largest);
    }
}

static void fill_table(decode_case *c, const one_launch *o, const parts *p) {
    unsigned char *cos = c->append.base.arena + p->cos, *sin = c->append.base.arena + p->sin;
    for (int64_t i = 0; o->table && i < all_tokens(o) * dim_of(o) / 2; i++) {
        const double angle = random_real(&c->append.base.random, -4, 4);
        oracle_store(o->dtype, cos, i, __builtin_cos(angle));
        oracle_store(o->dtype, sin, i, __builtin_sin(angle));
    }
}

/* Pages of a sequence lie anywhere. */
static void fill_lists(decode_case *c, const one_launch *o, const parts *p) {
    unsigned char *arena = c->append.base.arena;
    int32_t *table = (int32_t *)(void *)(arena + p->table),
            *slots = (int32_t *)(void *)(arena + p->slots),
            *keys = (int32_t *)(void *)(arena + p->lengths),
            *starts = (int32_t *)(void *)(arena + p->starts),
            *boundaries = (int32_t *)(void *)(arena + p->boundaries);
    const int32_t pages = (int32_t)pages_of(o), all = (int32_t)sequences_of(o) * pages,
                  step = all % 7    ? 7
                         : all % 11 ? 11
                                    : 1;
    for (int32_t i = 0; i < all; i++)
        table[i] = (i * step + 3) % all;
    for (int32_t s = 0; s < sequences_of(o); s++) {
        keys[s] = keys_of(o, s);
        starts[s] = keys[s] - tokens_of(o, s);
        boundaries[s + 1] = boundaries[s] + tokens_of(o, s);
        for (int32_t t = 0; t < tokens_of(o, s); t++) {
            const int32_t n = starts[s] + t, size = (int32_t)page_size_of(o);
            if (o->slots)
                slots[boundaries[s] + t] =
                    n < 0 ? -1 : table[s * pages + n / size] * size + n % size;
        }
    }
    for (int64_t i = boundaries[sequences_of(o)]; o->slots && i < all_tokens(o); i++)
        slots[i] = -1;
}

static void fill_bits(decode_case *c, const one_launch *o, const parts *p) {
    uint32_t *words = (uint32_t *)(void *)(c->append.base.arena + p->bits);
    const size_t count = words_of(o);
    for (size_t i = 0; i < (size_t)all_tokens(o) * count; i++)
        for (int bit = 0; bit < 32; bit++)
            if (!is_unseen((int64_t)(i % count) * 32 + bit) &&
                random_chance(&c->append.base.random, 60))
                words[i] |= 1u << bit;
}

/* Whether the keys of a sequence that are there, ahead of its new tokens, have one in a place,
 * which a query sees. */
static int is_read(const one_launch *o, int32_t keys, int32_t tokens, int64_t place) {
    const int64_t first = keys - tokens, ring = o->ring ? o->ring : INT32_MAX,
                  index = place < first ? place + (first - 1 - place) / ring * ring : INT32_MAX;
    return index < first && index >= keys - ring && !(o->window && index <= first - o->window) &&
           !(o->chunk && index < first / o->chunk * o->chunk) &&
           !(o->tree && is_unseen(index - (keys - o->tree)));
}

static int is_new(const one_launch *o, int32_t keys, int32_t tokens, int64_t place) {
    for (int32_t n = keys - tokens; n < keys; n++)
        if (n >= 0 && (o->ring ? n % o->ring : n) == place)
            return 1;
    return 0;
}

/* Other places hold NaNs, but for the scales that new tokens are given. */
static void spoil_rest(decode_case *c, const one_launch *o, const parts *p) {
    const int32_t *table = (const int32_t *)(const void *)(c->append.base.arena + p->table);
    const int64_t size = page_size_of(o), pages = pages_of(o);
    const size_t token = K_HEADS * stored_of(o);
    for (int32_t s = 0; s < sequences_of(o); s++)
        for (int64_t n = 0; n < size * pages; n++) {
            const int32_t keys = keys_of(o, s), tokens = tokens_of(o, s);
            const int64_t page = o->by_sequence ? s : table[s * pages + n / size],
                          at = page * size + n % size;
            if (is_read(o, keys, tokens, n))
                continue;
            for (int i = 0; i < 2; i++) {
                memset(c->append.base.arena + p->cache[i] + (size_t)at * token, 0xff, token);
                if (scales_tokens(o) &&
                    !(o->scale == ROPE_SCALE_TOKEN_HEAD && is_new(o, keys, tokens, n)))
                    memset(c->append.base.arena + p->scale[i] + (size_t)at * K_HEADS * 4, 0xff,
                           K_HEADS * 4);
            }
        }
}

static void describe(decode_case *c, const one_launch *o) {
    rope_append_desc *a = &c->desc.append;
    c->desc = (rope_decode_desc)ROPE_DECODE_DESC_INIT;
    a->rope.dtype = o->dtype;
    a->rope.head_dim = (int32_t)dim_of(o);
    a->rope.pairing_in = o->pairing;
    a->rope.position_dtype = ROPE_I32;
    a->rope.arithmetic = o->model ? ROPE_ARITHMETIC_MODEL_DTYPE : 0;
    if (o->table) {
        a->rope.angle_mode = ROPE_ANGLE_TABLE;
        a->rope.table_dtype = o->dtype;
        a->rope.table_width = ROPE_TABLE_HALF;
    }
    if (o->norm)
        a->q.norm = a->k.norm = (rope_norm){.type = ROPE_NORM_RMS,
                                            .scope = ROPE_NORM_HEAD,
                                            .weight = ROPE_NORM_WEIGHT,
                                            .rounding = o->norm,
                                            .eps = 1e-6};
    a->cache = o->by_sequence ? ROPE_CACHE_SEQUENCE
               : o->slots     ? ROPE_CACHE_SLOTS
                              : ROPE_CACHE_TABLE;
    a->page_size = page_size_of(o);
    a->k.store_dtype = a->v.store_dtype = o->store;
    a->k.scale = a->v.scale = o->scale;
    a->ring = o->ring;
    c->desc.window = o->window;
    c->desc.chunk = o->chunk;
    c->desc.mask = o->tree ? ROPE_MASK_TREE : 0;
    c->desc.sink_dtype = o->sinks ? o->dtype : 0;
    c->desc.soft_cap = o->soft_cap;
}

/* Of a row's tokens; packed sequences have the same. */
static void put_table(decode_case *c, const one_launch *o, const parts *p) {
    rope_append_args *a = &c->args.append;
    const int64_t pairs = dim_of(o) / 2;
    a->rope.cos = c->append.base.arena + p->cos;
    a->rope.sin = c->append.base.arena + p->sin;
    a->rope.table_rows = o->tokens;
    a->rope.table_stride[0] = o->packed ? 0 : o->tokens * pairs;
    a->rope.table_stride[1] = pairs;
    a->rope.table_stride[2] = 1;
    a->cache_starts = o->slots ? NULL : a->rope.sequence_offsets;
    a->rope.sequence_offsets = NULL;
}

static void make(decode_case *c, const one_launch *o, const parts *p, int64_t index) {
    memset(c, 0, sizeof *c);
    c->append.base.random = random_stream(test_seed(), index);
    c->append.base.bytes = p->bytes;
    unsigned char *arena = c->append.base.arena = aligned_alloc(256, p->bytes);
    memset(arena, 0, p->bytes);
    fill_numbers(c, o, 0, p->scale[0]);
    fill_table(c, o, p);
    fill_codes(c, o, p);
    fill_lists(c, o, p);
    fill_bits(c, o, p);
    spoil_rest(c, o, p);
    describe(c, o);
    c->args = (rope_decode_args)ROPE_DECODE_ARGS_INIT;
    rope_append_args *a = &c->args.append;
    a->rope.batch = o->packed ? 1 : sequences_of(o);
    a->rope.tokens = o->packed ? all_tokens(o) : o->tokens;
    if (o->packed) {
        a->rope.cu_seqlens = arena + p->boundaries;
        a->rope.sequences = sequences_of(o);
        c->args.most_tokens = o->tokens;
    }
    a->rope.q = (rope_tensor){.in = arena + p->q, .heads = K_HEADS * o->group};
    a->rope.k = (rope_tensor){.in = arena + p->k, .heads = K_HEADS};
    a->v = (rope_tensor){.in = arena + p->v, .heads = K_HEADS};
    if (o->norm) {
        a->q_weight.data = arena + p->weight;
        a->k_weight.data = arena + p->weight + dim_of(o) * 2;
    }
    a->k_cache.data = arena + p->cache[0];
    a->v_cache.data = arena + p->cache[1];
    if (o->scale) {
        a->k_cache.scale.data = arena + p->scale[0];
        a->v_cache.scale.data = arena + p->scale[1];
    }
    a->rope.sequence_offsets = arena + p->starts;
    if (o->table)
        put_table(c, o, p);
    a->pages = sequences_of(o) * pages_of(o);
    if (!o->by_sequence) {
        a->block_table = arena + p->table;
        a->table_pages = pages_of(o);
    }
    if (o->slots)
        a->slots = arena + p->slots;
    c->args.k_lengths = arena + p->lengths;
    if (o->tree) {
        c->args.tree_bits = arena + p->bits;
        c->args.tree_keys = o->tree;
    }
    c->args.sinks = o->sinks ? arena + p->sinks : NULL;
    c->args.out.data = arena + p->out;
    c->args.lse = (float *)(void *)(arena + p->lse);
    a->rope.position_flag = (int32_t *)(void *)(arena + p->flag);
}

/* A weight and a result are rounded, in either kernel; values are at most 2. */
static double bound_of(const one_launch *o) {
    return o->dtype == ROPE_BF16 ? 4 * 2 * 0x1p-9 : 4 * 2 * 0x1p-12;
}

static void check_close(const one_launch *o, const parts *p, const unsigned char *expected,
                        const unsigned char *result) {
    const int64_t rows = all_tokens(o) * K_HEADS * o->group;
    CHECK(memcmp(expected, result, p->out) == 0, "caches differ from those of rope_append");
    for (int64_t i = 0; i < rows * dim_of(o); i++) {
        const double x = oracle_load(o->dtype, expected + p->out, i),
                     y = oracle_load(o->dtype, result + p->out, i);
        CHECK(fabs(x - y) <= bound_of(o), "element %lld of out is %g, not %g", (long long)i, y, x);
    }
    for (int64_t i = 0; i < rows; i++) {
        const float x = ((const float *)(const void *)(expected + p->lse))[i],
                    y = ((const float *)(const void *)(result + p->lse))[i];
        CHECK(x == y || fabsf(x - y) <= 1e-3f, "lse of row %lld is %g, not %g", (long long)i, y, x);
    }
}

/* One of the sequences in a call of its own: where it has as many tokens as any, as a row, whose
 * first token is *first, else packed where it is. */
static decode_case alone_of(const decode_case *c, const one_launch *o, int64_t s, int64_t *first) {
    const int is_row = tokens_of(o, s) == o->tokens;
    decode_case alone = *c;
    rope_append_args *a = &alone.args.append;
    *first = is_row ? tokens_ahead(o, s) : 0;
    const size_t bytes = (size_t)(*first * K_HEADS * dim_of(o) * 2);
    a->rope.q.in = (const char *)a->rope.q.in + bytes * (size_t)o->group;
    a->rope.k.in = (const char *)a->rope.k.in + bytes;
    a->v.in = (const char *)a->v.in + bytes;
    if (a->rope.sequence_offsets)
        a->rope.sequence_offsets = (const int32_t *)a->rope.sequence_offsets + s;
    if (a->cache_starts)
        a->cache_starts = (const int32_t *)a->cache_starts + s;
    if (o->table && !o->packed) {
        const int64_t ahead = s * a->rope.table_stride[0] * 2;
        a->rope.cos = (const char *)a->rope.cos + ahead;
        a->rope.sin = (const char *)a->rope.sin + ahead;
    }
    a->block_table = (const int32_t *)a->block_table + s * pages_of(o);
    if (o->slots)
        a->slots = (const int32_t *)a->slots + *first;
    alone.args.k_lengths = (const int32_t *)alone.args.k_lengths + s;
    if (o->tree)
        alone.args.tree_bits =
            (const uint32_t *)alone.args.tree_bits + (size_t)*first * words_of(o);
    a->rope.cu_seqlens = is_row ? NULL : (const int32_t *)a->rope.cu_seqlens + s;
    a->rope.sequences = !is_row;
    a->rope.batch = 1;
    a->rope.tokens = is_row ? o->tokens : all_tokens(o);
    alone.args.most_tokens = is_row ? 0 : o->tokens;
    return alone;
}

/* A sequence alone, unless it is its page's index, has the bits that it has among others: each, or
 * some of many. */
static void check_alone(const decode_case *c, const one_launch *o, const parts *p,
                        const unsigned char *expected) {
    const size_t token = (size_t)(K_HEADS * o->group * dim_of(o) * 2);
    const int64_t step = 1 + sequences_of(o) / 12;
    for (int64_t s = 0; !o->by_sequence && s < sequences_of(o); s += step) {
        int64_t first;
        const decode_case alone = alone_of(c, o, s, &first);
        const size_t at = p->out + (size_t)tokens_ahead(o, s) * token;
        unsigned char *result = malloc(p->bytes);
        CHECK_STATUS(ROPE_OK, decode_run(&alone, kernel, 0, result));
        CHECK(memcmp(result + at - (size_t)first * token, expected + at,
                     (size_t)tokens_of(o, s) * token) == 0,
              "sequence %lld alone has other bits", (long long)s);
        free(result);
    }
}

/* What the kernel takes of a case. */
static one_launch taken(one_launch o) {
    if (kernel == portable) {
        o.tokens = 1;
        o.group = o.group > 16 ? 16 : o.group;
        o.store = o.scale = o.ring = o.tree = o.packed = 0;
        if (test_number("ROPE_TEST_EMULATED", 0) && o.sequences > EMULATED_SEQUENCES)
            o.sequences = EMULATED_SEQUENCES;
        if (test_number("ROPE_TEST_EMULATED", 0) && o.places > EMULATED_PLACES)
            o.places = EMULATED_PLACES;
    }
    return o;
}

static int is_whole(const one_launch *o) {
    const one_launch t = taken(*o);
    return memcmp(&t, o, sizeof t) == 0;
}

/* The first case runs where any does. */
static void one_launch_required(const char *required) {
    const char *name;
    int32_t i = 0;
    kernel = required;
    decode_required();
    device_not_provided("it has no such kernel");
    while ((name = device_kernel_of("decode", i)) && strcmp(name, kernel) != 0)
        i++;
    if (!name)
        SKIP("%s has no %s", device_backend(), kernel);
    const parts p = parts_of(&cases[0]);
    decode_case c;
    make(&c, &cases[0], &p, 0);
    unsigned char *result = malloc(p.bytes);
    const rope_status status = decode_run(&c, kernel, 0, result);
    if (status == ROPE_ERROR_INVALID_VALUE || status == ROPE_ERROR_UNSUPPORTED)
        SKIP("no %s here: %s", kernel, rope_last_error());
    CHECK_STATUS(ROPE_OK, status);
    free(result);
    free(c.append.base.arena);
}

static void describe_one(const one_launch *o) {
    char text[400];
    snprintf(text, sizeof text,
             "dtype=%d tokens=%d group=%d dim=%lld sequences=%lldx%lld page=%d norm=%d pairing=%d "
             "slots=%d by_sequence=%d window=%d sinks=%d soft_cap=%d store=%d/%d ring=%d chunk=%d "
             "tree=%d packed=%d table=%d model=%d",
             o->dtype, o->tokens, o->group, (long long)dim_of(o), (long long)sequences_of(o),
             (long long)places_of(o), o->page_size, o->norm, o->pairing, o->slots, o->by_sequence,
             o->window, o->sinks, o->soft_cap, o->store, o->scale, o->ring, o->chunk, o->tree,
             o->packed, o->table, o->model);
    test_describe(text);
}

/* Whether a GPU of few multiprocessors leaves it to the calls, as many short splits: of 128 keys,
 * with a window or chunks two more. */
static int may_be_left(const one_launch *o) {
    enum { KEYS = 128, SHORT = 1024, BLOCKS = 12 };
    const int64_t keys = pages_of(o) * page_size_of(o), splits = (keys + KEYS - 1) / KEYS + 2;
    return kernel == portable && keys <= SHORT && sequences_of(o) * K_HEADS * splits > BLOCKS;
}

/* Attention by the same kernel, behind an append, has the same bits. */
static void check_composed(const decode_case *c, const parts *p, const unsigned char *expected,
                           unsigned char *result) {
    CHECK_STATUS(ROPE_OK, decode_run(c, "few_sm90", 0, result));
    CHECK(memcmp(expected, result, p->bytes) == 0, "behind an append bytes differ");
}

static void check_case(const one_launch *o, int64_t index) {
    const parts p = parts_of(o);
    decode_case c;
    describe_one(o);
    make(&c, o, &p, index);
    unsigned char *expected = malloc(p.bytes), *result = malloc(p.bytes), *again = malloc(p.bytes);
    const rope_status status = decode_run(&c, kernel, 0, result);
    if (status != ROPE_ERROR_UNSUPPORTED || !may_be_left(o)) {
        CHECK_STATUS(ROPE_OK, status);
        CHECK_STATUS(ROPE_OK, decode_run(&c, "composed", 0, expected));
        check_close(o, &p, expected, result);
        CHECK(kernel != portable || memcmp(expected, result, p.bytes) == 0,
              "bytes differ from those of the calls");
        CHECK_STATUS(ROPE_OK, decode_run(&c, kernel, 1, again));
        CHECK(memcmp(result, again, p.bytes) == 0, "a graph gives other bytes");
        if (kernel == sm90 && !o->packed)
            check_composed(&c, &p, result, again);
        check_alone(&c, o, &p, result);
    }
    free(expected);
    free(result);
    free(again);
    free(c.append.base.arena);
}

static void check_cases(const char *required) {
    one_launch_required(required);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        if (is_whole(&cases[i]))
            check_case(&cases[i], (int64_t)i);
}

TEST(decode_one_launch, as_the_calls_that_it_replaces) {
    check_cases(sm90);
}

TEST(decode_one_launch, portable_as_the_calls_that_it_replaces) {
    check_cases(portable);
}

#define ONE_OF(r, ...)                                                                             \
    ((const int32_t[]){__VA_ARGS__})[random_between(                                               \
        r, 0, (int64_t)(sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t)) - 1)]

/* What kernels take. */
static one_launch generate(test_random *r) {
    one_launch o = {.dtype = ONE_OF(r, ROPE_BF16, ROPE_F16),
                    .group = ONE_OF(r, 1, 2, 3, 4, 7, 8, 16, 21)};
    const int64_t most = (random_chance(r, 70) ? 16 : 128) / o.group;
    o.tokens = (int32_t)random_between(r, 1, most < 1 ? 1 : most < 8 ? most : 8);
    o.page_size = ONE_OF(r, 16, 16, 32, 48, 128);
    o.norm = ONE_OF(r, 0, 0, ROPE_NORM_ROUND_ONCE, ROPE_NORM_ROUND_TWICE);
    o.pairing = ONE_OF(r, 0, ROPE_PAIRING_INTERLEAVED);
    o.slots = ONE_OF(r, 0, 1);
    o.sinks = ONE_OF(r, 0, 0, 1);
    o.soft_cap = ONE_OF(r, 0, 0, 0, 20);
    o.sequences = o.tokens * o.group > 16 ? ONE_OF(r, 1, 2, 5) : ONE_OF(r, 1, 2, 5, 13, 40);
    o.places = ONE_OF(r, 40, 300, 1000, 2048);
    o.dim = ONE_OF(r, 64, 128);
    o.store = ONE_OF(r, 0, 0, ROPE_F8E4M3, ROPE_F8E5M2, ROPE_I8);
    if (o.store)
        o.scale = ONE_OF(r, ROPE_SCALE_TENSOR, ROPE_SCALE_HEAD, ROPE_SCALE_TOKEN_HEAD,
                         ROPE_SCALE_TOKEN_HEAD_MAX);
    o.packed = ONE_OF(r, 0, EVEN, UNEVEN, UNEVEN);
    if (random_chance(r, 20))
        o.tree = (int32_t)random_between(r, o.tokens, 70);
    else
        o.window = ONE_OF(r, 0, 0, 1, 20, 300);
    if (!o.tree)
        o.chunk = ONE_OF(r, 0, 0, 0, 100, 512);
    if (!o.slots && random_chance(r, 25))
        o.ring = ONE_OF(r, 32, 48, 160) / o.page_size * o.page_size;
    o.ring = o.ring < 32 ? 0 : o.ring;
    o.table = ONE_OF(r, 0, 1);
    o.model = ONE_OF(r, 0, 1);
    return o;
}

static void check_generated(const char *required) {
    one_launch_required(required);
    for (int64_t i = -1; test_next(&i, GENERATED);) {
        test_random r = random_stream(test_seed() + 5, i);
        const one_launch o = taken(generate(&r));
        check_case(&o, 1000 + i);
    }
}

TEST(decode_one_launch, generated) {
    check_generated(sm90);
}

TEST(decode_one_launch, portable_generated) {
    check_generated(portable);
}

/* A sequence whose table has a page that the cache lacks is left out, and says so. */
static void check_flag(const char *required) {
    one_launch_required(required);
    const one_launch *o = &cases[0];
    const parts p = parts_of(o);
    decode_case c;
    make(&c, o, &p, 0);
    int32_t *table = (int32_t *)(void *)(c.append.base.arena + p.table), flag[2];
    unsigned char *expected = malloc(p.bytes), *result = malloc(p.bytes);
    table[3 * pages_of(o)] = -1;
    CHECK_STATUS(ROPE_OK, decode_run(&c, kernel, 0, result));
    CHECK_STATUS(ROPE_OK, decode_run(&c, "composed", 0, expected));
    check_close(o, &p, expected, result);
    memcpy(&flag[0], expected + p.flag, 4);
    memcpy(&flag[1], result + p.flag, 4);
    CHECK(flag[0] == 1 && flag[1] == 1, "flags are %d and %d, not 1", flag[0], flag[1]);
    free(expected);
    free(result);
    free(c.append.base.arena);
}

TEST(decode_one_launch, a_page_that_is_not_there_raises_the_flag) {
    check_flag(sm90);
}

TEST(decode_one_launch, portable_a_page_that_is_not_there_raises_the_flag) {
    check_flag(portable);
}

/* --- a sequence that a call cannot have, of packed ones --- */

/* More tokens than the call says, boundaries that fall, more keys than its pages have. */
enum { TOO_MANY, FALLS, TOO_LONG, FAULTS };

static const rope_status fault_status[FAULTS] = {
    ROPE_ERROR_POSITION_RANGE, ROPE_ERROR_INVALID_VALUE, ROPE_ERROR_POSITION_RANGE};

static const one_launch packed = {ROPE_BF16, 4, 4, .page_size = 16, .packed = UNEVEN};

static int32_t *list_of(const decode_case *c, size_t part) {
    return (int32_t *)(void *)(c->append.base.arena + part);
}

/* The sequence that is wrong, or none by FAULTS. No sequence has fewer keys than tokens. */
static int64_t break_one(decode_case *c, const parts *p, int fault) {
    const int32_t last = SEQUENCES - 1, held = (int32_t)pages_of(&packed) * packed.page_size;
    int32_t *boundaries = list_of(c, p->boundaries), *keys = list_of(c, p->lengths),
            *starts = list_of(c, p->starts);
    for (int32_t s = 0; s < last; s++)
        if (starts[s] < 0) {
            starts[s] = 0;
            keys[s] = tokens_of(&packed, s);
        }
    if (fault == TOO_MANY) {
        c->args.most_tokens = packed.tokens - 1;
        return 1; /* which alone has as many as any */
    }
    if (fault == FALLS)
        boundaries[last + 1] = boundaries[last] - 1;
    if (fault == TOO_LONG) {
        keys[last] = held + 1;
        starts[last] = held + 1 - tokens_of(&packed, last);
    }
    return last;
}

/* Gives a sequence's results, and its new tokens in both caches, back what they were. */
static void take_back(const decode_case *c, const parts *p, int64_t s, unsigned char *result) {
    const unsigned char *arena = c->append.base.arena;
    const int32_t *table = list_of(c, p->table), start = list_of(c, p->starts)[s];
    const size_t rows = (size_t)(K_HEADS * packed.group), head = (size_t)dim_of(&packed) * 2,
                 first = (size_t)tokens_ahead(&packed, s) * rows,
                 count = (size_t)tokens_of(&packed, s) * rows, token = K_HEADS * stored_of(&packed);
    memcpy(result + p->out + first * head, arena + p->out + first * head, count * head);
    memcpy(result + p->lse + first * 4, arena + p->lse + first * 4, count * 4);
    for (int32_t n = start; n < start + tokens_of(&packed, s); n++) {
        const int32_t size = packed.page_size, page = table[s * pages_of(&packed) + n / size];
        const size_t at = (size_t)(page * size + n % size) * token;
        for (int i = 0; i < 2; i++)
            memcpy(result + p->cache[i] + at, arena + p->cache[i] + at, token);
    }
}

/* The other sequences have what the composed call gives them. */
static void check_left_out(decode_case *c, const parts *p, int fault, int64_t s, const char *name,
                           const unsigned char *result) {
    const int takes = fault == TOO_MANY && strcmp(name, sm90) != 0;
    int32_t flag;
    unsigned char *expected = malloc(p->bytes);
    memcpy(&flag, result + p->flag, sizeof flag);
    CHECK(flag == (c->args.append.rope.position_flag && !takes), "the flag is %d", flag);
    c->args.most_tokens = packed.tokens;
    CHECK_STATUS(ROPE_OK, decode_run(c, "composed", 0, expected));
    if (fault == TOO_MANY && !takes)
        take_back(c, p, s, expected);
    check_close(&packed, p, expected, result);
    free(expected);
}

static void check_fault(int fault, const char *name, int has_flag) {
    const parts p = parts_of(&packed);
    decode_case c;
    char text[80];
    snprintf(text, sizeof text, "fault %d of %s, flag %d", fault, name, has_flag);
    test_describe(text);
    make(&c, &packed, &p, 0);
    const int64_t s = break_one(&c, &p, fault);
    if (!has_flag)
        c.args.append.rope.position_flag = NULL;
    unsigned char *result = malloc(p.bytes);
    const rope_status status = decode_run(&c, name, 0, result);
    if (device_is_host()) {
        CHECK_STATUS(fault_status[fault], status);
        CHECK(memcmp(result, c.append.base.arena, p.bytes) == 0, "something was written");
    } else {
        CHECK_STATUS(ROPE_OK, status);
        check_left_out(&c, &p, fault, s, name, result);
    }
    free(result);
    free(c.append.base.arena);
}

/* Whether the device has the kernel, or another name, and takes the case. */
static int has_kernel(const char *name) {
    const parts p = parts_of(&packed);
    decode_case c;
    make(&c, &packed, &p, 0);
    (void)break_one(&c, &p, FAULTS);
    unsigned char *result = malloc(p.bytes);
    const rope_status status = decode_run(&c, name, 0, result);
    free(result);
    free(c.append.base.arena);
    return status == ROPE_OK;
}

/* A CPU says so and writes nothing; a GPU leaves the sequence out, or takes one of more tokens, and
 * sets the flag that the call may have. */
TEST(decode_one_launch, a_sequence_that_a_call_cannot_have) {
    decode_required();
    device_not_provided("it may be left out in another way");
    const char *const names[] = {"composed", sm90};
    for (int i = 0; i < 2; i++) {
        const int faults = has_kernel(names[i]) ? FAULTS : 0;
        for (int fault = 0; fault < faults; fault++)
            for (int has_flag = 0; has_flag < 2; has_flag++)
                check_fault(fault, names[i], has_flag);
    }
}

/* Rows of a table that positions name, or that it lacks, are for the calls: they may leave a token
 * out. */
static void check_table(const char *required) {
    const one_launch o = {ROPE_BF16, 1, 4, .page_size = 16, .table = 1};
    const parts p = parts_of(&o);
    one_launch_required(required);
    for (int by_position = 0; by_position < 2; by_position++) {
        decode_case c;
        make(&c, &o, &p, 0);
        rope_args *a = &c.args.append.rope;
        unsigned char *result = malloc(p.bytes);
        a->sequence_offsets = by_position ? c.args.append.cache_starts : NULL;
        a->position_offset = !by_position;
        CHECK_STATUS(ROPE_ERROR_UNSUPPORTED, decode_run(&c, kernel, 0, result));
        CHECK_STATUS(ROPE_OK, decode_run(&c, NULL, 0, result));
        free(result);
        free(c.append.base.arena);
    }
}

TEST(decode_one_launch, a_table_by_position_is_left_to_the_calls) {
    check_table(sm90);
}

TEST(decode_one_launch, portable_a_table_by_position_is_left_to_the_calls) {
    check_table(portable);
}

/* --- lists of the portable kernel --- */

static void put_wide(const decode_case *c, size_t part, int64_t i, int64_t x) {
    memcpy(c->append.base.arena + part + 8 * i, &x, sizeof x);
}

static void widen(const decode_case *c, size_t part, int64_t count) {
    while (count-- > 0)
        put_wide(c, part, count, list_of(c, part)[count]);
}

static void widen_lists(decode_case *c, const parts *p, const one_launch *o) {
    const size_t list[] = {p->lengths, p->starts, p->boundaries, p->slots};
    rope_append_desc *a = &c->desc.append;
    for (int i = 0; i < 4; i++)
        widen(c, list[i], SEQUENCES);
    widen(c, p->table, SEQUENCES * pages_of(o));
    a->rope.position_dtype = a->table_dtype = ROPE_I64;
    a->slot_dtype = o->slots ? ROPE_I64 : 0;
}

/* Sequences whose keys are below 0 or more than their pages hold, and whose new token has no place:
 * behind the pages, or in none by its slot. Positions are ids, and places begin elsewhere. */
static void check_lists(int slots, int wide) {
    const one_launch o = {ROPE_BF16, 1, 4, .page_size = 16, .slots = slots};
    const parts p = parts_of(&o);
    const int32_t held = (int32_t)pages_of(&o) * o.page_size;
    decode_case c;
    make(&c, &o, &p, 0);
    rope_append_args *a = &c.args.append;
    list_of(&c, p.lengths)[1] = -1;
    list_of(&c, p.lengths)[2] = held + 1;
    list_of(&c, p.starts)[3] = held;
    if (slots) {
        list_of(&c, p.slots)[2] = -1;
        list_of(&c, p.slots)[3] = SEQUENCES * held;
    } else {
        a->cache_starts = a->rope.sequence_offsets;
    }
    a->rope.position_ids = a->rope.sequence_offsets = c.append.base.arena + p.boundaries;
    if (wide)
        widen_lists(&c, &p, &o);
    if (wide && slots) /* a page only for those who see 32 bits */
        put_wide(&c, p.slots, 0, INT64_C(1) << 32);
    unsigned char *expected = malloc(p.bytes), *result = malloc(p.bytes);
    CHECK_STATUS(ROPE_OK, decode_run(&c, kernel, 0, result));
    CHECK_STATUS(ROPE_OK, decode_run(&c, "composed", 0, expected));
    CHECK(memcmp(expected, result, p.bytes) == 0, "slots %d, wide %d: bytes differ", slots, wide);
    free(expected);
    free(result);
    free(c.append.base.arena);
}

TEST(decode_one_launch, portable_lists) {
    one_launch_required(portable);
    for (int i = 0; i < 4; i++)
        check_lists(i % 2, i / 2);
}

/* A table whose pages are one may be as long as it likes. */
TEST(decode_one_launch, portable_table_of_one_page) {
    const one_launch o = {ROPE_BF16, 1, 4, .page_size = 16, .sequences = 1, .places = 16};
    const parts p = parts_of(&o);
    decode_case c;
    one_launch_required(portable);
    make(&c, &o, &p, 0);
    list_of(&c, p.lengths)[0] = 3;
    list_of(&c, p.starts)[0] = 2;
    c.args.append.table_pages = INT64_C(1) << 60;
    c.args.append.table_stride[0] = 1;
    c.args.k_tokens = 16;
    unsigned char *expected = malloc(p.bytes), *result = malloc(p.bytes);
    CHECK_STATUS(ROPE_OK, decode_run(&c, kernel, 0, result));
    CHECK_STATUS(ROPE_OK, decode_run(&c, "composed", 0, expected));
    CHECK(memcmp(expected, result, p.bytes) == 0, "bytes differ");
    free(expected);
    free(result);
    free(c.append.base.arena);
}
