/* Calls of rope_append of which a part has no place, no position or no scale, by every kernel: the
 * host refuses them, a device leaves out that part alone and raises the flag. */
#include "tests/append/compare.h"
#include "tests/oracle/oracle.h"
#include "tests/rope/case_parts.h"
#include "tests/support/device.h"
#include "tests/support/harness.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* Token BAD is the one that a test breaks. */
enum { TOKENS = 7, BAD = 4, Q = 8, K = 4, DIM = 64, PAGE = 3, PAGES = 4, ENTRIES = 3, ROWS = 4 };
enum { SLOTS = PAGE * PAGES, PAD = 64, CACHE = PAGES * (PAGE * K * DIM + PAD) };

/* All that a call reads and writes. The cache of k is last, so that it may have more pages than
 * there is memory. */
typedef struct fault_memory {
    uint16_t q[TOKENS][Q][DIM], k[TOKENS][K][DIM], v[TOKENS][K][DIM], weight[DIM];
    uint16_t q_out[TOKENS][Q][DIM], v_cache[CACHE];
    float q_scale[TOKENS][Q], k_scale[SLOTS][K], v_scale[SLOTS][K];
    float cos[ROWS][DIM / 2], sin[ROWS][DIM / 2];
    int64_t list[16], starts[2], ids[8];
    int32_t flag[4];
    uint16_t k_cache[CACHE];
} fault_memory;

static fault_memory *memory_of(const append_case *c) {
    return (fault_memory *)(void *)c->base.arena;
}

static void fill_memory(test_random *r, fault_memory *m) {
    memset(m, 0, sizeof *m);
    uint16_t *x = m->q[0][0];
    for (size_t i = 0; i < offsetof(fault_memory, q_scale) / 2; i++)
        x[i] = (uint16_t)(0x3c00 + random_between(r, 0, 0x2ff) + (random_between(r, 0, 1) << 15));
    for (int i = 0; i < CACHE; i++)
        m->k_cache[i] = (uint16_t)(0x3c00 + random_between(r, 0, 0x2ff));
    for (float *scale = m->q_scale[0]; scale < m->cos[0]; scale++)
        *scale = (float)random_real(r, 0.01, 0.1);
    for (float *one = m->cos[0]; one < m->sin[0]; one++)
        *one = 1;
}

/* Norms of q and k, all positions 0: a rotation that changes nothing. */
static void make(append_case *c, int32_t cache, int32_t index_type) {
    const rope_norm norm = {.type = ROPE_NORM_RMS, .weight = ROPE_NORM_WEIGHT, .eps = 1e-6};
    memset(c, 0, sizeof *c);
    c->base.bytes = (sizeof(fault_memory) + 63) / 64 * 64;
    c->base.arena = aligned_alloc(64, c->base.bytes);
    memset(c->base.arena, 0, c->base.bytes);
    c->base.random = random_stream(test_seed(), cache);
    fault_memory *m = memory_of(c);
    fill_memory(&c->base.random, m);
    c->desc = (rope_append_desc)ROPE_APPEND_DESC_INIT;
    c->desc.rope.dtype = ROPE_BF16;
    c->desc.rope.head_dim = DIM;
    c->desc.rope.position_dtype = index_type;
    c->desc.q.norm = c->desc.k.norm = norm;
    c->desc.cache = cache;
    c->desc.page_size = PAGE;
    rope_append_args *a = &c->args;
    *a = (rope_append_args)ROPE_APPEND_ARGS_INIT;
    a->rope.batch = 1;
    a->rope.tokens = TOKENS;
    a->rope.q = (rope_tensor){.in = m->q, .out = m->q_out, .heads = Q};
    a->rope.k = (rope_tensor){.in = m->k, .heads = K};
    a->v = (rope_tensor){.in = m->v, .heads = K};
    a->rope.position_ids = m->ids;
    a->rope.position_flag = m->flag;
    a->q_weight.data = a->k_weight.data = m->weight;
    a->k_cache.data = m->k_cache;
    a->v_cache.data = m->v_cache;
    a->pages = PAGES;
    for (int64_t t = 0; cache == ROPE_CACHE_SLOTS && t < TOKENS; t++)
        case_store_index(index_type, m->list, t, t * 5 % SLOTS);
    for (int64_t e = 0; cache == ROPE_CACHE_TABLE && e < ENTRIES; e++)
        case_store_index(index_type, m->list, e, PAGES - 1 - e);
    if (cache == ROPE_CACHE_SLOTS)
        a->slots = m->list;
    else
        a->cache_starts = m->starts;
    if (cache == ROPE_CACHE_TABLE) {
        a->block_table = m->list;
        a->table_pages = ENTRIES;
    }
}

