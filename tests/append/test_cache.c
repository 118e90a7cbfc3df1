/* The cache of rope_append: conversions to 8 bits against every code, keys that are moved, rings,
 * and places that are not there. */
#include "tests/append/compare.h"
#include "tests/oracle/append_layout.h"
#include "tests/oracle/oracle.h"
#include "tests/rope/case_parts.h"
#include "tests/support/device.h"
#include "tests/support/harness.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const int32_t small_types[] = {ROPE_F8E4M3, ROPE_F8E5M2, ROPE_F8E4M3FNUZ, ROPE_I8};

/* A case without a generator: an arena of parts of a size, which begin at multiples of 64. */
static unsigned char *make_arena(append_case *c, const size_t *bytes, int parts, size_t *start) {
    memset(c, 0, sizeof *c);
    for (int i = 0; i < parts; i++) {
        start[i] = c->base.bytes;
        c->base.bytes += (bytes[i] + 63) / 64 * 64;
    }
    c->base.arena = aligned_alloc(64, c->base.bytes);
    memset(c->base.arena, 0xa5, c->base.bytes);
    c->desc.struct_size = sizeof c->desc;
    c->desc.rope.struct_size = sizeof c->desc.rope;
    c->args.struct_size = sizeof c->args;
    c->args.rope.struct_size = sizeof c->args.rope;
    return c->base.arena;
}

/* Runs a case and lets its arena be the result; 0 where the kernel declines. */
static int run_into(append_case *c, const char *kernel) {
    unsigned char *result = malloc(c->base.bytes);
    rope_status status = append_run(c, &c->desc, &c->args, 1, kernel, result);
    if (status != ROPE_ERROR_UNSUPPORTED || !kernel) {
        CHECK_STATUS(ROPE_OK, status);
        memcpy(c->base.arena, result, c->base.bytes);
    }
    free(result);
    return status == ROPE_OK;
}

static double decoded(int32_t dtype, int code) {
    uint8_t byte = (uint8_t)code;
    return oracle_load(dtype, &byte, 0);
}

/* The code whose number is nearest, of two the even one; found by trying all. What is beyond the
 * numbers of every type is as near as 1e6. */
static int nearest_code(int32_t dtype, double x) {
    static int32_t type; /* whose numbers these are */
    static double number[256];
    const int signed_zero = dtype == ROPE_F8E4M3 || dtype == ROPE_F8E5M2;
    double best_off = INFINITY;
    int best = -1;
    if (isnan(x))
        return dtype == ROPE_I8 ? 0 : dtype == ROPE_F8E4M3FNUZ ? 0x80 : 0x7f;
    for (int code = 0; type != dtype && code < 256; code++)
        number[code] = decoded(dtype, code);
    type = dtype;
    x = fmin(fmax(x, -1e6), 1e6);
    for (int code = 0; code < 256; code++) {
        double y = number[code], off = fabs(x - y);
        if (!isfinite(y) || ((y != 0 || signed_zero) && !signbit(y) != !signbit(x)))
            continue;
        if (off < best_off || (off == best_off && code % 2 == 0)) {
            best = code;
            best_off = off;
        }
    }
    return best;
}

enum { MOST_BOUNDARIES = 256 * 8 + 64, BOUNDARY_DIM = 64 };

/* Every number of the type, what lies halfway to the next, and their neighbours in fp32. */
static int64_t boundaries(int32_t dtype, float *x) {
    static const float more[] = {0.0F,  -0.0F,  INFINITY, -INFINITY, NAN,
                                 -NAN,  1e-45F, -1e-45F,  0x1p-126F, -0x1p-126F,
                                 1e38F, -1e38F, 464.0F,   248.0F,    61440.0F};
    int64_t count = 0;
    for (int code = 0; code < 256; code++) {
        double y = decoded(dtype, code), next = decoded(dtype, (code + 1) & 0xff);
        if (!isfinite(y))
            continue;
        double middle =
            isfinite(next) && !signbit(next) == !signbit(y) ? (y + next) / 2 : y * 1.0625;
        const float around[2] = {(float)y, (float)middle};
        for (int i = 0; i < 2; i++) {
            x[count++] = around[i];
            x[count++] = nextafterf(around[i], INFINITY);
            x[count++] = nextafterf(around[i], -INFINITY);
        }
    }
    for (size_t i = 0; i < sizeof more / sizeof more[0]; i++) {
        x[count++] = more[i];
        x[count++] = nextafterf(more[i], INFINITY);
    }
    return count;
}

