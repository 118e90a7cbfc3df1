/* rope_append gives the same bits from every thread count, split of a call and kernel, in one call
 * and step after step, from a tensor and from the cache, and touches nothing beside its buffers. */
#include "tests/append/compare.h"
#include "tests/oracle/append_layout.h"
#include "tests/oracle/oracle.h"
#include "tests/support/device.h"
#include "tests/support/guard.h"
#include "tests/support/harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CASES = 300 };

/* The arena after calls, NaNs made one; NULL where the kernel declines. */
static unsigned char *arena_after(const append_case *c, const append_writes *w,
                                  const rope_append_args *calls, int32_t count,
                                  const char *kernel) {
    unsigned char *result = malloc(c->base.bytes);
    rope_status status = append_run(c, &c->desc, calls, count, kernel, result);
    if (status == ROPE_ERROR_UNSUPPORTED && kernel) {
        free(result);
        return NULL;
    }
    CHECK_STATUS(ROPE_OK, status);
    append_canonical(w, result);
    return result;
}

static void check_same(const append_case *c, const append_writes *w, const rope_append_args *calls,
                       int32_t count, const char *kernel, const unsigned char *expected,
                       const char *what) {
    unsigned char *got = arena_after(c, w, calls, count, kernel);
    size_t at = 0;
    while (got && at < c->base.bytes && got[at] == expected[at])
        at++;
    CHECK(!got || at == c->base.bytes, "%s: byte %zu of the arena differs", what, at);
    free(got);
}

typedef void check_case(append_case *c, const append_writes *w, const unsigned char *expected);

/* The chosen kernel's arena, then a check that compares with it; frees the case. */
static void check_and_free(append_case *c, check_case *check) {
    append_describe(c, NULL);
    append_writes w = append_writes_of(c, &c->desc, &c->args, NULL);
    unsigned char *expected = arena_after(c, &w, &c->args, 1, NULL);
    check(c, &w, expected);
    free(expected);
    append_writes_free(&w);
    append_free(c);
}

/* For each case in range. */
static void for_each_case(uint64_t seed, append_wish wish, int64_t cases, check_case *check) {
    wish.in_range = 1;
    for (int64_t i = -1; test_next(&i, cases);) {
        append_case c;
        append_make(&c, seed, i, &wish);
        check_and_free(&c, check);
    }
}

/* The arena after the CPU's scalar kernel, on host memory. */
static unsigned char *scalar_arena(const append_case *c, const append_writes *w) {
    unsigned char *result = malloc(c->base.bytes);
    rope_append_desc desc = c->desc;
    rope_append_args args = c->args;
    rope_plan *plan = NULL;
    desc.rope.backend = "cpu";
    desc.rope.kernel = "scalar";
    memcpy(result, c->base.arena, c->base.bytes);
    append_relocate(&args, c->base.arena, result);
    CHECK_STATUS(ROPE_OK, rope_append_plan_create(&desc, &plan));
    CHECK_STATUS(ROPE_OK, rope_append(plan, &args));
    rope_plan_destroy(plan);
    append_canonical(w, result);
    return result;
}

static void check_kernels(append_case *c, const append_writes *w, const unsigned char *expected) {
    const char *kernel;
    unsigned char *scalar = scalar_arena(c, w);
    CHECK(memcmp(scalar, expected, c->base.bytes) == 0,
          "other bits than the CPU's scalar kernel's");
    for (int k = 0; (kernel = device_kernel_of("append", k)); k++) {
        append_describe(c, kernel);
        check_same(c, w, &c->args, 1, kernel, scalar, "beside the CPU's scalar kernel");
    }
    free(scalar);
}

TEST(append_bits, every_kernel) {
    for_each_case(test_seed() + 5, (append_wish){0}, 2 * CASES, check_kernels);
}

static void check_threads(append_case *c, const append_writes *w, const unsigned char *expected) {
    static const int counts[] = {1, 2, 3, 7};
    for (int i = 0; i < 4; i++) {
        device_threads(counts[i]);
        check_same(c, w, &c->args, 1, NULL, expected, "another number of threads");
    }
}

TEST(append_bits, every_thread_count) {
    if (!device_is_host() || !device_threads(2))
        SKIP("the backend does not run on OpenMP");
    for_each_case(test_seed(), (append_wish){0}, CASES / 3, check_threads);
}

/* Enough for a team of threads, which starts at 1 MiB. */
static void make_large(append_case *c, int64_t index) {
    enum { TOKENS = 400, HEADS = 6, DIM = 128 };
    memset(c, 0, sizeof *c);
    size_t in = (size_t)TOKENS * HEADS * DIM * 4;
    c->base.bytes = 4 * in + TOKENS * 8;
    c->base.arena = malloc(c->base.bytes);
    c->base.random = random_stream(test_seed(), index);
    c->desc.struct_size = sizeof c->desc;
    c->args.struct_size = sizeof c->args;
    c->desc.rope =
        (rope_desc){.struct_size = sizeof c->desc.rope, .dtype = ROPE_F32, .head_dim = DIM};
    c->desc.k.norm = (rope_norm){.type = ROPE_NORM_RMS, .scope = (int32_t)(index % 3), .eps = 1e-6};
    c->desc.q.norm = (rope_norm){.type = ROPE_NORM_LAYER, .eps = 1e-6};
    c->desc.cache = ROPE_CACHE_SLOTS;
    c->desc.page_size = 16;
    c->args.rope = (rope_args){.struct_size = sizeof c->args.rope, .batch = 1, .tokens = TOKENS};
    unsigned char *at = c->base.arena;
    c->args.rope.q = (rope_tensor){.in = at, .out = at, .heads = HEADS};
    c->args.rope.k = (rope_tensor){.in = at + in, .heads = HEADS};
    c->args.v = (rope_tensor){.in = at + in, .heads = HEADS};
    c->args.k_cache.data = at + 2 * in;
    c->args.v_cache.data = at + 3 * in;
    c->args.pages = TOKENS / 16;
    c->args.slots = at + 4 * in;
    for (size_t i = 0; i + 4 <= 4 * in; i += 4) {
        float x = (float)random_real(&c->base.random, -2, 2);
        memcpy(at + i, &x, sizeof x);
    }
    for (int64_t t = 0; t < TOKENS; t++) {
        int64_t slot = t * 7 % TOKENS;
        memcpy(at + 4 * in + 8 * (size_t)t, &slot, sizeof slot);
    }
}