static void check_kernel(const append_case *c, const unsigned char *expected, int flagged,
                         const char *kernel) {
    unsigned char *result = malloc(c->base.bytes);
    int32_t *flag = ((fault_memory *)(void *)result)->flag;
    rope_status status = append_run(c, &c->desc, &c->args, 1, kernel, result);
    if (status == ROPE_ERROR_UNSUPPORTED && kernel) {
        free(result);
        return;
    }
    const char *name = kernel ? kernel : "chosen";
    const int refused = flagged && device_is_host();
    CHECK(refused ? status == ROPE_ERROR_POSITION_RANGE || status == ROPE_ERROR_INVALID_VALUE
                  : status == ROPE_OK,
          "%s: %s", name, rope_status_string(status));
    CHECK(*flag == (flagged && !refused), "%s: the flag is %d", name, *flag);
    *flag = 0;
    size_t at = 0;
    const unsigned char *wanted = refused ? c->base.arena : expected;
    while (at < c->base.bytes && result[at] == wanted[at])
        at++;
    CHECK(at == c->base.bytes, "%s: byte %zu is %#x, not %#x", name, at, result[at], wanted[at]);
    free(result);
}

/* By every kernel: what may be written has the bytes of `values`, all else is as it was. */
static void check_left_out(const append_case *c, const unsigned char *fails, int flagged,
                           const unsigned char *values) {
    append_writes w = append_writes_of(c, &c->desc, &c->args, fails);
    unsigned char *expected = malloc(c->base.bytes);
    const char *kernel = NULL;
    memcpy(expected, c->base.arena, c->base.bytes);
    for (int64_t i = 0; i < w.count; i++)
        memcpy(expected + w.list[i].at, values + w.list[i].at,
               (size_t)oracle_dtype_size(w.list[i].dtype));
    for (int k = 0; k == 0 || kernel; kernel = device_kernel_of("append", k++))
        check_kernel(c, expected, flagged, kernel);
    free(expected);
    append_writes_free(&w);
}

/* The same with what the contract in plain C gives. */
static void check_plain(const append_case *c, const unsigned char *fails, int flagged) {
    unsigned char *values = malloc(c->base.bytes);
    rope_append_args args = c->args;
    memcpy(values, c->base.arena, c->base.bytes);
    append_relocate(&args, c->base.arena, values);
    append_plain(&c->desc, &args);
    check_left_out(c, fails, flagged, values);
    free(values);
}

/* An index; wide: 32 bits do not hold it. */
typedef struct fault_index {
    int64_t value;
    int wide, flagged;
} fault_index;

/* Pages of [slot, head, dim], of [head, slot, dim], and apart from each other. */
enum { NHD, HND, APART, LAYOUTS };

static void lay_out(append_case *c, int layout) {
    const int64_t hnd[] = {PAGE * K * DIM, DIM, PAGE * DIM, DIM, 1},
                  apart[] = {PAGE * K * DIM + PAD, K * DIM, DIM, DIM, 1};
    if (layout == NHD)
        return;
    memcpy(c->args.k_cache.stride, layout == HND ? hnd : apart, sizeof hnd);
    memcpy(c->args.v_cache.stride, c->args.k_cache.stride, sizeof hnd);
}

static void store_8bit(append_case *c, int32_t scale) {
    fault_memory *m = memory_of(c);
    c->desc.q.store_dtype = c->desc.k.store_dtype = c->desc.v.store_dtype = ROPE_F8E4M3;
    c->desc.q.scale = c->desc.k.scale = c->desc.v.scale = scale;
    c->args.q_scale.data = m->q_scale;
    c->args.k_cache.scale.data = m->k_scale;
    c->args.v_cache.scale.data = m->v_scale;
}