/* From elements of `from`. */
static void check_conversions(int32_t from, int32_t dtype, float scale, const char *kernel) {
    static float x[MOST_BOUNDARIES];
    append_case c;
    int64_t count = boundaries(dtype, x);
    int64_t tokens = (count + BOUNDARY_DIM - 1) / BOUNDARY_DIM;
    size_t elements = (size_t)(tokens * BOUNDARY_DIM), start[3];
    unsigned char *arena =
        make_arena(&c, (size_t[]){elements * 4, elements, sizeof scale}, 3, start);
    memset(arena, 0, elements * 4);
    memcpy(arena + start[2], &scale, sizeof scale);
    for (int64_t i = 0; i < count; i++) {
        x[i] = (float)oracle_round(from, (double)(x[i] * scale));
        oracle_store(from, arena, i, x[i]);
    }
    c.desc.rope.dtype = from;
    c.desc.rope.head_dim = BOUNDARY_DIM;
    c.desc.rotation = ROPE_ROTATION_OFF;
    c.desc.cache = ROPE_CACHE_SEQUENCE;
    c.desc.page_size = tokens;
    c.desc.v.store_dtype = dtype;
    c.args.rope.batch = 1;
    c.args.rope.tokens = tokens;
    c.args.v = (rope_tensor){.in = arena, .heads = 1};
    c.desc.v.scale = ROPE_SCALE_TENSOR;
    c.args.v_cache.data = arena + start[1];
    c.args.v_cache.scale.data = arena + start[2];
    c.args.pages = 1;
    if (run_into(&c, kernel))
        for (int64_t i = 0; i < count; i++) {
            int got = c.base.arena[start[1] + (size_t)i],
                wanted = nearest_code(dtype, x[i] / scale);
            CHECK(got == wanted, "%s: type %d of %a of type %d / %a is %#x, not %#x", kernel, dtype,
                  (double)x[i], from, (double)scale, (unsigned)got, (unsigned)wanted);
        }
    append_free(&c);
}

/* By scales that are powers of two and others, up to the largest and down to the least. */
TEST(append_cache, eight_bits_are_the_nearest) {
    static const float scales[] = {1,        0x1p-5F, 3,         0.1F,      0x1p126F,
                                   0x1p127F, FLT_MAX, 0x1p-126F, 0x1p-127F, 0x1p-149F};
    const char *kernel;
    for (int k = 0; (kernel = device_kernel_of("append", k)); k++)
        for (int32_t from = ROPE_F32; from <= ROPE_BF16; from++)
            for (int i = 0; i < 4; i++)
                for (size_t j = 0; j < sizeof scales / sizeof scales[0]; j++)
                    check_conversions(from, small_types[i], scales[j], kernel);
}

/* NaNs of every payload, quiet or not, signed or not. */
static float nan_of(int64_t i) {
    static const uint32_t bits[] = {0x7f800001u, 0x7fffffffu, 0xff800001u, 0xffffffffu,
                                    0x7fc00000u, 0x7f80ffffu, 0xffbfffffu};
    float x;
    memcpy(&x, &bits[i % 7], sizeof x);
    return x;
}

enum { NAN_DIM = 75 };

/* Through f32 weights into dtype, and from f32 to what the cache stores. */
static void check_nans(int32_t dtype, int32_t store, const char *kernel) {
    append_case c;
    size_t start[4];
    unsigned char *arena =
        make_arena(&c, (size_t[]){NAN_DIM * 4, NAN_DIM * 4, NAN_DIM * 4, NAN_DIM * 4}, 4, start);
    for (int64_t i = 0; i < NAN_DIM; i++) {
        const float x = nan_of(i);
        if (dtype == ROPE_F32)
            memcpy(arena + 4 * i, &x, 4);
        else
            oracle_store(dtype, arena, i, 1);
        memcpy(arena + start[1] + 4 * i, &x, 4);
    }
    c.desc.rope.dtype = dtype;
    c.desc.rope.head_dim = NAN_DIM;
    c.desc.rotation = ROPE_ROTATION_OFF;
    c.desc.cache = ROPE_CACHE_SEQUENCE;
    c.desc.page_size = 1;
    c.desc.v.store_dtype = store;
    c.desc.v.norm = (rope_norm){.type = dtype == ROPE_F32 ? 0 : ROPE_NORM_RMS,
                                .weight = dtype == ROPE_F32 ? 0 : ROPE_NORM_WEIGHT,
                                .weight_dtype = dtype == ROPE_F32 ? 0 : ROPE_F32};
    c.args.rope.batch = c.args.rope.tokens = c.args.pages = 1;
    c.args.v = (rope_tensor){.in = arena, .out = arena + start[2], .heads = 1};
    c.args.v_weight.data = dtype == ROPE_F32 ? NULL : arena + start[1];
    c.args.v_cache.data = arena + start[3];
    const int ran = run_into(&c, kernel);
    for (int64_t i = 0; ran && i < NAN_DIM; i++) {
        const double out = oracle_load(dtype, arena + start[2], i),
                     stored = oracle_load(store, arena + start[3], i);
        CHECK(isnan(out) && (store == ROPE_I8 ? stored == 0 : isnan(stored)),
              "%s: NaN %lld becomes %g in type %d and %g in type %d", kernel, (long long)i, out,
              dtype, stored, store);
    }
    append_free(&c);
}

TEST(append_cache, a_nan_stays_one) {
    const char *kernel;
    for (int k = 0; (kernel = device_kernel_of("append", k)); k++)
        for (int32_t dtype = ROPE_F32; dtype <= ROPE_BF16; dtype++) {
            for (int32_t store = ROPE_F32; store <= ROPE_BF16; store++)
                check_nans(dtype, store, kernel);
            for (int i = 0; i < 4; i++)
                check_nans(dtype, small_types[i], kernel);
        }
}