TEST(append_bits, threads_of_a_large_call) {
    if (!device_is_host() || !device_threads(2))
        SKIP("the backend does not run on OpenMP");
    for (int64_t i = -1; test_next(&i, 3);) {
        append_case c;
        make_large(&c, i);
        check_and_free(&c, check_threads);
    }
}

/* Heads that lie side by side, as engines have them. */
static void make_plain(append_case *c, int32_t dtype, int32_t pairing_in, int32_t pairing_out) {
    enum {
        TOKENS = 5,
        Q_HEADS = 3,
        DIM = 64,
        Q = TOKENS * Q_HEADS * DIM * 4, /* bytes at most */
        K = TOKENS * DIM * 4
    };
    memset(c, 0, sizeof *c);
    c->base.bytes = 2 * Q + 4 * K + TOKENS * 8;
    c->base.arena = aligned_alloc(64, (c->base.bytes + 63) / 64 * 64);
    c->base.random = random_stream(test_seed(), dtype);
    c->desc.struct_size = sizeof c->desc;
    c->args.struct_size = sizeof c->args;
    c->desc.rope = (rope_desc){.struct_size = sizeof c->desc.rope,
                               .dtype = dtype,
                               .head_dim = DIM,
                               .pairing_in = pairing_in,
                               .pairing_out = pairing_out};
    c->desc.cache = ROPE_CACHE_SLOTS;
    c->desc.page_size = TOKENS;
    c->args.rope = (rope_args){.struct_size = sizeof c->args.rope, .batch = 1, .tokens = TOKENS};
    unsigned char *at = c->base.arena;
    c->args.rope.q = (rope_tensor){.in = at, .out = at + Q, .heads = Q_HEADS};
    c->args.rope.k = (rope_tensor){.in = at + 2 * Q, .heads = 1};
    c->args.v = (rope_tensor){.in = at + 2 * Q + K, .heads = 1};
    c->args.k_cache.data = at + 2 * Q + 2 * K;
    c->args.v_cache.data = at + 2 * Q + 3 * K;
    c->args.pages = 1;
    c->args.slots = at + 2 * Q + 4 * K;
    for (size_t i = 0; i + 2 <= 2 * Q + 4 * K; i += 2) {
        uint16_t x = (uint16_t)(0x3c00 + random_between(&c->base.random, 0, 0x2ff));
        memcpy(at + i, &x, sizeof x);
    }
    for (int64_t t = 0; t < TOKENS; t++) {
        int64_t slot = TOKENS - 1 - t;
        memcpy(at + 2 * Q + 4 * K + 8 * (size_t)t, &slot, sizeof slot);
    }
}

static void check_plain(int32_t dtype, int32_t pairing_in, int32_t pairing_out) {
    append_case c;
    make_plain(&c, dtype, pairing_in, pairing_out);
    check_and_free(&c, check_kernels);
}

/* Every kernel that takes whole vectors is launched. */
TEST(append_bits, plain_calls) {
    for (int32_t dtype = ROPE_F32; dtype <= ROPE_BF16; dtype++)
        for (int32_t in = ROPE_PAIRING_HALF_SPLIT; in <= ROPE_PAIRING_INTERLEAVED; in++)
            for (int32_t out = ROPE_PAIRING_HALF_SPLIT; out <= ROPE_PAIRING_INTERLEAVED; out++)
                check_plain(dtype, in, out);
}

/* Whole heads that rotate, perhaps behind a norm, to slots of a cache: what the kernels of plain
 * calls take. The index says dtype, pairing, norm and head_dim, random numbers the rest. */
enum { WHOLE_TOKENS = 7, WHOLE_Q = 8, WHOLE_K = 4, WHOLE_SLOTS = 12, WHOLE_BYTES = 1 << 16 };

static rope_append_part whole_part(test_random *r, int norm, int32_t dtype) {
    static const int32_t eight[] = {ROPE_F8E4M3, ROPE_F8E5M2, ROPE_F8E4M3FNUZ, ROPE_I8};
    rope_append_part part = {.store_dtype = dtype};
    if (norm)
        part.norm = (rope_norm){
            .type = ROPE_NORM_RMS,
            .weight = (int32_t)random_between(r, ROPE_NORM_WEIGHT, ROPE_NORM_ONE_PLUS_WEIGHT),
            .rounding = (int32_t)random_between(r, ROPE_NORM_ROUND_ONCE, ROPE_NORM_ROUND_TWICE),
            .eps = random_real(r, 1e-6, 1e-2)};
    if (random_between(r, 0, 1)) {
        part.store_dtype = eight[random_between(r, 0, 3)];
        part.scale = ROPE_SCALE_TENSOR;
    }
    return part;
}

static void whole_lists(append_case *c, unsigned char *at) {
    test_random *r = &c->base.random;
    const int wide_slots = c->desc.slot_dtype == ROPE_I64,
              wide_ids = c->desc.rope.position_dtype == ROPE_I64;
    for (int64_t t = 0; t < WHOLE_TOKENS; t++) {
        const int64_t slot = t == 3 ? -1 : t * 5 % WHOLE_SLOTS, id = random_between(r, 0, 99999);
        memcpy(at + (wide_slots ? 8 : 4) * t, &slot, wide_slots ? 8 : 4);
        memcpy(at + 64 + (wide_ids ? 8 : 4) * t, &id, wide_ids ? 8 : 4);
    }
    for (int i = 0; i < 3; i++) {
        const float scale =
            (float)random_real(r, 0.001, 0.1) * (random_between(r, 0, 3) ? 1 : 1e-19f);
        memcpy(at + 128 + 4 * i, &scale, 4);
    }
    c->args.slots = at;
    c->args.rope.position_ids = random_between(r, 0, 2) ? at + 64 : NULL;
    c->args.rope.position_offset = random_signed(r, 40);
    if (c->args.rope.position_ids && random_between(r, 0, 1)) {
        c->args.rope.batch = WHOLE_TOKENS;
        c->args.rope.tokens = 1;
    }
    c->args.q_scale.data = c->desc.q.scale ? at + 128 : NULL;
    c->args.k_cache.scale.data = c->desc.k.scale ? at + 132 : NULL;
    c->args.v_cache.scale.data = c->desc.v.scale ? at + 136 : NULL;
    c->args.q_weight.data = c->desc.q.norm.weight ? at + 256 : NULL;
    c->args.k_weight.data = c->desc.k.norm.weight ? at + 1024 : NULL;
}