TEST(append_faults, slots) {
    static const fault_index list[] = {{0, 0, 0}, /* no other token's */
                                       {-1, 0, 0},
                                       {INT32_MIN, 0, 0},
                                       {SLOTS, 0, 1},
                                       {INT32_MAX, 0, 1},
                                       {INT64_MIN, 1, 0},
                                       {INT64_MIN + 5, 1, 0},
                                       {INT64_C(1) << 32, 1, 1},
                                       {(INT64_C(1) << 32) + 9, 1, 1},
                                       {PAGE * (INT64_C(1) << 32) + 9, 1, 1},
                                       {INT64_MAX, 1, 1}};
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
        for (int32_t type = list[i].wide ? ROPE_I64 : ROPE_I32; type <= ROPE_I64; type++)
            for (int layout = NHD; layout < 2 * LAYOUTS; layout++) {
                append_case c;
                make(&c, ROPE_CACHE_SLOTS, type);
                lay_out(&c, layout % LAYOUTS);
                if (layout >= LAYOUTS)
                    store_8bit(&c, ROPE_SCALE_TENSOR);
                case_store_index(type, memory_of(&c)->list, 0, SLOTS - 1);
                case_store_index(type, memory_of(&c)->list, BAD, list[i].value);
                test_describe(test_text("slot %lld, type %d, layout %d", (long long)list[i].value,
                                        type, layout));
                check_plain(&c, NULL, list[i].flagged);
                append_free(&c);
            }
}

TEST(append_faults, entries_of_tables) {
    static const fault_index list[] = {{PAGES - 1 - BAD / PAGE, 0, 0},
                                       {PAGES, 0, 1},
                                       {-1, 0, 1},
                                       {INT32_MAX, 0, 1},
                                       {INT32_MIN, 0, 1},
                                       {INT64_C(1) << 32, 1, 1},
                                       {(INT64_C(1) << 32) + 1, 1, 1},
                                       {INT64_MIN, 1, 1},
                                       {INT64_MAX, 1, 1}};
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
        for (int32_t type = list[i].wide ? ROPE_I64 : ROPE_I32; type <= ROPE_I64; type++) {
            append_case c;
            make(&c, ROPE_CACHE_TABLE, type);
            case_store_index(type, memory_of(&c)->list, BAD / PAGE, list[i].value);
            test_describe(test_text("page %lld, type %d", (long long)list[i].value, type));
            check_plain(&c, NULL, list[i].flagged);
            append_free(&c);
        }
}

TEST(append_faults, starts) {
    static const fault_index list[] = {{0, 0, 0},
                                       {2, 0, 0},
                                       {BAD, 0, 1},
                                       {-2, 0, 1},
                                       {INT32_MAX - TOKENS, 0, 1},
                                       {INT64_C(1) << 32, 1, 1},
                                       {-(INT64_C(1) << 32), 1, 1},
                                       {INT64_MAX - TOKENS, 1, 1}};
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
        for (int32_t type = list[i].wide ? ROPE_I64 : ROPE_I32; type <= ROPE_I64; type++)
            for (int32_t cache = ROPE_CACHE_TABLE; cache <= ROPE_CACHE_SEQUENCE; cache++) {
                append_case c;
                make(&c, cache, type);
                if (cache == ROPE_CACHE_SEQUENCE)
                    c.desc.page_size = ENTRIES * PAGE, c.args.pages = 1;
                case_store_index(type, memory_of(&c)->starts, 0, list[i].value);
                test_describe(test_text("start %lld, type %d, cache %d", (long long)list[i].value,
                                        type, cache));
                check_plain(&c, NULL, list[i].flagged);
                append_free(&c);
            }
}