/* A few of each format by hand: largest, least, least normal, infinity and NaN. */
TEST(append_cache, codes_of_the_formats) {
    static const struct {
        int32_t dtype;
        int code;
        double value;
    } known[] = {
        {ROPE_F8E4M3, 0x7e, 448},
        {ROPE_F8E4M3, 0x01, 0x1p-9},
        {ROPE_F8E4M3, 0x08, 0x1p-6},
        {ROPE_F8E4M3, 0xb8, -1},
        {ROPE_F8E4M3, 0x7f, NAN},
        {ROPE_F8E4M3, 0xff, NAN},
        {ROPE_F8E5M2, 0x7b, 57344},
        {ROPE_F8E5M2, 0x01, 0x1p-16},
        {ROPE_F8E5M2, 0x04, 0x1p-14},
        {ROPE_F8E5M2, 0x3c, 1},
        {ROPE_F8E5M2, 0xfc, -INFINITY},
        {ROPE_F8E5M2, 0x7d, NAN},
        {ROPE_F8E4M3FNUZ, 0x7f, 240},
        {ROPE_F8E4M3FNUZ, 0x01, 0x1p-10},
        {ROPE_F8E4M3FNUZ, 0x08, 0x1p-7},
        {ROPE_F8E4M3FNUZ, 0xc0, -1},
        {ROPE_F8E4M3FNUZ, 0x80, NAN},
        {ROPE_I8, 0x80, -128},
        {ROPE_I8, 0x7f, 127},
        {ROPE_I8, 0xff, -1},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        double got = decoded(known[i].dtype, known[i].code);
        CHECK(isnan(known[i].value) ? isnan(got) : got == known[i].value,
              "code %#x of type %d is %g, not %g", (unsigned)known[i].code, known[i].dtype, got,
              known[i].value);
    }
}

/* Keys of which every code is one, times 3/4 by a table: what a kernel reads from the cache. The
 * second of each pair is 0. */
static void check_reading(int32_t dtype, const char *kernel) {
    enum { PAIRS = 256 };
    append_case c;
    size_t start[3];
    unsigned char *arena = make_arena(&c, (size_t[]){2 * PAIRS, PAIRS * 4, PAIRS * 4}, 3, start);
    memset(arena, 0, 2 * PAIRS);
    float *cosine = (float *)(void *)(arena + start[1]),
          *sine = (float *)(void *)(arena + start[2]);
    for (int i = 0; i < PAIRS; i++) {
        arena[i] = (unsigned char)i;
        cosine[i] = 0.75F;
        sine[i] = 0;
    }
    c.desc.rope.dtype = ROPE_F32;
    c.desc.rope.head_dim = 2 * PAIRS;
    c.desc.rope.angle_mode = ROPE_ANGLE_TABLE;
    c.desc.k_source = ROPE_SOURCE_CACHE;
    c.desc.cache = ROPE_CACHE_SEQUENCE;
    c.desc.page_size = 1;
    c.desc.k.store_dtype = dtype;
    c.args.rope.batch = c.args.rope.tokens = 1;
    c.args.rope.k.heads = 1;
    c.args.rope.cos = cosine;
    c.args.rope.sin = sine;
    c.args.rope.table_rows = 1;
    c.args.k_cache.data = arena;
    c.args.pages = 1;
    if (run_into(&c, kernel))
        for (int i = 0; i < PAIRS; i++) {
            int wanted = nearest_code(dtype, 0.75 * decoded(dtype, i));
            CHECK(c.base.arena[i] == wanted, "%s: code %#x of type %d becomes %#x, not %#x", kernel,
                  (unsigned)i, dtype, c.base.arena[i], (unsigned)wanted);
        }
    append_free(&c);
}

TEST(append_cache, eight_bits_are_read) {
    const char *kernel;
    for (int k = 0; (kernel = device_kernel_of("append", k)); k++)
        for (int i = 0; i < 4; i++)
            check_reading(small_types[i], kernel);
}

/* Keys of a sequence in a cache, and where exact rotations would have brought them. */
enum { MOVED_TOKENS = 12, MOVED_HEADS = 2, MOVED_DIM = 64, MOVED_PAIRS = MOVED_DIM / 2 };
enum { MOVED_ELEMENTS = MOVED_TOKENS * MOVED_HEADS * MOVED_DIM };
typedef struct moved {
    append_case c;
    oracle *angles;
    size_t in, cache, scale, ids;
    double from[MOVED_ELEMENTS];  /* before the rotations */
    int64_t turned[MOVED_TOKENS]; /* sum of the rotations' positions */
    double off[MOVED_ELEMENTS];   /* how far a pair may be off, at its first element */
} moved;

static int64_t scales_of(int32_t scale) {
    return scale == ROPE_SCALE_TENSOR ? 1
           : scale == ROPE_SCALE_HEAD ? MOVED_HEADS
                                      : MOVED_TOKENS * MOVED_HEADS;
}

/* What element i is multiplied by when it is read. */
static double scale_of(const moved *m, int64_t i) {
    int32_t scale = m->c.desc.k.scale;
    return scale
               ? oracle_load(ROPE_F32, m->c.base.arena + m->scale, i / MOVED_DIM % scales_of(scale))
               : 1;
}

/* Element i of the keys that are given: with another pairing its neighbour is the other half's. */
static double given_of(const moved *m, int64_t i) {
    const int64_t e = i % MOVED_DIM;
    if (m->c.desc.rope.pairing_in == ROPE_PAIRING_INTERLEAVED)
        i += e % MOVED_PAIRS * 2 + e / MOVED_PAIRS - e;
    return oracle_load(m->c.desc.rope.dtype, m->c.base.arena + m->in, i);
}