/* A case whose memory holds numbers of 16 bits. */
static test_random *begin(append_case *c, int64_t index, size_t bytes) {
    memset(c, 0, sizeof *c);
    c->base.bytes = bytes;
    c->base.arena = aligned_alloc(64, bytes);
    c->base.random = random_stream(test_seed(), index);
    test_random *r = &c->base.random;
    for (size_t i = 0; i < bytes; i += 2) {
        const uint16_t x =
            (uint16_t)(0x3c00 + random_between(r, 0, 0x2ff) + (random_between(r, 0, 1) << 15));
        memcpy(c->base.arena + i, &x, sizeof x);
    }
    c->desc.struct_size = sizeof c->desc;
    c->args.struct_size = sizeof c->args;
    return r;
}

static void make_whole(append_case *c, int64_t index) {
    static const int32_t dims[] = {128, 64, 256, 96};
    const int32_t dtype = index % 2 ? ROPE_F16 : ROPE_BF16;
    const int norm = index / 4 % 2;
    test_random *r = begin(c, index, 7 * WHOLE_BYTES);
    unsigned char *at = c->base.arena;
    c->desc.rope = (rope_desc){.struct_size = sizeof c->desc.rope,
                               .dtype = dtype,
                               .head_dim = dims[index / 8 % 4],
                               .pairing_in = ROPE_PAIRING_HALF_SPLIT + index / 2 % 2,
                               .position_dtype = (int32_t)random_between(r, ROPE_I32, ROPE_I64)};
    c->desc.rope.pairing_out = c->desc.rope.pairing_in;
    c->desc.rope.direction = (int32_t)random_between(r, 0, ROPE_INVERSE);
    c->desc.rope.attention_factor = random_between(r, 0, 1) ? random_real(r, 0.5, 2) : 0;
    c->desc.cache = ROPE_CACHE_SLOTS;
    c->desc.page_size = random_between(r, 1, WHOLE_SLOTS);
    c->desc.slot_dtype = (int32_t)random_between(r, ROPE_I32, ROPE_I64);
    c->desc.q = whole_part(r, norm, dtype);
    c->desc.k = whole_part(r, norm, dtype);
    c->desc.v = whole_part(r, 0, dtype);
    c->args.rope =
        (rope_args){.struct_size = sizeof c->args.rope, .batch = 1, .tokens = WHOLE_TOKENS};
    c->args.rope.q = (rope_tensor){.in = at, .out = at + WHOLE_BYTES, .heads = WHOLE_Q};
    c->args.rope.k = (rope_tensor){.in = at + 2 * WHOLE_BYTES, .heads = WHOLE_K};
    c->args.v = (rope_tensor){.in = at + 3 * WHOLE_BYTES, .heads = WHOLE_K};
    c->args.k_cache.data = at + 4 * WHOLE_BYTES;
    c->args.v_cache.data = at + 5 * WHOLE_BYTES;
    c->args.pages = (WHOLE_SLOTS + c->desc.page_size - 1) / c->desc.page_size;
    whole_lists(c, at + 6 * WHOLE_BYTES);
}

/* However few cases are asked for: these launch every plain kernel of a GPU. */
TEST(append_bits, whole_heads) {
    for (int64_t i = 0; i < 32; i++) {
        append_case c;
        make_whole(&c, i);
        check_and_free(&c, check_kernels);
    }
}

/* Whole heads of a cache that move: the index says dtype, pairing, what is stored and head_dim,
 * random numbers the rest. */
enum { MOVED_TOKENS = 21, MOVED_PLACES = 32, MOVED_BYTES = MOVED_PLACES * 9 * 256 * 2 };

/* Quotients by some of these are other 8 bits than products by their reciprocals. */
static float moved_scale(test_random *r) {
    static const float scales[] = {1,     0.03125f, 0x1.9ffffep+1f, 3.5f,     0x1.48p+4f,
                                   3.25f, 0.1f,     0x1p-80f,       0x1p100f, 0x1.3p-61f};
    const int64_t i = random_between(r, 0, 14);
    return i < 10 ? scales[i] : (float)random_real(r, 0.001, 0.1);
}

/* Numbers of every magnitude, infinities and NaNs among them. */
static void moved_cache(append_case *c) {
    test_random *r = &c->base.random;
    const int wide = c->desc.k.store_dtype < ROPE_F8E4M3, all = random_between(r, 0, 3) == 0;
    for (size_t i = 0; i < MOVED_BYTES; i += 2) {
        const uint16_t any = (uint16_t)random_between(r, 0, UINT16_MAX),
                       x = wide ? (uint16_t)((any & 0x83ff) + 0x3a00) : (uint16_t)(any & 0xb7b7);
        memcpy(c->base.arena + i, all ? &any : &x, sizeof x);
    }
}

static void moved_lists(append_case *c, unsigned char *at) {
    test_random *r = &c->base.random;
    const int64_t page = c->desc.page_size, pages = MOVED_PLACES / page,
                  one = random_between(r, 0, 1);
    for (int64_t t = 0; t < MOVED_TOKENS; t++) {
        const int64_t slot = t == 3 ? -1 : t * 5 % MOVED_PLACES, id = random_signed(r, 17);
        memcpy(at + 8 * t, &slot, 8);
        memcpy(at + 256 + 8 * t, &id, 8);
    }
    for (int64_t i = 0; i < pages; i++) {
        const int64_t other = pages - 1 - i;
        memcpy(at + 512 + 8 * i, &other, 8);
    }
    const int64_t start = random_between(r, 0, MOVED_PLACES - MOVED_TOKENS);
    const float scale = moved_scale(r);
    memcpy(at + 768, &start, 8);
    memcpy(at + 776, &scale, 4);
    c->args.rope.position_ids = at + 256;
    c->args.rope.position_stride[0] = one;
    c->args.rope.position_offset = random_signed(r, 40);
    c->args.pages = pages;
    c->args.k_cache.scale.data = c->desc.k.scale ? at + 776 : NULL;
    c->args.slots = c->desc.cache == ROPE_CACHE_SLOTS ? at : NULL;
    c->args.cache_starts = c->desc.cache == ROPE_CACHE_SLOTS ? NULL : at + 768;
    c->args.block_table = c->desc.cache == ROPE_CACHE_TABLE ? at + 512 : NULL;
    c->args.table_pages = c->desc.cache == ROPE_CACHE_TABLE ? pages : 0;
}