/* Where the scale of a head of token BAD lies, of the kind. */
static float *scale_at(const append_case *c, int32_t tensor, int32_t kind) {
    fault_memory *m = memory_of(c);
    float *scales = tensor == 0 ? m->q_scale[0] : tensor == 1 ? m->k_scale[0] : m->v_scale[0];
    const int64_t heads = tensor == 0 ? Q : K, token = tensor == 0 ? BAD : BAD * 5 % SLOTS;
    return scales + (kind == ROPE_SCALE_TENSOR ? 0 : 1) +
           (kind >= ROPE_SCALE_TOKEN_HEAD ? token * heads : 0);
}

static const float no_scales[] = {0, -0.0F, -0.5F, NAN, INFINITY, -INFINITY};

TEST(append_faults, scales) {
    for (int32_t kind = ROPE_SCALE_TENSOR; kind <= ROPE_SCALE_TOKEN_HEAD; kind++)
        for (int32_t tensor = 0; tensor < 3; tensor++)
            for (size_t i = 0; i < sizeof no_scales / sizeof no_scales[0]; i++) {
                append_case c;
                make(&c, ROPE_CACHE_SLOTS, ROPE_I64);
                store_8bit(&c, kind);
                *scale_at(&c, tensor, kind) = no_scales[i];
                test_describe(test_text("scale of kind %d of tensor %d is %g", kind, tensor,
                                        (double)no_scales[i]));
                check_plain(&c, NULL, 1);
                append_free(&c);
            }
}

/* Keys of the cache that all move by one distance, of what was made. */
static void move_keys(append_case *c) {
    c->desc.q = c->desc.v = (rope_append_part){0};
    c->desc.k.norm = (rope_norm){0};
    c->desc.k_source = ROPE_SOURCE_CACHE;
    c->args.rope.q = c->args.v = (rope_tensor){0};
    c->args.rope.k = (rope_tensor){.heads = K};
    c->args.q_weight = c->args.k_weight = (rope_norm_weight){0};
    c->args.q_scale = (rope_scale){0};
    c->args.v_cache = (rope_cache){0};
    for (int64_t t = 0; t < TOKENS; t++)
        case_store_index(c->desc.rope.position_dtype, memory_of(c)->ids, t, 5);
}

TEST(append_faults, scales_of_keys_that_move) {
    for (int32_t kind = ROPE_SCALE_TENSOR; kind <= ROPE_SCALE_TOKEN_HEAD_MAX; kind++)
        for (size_t i = 0; i < sizeof no_scales / sizeof no_scales[0]; i++) {
            append_case c;
            make(&c, ROPE_CACHE_SLOTS, ROPE_I64);
            store_8bit(&c, kind);
            move_keys(&c);
            unsigned char *values = malloc(c.base.bytes);
            CHECK_STATUS(ROPE_OK, append_run(&c, &c.desc, &c.args, 1, NULL, values));
            *scale_at(&c, 1, kind) = no_scales[i];
            test_describe(test_text("scale of kind %d is %g", kind, (double)no_scales[i]));
            check_left_out(&c, NULL, 1, values);
            free(values);
            append_free(&c);
        }
}

/* Slots that the cache does not have, and whether the flag tells. */
static const fault_index no_slots[] = {
    {-1, 0, 0},       {SLOTS, 0, 1}, {INT32_MAX, 0, 1}, {INT64_MIN, 1, 0}, {INT64_C(1) << 32, 1, 1},
    {INT64_MAX, 1, 1}};

TEST(append_faults, slots_of_keys_that_move) {
    for (size_t i = 0; i < sizeof no_slots / sizeof no_slots[0]; i++)
        for (int32_t type = no_slots[i].wide ? ROPE_I64 : ROPE_I32; type <= ROPE_I64; type++)
            for (int eight = 0; eight < 2; eight++) {
                append_case c;
                make(&c, ROPE_CACHE_SLOTS, type);
                if (eight)
                    store_8bit(&c, ROPE_SCALE_TENSOR);
                move_keys(&c);
                unsigned char *values = malloc(c.base.bytes);
                CHECK_STATUS(ROPE_OK, append_run(&c, &c.desc, &c.args, 1, NULL, values));
                case_store_index(type, memory_of(&c)->list, BAD, no_slots[i].value);
                test_describe(test_text("slot %lld, type %d", (long long)no_slots[i].value, type));
                check_left_out(&c, NULL, no_slots[i].flagged, values);
                free(values);
                append_free(&c);
            }
}