/* Given scales keep 1.5 of the longest pair within the type, as two moves of F8E5M2 need. */
static void fill_scales(moved *m) {
    const append_case *c = &m->c;
    float *scales = (float *)(void *)(c->base.arena + m->scale);
    double largest[MOVED_TOKENS * MOVED_HEADS] = {0};
    const int64_t count = scales_of(c->desc.k.scale);
    for (int64_t i = 0; i < MOVED_ELEMENTS; i++)
        if (i % MOVED_DIM < MOVED_PAIRS) {
            double *most = &largest[i / MOVED_DIM % count];
            *most = fmax(*most, hypot(given_of(m, i), given_of(m, i + MOVED_PAIRS)));
        }
    for (int64_t i = 0; i < count; i++)
        scales[i] = (float)(1.5 * largest[i] / oracle_round(c->desc.k.store_dtype, 1e30));
}

static void make_moved(moved *m, int32_t dtype, int32_t store, int32_t scale, int64_t seed) {
    append_case *c = &m->c;
    size_t start[4], n = MOVED_ELEMENTS;
    make_arena(c, (size_t[]){n * 4, n * 4, n * 4, MOVED_TOKENS * 8}, 4, start);
    m->in = start[0], m->cache = start[1], m->scale = start[2], m->ids = start[3];
    c->base.random = random_stream(test_seed(), seed);
    case_fill_data(&c->base.random, 0, c->base.arena, n * (size_t)oracle_dtype_size(dtype), dtype,
                   4);
    c->desc.rope.dtype = dtype;
    c->desc.rope.head_dim = MOVED_DIM;
    if (seed % 2) {
        c->desc.rope.pairing_in = ROPE_PAIRING_INTERLEAVED;
        c->desc.rope.pairing_out = ROPE_PAIRING_HALF_SPLIT;
    }
    c->desc.cache = ROPE_CACHE_SEQUENCE;
    c->desc.page_size = MOVED_TOKENS;
    c->desc.k.store_dtype = store;
    c->desc.k.scale = scale;
    c->args.rope.batch = 1;
    c->args.rope.tokens = MOVED_TOKENS;
    c->args.rope.k = (rope_tensor){.in = c->base.arena + m->in, .heads = MOVED_HEADS};
    c->args.rope.position_ids = c->base.arena + m->ids;
    c->args.k_cache.data = c->base.arena + m->cache;
    c->args.pages = 1;
    if (scale)
        c->args.k_cache.scale.data = c->base.arena + m->scale;
    fill_scales(m);
    m->angles = oracle_create(&c->desc.rope);
}

static void free_moved(moved *m) {
    oracle_destroy(m->angles);
    append_free(&m->c);
}

/* What is rotated from here on: the tensor, or what the cache has. */
static void start_from(moved *m, int32_t source) {
    const append_case *c = &m->c;
    const int cached = source == ROPE_SOURCE_CACHE;
    for (int64_t i = 0; i < MOVED_ELEMENTS; i++) {
        m->from[i] = cached ? oracle_load(c->desc.k.store_dtype, c->base.arena + m->cache, i) *
                                  scale_of(m, i)
                            : given_of(m, i);
        m->off[i] = 0;
    }
    memset(m->turned, 0, sizeof m->turned);
}

/* Half a unit in the last place of 1, and the least number above 0. */
static const double unit_of[] = {
    [ROPE_F32] = 0x1p-24,   [ROPE_F16] = 0x1p-11,   [ROPE_BF16] = 0x1p-8,
    [ROPE_F8E4M3] = 0x1p-4, [ROPE_F8E5M2] = 0x1p-3, [ROPE_F8E4M3FNUZ] = 0x1p-4,
    [ROPE_I8] = 0};
static const double least_of[] = {
    [ROPE_F32] = 0x1p-149,  [ROPE_F16] = 0x1p-24,    [ROPE_BF16] = 0x1p-133,
    [ROPE_F8E4M3] = 0x1p-9, [ROPE_F8E5M2] = 0x1p-16, [ROPE_F8E4M3FNUZ] = 0x1p-10,
    [ROPE_I8] = 1};

/* The bound of docs/numerics.md, "Keys that move", with one more rotation. */
static void add_bound(moved *m, int32_t source) {
    const int32_t dtype = m->c.desc.rope.dtype, store = m->c.desc.k.store_dtype;
    const int read_exactly = source == ROPE_SOURCE_TENSOR || store == dtype ||
                             (store <= ROPE_BF16 ? dtype == ROPE_F32 : !m->c.desc.k.scale);
    const int stored_exactly = store == dtype || store == ROPE_F32;
    const double r = (1 + (read_exactly ? 0 : unit_of[dtype])) * (1 + unit_of[dtype]) *
                         (1 + (stored_exactly ? 0 : unit_of[store])) * (1 + 4e-7) -
                     1;
    for (int64_t i = 0; i < MOVED_ELEMENTS; i++) {
        if (i % MOVED_DIM >= MOVED_PAIRS)
            continue;
        const double t = sqrt(2) * (2 * least_of[dtype] + least_of[store] * scale_of(m, i) / 2);
        m->off[i] += r * (hypot(m->from[i], m->from[i + MOVED_PAIRS]) + m->off[i]) + t;
    }
}