static void make_moved(append_case *c, int64_t index) {
    static const int32_t dims[] = {128, 64, 256, 96},
                         eight[] = {ROPE_F8E4M3, ROPE_F8E5M2, ROPE_F8E4M3FNUZ, ROPE_I8},
                         heads[] = {1, 4, 9};
    const int32_t dtype = index % 2 ? ROPE_F16 : ROPE_BF16, stored = (int32_t)(index / 4 % 5);
    memset(c, 0, sizeof *c);
    c->base.bytes = MOVED_BYTES + 1024;
    c->base.arena = aligned_alloc(64, c->base.bytes);
    c->base.random = random_stream(test_seed(), index);
    test_random *r = &c->base.random;
    c->desc.struct_size = sizeof c->desc;
    c->args.struct_size = sizeof c->args;
    c->desc.rope = (rope_desc){.struct_size = sizeof c->desc.rope,
                               .dtype = dtype,
                               .head_dim = dims[index / 20 % 4],
                               .pairing_in = ROPE_PAIRING_HALF_SPLIT + index / 2 % 2,
                               .position_dtype = ROPE_I64};
    c->desc.rope.pairing_out = c->desc.rope.pairing_in;
    c->desc.rope.direction = (int32_t)random_between(r, 0, ROPE_INVERSE);
    c->desc.k_source = ROPE_SOURCE_CACHE;
    c->desc.cache = (int32_t)random_between(r, ROPE_CACHE_SLOTS, ROPE_CACHE_SEQUENCE);
    c->desc.page_size =
        c->desc.cache == ROPE_CACHE_SEQUENCE ? MOVED_PLACES : INT64_C(1) << random_between(r, 0, 5);
    c->desc.k.store_dtype = stored ? eight[stored - 1] : dtype;
    c->desc.k.scale = stored && random_between(r, 0, 7) ? ROPE_SCALE_TENSOR : 0;
    c->args.rope =
        (rope_args){.struct_size = sizeof c->args.rope, .batch = 1, .tokens = MOVED_TOKENS};
    c->args.rope.k.heads = heads[random_between(r, 0, 2)];
    c->args.k_cache.data = c->base.arena;
    moved_cache(c);
    moved_lists(c, c->base.arena + MOVED_BYTES);
}

/* However few cases are asked for: these launch every kernel of a GPU for keys that move. */
TEST(append_bits, moved_heads) {
    for (int64_t i = 0; i < 80; i++) {
        append_case c;
        make_moved(&c, i);
        check_and_free(&c, check_kernels);
    }
}

/* Multi-head latent attention: windows of q in place, and k's latent part normalised beside its
 * window. The index says dtype, pairings and the latent's size, random numbers the rest. */
enum { LATENT_Q = 1 << 16, LATENT_K = 1 << 15, LATENT_LISTS = LATENT_Q + 3 * LATENT_K };

static void latent_lists(append_case *c, unsigned char *at) {
    test_random *r = &c->base.random;
    for (int64_t t = 0; t < c->args.rope.tokens; t++) {
        const int64_t slot = t == 3 ? -1 : t * 5 % WHOLE_SLOTS, id = random_between(r, 0, 99999);
        memcpy(at + 8 * t, &slot, 8);
        memcpy(at + 64 + 8 * t, &id, 8);
    }
    c->args.slots = at;
    c->args.rope.position_ids = random_between(r, 0, 2) ? at + 64 : NULL;
    c->args.rope.position_offset = random_signed(r, 40);
}

static void make_latent(append_case *c, int64_t index) {
    static const int32_t pairs[] = {32, 16, 64};
    static const int64_t heads[] = {4, 8, 6, 16};
    const int32_t dtype = index % 2 ? ROPE_F16 : ROPE_BF16, dim = index / 8 % 2 ? 256 : 512;
    const int size = (int)(index / 16 % 4); /* for narrow kernels, for wide ones, any twice */
    test_random *r = begin(c, index, LATENT_LISTS + 128);
    unsigned char *at = c->base.arena;
    const int32_t width = 2 * pairs[size < 2 ? 2 * size : random_between(r, 0, 2)],
                  before = 8 * (int32_t)random_between(r, 0, 16),
                  behind = random_between(r, 0, 1) ? width : 0; /* the latent: of the window */
    c->desc.rope = (rope_desc){.struct_size = sizeof c->desc.rope,
                               .dtype = dtype,
                               .head_dim = before + width,
                               .rotary_dim = width,
                               .rotary_offset = before,
                               .k_head_dim = dim + width,
                               .k_rotary_offset = behind ? 0 : dim,
                               .pairing_in = ROPE_PAIRING_HALF_SPLIT + index / 2 % 2,
                               .pairing_out = ROPE_PAIRING_HALF_SPLIT + index / 4 % 2,
                               .position_dtype = ROPE_I64};
    c->desc.rope.direction = (int32_t)random_between(r, 0, ROPE_INVERSE);
    c->desc.k.norm = (rope_norm){
        .type = ROPE_NORM_RMS,
        .offset = behind,
        .dim = dim,
        .weight = (int32_t)random_between(r, ROPE_NORM_WEIGHT, ROPE_NORM_ONE_PLUS_WEIGHT),
        .rounding = (int32_t)random_between(r, ROPE_NORM_ROUND_ONCE, ROPE_NORM_ROUND_TWICE),
        .eps = random_real(r, 1e-6, 1e-2)};
    c->desc.cache = ROPE_CACHE_SLOTS;
    c->desc.page_size = random_between(r, 1, WHOLE_SLOTS);
    c->args.rope = (rope_args){.struct_size = sizeof c->args.rope,
                               .batch = 1,
                               .tokens = size < 2 ? 1 + 6 * size : random_between(r, 1, 7)};
    c->args.rope.q =
        (rope_tensor){.in = at, .out = at, .heads = heads[size < 2 ? 3 : random_between(r, 0, 3)]};
    c->args.rope.k = (rope_tensor){.in = at + LATENT_Q, .heads = 1};
    c->args.k_cache.data = at + LATENT_Q + LATENT_K;
    c->args.k_weight.data = at + LATENT_Q + 2 * LATENT_K;
    c->args.pages = (WHOLE_SLOTS + c->desc.page_size - 1) / c->desc.page_size;
    latent_lists(c, at + LATENT_LISTS);
}