/* One head of k whose latent of 256 elements is normalised beside a window of 32. */
static void make_latent(append_case *c, int32_t type) {
    enum { LATENT = 256, WINDOW = 32, SIZE = 2, PAGES_OF_ROWS = 5 };
    make(c, ROPE_CACHE_SLOTS, type);
    fault_memory *m = memory_of(c);
    c->desc.rope.rotary_dim = WINDOW;
    c->desc.rope.k_head_dim = LATENT + WINDOW;
    c->desc.rope.k_rotary_offset = LATENT;
    c->desc.q.norm = (rope_norm){0};
    c->desc.k.norm.dim = LATENT;
    c->desc.page_size = SIZE;
    c->args.rope.q.out = m->q;
    c->args.rope.k = (rope_tensor){.in = m->k, .heads = 1};
    c->args.v = (rope_tensor){0};
    c->args.q_weight = (rope_norm_weight){0};
    c->args.k_weight.data = m->q_out;
    c->args.v_cache = (rope_cache){0};
    c->args.pages = PAGES_OF_ROWS;
    for (int64_t t = 0; t < TOKENS; t++)
        case_store_index(type, m->list, t, t * 3 % (SIZE * PAGES_OF_ROWS));
}

TEST(append_faults, slots_of_a_latent) {
    for (size_t i = 0; i < sizeof no_slots / sizeof no_slots[0]; i++)
        for (int32_t type = no_slots[i].wide ? ROPE_I64 : ROPE_I32; type <= ROPE_I64; type++) {
            append_case c;
            make_latent(&c, type);
            case_store_index(type, memory_of(&c)->list, BAD, no_slots[i].value);
            test_describe(test_text("slot %lld, type %d", (long long)no_slots[i].value, type));
            check_plain(&c, NULL, no_slots[i].flagged);
            append_free(&c);
        }
}

TEST(append_faults, positions_outside_a_table) {
    static const int64_t list[] = {ROWS - 1, ROWS, -1, INT64_C(1) << 32, INT64_MAX};
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
        for (int eight = 0; eight < 2; eight++) {
            unsigned char fails[TOKENS] = {0};
            append_case c;
            make(&c, ROPE_CACHE_SLOTS, ROPE_I64);
            c.desc.rope.angle_mode = ROPE_ANGLE_TABLE;
            c.desc.rope.table_dtype = ROPE_F32;
            c.args.rope.cos = memory_of(&c)->cos;
            c.args.rope.sin = memory_of(&c)->sin;
            c.args.rope.table_rows = ROWS;
            if (eight)
                store_8bit(&c, ROPE_SCALE_HEAD);
            memory_of(&c)->ids[BAD] = list[i];
            fails[BAD] = i > 0;
            test_describe(test_text("position %lld", (long long)list[i]));
            check_plain(&c, fails, i > 0);
            append_free(&c);
        }
}

/* More pages and larger ones than there is memory, of which the first rows are written. */
TEST(append_faults, pages_of_every_size) {
    static const struct {
        int64_t page_size, pages;
    } list[] = {{1, SLOTS},     {5, 3},
                {SLOTS, 1},     {1, INT64_C(1) << 31},
                {7, 1 << 30},   {1 << 30, 1},
                {1 << 30, 2},   {(1 << 30) + 1, 1},
                {INT32_MAX, 1}, {INT64_C(1) << 32, 3},
                {1, INT32_MAX}, {3, INT64_C(1) << 40}};
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
        for (int beyond = 0; beyond < 2; beyond++) {
            append_case c;
            make(&c, ROPE_CACHE_SLOTS, ROPE_I64);
            c.desc.page_size = list[i].page_size;
            c.args.pages = list[i].pages;
            c.args.v = (rope_tensor){0};
            c.args.v_cache = (rope_cache){0};
            if (beyond)
                memory_of(&c)->list[BAD] = list[i].page_size * list[i].pages;
            test_describe(test_text("%lld pages of %lld", (long long)list[i].pages,
                                    (long long)list[i].page_size));
            check_plain(&c, NULL, beyond);
            append_free(&c);
        }
}