/* Token t at position first + t * step: keys from the tensor, or those of the cache moved. */
static void turn(moved *m, int32_t source, int64_t first, int64_t step) {
    append_case *c = &m->c;
    for (int64_t t = 0; t < MOVED_TOKENS; t++) {
        int64_t position = step == 0 && t > 0 ? 12345 : first + t * step;
        memcpy(c->base.arena + m->ids + 8 * t, &position, sizeof position);
        m->turned[t] += first + t * step;
    }
    /* one entry for all that move by one distance */
    c->args.rope.position_stride[0] = step == 0;
    c->desc.k_source = source;
    c->args.rope.k.in = source == ROPE_SOURCE_CACHE ? NULL : c->base.arena + m->in;
    CHECK(run_into(c, NULL), "no kernel");
    add_bound(m, source);
}

/* Where the pair of element i should be, by exact rotations, and what the cache has. */
static void pair_of(const moved *m, int64_t i, double exact[2], double got[2]) {
    double cosine, sine, a = m->from[i], b = m->from[i + MOVED_PAIRS];
    oracle_cos_sin(m->angles, 0, m->turned[i / MOVED_DIM / MOVED_HEADS], (int32_t)(i % MOVED_DIM),
                   &cosine, &sine);
    exact[0] = a * cosine - b * sine;
    exact[1] = b * cosine + a * sine;
    for (int k = 0; k < 2; k++)
        got[k] = scale_of(m, i) * oracle_load(m->c.desc.k.store_dtype, m->c.base.arena + m->cache,
                                              i + k * MOVED_PAIRS);
}

static void check_moved(const moved *m, const char *what) {
    for (int64_t i = 0; i < MOVED_ELEMENTS; i++) {
        double exact[2], got[2];
        if (i % MOVED_DIM >= MOVED_PAIRS)
            continue;
        pair_of(m, i, exact, got);
        double off = hypot(got[0] - exact[0], got[1] - exact[1]);
        CHECK(off <= m->off[i],
              "dtype %d, store %d, scale %d: %s: pair %lld is off by %g; the bound is %g",
              m->c.desc.rope.dtype, m->c.desc.k.store_dtype, m->c.desc.k.scale, what, (long long)i,
              off, m->off[i]);
    }
}

enum { MOVES = 6 };

static void check_moves(int32_t dtype, int32_t store, int32_t scale, int64_t seed) {
    moved m;
    make_moved(&m, dtype, store, scale, seed);
    int64_t start = random_signed(&m.c.base.random, 17), by = random_signed(&m.c.base.random, 17);
    start_from(&m, ROPE_SOURCE_TENSOR);
    turn(&m, ROPE_SOURCE_TENSOR, start, 1);
    check_moved(&m, "stored");
    start_from(&m, ROPE_SOURCE_CACHE);
    turn(&m, ROPE_SOURCE_CACHE, by, 0);
    check_moved(&m, "moved");
    turn(&m, ROPE_SOURCE_CACHE, -by, 0);
    check_moved(&m, "moved there and back");
    if (store <= ROPE_BF16 || scale == ROPE_SCALE_TOKEN_HEAD_MAX) { /* others may saturate */
        for (int i = 1; i <= MOVES; i++)
            turn(&m, ROPE_SOURCE_CACHE, by, 0);
        check_moved(&m, "moved again and again");
    }
    free_moved(&m);
}

TEST(append_cache, keys_move_there_and_back) {
    int64_t seed = 0;
    for (int32_t dtype = ROPE_F32; dtype <= ROPE_BF16; dtype++)
        for (int64_t round = 0; round < test_scaled(4); round++) {
            for (int32_t store = ROPE_F32; store <= ROPE_BF16; store++)
                check_moves(dtype, store, 0, seed++);
            for (int j = 0; j < 4; j++)
                for (int32_t scale = 0; scale <= ROPE_SCALE_TOKEN_HEAD_MAX; scale++)
                    check_moves(dtype, small_types[j], scale, seed++);
        }
}

/* Pairs of the ends of the range of 8 bits, both of their elements. */
static void fill_ends(moved *m) {
    for (int64_t i = 0; i < MOVED_ELEMENTS; i++)
        m->c.base.arena[m->cache + (size_t)i] = (unsigned char)nearest_code(
            m->c.desc.k.store_dtype, random_chance(&m->c.base.random, 50) ? 1e6 : -1e6);
    for (int64_t i = 0; i < MOVED_TOKENS * MOVED_HEADS; i++)
        ((float *)(void *)(m->c.base.arena + m->scale))[i] = 0x1p-4F;
}

/* A pair that may have turned past an end: what does becomes it, and the rest is within the bound.
 * The elements that did. */
static int64_t check_pair_at_ends(const moved *m, int64_t i, const double exact[2],
                                  const double got[2]) {
    const int32_t dtype = m->c.desc.rope.dtype, store = m->c.desc.k.store_dtype,
                  scale = m->c.desc.k.scale;
    double off[2];
    int64_t ends = 0;
    for (int k = 0; k < 2; k++) {
        const double end = scale_of(m, i) * oracle_round(store, copysign(1e30, exact[k]));
        const int turns_past = fabs(exact[k]) > fabs(end) + m->off[i];
        off[k] = fabs(exact[k]) > fabs(end) ? got[k] - end : got[k] - exact[k];
        ends += turns_past;
        CHECK(!turns_past || off[k] == 0, "dtype %d, store %d, scale %d: %g becomes %g, not %g",
              dtype, store, scale, exact[k], got[k], end);
    }
    CHECK(hypot(off[0], off[1]) <= m->off[i],
          "dtype %d, store %d, scale %d: pair %lld is off by %g, %g; the bound is %g", dtype, store,
          scale, (long long)i, off[0], off[1], m->off[i]);
    return ends;
}