/* However few cases are asked for: these launch every kernel of a GPU for latent attention. */
TEST(append_bits, latent_heads) {
    for (int64_t i = 0; i < 64; i++) {
        append_case c;
        make_latent(&c, i);
        check_and_free(&c, check_kernels);
    }
}

/* Heads that are normalised side by side, by sums that kernels take in other pieces. */
static void check_norms(int32_t dtype, int32_t type, int32_t dim, int64_t heads) {
    append_case c;
    const size_t bytes = (size_t)heads * (size_t)dim * (dtype == ROPE_F32 ? 4 : 2);
    memset(&c, 0, sizeof c);
    c.base.bytes = 2 * bytes;
    c.base.arena = aligned_alloc(64, (c.base.bytes + 63) / 64 * 64);
    c.base.random = random_stream(test_seed(), dim * 64 + heads);
    c.desc.struct_size = sizeof c.desc;
    c.args.struct_size = sizeof c.args;
    c.desc.rope = (rope_desc){.struct_size = sizeof c.desc.rope, .dtype = dtype, .head_dim = dim};
    c.desc.rotation = ROPE_ROTATION_OFF;
    c.desc.q.norm = (rope_norm){.type = type, .eps = 1e-6};
    c.args.rope = (rope_args){.struct_size = sizeof c.args.rope, .batch = 1, .tokens = 1};
    c.args.rope.q = (rope_tensor){.in = c.base.arena, .out = c.base.arena + bytes, .heads = heads};
    for (size_t i = 0; i < bytes; i += 2) {
        uint16_t x = (uint16_t)(0x3c00 + random_between(&c.base.random, 0, 0x2ff));
        memcpy(c.base.arena + i, &x, sizeof x);
    }
    check_and_free(&c, check_kernels);
}

TEST(append_bits, norms_of_heads) {
    static const int64_t heads[] = {1, 2, 3, 7, 16, 17, 33};
    for (int32_t dtype = ROPE_F32; dtype <= ROPE_BF16; dtype++)
        for (int32_t type = ROPE_NORM_RMS; type <= ROPE_NORM_LAYER; type++)
            for (int32_t dim = 32; dim <= 1024; dim *= 2)
                for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++)
                    check_norms(dtype, type, dim, heads[i]);
}

static void advance_scale(rope_scale *scale, const oracle_tensor *t, int64_t first) {
    scale->data = (void *)(uintptr_t)case_advance(scale->data, first * t->scale_stride[0], 4);
}

/* Rows first..first+count-1 of a call that is not packed. */
static rope_append_args batch_rows(const rope_append_desc *d, const rope_append_args *whole,
                                   int64_t first, int64_t count) {
    rope_append_args a = *whole;
    int64_t size = oracle_dtype_size(d->rope.dtype);
    int32_t position = d->rope.position_dtype ? d->rope.position_dtype : ROPE_I64;
    oracle_tensor t[ORACLE_TENSORS];
    for (int32_t i = 0; i < ORACLE_TENSORS; i++)
        t[i] = oracle_append_tensor(d, whole, i);
    a.rope = case_batch_rows(&d->rope, &whole->rope, first, count);
    for (int32_t i = 0; i < ORACLE_TENSORS; i++) {
        rope_tensor *part = i == 2 ? &a.v : case_tensor(&a.rope, i);
        part->in = case_advance(t[i].t->in, first * t[i].in[0], size);
        part->out = (void *)(uintptr_t)case_advance(t[i].t->out, first * t[i].out[0],
                                                    oracle_dtype_size(t[i].out_dtype));
        memcpy(part->in_stride, t[i].in, part->in ? sizeof t[i].in : 0);
        memcpy(part->out_stride, t[i].out, part->out ? sizeof t[i].out : 0);
        if (!part->in)
            memset(part->in_stride, 0, sizeof part->in_stride);
        if (!part->out)
            memset(part->out_stride, 0, sizeof part->out_stride);
    }
    advance_scale(&a.q_scale, &t[0], first);
    a.cache_starts = case_advance(a.cache_starts, first, oracle_dtype_size(position));
    int64_t row = a.slot_stride[0] ? a.slot_stride[0] : a.rope.tokens;
    a.slots = case_advance(a.slots, first * row,
                           oracle_dtype_size(d->slot_dtype ? d->slot_dtype : position));
    row = a.table_stride[0] ? a.table_stride[0] : a.table_pages;
    a.block_table = case_advance(a.block_table, first * row,
                                 oracle_dtype_size(d->table_dtype ? d->table_dtype : position));
    rope_cache *const caches[] = {NULL, &a.k_cache, &a.v_cache};
    for (int32_t i = 1; d->cache == ROPE_CACHE_SEQUENCE && i < ORACLE_TENSORS; i++) {
        if (t[i].cache)
            caches[i]->data = (void *)(uintptr_t)case_advance(
                caches[i]->data, first * t[i].cache_stride[0], oracle_dtype_size(t[i].store_dtype));
        advance_scale(&caches[i]->scale, &t[i], first);
    }
    if (d->cache == ROPE_CACHE_SEQUENCE)
        a.pages -= first;
    return a;
}

static void check_split(append_case *c, const append_writes *w, const unsigned char *expected) {
    int64_t batch = c->args.rope.batch;
    if (c->args.rope.cu_seqlens || batch < 2)
        return;
    int64_t cut = random_between(&c->base.random, 1, batch - 1);
    rope_append_args calls[2] = {batch_rows(&c->desc, &c->args, 0, cut),
                                 batch_rows(&c->desc, &c->args, cut, batch - cut)};
    check_same(c, w, calls, 2, NULL, expected, "a batch in two calls");
}

TEST(append_bits, split_batch) {
    for_each_case(test_seed() + 1, (append_wish){0}, CASES, check_split);
}