static void check_ends(int32_t dtype, int32_t store, int32_t scale, int64_t seed) {
    moved m;
    int64_t ends = 0, beyond = 0;
    make_moved(&m, dtype, store, scale, seed);
    fill_ends(&m);
    start_from(&m, ROPE_SOURCE_CACHE);
    turn(&m, ROPE_SOURCE_CACHE, random_between(&m.c.base.random, 1, 131072), 0);
    for (int64_t i = 0; i < MOVED_ELEMENTS; i++) {
        double exact[2], got[2];
        if (i % MOVED_DIM >= MOVED_PAIRS)
            continue;
        pair_of(&m, i, exact, got);
        beyond += hypot(got[0] - exact[0], got[1] - exact[1]) > m.off[i];
        ends += check_pair_at_ends(&m, i, exact, got);
    }
    CHECK(ends > 0 && beyond > 0, "dtype %d, store %d, scale %d: %lld at an end, %lld beyond",
          dtype, store, scale, (long long)ends, (long long)beyond);
    free_moved(&m);
}

TEST(append_cache, keys_that_turn_past_the_largest_number_saturate) {
    int64_t seed = 0;
    for (int32_t dtype = ROPE_F32; dtype <= ROPE_BF16; dtype++)
        for (int j = 0; j < 4; j++) {
            for (int32_t scale = 0; scale < ROPE_SCALE_TOKEN_HEAD_MAX; scale++)
                check_ends(dtype, small_types[j], scale, seed++);
            moved m; /* scales that are written leave room */
            make_moved(&m, dtype, small_types[j], ROPE_SCALE_TOKEN_HEAD_MAX, seed++);
            fill_ends(&m);
            start_from(&m, ROPE_SOURCE_CACHE);
            turn(&m, ROPE_SOURCE_CACHE, random_between(&m.c.base.random, 1, 131072), 0);
            check_moved(&m, "moved from the ends");
            free_moved(&m);
        }
}

enum { RING = 5, RING_TOKENS = 12, RING_PAGE = 3, RING_DIM = 4 };

/* A window of the last tokens, written `at_once` by a call, ends as the last ones. */
static void check_ring(int32_t kind, int64_t at_once, const char *kernel) {
    append_case c;
    size_t start[3];
    const int64_t pages = kind == ROPE_CACHE_TABLE ? 3 : 1;
    const int64_t page_size = kind == ROPE_CACHE_TABLE ? RING_PAGE : RING;
    size_t cache = (size_t)(pages * page_size * RING_DIM) * 4;
    unsigned char *arena =
        make_arena(&c, (size_t[]){RING_TOKENS * RING_DIM * 4, cache, pages * 8}, 3, start);
    float *in = (float *)(void *)arena;
    for (int i = 0; i < RING_TOKENS * RING_DIM; i++)
        in[i] = (float)i;
    const int64_t table[3] = {2, 0, 1};
    memcpy(arena + start[2], table, (size_t)pages * 8);
    c.desc.rope.dtype = ROPE_F32;
    c.desc.rope.head_dim = RING_DIM;
    c.desc.rotation = ROPE_ROTATION_OFF;
    c.desc.cache = kind;
    c.desc.page_size = page_size;
    c.desc.ring = RING;
    c.args.rope.batch = 1;
    c.args.pages = pages;
    c.args.v_cache.data = arena + start[1];
    if (kind == ROPE_CACHE_TABLE) {
        c.args.block_table = arena + start[2];
        c.args.table_pages = 2;
    }
    int ran = 1;
    for (int64_t t = 0; t < RING_TOKENS && ran; t += at_once) {
        c.args.rope.tokens = at_once;
        c.args.rope.position_offset = t;
        c.args.v = (rope_tensor){.in = in + t * RING_DIM, .heads = 1};
        ran = run_into(&c, kernel);
    }
    oracle_tensor v = oracle_append_tensor(&c.desc, &c.args, 2);
    for (int64_t t = RING_TOKENS - RING; t < RING_TOKENS && ran; t++) {
        int64_t n = t % RING;
        oracle_place place = {ORACLE_PLACE_GIVEN,
                              kind == ROPE_CACHE_TABLE ? table[n / RING_PAGE] : 0, n % page_size};
        double got = oracle_load(ROPE_F32, v.cache->data, oracle_cache_at(&v, &place, 0, 1));
        CHECK(got == (double)(t * RING_DIM + 1), "%s: %lld at once: token %lld's place holds %g",
              kernel, (long long)at_once, (long long)t, got);
    }
    append_free(&c);
}

TEST(append_cache, a_ring_keeps_the_last_tokens) {
    static const int64_t at_once[] = {1, 2, 3, 4, 6, 12};
    const char *kernel;
    for (int k = 0; (kernel = device_kernel_of("append", k)); k++)
        for (int i = 0; i < 6; i++) {
            check_ring(ROPE_CACHE_TABLE, at_once[i], kernel);
            check_ring(ROPE_CACHE_SEQUENCE, at_once[i], kernel);
        }
}

/* A call of some tokens of head_dim 2 in f32 by boundaries, to a cache of `places` tokens: the
 * first elements that lie there afterwards, 0 where nothing was written. */
typedef struct packed {
    int32_t kind;
    int64_t page_size, ring, tokens, sequences, boundaries[4], slots[4];
    double wanted[4];
} packed;

enum { PACKED_PLACES = 4 };