/* The case with room for more at the end of its arena. */
static append_case extended(const append_case *c, size_t more, unsigned char **room) {
    append_case e = *c;
    e.base.bytes = (c->base.bytes + 63) / 64 * 64 + more;
    e.base.arena = aligned_alloc(64, (e.base.bytes + 63) / 64 * 64);
    memcpy(e.base.arena, c->base.arena, c->base.bytes);
    append_relocate(&e.args, c->base.arena, e.base.arena);
    *room = e.base.arena + e.base.bytes - more;
    return e;
}

static void set_view(rope_tensor *t, const void *in, void *out, int64_t heads,
                     const int64_t in_stride[4], const int64_t out_stride[4]) {
    *t = (rope_tensor){.in = in, .out = out, .heads = heads};
    memcpy(t->in_stride, in_stride, sizeof t->in_stride);
    if (out)
        memcpy(t->out_stride, out_stride, sizeof t->out_stride);
}

/* A descriptor of this one's heads that does nothing. */
static rope_append_desc no_steps(const rope_append_desc *d) {
    rope_append_desc none = {
        .struct_size = sizeof none, .rotation = ROPE_ROTATION_OFF, .v_head_dim = d->v_head_dim};
    none.rope = (rope_desc){.struct_size = sizeof none.rope,
                            .dtype = d->rope.dtype,
                            .head_dim = d->rope.head_dim,
                            .k_head_dim = d->rope.k_head_dim,
                            .position_dtype = d->rope.position_dtype};
    return none;
}

static rope_append_args no_tensors(const rope_append_args *a) {
    rope_append_args none = {.struct_size = sizeof none};
    none.rope = (rope_args){
        .struct_size = sizeof none.rope, .batch = a->rope.batch, .tokens = a->rope.tokens};
    return none;
}

/* The steps of a case one after the other, over contiguous tensors of dtype between them. */
typedef struct steps {
    rope_append_desc norm, factor, store;
    rope_append_args norm_args, factor_args, store_args;
    rope_desc rotation;
    rope_args rotation_args;
    int32_t rotates;
} steps;

static rope_tensor *tensor_in(rope_append_args *a, int32_t tensor) {
    return tensor == 2 ? &a->v : case_tensor(&a->rope, tensor);
}

static void add_tensor(steps *s, const append_case *c, int32_t tensor, unsigned char *between) {
    oracle_tensor t = oracle_append_tensor(&c->desc, &c->args, tensor);
    const int64_t plain[4] = {c->args.rope.tokens * t.heads * t.dim, t.heads * t.dim, t.dim, 1};
    if (t.heads == 0)
        return;
    set_view(tensor_in(&s->norm_args, tensor), t.t->in, between, t.heads, t.in, plain);
    set_view(tensor_in(&s->factor_args, tensor), between, between, t.heads, plain, plain);
    set_view(tensor_in(&s->store_args, tensor), between, t.t->out, t.heads, plain, t.out);
    if (tensor < 2)
        set_view(case_tensor(&s->rotation_args, tensor), between, between, t.heads, plain, plain);
    s->rotates |= tensor < 2 && c->desc.rotation != ROPE_ROTATION_OFF;
}

static void copy_parts(const rope_append_desc *d, steps *s) {
    const rope_append_part *const from[] = {&d->q, &d->k, &d->v};
    rope_append_part *const norm[] = {&s->norm.q, &s->norm.k, &s->norm.v};
    rope_append_part *const factor[] = {&s->factor.q, &s->factor.k, &s->factor.v};
    rope_append_part *const store[] = {&s->store.q, &s->store.k, &s->store.v};
    for (int i = 0; i < ORACLE_TENSORS; i++) {
        norm[i]->norm = from[i]->norm;
        factor[i]->factor = from[i]->factor;
        store[i]->store_dtype = from[i]->store_dtype;
        store[i]->scale = from[i]->scale;
    }
}

/* What the step that stores reads beside its tensors. */
static void copy_cache(const append_case *c, steps *s) {
    const rope_append_desc *d = &c->desc;
    s->store.cache = d->cache;
    s->store.page_size = d->page_size;
    s->store.ring = d->ring;
    s->store.slot_dtype = d->slot_dtype;
    s->store.table_dtype = d->table_dtype;
    s->store.k_dim_block = d->k_dim_block;
    s->store.v_dim_block = d->v_dim_block;
    rope_args rope = s->store_args.rope;
    rope_tensor v = s->store_args.v;
    s->store_args = c->args;
    s->store_args.rope = rope;
    s->store_args.v = v;
    s->store_args.q_weight = s->store_args.k_weight = s->store_args.v_weight =
        (rope_norm_weight){0};
    if (d->cache == 0)
        return;
    s->store.rope.shard = d->rope.shard;
    s->store.rope.shard_rank = d->rope.shard_rank;
    s->store.rope.shard_size = d->rope.shard_size;
    s->store_args.rope.cu_seqlens = c->args.rope.cu_seqlens;
    s->store_args.rope.sequences = c->args.rope.sequences;
    if (d->cache == ROPE_CACHE_SLOTS || c->args.cache_starts)
        return;
    s->store_args.rope.position_offset = c->args.rope.position_offset;
    s->store_args.rope.sequence_offsets = c->args.rope.sequence_offsets;
}

static steps steps_of(const append_case *c, unsigned char *const between[ORACLE_TENSORS]) {
    steps s = {.norm = no_steps(&c->desc),
               .factor = no_steps(&c->desc),
               .store = no_steps(&c->desc),
               .rotation = c->desc.rope,
               .norm_args = no_tensors(&c->args),
               .factor_args = no_tensors(&c->args),
               .store_args = no_tensors(&c->args),
               .rotation_args = c->args.rope};
    for (int32_t i = 0; i < ORACLE_TENSORS; i++)
        add_tensor(&s, c, i, between[i]);
    s.norm_args.q_weight = c->args.q_weight;
    s.norm_args.k_weight = c->args.k_weight;
    s.norm_args.v_weight = c->args.v_weight;
    copy_parts(&c->desc, &s);
    copy_cache(c, &s);
    return s;
}