static void check_packed(const packed *p, int32_t rotation, const char *kernel) {
    append_case c;
    size_t start[5];
    unsigned char *arena =
        make_arena(&c, (size_t[]){4 * 8, PACKED_PLACES * 8, 4 * 8, 4 * 8, 4 * 8}, 5, start);
    float *in = (float *)(void *)arena, *cache = (float *)(void *)(arena + start[1]);
    for (int i = 0; i < 4; i++)
        in[2 * i] = in[2 * i + 1] = (float)(1 + i);
    memset(cache, 0, PACKED_PLACES * 8);
    memcpy(arena + start[2], p->boundaries, sizeof p->boundaries);
    memcpy(arena + start[3], p->slots, sizeof p->slots);
    c.desc.rope.dtype = ROPE_F32;
    c.desc.rope.head_dim = 2;
    c.desc.rotation = rotation;
    c.desc.cache = p->kind;
    c.desc.page_size = p->page_size;
    c.desc.ring = p->ring;
    c.args.rope.batch = 1;
    c.args.rope.tokens = p->tokens;
    c.args.rope.cu_seqlens = arena + start[2];
    c.args.rope.sequences = p->sequences;
    c.args.pages = PACKED_PLACES / p->page_size;
    c.args.v = (rope_tensor){.in = in, .heads = 1};
    c.args.v_cache.data = cache;
    if (p->kind == ROPE_CACHE_SLOTS)
        c.args.slots = arena + start[3];
    if (rotation == ROPE_ROTATION_ON)
        c.args.rope.q = (rope_tensor){.in = in, .out = arena + start[4], .heads = 1};
    if (run_into(&c, kernel))
        for (int i = 0; i < PACKED_PLACES; i++)
            CHECK((double)cache[2 * i] == p->wanted[i],
                  "%s: cache %d, boundaries %lld..%lld: place %d holds %g, not %g", kernel, p->kind,
                  (long long)p->boundaries[0], (long long)p->boundaries[p->sequences], i,
                  (double)cache[2 * i], p->wanted[i]);
    append_free(&c);
}

/* Those are not cached, and of a sequence that is partly there the part is, from its true index
 * on; a ring keeps the last of it. */
TEST(append_cache, tokens_outside_every_sequence) {
    static const packed list[] = {
        {ROPE_CACHE_SLOTS, 1, 0, 4, 1, {0, 2}, {0, 1, 2, 3}, {1, 2, 0, 0}},
        {ROPE_CACHE_SLOTS, 2, 0, 4, 2, {1, 2, 3}, {3, 2, 1, 0}, {0, 3, 2, 0}},
        {ROPE_CACHE_SLOTS, 2, 0, 3, 1, {-1, 5}, {3, 2, 1}, {0, 3, 2, 1}},
        {ROPE_CACHE_SLOTS, 1, 0, 4, 0, {0}, {0, 1, 2, 3}, {0, 0, 0, 0}},
        {ROPE_CACHE_SEQUENCE, 2, 2, 3, 1, {0, 5}, {0}, {3, 2, 0, 0}},
        {ROPE_CACHE_SEQUENCE, 2, 2, 3, 2, {-4, -2, 2}, {0}, {0, 0, 1, 2}},
        {ROPE_CACHE_SEQUENCE, 2, 2, 3, 2, {0, 2, 9}, {0}, {1, 2, 3, 0}},
        {ROPE_CACHE_SEQUENCE, 4, 0, 2, 1, {-1, 7}, {0}, {0, 1, 2, 0}},
    };
    const char *kernel;
    for (int k = 0; (kernel = device_kernel_of("append", k)); k++)
        for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
            check_packed(&list[i], ROPE_ROTATION_ON, kernel);
            check_packed(&list[i], ROPE_ROTATION_OFF, kernel);
        }
}

/* Heads whose scale has a rule of its own: no finite element but zeros, and the least numbers. */
static void check_scales(int32_t dtype, const char *kernel) {
    enum { HEADS = 6, DIM = 16 };
    static const float first[HEADS] = {0, NAN, -INFINITY, 0x1p-149F, 3, -5};
    static const float rest[HEADS] = {-0.0F, INFINITY, 0, 0x1p-149F, -INFINITY, NAN};
    const float largest = (float)oracle_round(dtype, 1e30);
    const float wanted[HEADS] = {1, 1, 1, 0x1p-126F, 3 / largest, 5 / largest};
    append_case c;
    size_t start[3];
    unsigned char *arena =
        make_arena(&c, (size_t[]){HEADS * DIM * 4, HEADS * DIM, HEADS * 4}, 3, start);
    float *in = (float *)(void *)arena;
    for (int i = 0; i < HEADS * DIM; i++)
        in[i] = i % DIM ? rest[i / DIM] : first[i / DIM];
    c.desc.rope.dtype = ROPE_F32;
    c.desc.rope.head_dim = DIM;
    c.desc.rotation = ROPE_ROTATION_OFF;
    c.desc.cache = ROPE_CACHE_SEQUENCE;
    c.desc.page_size = 1;
    c.desc.v.store_dtype = dtype;
    c.desc.v.scale = ROPE_SCALE_TOKEN_HEAD_MAX;
    c.args.rope.batch = c.args.rope.tokens = c.args.pages = 1;
    c.args.v = (rope_tensor){.in = in, .heads = HEADS};
    c.args.v_cache = (rope_cache){.data = arena + start[1], .scale = {.data = arena + start[2]}};
    if (run_into(&c, kernel))
        for (int h = 0; h < HEADS; h++) {
            float got = ((float *)(void *)(arena + start[2]))[h];
            int code = arena[start[1] + (size_t)(h * DIM)];
            int expected = nearest_code(dtype, (double)(first[h] / wanted[h]));
            CHECK(got == wanted[h], "%s: type %d, head %d has the scale %a, not %a", kernel, dtype,
                  h, (double)got, (double)wanted[h]);
            CHECK(code == expected, "%s: type %d, head %d begins with %#x, not %#x", kernel, dtype,
                  h, (unsigned)code, (unsigned)expected);
        }
    append_free(&c);
}