/* One step on the extended case; its arena is then the step's result. */
static void run_step(append_case *e, const rope_append_desc *d, const rope_append_args *a) {
    unsigned char *result = malloc(e->base.bytes);
    CHECK_STATUS(ROPE_OK, append_run(e, d, a, 1, NULL, result));
    memcpy(e->base.arena, result, e->base.bytes);
    free(result);
}

static void run_rotation(append_case *e, const steps *s) {
    unsigned char *result = malloc(e->base.bytes);
    CHECK_STATUS(ROPE_OK, device_run(&e->base, &s->rotation, &s->rotation_args, 1, NULL, result));
    memcpy(e->base.arena, result, e->base.bytes);
    free(result);
}

static void check_steps(append_case *c, const append_writes *w, const unsigned char *expected) {
    size_t more = 0, start[ORACLE_TENSORS];
    for (int32_t i = 0; i < ORACLE_TENSORS; i++) {
        oracle_tensor t = oracle_append_tensor(&c->desc, &c->args, i);
        start[i] = more;
        more +=
            (size_t)(c->args.rope.batch * c->args.rope.tokens * t.heads * t.dim * 4 + 63) / 64 * 64;
    }
    unsigned char *room;
    append_case e = extended(c, more, &room);
    unsigned char *between[] = {room + start[0], room + start[1], room + start[2]};
    steps s = steps_of(&e, between);
    run_step(&e, &s.norm, &s.norm_args);
    if (s.rotates)
        run_rotation(&e, &s);
    run_step(&e, &s.factor, &s.factor_args);
    run_step(&e, &s.store, &s.store_args);
    append_canonical(w, e.base.arena);
    size_t at = 0;
    while (at < c->base.bytes && e.base.arena[at] == expected[at])
        at++;
    CHECK(at == c->base.bytes, "step after step: byte %zu of the arena differs", at);
    free(e.base.arena);
}

TEST(append_bits, step_after_step) {
    for_each_case(test_seed() + 2, (append_wish){.source = ROPE_SOURCE_TENSOR}, CASES, check_steps);
}

/* The keys that the cache holds, as numbers of dtype. */
static void read_keys(const append_case *c, unsigned char *keys) {
    oracle_tensor t = oracle_append_tensor(&c->desc, &c->args, 1);
    int32_t dtype = c->desc.rope.dtype;
    for (int64_t i = 0; i < c->args.rope.batch * c->args.rope.tokens; i++) {
        oracle_place place = oracle_append_place(&c->desc, &c->args, i / c->args.rope.tokens,
                                                 i % c->args.rope.tokens);
        for (int64_t j = 0; j < t.heads * t.dim && place.status == ORACLE_PLACE_GIVEN; j++) {
            float x = (float)oracle_load(t.store_dtype, t.cache->data,
                                         oracle_cache_at(&t, &place, j / t.dim, j % t.dim));
            if (t.part->scale)
                x *= ((float *)
                          t.scale->data)[oracle_scale_at(&t, place.page, place.slot, j / t.dim)];
            oracle_store(dtype, keys, i * t.heads * t.dim + j, oracle_round(dtype, x));
        }
    }
}

/* Keys have their attention factor already, XPos' scale at its centre, and their pairs in order. */
static rope_append_desc from_tensor(const rope_append_desc *d) {
    rope_append_desc tensor = *d;
    tensor.k_source = ROPE_SOURCE_TENSOR;
    tensor.rope.xpos_center = 0;
    if (d->rope.pairing_out)
        tensor.rope.pairing_in = d->rope.pairing_out;
    if (d->rope.angle_mode == ROPE_ANGLE_TABLE)
        return tensor;
    tensor.rope.attention_factor = 1;
    tensor.rope.mscale = tensor.rope.mscale_all_dim = 0;
    tensor.rope.short_mscale = tensor.rope.long_mscale = 0;
    return tensor;
}

static void check_source(append_case *c, const append_writes *w, const unsigned char *expected) {
    oracle_tensor t = oracle_append_tensor(&c->desc, &c->args, 1);
    size_t more = (size_t)(c->args.rope.batch * c->args.rope.tokens * t.heads * t.dim * 4);
    unsigned char *keys;
    append_case e = extended(c, more, &keys);
    memset(keys, 0, more);
    read_keys(c, keys);
    e.desc = from_tensor(&c->desc);
    e.args.rope.k.in = keys;
    run_step(&e, &e.desc, &e.args);
    append_canonical(w, e.base.arena);
    CHECK(memcmp(expected, e.base.arena, c->base.bytes) == 0,
          "keys moved in the cache have other bits than from a tensor");
    free(e.base.arena);
}

TEST(append_bits, keys_from_the_cache) {
    for_each_case(test_seed() + 3, (append_wish){.source = ROPE_SOURCE_CACHE}, CASES, check_source);
}

/* Beside the same kernel, so that NaNs are the same ones, too. */
static void check_guarded(const append_case *c, const char *kernel) {
    rope_append_desc desc = c->desc;
    rope_plan *plan = NULL;
    append_describe(c, kernel);
    device_choose(&desc.rope);
    desc.rope.kernel = kernel;
    rope_status status = rope_append_plan_create(&desc, &plan);
    if (status == ROPE_ERROR_UNSUPPORTED)
        return;
    CHECK_STATUS(ROPE_OK, status);
    unsigned char *expected = malloc(c->base.bytes);
    CHECK_STATUS(ROPE_OK, append_run(c, &c->desc, &c->args, 1, kernel, expected));
    for (guard_side side = GUARD_AFTER; side <= guard_last(); side++) {
        guard_case g;
        rope_append_args args = c->args;
        const void **list[APPEND_POINTERS];
        CHECK(guard_make(&g, &c->base, side), "no memory between guard pages");
        append_pointers(&args, list);
        guard_move(&g, &c->base, list, APPEND_POINTERS);
        guard_name_fault();
        CHECK_STATUS(ROPE_OK, rope_append(plan, &args));
        CHECK_STATUS(ROPE_OK, rope_device_synchronize(device_open()));
        guard_check(&g, &c->base, expected);
        guard_free(&g, &c->base);
    }
    free(expected);
    rope_plan_destroy(plan);
}

TEST(append_bits, every_buffer_between_pages_that_fault) {
    static const append_wish wish = {.in_range = 1, .tame = 1};
    device_not_provided("its kernels are not ours");
    for (int64_t i = -1; test_next(&i, CASES);) {
        append_case c;
        const char *kernel;
        append_make(&c, test_seed() + 4, i, &wish);
        for (int k = 0; (kernel = device_kernel_of("append", k)); k++)
            check_guarded(&c, kernel);
        append_free(&c);
    }
}

/* --- heads that no stage on a small stack has room for --- */

enum { LONG_DIM = ROPE_MAX_APPEND_HEAD_DIM, LONG_HEADS = 2, LONG_TOKENS = 2 };
enum { LONG_ELEMENTS = LONG_TOKENS * LONG_HEADS * LONG_DIM };

typedef struct long_memory {
    float x[2 * LONG_ELEMENTS], y[LONG_ELEMENTS], apart[2 * LONG_ELEMENTS];
    uint8_t cache[2][LONG_ELEMENTS];
    float scale[2][LONG_TOKENS * LONG_HEADS], weight[LONG_HEADS * LONG_DIM];
} long_memory;

static rope_append_desc long_desc(int32_t pairing_in, int32_t layer_norm, const char *kernel) {
    rope_append_desc desc = ROPE_APPEND_DESC_INIT;
    desc.rope.dtype = ROPE_F32;
    desc.rope.head_dim = LONG_DIM;
    desc.rope.rotary_dim = LONG_DIM / 2 + 2;
    desc.rope.rotary_offset = 30;
    desc.rope.pairing_in = pairing_in;
    desc.rope.backend = "cpu";
    desc.rope.kernel = kernel;
    desc.k.norm = (rope_norm){.type = layer_norm ? ROPE_NORM_LAYER : ROPE_NORM_RMS,
                              .scope = layer_norm ? ROPE_NORM_TOKEN : ROPE_NORM_HEAD,
                              .offset = 1,
                              .dim = LONG_DIM - 100,
                              .weight = ROPE_NORM_WEIGHT,
                              .eps = 1e-6};
    desc.k.factor = 0.75;
    return desc;
}

static void run_long(const rope_append_desc *desc, const long_memory *m, rope_append_args *args) {
    rope_plan *plan = NULL;
    args->rope.batch = 1;
    args->rope.tokens = LONG_TOKENS;
    args->rope.k.heads = LONG_HEADS;
    args->k_weight.data = desc->k.norm.type ? m->weight : NULL;
    CHECK_STATUS(ROPE_OK, rope_append_plan_create(desc, &plan));
    CHECK_STATUS(ROPE_OK, rope_append(plan, args));
    rope_plan_destroy(plan);
}

/* Elements one or two apart, from where they lie or in place. */
static void check_long_views(const rope_append_desc *desc, long_memory *m, int in_place) {
    rope_append_args args = ROPE_APPEND_ARGS_INIT;
    const int64_t stride[4] = {0, LONG_HEADS * LONG_DIM * 2, LONG_DIM * 2, 2};
    for (int64_t i = 0; i < LONG_ELEMENTS; i++)
        m->apart[2 * i] = m->x[i];
    args.rope.k.in = in_place ? m->apart : m->x;
    args.rope.k.out = m->apart;
    memcpy(args.rope.k.out_stride, stride, sizeof stride);
    if (in_place)
        memcpy(args.rope.k.in_stride, stride, sizeof stride);
    run_long(desc, m, &args);
    for (int64_t i = 0; i < LONG_ELEMENTS; i++)
        CHECK(memcmp(&m->apart[2 * i], &m->y[i], sizeof *m->y) == 0, "element %lld differs",
              (long long)i);
}

/* As the same steps into memory, and from there by a plan that only caches. */
static void check_long_cache(const rope_append_desc *desc, long_memory *m) {
    rope_append_desc to = *desc, plain = ROPE_APPEND_DESC_INIT;
    rope_append_args args = ROPE_APPEND_ARGS_INIT, then;
    to.k.store_dtype = ROPE_F8E4M3;
    to.k.scale = ROPE_SCALE_TOKEN_HEAD_MAX;
    to.cache = ROPE_CACHE_SEQUENCE;
    to.page_size = LONG_TOKENS;
    args.pages = 1;
    args.rope.k.in = m->x;
    args.k_cache = (rope_cache){.data = m->cache[0], .scale = {.data = m->scale[0]}};
    run_long(&to, m, &args);
    plain.rope.dtype = ROPE_F32;
    plain.rope.head_dim = LONG_DIM;
    plain.rotation = ROPE_ROTATION_OFF;
    plain.k = (rope_append_part){.store_dtype = to.k.store_dtype, .scale = to.k.scale};
    plain.cache = to.cache;
    plain.page_size = to.page_size;
    then = args;
    then.rope.k.in = m->y;
    then.k_weight.data = NULL;
    then.k_cache = (rope_cache){.data = m->cache[1], .scale = {.data = m->scale[1]}};
    append_plain(&plain, &then);
    CHECK(memcmp(m->scale[0], m->scale[1], sizeof m->scale[0]) == 0, "scales differ");
    CHECK(memcmp(m->cache[0], m->cache[1], sizeof m->cache[0]) == 0, "cached elements differ");
}

TEST(append_bits, longest_heads) {
    static long_memory m;
    if (!device_is_host())
        SKIP("kernels of the CPU alone have a stage");
    test_random r = random_stream(test_seed(), 41);
    for (int64_t i = 0; i < LONG_ELEMENTS; i++)
        m.x[i] = (float)random_real(&r, -3, 3);
    for (int64_t i = 0; i < LONG_HEADS * LONG_DIM; i++)
        m.weight[i] = (float)random_real(&r, -2, 2);
    for (int n = 0; n < 4; n++) {
        const char *kernel;
        for (int k = 0; (kernel = device_kernel_of("append", k)); k++) {
            const rope_append_desc desc = long_desc(1 + n % 2, n / 2, kernel);
            rope_append_args args = ROPE_APPEND_ARGS_INIT;
            test_describe(test_text("kernel=%s %d", kernel, n));
            args.rope.k.in = m.x;
            args.rope.k.out = m.y;
            run_long(&desc, &m, &args);
            check_long_views(&desc, &m, 0);
            check_long_views(&desc, &m, 1);
            check_long_cache(&desc, &m);
        }
    }
    test_describe(NULL);
}