TEST(append_cache, scales_of_a_head) {
    const char *kernel;
    for (int k = 0; (kernel = device_kernel_of("append", k)); k++)
        for (int i = 0; i < 4; i++)
            check_scales(small_types[i], kernel);
}

/* One token of v and the place that its indices give; `page` of the table's last entry. */
typedef struct placed {
    int32_t kind;
    int64_t index, page;
    int there;
} placed;

enum { PLACE_PAGES = 3, PLACE_SIZE = 4, TABLE_PAGES = 2 };

static void check_place(const placed *p, int32_t index_type, const char *kernel) {
    append_case c;
    size_t start[5];
    unsigned char *arena =
        make_arena(&c, (size_t[]){16, PLACE_PAGES * PLACE_SIZE * 16, 32, 8, 4}, 5, start);
    memset(arena, 0, 16);
    const int64_t table[4] = {0, p->page, 0, 0}; /* beyond it lie pages, too */
    for (int i = 0; i < 4; i++)
        case_store_index(index_type, arena + start[2], i, table[i]);
    case_store_index(index_type, arena + start[3], 0, p->index);
    memset(arena + start[4], 0, 4);
    c.desc.rope.dtype = ROPE_F32;
    c.desc.rope.head_dim = 4;
    c.desc.rope.position_dtype = index_type;
    c.desc.rotation = ROPE_ROTATION_OFF;
    c.desc.cache = p->kind;
    c.desc.page_size = PLACE_SIZE;
    c.args.rope.batch = c.args.rope.tokens = 1;
    c.args.rope.position_flag = (int32_t *)(void *)(arena + start[4]);
    c.args.pages = PLACE_PAGES;
    c.args.v = (rope_tensor){.in = arena, .heads = 1};
    c.args.v_cache.data = arena + start[1];
    if (p->kind == ROPE_CACHE_SLOTS)
        c.args.slots = arena + start[3];
    else
        c.args.cache_starts = arena + start[3];
    if (p->kind == ROPE_CACHE_TABLE) {
        c.args.block_table = arena + start[2];
        c.args.table_pages = TABLE_PAGES;
    }
    unsigned char *result = malloc(c.base.bytes);
    rope_status status = append_run(&c, &c.desc, &c.args, 1, kernel, result);
    if (status == ROPE_ERROR_UNSUPPORTED && kernel) {
        free(result);
        append_free(&c);
        return;
    }
    const char *name = kernel ? kernel : "chosen";
    rope_status wanted = p->there || !device_is_host() ? ROPE_OK : ROPE_ERROR_POSITION_RANGE;
    CHECK(status == wanted, "%s: cache %d, index %lld, page %lld: %s", name, p->kind,
          (long long)p->index, (long long)p->page, rope_status_string(status));
    int written = memcmp(result + start[1], arena + start[1], start[2] - start[1]) != 0;
    CHECK(written == p->there, "%s: cache %d, index %lld, page %lld: the cache is%s written", name,
          p->kind, (long long)p->index, (long long)p->page, p->there ? " not" : "");
    CHECK(device_is_host() || result[start[4]] == !p->there, "%s: the flag is %d", name,
          result[start[4]]);
    free(result);
    append_free(&c);
}

TEST(append_cache, places_that_are_not_there) {
    static const placed list[] = {
        {ROPE_CACHE_SLOTS, PLACE_PAGES * PLACE_SIZE - 1, 0, 1},
        {ROPE_CACHE_SLOTS, PLACE_PAGES * PLACE_SIZE, 0, 0},
        {ROPE_CACHE_SLOTS, INT32_MAX, 0, 0},
        {ROPE_CACHE_TABLE, TABLE_PAGES * PLACE_SIZE - 1, 2, 1},
        {ROPE_CACHE_TABLE, TABLE_PAGES * PLACE_SIZE, 2, 0},
        {ROPE_CACHE_TABLE, -1, 2, 0},
        {ROPE_CACHE_TABLE, PLACE_SIZE, PLACE_PAGES, 0},
        {ROPE_CACHE_TABLE, PLACE_SIZE, -1, 0},
        {ROPE_CACHE_TABLE, PLACE_SIZE - 1, -1, 1},
        {ROPE_CACHE_SEQUENCE, PLACE_SIZE - 1, 0, 1},
        {ROPE_CACHE_SEQUENCE, PLACE_SIZE, 0, 0},
        {ROPE_CACHE_SEQUENCE, -1, 0, 0},
    };
    const char *kernel = NULL; /* the device's choice, then each that does not decline */
    for (int k = 0; k == 0 || kernel; kernel = device_kernel_of("append", k++))
        for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
            for (int32_t type = ROPE_I32; type <= ROPE_I64; type++)
                check_place(&list[i], type, kernel);
}
