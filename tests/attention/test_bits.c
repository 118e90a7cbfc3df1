/* A row of rope_attention has the same bits rotated inside or before, in every layout, alone and in
 * a batch, from every number of threads and run after run, and a call touches nothing beside its
 * buffers and its workspace. */
#include "tests/attention/compare.h"
#include "tests/oracle/oracle.h"
#include "tests/support/device.h"
#include "tests/support/guard.h"
#include "tests/support/harness.h"

#include <stdlib.h>
#include <string.h>

enum { CASES = 250 };

/* The case after a run of a kernel, or NULL where it declines. */
static unsigned char *arena_after(const attention_case *c, const char *kernel) {
    unsigned char *result = malloc(c->base.bytes);
    rope_status status = attention_run(c, kernel, result);
    if (status == ROPE_ERROR_UNSUPPORTED && kernel) {
        free(result);
        return NULL;
    }
    CHECK_STATUS(ROPE_OK, status);
    return result;
}

typedef void check_case(const attention_case *c, const char *kernel, const unsigned char *expected);

/* A kernel of the backend, the reference last, or NULL. */
static const char *kernel_at(int32_t index) {
    const char *name = device_kernel_of("attention", index);
    const int last = index > 0 && device_kernel_of("attention", index - 1);
    return name || !last || !device_is_host() ? name : "reference";
}

/* The kernel of rope_apply on the CPU with the bits of a kernel's rotation: all but the reference,
 * which rotates in double, have those of scalar (tests/rope/test_backends.c). */
static const char *rotation_of(const char *kernel) {
    return strcmp(kernel, "reference") == 0 ? kernel : "scalar";
}

/* For each case as wished and each kernel: the arena after, then a check that compares with it. */
static void for_each_wished(uint64_t seed, int64_t cases, const attention_wish *wish,
                            check_case *check) {
    attention_required();
    for (int64_t i = -1; test_next(&i, cases);) {
        attention_case c;
        const char *kernel;
        attention_make(&c, seed, i, wish);
        for (int32_t k = 0; (kernel = kernel_at(k)); k++) {
            attention_describe(&c, kernel);
            unsigned char *expected = arena_after(&c, kernel);
            if (expected)
                check(&c, kernel, expected);
            free(expected);
        }
        attention_free(&c);
    }
}

/* The same of those in range. */
static void for_each_case(uint64_t seed, int64_t cases, check_case *check) {
    const int provided = device_is_provider();
    const attention_wish wish = {.tame = provided, .in_range = 1, .provided = provided};
    for_each_wished(seed, cases, &wish, check);
}

/* Sequence `part` of a case, from query `skip` on, has the bits of the other's. */
static void check_rows(const attention_case *c, const unsigned char *expected, int64_t part,
                       int64_t skip, const attention_case *other, const unsigned char *result,
                       int64_t other_part, const char *what) {
    size_t bytes, other_bytes, at = 0;
    const int lse = c->args.lse != NULL;
    unsigned char *rows = attention_rows(c, expected, part, skip, lse, &bytes),
                  *others = attention_rows(other, result, other_part, 0, lse, &other_bytes);
    while (at < bytes && rows[at] == others[at])
        at++;
    const size_t row = bytes / (size_t)(c->q_count[part] > skip ? c->q_count[part] - skip : 1);
    free(rows);
    free(others);
    CHECK(bytes == other_bytes, "%s: %zu bytes, not %zu", what, other_bytes, bytes);
    CHECK(at == bytes, "%s: byte %zu of query %lld of sequence %lld differs", what,
          row ? at % row : 0, (long long)skip + (long long)(row ? at / row : 0), (long long)part);
}

/* --- layouts --- */

static int is_in_vectors(const void *data, const int64_t *stride, int axes) {
    for (int i = 0; i < axes; i++)
        if (stride[axes] && (stride[i] <= 0 || stride[i] % 8))
            return 0;
    return (uintptr_t)data % 16 == 0 && stride[axes] <= 1;
}

/* "few_sm90" gives keys of 8 bits bits of their own, and those of queries depend on the most of
 * a sequence, which a plain call says by its tokens. */
static int is_for_other_calls(const attention_case *c) {
    int64_t most = 0;
    for (int64_t n = 0; n < c->parts; n++)
        most = c->q_count[n] > most ? c->q_count[n] : most;
    return (c->desc.k.dtype && c->desc.k.dtype != c->desc.rope.dtype) ||
           most != c->args.rope.tokens;
}

/* "sm90" gives tensors that do not lie in vectors of 16 bytes the bits of "tiles", and those whose
 * rotation may fail; "latent" gives values within keys of pages bits of their own on Hopper
 * (docs/attention.md): latent_pages has those. */
static int takes_other_bits(const attention_case *c, const char *kernel) {
    const rope_attention_args *a = &c->args;
    if (strcmp(kernel, "few_sm90") == 0)
        return is_for_other_calls(c);
    if (strcmp(kernel, "latent") == 0 && c->desc.cache == ROPE_CACHE_TABLE &&
        c->desc.rope.head_dim == 576 && a->k_cache.data == a->v_cache.data)
        return 1;
    const rope_desc *rope = &c->desc.rope;
    const int has_cache = c->desc.cache != 0,
              may_fail = rope->angle_mode == ROPE_ANGLE_TABLE &&
                         rope->out_of_range <= ROPE_OUT_OF_RANGE_ERROR &&
                         c->desc.rotation != ROPE_ATTENTION_ROTATE_NONE;
    return strcmp(kernel, "sm90") == 0 &&
           (may_fail || !is_in_vectors(a->rope.q.in, a->rope.q.in_stride, 3) ||
            !is_in_vectors(a->out.data, a->out.stride, 3) ||
            !is_in_vectors(has_cache ? a->k_cache.data : a->rope.k.in,
                           has_cache ? a->k_cache.stride : a->rope.k.in_stride, 3 + has_cache) ||
            !is_in_vectors(has_cache ? a->v_cache.data : a->v.in,
                           has_cache ? a->v_cache.stride : a->v.in_stride, 3 + has_cache));
}

/* All sequences as a padded batch without a rotation and without a cache. */
static void check_unfused(const attention_case *c, const char *kernel,
                          const unsigned char *expected) {
    attention_case plain;
    attention_dense dense;
    if (c->parts == 0 || c->args.rope.tokens == 0 || takes_other_bits(c, kernel))
        return;
    attention_dense_make(&dense, c, rotation_of(kernel));
    attention_plain(&plain, c, &dense, 0, c->parts, 0);
    unsigned char *result = arena_after(&plain, kernel);
    CHECK(result, "the kernel declines without a rotation");
    for (int64_t n = 0; n < c->parts; n++)
        check_rows(c, expected, n, 0, &plain, result, n, "rotated before, in a plain batch");
    free(result);
    attention_free(&plain);
    attention_dense_free(&dense);
}

TEST(attention_bits, fused_and_unfused) {
    device_not_provided("bits depend on the layout");
    for_each_case(test_seed() + 1, CASES, check_unfused);
}

/* Whether a sequence is so long a prompt that a GPU takes its last queries alone by splits of its
 * keys (docs/attention.md). */
static int changes_kernel(const attention_case *c, const char *kernel, int64_t part) {
    const int64_t group = c->args.rope.q.heads / c->args.rope.k.heads;
    if (strcmp(kernel, "latent") == 0)
        return c->q_count[part] > 4;
    if (strcmp(kernel, "few_sm90") == 0)
        return 1;
    return (strcmp(kernel, "splits") == 0 || strcmp(kernel, "sm90") == 0 ||
            strcmp(kernel, "generic") == 0) &&
           c->q_count[part] * group > 16;
}

/* Each sequence in a call of its own, and its last queries in another: as a prompt in one call and
 * token by token. */
static void check_alone(const attention_case *c, const char *kernel,
                        const unsigned char *expected) {
    attention_dense dense;
    if (c->args.rope.tokens == 0 || takes_other_bits(c, kernel))
        return;
    attention_dense_make(&dense, c, rotation_of(kernel));
    for (int64_t n = 0; n < c->parts; n++)
        for (int rest = 0; rest < 2 - changes_kernel(c, kernel, n); rest++) {
            attention_case plain;
            const int64_t skip = rest * (c->q_count[n] - 1 - c->base.index % 3);
            if (skip < 0 || c->q_count[n] == 0 || (rest && skip == 0) ||
                (strcmp(kernel, "few_sm90") == 0 && c->q_count[n] != c->args.rope.tokens))
                continue;
            attention_plain(&plain, c, &dense, n, 1, skip);
            unsigned char *result = arena_after(&plain, kernel);
            CHECK(result, "the kernel declines without a rotation");
            check_rows(c, expected, n, skip, &plain, result, 0,
                       rest ? "the last queries alone" : "a sequence alone");
            free(result);
            attention_free(&plain);
        }
    attention_dense_free(&dense);
}

TEST(attention_bits, alone_and_in_a_batch) {
    device_not_provided("bits depend on the batch");
    for_each_case(test_seed() + 2, CASES, check_alone);
}

static void check_few(const attention_case *c, const char *kernel, const unsigned char *expected) {
    check_unfused(c, kernel, expected);
    check_alone(c, kernel, expected);
}

TEST(attention_bits, few_queries) {
    static const attention_wish wish = {.in_range = 1, .few = 1};
    device_not_provided("bits depend on the layout and on the batch");
    for_each_wished(test_seed() + 7, 2 * ATTENTION_FEW_ROWS, &wish, check_few);
}

/* --- runs --- */

static void check_same(const attention_case *c, const char *kernel, const unsigned char *expected,
                       const char *what) {
    unsigned char *result = arena_after(c, kernel);
    size_t at = 0;
    while (at < c->base.bytes && result[at] == expected[at])
        at++;
    CHECK(at == c->base.bytes, "%s: byte %zu of the arena differs", what, at);
    free(result);
}

static void check_again(const attention_case *c, const char *kernel,
                        const unsigned char *expected) {
    unsigned char *replayed = malloc(c->base.bytes);
    check_same(c, kernel, expected, "the same call again");
    CHECK_STATUS(ROPE_OK, attention_replay(c, kernel, replayed));
    CHECK(memcmp(replayed, expected, c->base.bytes) == 0, "replayed from a graph");
    free(replayed);
}

TEST(attention_bits, run_after_run) {
    for_each_case(test_seed() + 3, CASES / 4, check_again);
}

static void check_threads(const attention_case *c, const char *kernel,
                          const unsigned char *expected) {
    static const int counts[] = {1, 2, 3, 7};
    for (int i = 0; i < 4; i++) {
        device_threads(counts[i]);
        check_same(c, kernel, expected, "another number of threads");
    }
}

/* m queries of n keys of one key head, which `heads` share. */
static void make_plain(attention_case *c, int32_t dtype, int64_t dim, int64_t m, int64_t n,
                       int64_t heads) {
    const int64_t size = (int64_t)oracle_dtype_size(dtype);
    const size_t q = (size_t)(m * heads * dim * size), k = (size_t)(n * dim * size);
    memset(c, 0, sizeof *c);
    c->base.bytes = (2 * q + 2 * k + sizeof m + 63) / 64 * 64;
    c->base.arena = aligned_alloc(64, c->base.bytes);
    c->base.random = random_stream(test_seed(), n);
    c->desc = (rope_attention_desc)ROPE_ATTENTION_DESC_INIT;
    c->desc.rope.dtype = dtype;
    c->desc.rope.head_dim = (int32_t)dim;
    c->args = (rope_attention_args)ROPE_ATTENTION_ARGS_INIT;
    rope_attention_args *a = &c->args;
    unsigned char *at = c->base.arena;
    c->parts = a->rope.batch = 1;
    c->q_count[0] = a->rope.tokens = m;
    c->k_count[0] = a->k_tokens = n;
    a->rope.q = (rope_tensor){.in = at, .heads = heads};
    a->out.data = at + q;
    a->rope.k = (rope_tensor){.in = at + 2 * q, .heads = 1};
    a->v = (rope_tensor){.in = at + 2 * q + k, .heads = 1};
    for (int64_t i = 0; i < (int64_t)c->base.bytes / size; i++)
        oracle_store(dtype, at, i, random_real(&c->base.random, -2, 2));
}

/* Enough work for a team: many rows, or so few that the keys of a row are several threads'. */
static void make_large(attention_case *c, int32_t dtype, int64_t index) {
    if (index == 0)
        make_plain(c, dtype, 64, 300, 300, 6);
    else
        make_plain(c, dtype, 64, index, 6000 + index, 2);
}

/* The row has one query less, or one key, as the device knows. */
static void shorten(attention_case *c, int key) {
    int64_t *last = (int64_t *)(void *)(c->base.arena + c->base.bytes) - 1;
    *(key ? &c->args.k_lengths : &c->args.q_lengths) = last;
    *last = key ? --c->k_count[0] : --c->q_count[0];
}

/* Kernels of 16-bit heads of 64 and 128: a prompt, and one query or two of many keys. A shorter
 * prompt of heads that have less than there is room for, and of the widest; 48 rows of these.
 * Shortened, each is of one type: what differs is the length. */
static void check_heads(int shortened) {
    attention_required();
    device_not_provided("bits depend on the layout and on the batch");
    for (int i = 0; i < 11; i++) {
        attention_case c;
        const char *kernel;
        if (shortened && i < 8 && (i ^ i >> 1 ^ i >> 2) & 1)
            continue;
        if (i < 8)
            make_plain(&c, i & 1 ? ROPE_F16 : ROPE_BF16, i & 2 ? 64 : 128,
                       i & 4       ? 40
                       : shortened ? 2
                                   : 1 + (i & 1),
                       i & 4 ? 70 : 600, 4);
        else if (i < 10)
            make_plain(&c, ROPE_BF16, i & 1 ? 96 : 256, 17, 40, 4);
        else
            make_plain(&c, ROPE_BF16, 256, 4, 300, 12);
        if (shortened)
            shorten(&c, i & 2);
        for (int k = 0; (kernel = device_kernel_of("attention", k)); k++) {
            attention_describe(&c, kernel);
            unsigned char *expected = arena_after(&c, kernel);
            if (expected) {
                check_again(&c, kernel, expected);
                check_unfused(&c, kernel, expected);
                check_alone(&c, kernel, expected);
            }
            free(expected);
        }
        attention_free(&c);
    }
}

TEST(attention_bits, heads_of_matrix_instructions) {
    check_heads(0);
}

TEST(attention_bits, heads_of_matrix_instructions_with_lengths) {
    check_heads(1);
}

/* Capped scores near 0 have the same bits beside large ones. */
TEST(attention_bits, caps_beside_large_scores) {
    enum { QUERIES = 40, KEYS = 300, DIM = 64, HEADS = 4 };
    const size_t row = HEADS * DIM * sizeof(uint16_t);
    const char *kernel;
    attention_required();
    device_not_provided("it has no caps");
    for (int k = 0; (kernel = device_kernel_of("attention", k)); k++) {
        attention_case c;
        make_plain(&c, ROPE_BF16, DIM, QUERIES, KEYS, HEADS);
        c.desc.soft_cap = 50;
        attention_describe(&c, kernel);
        unsigned char *expected = arena_after(&c, kernel),
                      *q = c.base.arena; /* its first query is the first of a warp */
        for (size_t i = 0; i < row / sizeof(uint16_t); i++)
            oracle_store(ROPE_BF16, q, (int64_t)i, 64 * oracle_load(ROPE_BF16, q, (int64_t)i));
        unsigned char *result = expected ? arena_after(&c, kernel) : NULL;
        const size_t out = (size_t)((unsigned char *)c.args.out.data - c.base.arena);
        CHECK(!result || memcmp(expected + out, result + out, row) != 0,
              "the first row is as it was");
        CHECK(!result || !memcmp(expected + out + row, result + out + row, (QUERIES - 1) * row),
              "other rows differ");
        free(expected);
        free(result);
        attention_free(&c);
    }
}

/* The kernel that rotates queries beside its products. */
static const char *kernel_beside_products(void) {
    const char *kernel = NULL;
    attention_required();
    for (int k = 0; (kernel = device_kernel_of("attention", k)) && strcmp(kernel, "sm90") != 0; k++)
        ;
    if (!kernel)
        SKIP("no kernel rotates so");
    return kernel;
}

/* The kernel takes the case, and agrees with itself on rotated inputs and on one sequence alone. */
static void check_whole(attention_case *c, const char *kernel) {
    attention_describe(c, kernel);
    unsigned char *expected = arena_after(c, kernel);
    CHECK(expected, "declined");
    check_unfused(c, kernel, expected);
    check_alone(c, kernel, expected);
    free(expected);
}

/* Queries so many that Hopper's kernel rotates them beside its products: in order, the first ones
 * of a row by its lengths, packed sequences, rows of a batch that have lengths, sequences around
 * the length from which they have tall tiles, which see all keys up to theirs, and rows with ids.
 */
static void check_beside_products(int64_t dim, int64_t heads) {
    enum { TOKENS = 4200, ROOM = 300, CASES_OF = 7 };
    static const int64_t ends[CASES_OF][4] = {
        {0},          {0, 1111, 1111, 4100}, {0, 1111, 1111, 4100}, {13, 1000, 4000, 4199},
        {2090, 1990}, {0, 1535, 3071, 4200}, {2100, 2100}};
    const char *kernel = kernel_beside_products();
    for (int i = 0; i < CASES_OF; i++) {
        attention_case c;
        make_plain(&c, ROPE_BF16, dim, TOKENS, TOKENS + ROOM, heads);
        int64_t *list =
            (int64_t *)((uintptr_t)c.args.v.in + TOKENS * (uintptr_t)dim * sizeof(uint16_t));
        memcpy(list, ends[i], sizeof ends[i]);
        c.desc.window = i == 5 ? 0 : 40;
        c.k_count[0] = c.args.k_tokens = TOKENS;
        c.args.rope.position_offset = i % 2 ? 1000 : 0;
        if (i == 1) {
            c.args.k_lengths = list + 3;
            c.args.q_lengths = list + 1;
            c.k_count[0] = ends[i][3];
            c.q_count[0] = ends[i][1];
        }
        if (i == 2 || i == 3 || i == 5) {
            c.args.rope.cu_seqlens = c.args.k_cu_seqlens = list;
            c.parts = c.args.rope.sequences = 3;
            for (int n = 0; n < 3; n++)
                c.q_count[n] = c.k_count[n] = ends[i][n + 1] - ends[i][n];
        }
        if (i == 4)
            c.args.q_lengths = c.args.k_lengths = list;
        if (i == 6) {
            for (int n = 0; n < TOKENS; n++)
                list[n] = 31 * n % 5003;
            c.args.rope.position_ids = c.args.k_position_ids = list;
        }
        if (i == 4 || i == 6) {
            c.parts = c.args.rope.batch = 2;
            c.args.rope.tokens = c.args.k_tokens = TOKENS / 2;
            for (int n = 0; n < 2; n++)
                c.q_count[n] = c.k_count[n] = ends[i][n];
        }
        check_whole(&c, kernel);
        attention_free(&c);
    }
}

TEST(attention_bits, queries_that_rotate_beside_products) {
    check_beside_products(128, 8);
    check_beside_products(64, 32);
    check_beside_products(96, 16);
}

/* Heads of k that the launch ahead of those queries rotates: of sizes that are no powers of two, of
 * rows that share ids, in place by the inverse of scaled angles, with tokens side by side. */
static void make_keys_ahead(attention_case *c, int i) {
    static const int64_t dims[4] = {48, 80, 112, 64}, heads[4] = {6, 3, 5, 9};
    const int64_t dim = dims[i], k_heads = heads[i], tokens = (1 << 22) / (4 * k_heads * dim) + 5;
    const int rows = i == 1 ? 2 : 1;
    make_plain(c, i & 1 ? ROPE_F16 : ROPE_BF16, dim, tokens * rows,
               tokens * rows * k_heads + tokens, 4 * k_heads);
    rope_args *a = &c->args.rope;
    int64_t *ids = (int64_t *)((uintptr_t)c->args.v.in +
                               (uintptr_t)(tokens * rows * k_heads * dim) * sizeof(uint16_t));
    a->tokens = c->args.k_tokens = tokens;
    a->k.heads = c->args.v.heads = k_heads;
    a->batch = c->parts = rows;
    for (int n = 0; n < rows; n++)
        c->q_count[n] = c->k_count[n] = tokens;
    c->desc.window = 40;
    if (i == 1) {
        for (int64_t n = 0; n < tokens; n++)
            ids[n] = 31 * n % 5003 - 7;
        a->position_ids = c->args.k_position_ids = ids;
        a->position_stride[2] = c->args.k_position_stride[2] = 1;
    }
    if (i == 2) {
        a->k.out = (void *)(uintptr_t)a->k.in;
        c->desc.rope.direction = ROPE_INVERSE;
        c->desc.rope.rope_type = ROPE_TYPE_LINEAR;
        c->desc.rope.factor = 3;
    }
    if (i == 3)
        memcpy(a->k.in_stride, (const int64_t[4]){tokens * k_heads * dim, dim, tokens * dim, 1},
               sizeof a->k.in_stride);
}

/* Of which several blocks take keys where sequences are few, in order where they are many. */
TEST(attention_bits, few_rows_of_many_keys) {
    static const attention_wish wish = {.in_range = 1, .long_keys = 1};
    const char *kernel = kernel_beside_products();
    for (int64_t i = -1; test_next(&i, 2 * ATTENTION_LONG_ROWS);) {
        attention_case c;
        attention_make(&c, test_seed() + 10, i, &wish);
        check_whole(&c, kernel);
        attention_free(&c);
    }
}

TEST(attention_bits, keys_that_rotate_ahead_of_products) {
    const char *kernel = kernel_beside_products();
    for (int i = 0; i < 4; i++) {
        attention_case c;
        make_keys_ahead(&c, i);
        attention_describe(&c, kernel);
        unsigned char *expected = arena_after(&c, kernel), *ahead = arena_after(&c, "tiles");
        const size_t k = (size_t)((const unsigned char *)c.args.rope.k.in - c.base.arena);
        CHECK(expected && ahead, "declined");
        check_unfused(&c, kernel, expected);
        CHECK(memcmp(expected + k, ahead + k, c.base.bytes - k) == 0, "k.out differs");
        free(expected);
        free(ahead);
        attention_free(&c);
    }
}

/* Sequences first to first + count - 1 of a packed case in a call of their own. */
static void check_some(const attention_case *c, const char *kernel, const unsigned char *expected,
                       int64_t first, int64_t count) {
    const int64_t *ends = (const int64_t *)c->args.rope.cu_seqlens + first;
    const int64_t row = c->args.rope.q.heads * c->desc.rope.head_dim * 2;
    const size_t out = (size_t)((unsigned char *)c->args.out.data - c->base.arena);
    attention_case some = *c;
    some.args.rope.cu_seqlens = some.args.k_cu_seqlens = ends;
    some.args.rope.sequences = count;
    unsigned char *result = arena_after(&some, kernel);
    CHECK(memcmp(result + out + ends[0] * row, expected + out + ends[0] * row,
                 (size_t)((ends[count] - ends[0]) * row)) == 0,
          "%lld sequences from %lld on differ", (long long)count, (long long)first);
    free(result);
}

/* So many sequences that Hopper's blocks do not look at all ahead of their tiles, or do not keep
 * what they have seen. One has tall tiles. */
TEST(attention_bits, many_packed_sequences) {
    enum { SEQUENCES = 2100, LONG = 6200, TOKENS = SEQUENCES / 10 * 45 + LONG, ROOM = 300 };
    static const int64_t most[2] = {700, 300};
    const char *kernel = kernel_beside_products();
    attention_case c;
    make_plain(&c, ROPE_BF16, 64, TOKENS, TOKENS + ROOM, 8);
    int64_t *ends = (int64_t *)((uintptr_t)c.args.v.in + TOKENS * 64 * sizeof(uint16_t));
    for (int64_t n = ends[0] = 0; n < SEQUENCES; n++)
        ends[n + 1] = ends[n] + (n == SEQUENCES / 2 ? LONG : n % 10);
    c.args.k_tokens = TOKENS;
    c.args.rope.cu_seqlens = c.args.k_cu_seqlens = ends;
    c.args.rope.sequences = SEQUENCES;
    attention_describe(&c, kernel);
    unsigned char *expected = arena_after(&c, kernel);
    CHECK(expected, "declined");
    for (int i = 0; i < 2; i++)
        for (int64_t first = 0; first < SEQUENCES; first += most[i])
            check_some(&c, kernel, expected, first, most[i]);
    free(expected);
    attention_free(&c);
}

/* They are written to q.out, too, as a launch ahead of other kernels writes them. */
TEST(attention_bits, queries_that_are_written_beside_products) {
    enum { TOKENS = 4200, DIM = 128, HEADS = 8 };
    const size_t bytes = (size_t)TOKENS * HEADS * DIM * sizeof(uint16_t);
    const char *kernel = kernel_beside_products();
    for (int32_t dtype = ROPE_F16; dtype <= ROPE_BF16; dtype++) {
        attention_case c;
        make_plain(&c, dtype, DIM, TOKENS, TOKENS, 2 * HEADS);
        c.args.rope.q.heads = HEADS;
        c.desc.window = 40;
        attention_describe(&c, kernel);
        unsigned char *expected = arena_after(&c, kernel);
        c.args.rope.q.out = c.base.arena + bytes;
        unsigned char *got = arena_after(&c, kernel), *ahead = arena_after(&c, "tiles");
        CHECK(expected && got && ahead, "declined");
        CHECK(memcmp(got + 2 * bytes, expected + 2 * bytes, bytes) == 0, "out differs");
        CHECK(memcmp(got + bytes, ahead + bytes, bytes) == 0, "q.out differs");
        free(expected);
        free(got);
        free(ahead);
        attention_free(&c);
    }
}

/* MLA's heads of which the value is the first elements of the key, copied and where it lies: one
 * query of many keys, and more queries than a GPU reads in splits. */
TEST(attention_bits, values_within_keys) {
    enum { DIM = 576, VALUE = 512 };
    attention_required();
    device_not_provided("bits depend on strides");
    for (int i = 0; i < 2; i++) {
        attention_case c;
        const char *kernel;
        const int64_t keys = i ? 70 : 600;
        make_plain(&c, i ? ROPE_F16 : ROPE_BF16, DIM, i ? 6 : 1, keys, i ? 2 : 33);
        c.desc.rotation = ROPE_ATTENTION_ROTATE_NONE;
        c.desc.v_head_dim = VALUE;
        for (int64_t n = 0; n < keys; n++)
            memcpy((uint16_t *)(uintptr_t)c.args.v.in + n * VALUE,
                   (const uint16_t *)c.args.rope.k.in + n * DIM, VALUE * sizeof(uint16_t));
        for (int k = 0; (kernel = device_kernel_of("attention", k)); k++) {
            attention_describe(&c, kernel);
            unsigned char *expected = arena_after(&c, kernel);
            attention_case within = c;
            within.args.v = c.args.rope.k;
            memcpy(within.args.v.in_stride, (const int64_t[4]){keys * DIM, DIM, DIM, 1},
                   sizeof within.args.v.in_stride);
            if (expected) {
                check_same(&within, kernel, expected, "values within keys");
                check_alone(&within, kernel, expected);
            }
            free(expected);
        }
        attention_free(&c);
    }
}

/* One query of keys in a cache of f32, whose slots are `apart` elements from each other. */
static void make_cached(attention_case *c, int64_t dim, int64_t keys, int64_t apart) {
    make_plain(c, ROPE_BF16, dim, 1, 4 * keys, 2); /* room for keys of twice the size */
    float *k = (float *)(uintptr_t)c->args.rope.k.in, *v = k + keys * apart;
    int64_t *last = (int64_t *)(void *)(c->base.arena + c->base.bytes) - 1;
    for (int64_t n = 0; n < keys; n++)
        for (int64_t i = 0; i < dim; i++) {
            k[n * apart + i] = (float)((31 * n + 7 * i) % 13) / 8;
            v[n * apart + i] = (float)((17 * n + 5 * i) % 11) / 4;
        }
    c->desc.rotation = ROPE_ATTENTION_ROTATE_NONE;
    c->desc.k.dtype = c->desc.v.dtype = ROPE_F32;
    c->desc.cache = ROPE_CACHE_SEQUENCE;
    c->desc.page_size = c->k_count[0] = *last = keys;
    c->args.k_lengths = last;
    c->args.pages = 1;
    c->args.k_tokens = 0;
    c->args.rope.k.in = c->args.v.in = NULL;
    c->args.k_cache.data = k;
    c->args.v_cache.data = v;
    const int64_t stride[5] = {keys * apart, apart, dim, dim, 1};
    memcpy(c->args.k_cache.stride, stride, sizeof stride);
    memcpy(c->args.v_cache.stride, stride, sizeof stride);
}

/* Two sequences' keys and values of two heads: in order, or in pages that lie in another order. An
 * element of q is less than 2^-126, that of some keys more than 2^65. */
static void make_pages(attention_case *c, int64_t dim, int64_t v_dim, int64_t tokens, int64_t keys,
                       int64_t page) {
    enum { SEQUENCES = 2, HEADS = 2, ROOM = 700 };
    /* prompts of many rows a key are copied by NVIDIA GPUs alone */
    const int64_t shares = device_runs_on_cpu() && tokens > 8 ? 2 : 16;
    make_plain(c, ROPE_BF16, dim, SEQUENCES * tokens, SEQUENCES * HEADS * keys + ROOM,
               shares * HEADS);
    uint16_t *k = (uint16_t *)(uintptr_t)c->args.rope.k.in,
             *v = (uint16_t *)(uintptr_t)c->args.v.in;
    uint16_t *const q = (uint16_t *)(uintptr_t)c->args.rope.q.in, *const q_end = c->args.out.data;
    const int64_t pages = SEQUENCES * keys / page, step = HEADS * dim, v_step = HEADS * v_dim;
    int64_t *lengths = (int64_t *)(void *)(k + SEQUENCES * keys * step);
    int32_t *table = (int32_t *)(void *)(lengths + SEQUENCES);
    for (int64_t n = 0; n < pages && page > 1; n++)
        table[n] = (int32_t)(5 * n % pages); /* 5 divides no such number */
    for (int64_t n = 0; n < SEQUENCES * keys; n++) {
        const int64_t key = page > 1 ? n % page + page * table[n / page] : n;
        for (int64_t i = 0; i < step; i++)
            k[key * step + i] =
                n % 95 == 5 && i % dim == 3 ? 0x7e00 : (uint16_t)(0x3e00 + (31 * n + 7 * i) % 256);
        for (int64_t i = 0; i < v_step; i++)
            v[key * v_step + i] = (uint16_t)(0x3e00 + (17 * n + 5 * i) % 256);
    }
    for (uint16_t *x = q + 3; x < q_end; x += dim)
        *x = 0x0040;
    c->desc.rotation = ROPE_ATTENTION_ROTATE_NONE;
    c->desc.v_head_dim = (int32_t)v_dim;
    c->desc.window = dim == 128 ? 60 : 0;
    c->parts = c->args.rope.batch = SEQUENCES;
    c->args.rope.tokens = c->q_count[0] = c->q_count[1] = tokens;
    c->args.k_tokens = keys;
    c->args.rope.k.heads = c->args.v.heads = HEADS;
    c->k_count[0] = lengths[0] = keys - 3;
    c->k_count[1] = lengths[1] = keys - 50;
    c->args.k_lengths = lengths;
    if (page == 1)
        return;
    c->desc.cache = ROPE_CACHE_TABLE;
    c->desc.table_dtype = ROPE_I32;
    c->desc.page_size = page;
    c->args.pages = pages;
    c->args.table_pages = pages / SEQUENCES;
    c->args.block_table = table;
    c->args.k_tokens = 0;
    c->args.rope.k.in = c->args.v.in = NULL;
    c->args.k_cache.data = k;
    c->args.v_cache.data = v;
}

/* Pages of any size have the bits of keys in order, which kernels read where they lie or not. */
static void check_pages(int64_t tokens) {
    enum { KEYS = 384 };
    static const int64_t dims[][2] = {{64, 64}, {96, 64}, {128, 128}, {256, 256}},
                         sizes[] = {1, 4, 16, 24, 48, 64, 128};
    enum { SIZES = sizeof sizes / sizeof *sizes };
    const char *kernel;
    attention_required();
    device_not_provided("bits depend on the layout");
    for (size_t d = 0; d < sizeof dims / sizeof *dims; d++)
        for (int k = 0; (kernel = device_kernel_of("attention", k)); k++) {
            attention_case c[SIZES];
            unsigned char *result[SIZES];
            for (int i = 0; i < SIZES; i++) {
                make_pages(&c[i], dims[d][0], dims[d][1], tokens, KEYS, sizes[i]);
                attention_describe(&c[i], kernel);
                result[i] = arena_after(&c[i], kernel);
                for (int n = 0; n < 2 && i > 0 && result[0] && result[i]; n++)
                    check_rows(&c[0], result[0], n, 0, &c[i], result[i], n, "in pages");
            }
            for (int i = 0; i < SIZES; i++) {
                attention_free(&c[i]);
                free(result[i]);
            }
        }
}

TEST(attention_bits, pages_of_a_prompt) {
    check_pages(70);
}

TEST(attention_bits, pages_of_a_token) {
    check_pages(1);
}

/* MLA's heads in pages, of which the value is the first elements of the key. */
static void make_latent_pages(attention_case *c, int64_t tokens, int64_t page) {
    enum { DIM = 576, VALUE = 512, KEYS = 1344, FEWER = 576, HEADS = 2 };
    const int64_t stride[5] = {page * HEADS * DIM, HEADS * DIM, DIM, DIM, 1};
    make_pages(c, DIM, VALUE, tokens, device_runs_on_cpu() ? FEWER : KEYS, page);
    c->args.v_cache.data = c->args.k_cache.data;
    memcpy(c->args.k_cache.stride, stride, sizeof stride);
    memcpy(c->args.v_cache.stride, stride, sizeof stride);
}

/* Of the first sequence the queries from `skip` on, in a call of their own. */
static void check_first_alone(const attention_case *c, const char *kernel,
                              const unsigned char *expected, int64_t skip) {
    attention_case alone = *c;
    const int64_t row = c->args.rope.q.heads * c->desc.rope.head_dim;
    alone.parts = alone.args.rope.batch = 1;
    alone.args.rope.tokens = alone.q_count[0] = c->q_count[0] - skip;
    alone.args.rope.q.in = (const uint16_t *)c->args.rope.q.in + skip * row;
    unsigned char *result = arena_after(&alone, kernel);
    CHECK(result, "declined");
    check_rows(c, expected, 0, skip, &alone, result, 0, "alone");
    free(result);
}

/* Pages of 16 n tokens have the same bits whatever their size, alone and in a batch, a token at a
 * time and four. */
TEST(attention_bits, latent_pages) {
    static const int64_t sizes[] = {16, 48, 64};
    const char *kernel;
    attention_required();
    device_not_provided("bits depend on the layout");
    for (int k = 0; (kernel = device_kernel_of("attention", k)); k++) {
        attention_case c[3];
        unsigned char *result[3];
        for (int i = 0; i < 3; i++) {
            make_latent_pages(&c[i], 4, sizes[i]);
            attention_describe(&c[i], kernel);
            result[i] = arena_after(&c[i], kernel);
            for (int n = 0; n < 2 && i > 0 && result[0] && result[i]; n++)
                check_rows(&c[0], result[0], n, 0, &c[i], result[i], n, "in pages");
        }
        for (int skip = 0; skip < 4 && result[0] && !changes_kernel(&c[0], kernel, 0); skip++)
            check_first_alone(&c[0], kernel, result[0], skip);
        for (int i = 0; i < 3; i++) {
            attention_free(&c[i]);
            free(result[i]);
        }
    }
}

/* Where element i of the keys of make_pages() lies, a key having `row` of them. */
static int64_t paged_at(const attention_case *c, int64_t i, int64_t row) {
    const int64_t n = i / row, page = c->desc.page_size;
    const int32_t *table = c->args.block_table;
    return (table[n / page] * page + n % page) * row + i % row;
}

/* Elements of a cache become 8 bits, times a scale of their head; or what these stand for. */
static void make_coded(attention_case *c, int64_t count, int64_t dim, int coded) {
    static const float scales[2] = {0x1p-6f, 0x1p-5f};
    const void *data[2] = {c->args.k_cache.data, c->args.v_cache.data};
    float *scale = (float *)(void *)(c->base.arena + c->base.bytes) - 2;
    for (int t = 0; t < 2; t++)
        for (int64_t i = 0; i < count; i++) {
            const int8_t code = (int8_t)(i * (31 + t) % 251 - 125);
            const int64_t at = paged_at(c, i, 2 * dim);
            if (coded)
                ((int8_t *)(uintptr_t)data[t])[at] = code;
            else
                oracle_store(ROPE_BF16, (void *)(uintptr_t)data[t], at, code * scales[i / dim % 2]);
        }
    if (!coded)
        return;
    memcpy(scale, scales, sizeof scales);
    c->desc.k.dtype = c->desc.v.dtype = ROPE_I8;
    c->desc.k.scale = c->desc.v.scale = ROPE_SCALE_HEAD;
    c->args.k_cache.scale.data = c->args.v_cache.scale.data = scale;
}

typedef struct coded {
    int64_t dim, tokens, keys, page, table_pages;
} coded;

/* A table of `most` pages a sequence, of which the last ones are not there. */
static void lengthen_table(attention_case *c, int64_t most) {
    int32_t *table = (int32_t *)(uintptr_t)c->args.block_table;
    const int64_t pages = c->args.table_pages;
    if (device_is_host())
        return;
    memcpy(table + most, table + pages, (size_t)pages * sizeof *table);
    c->args.table_pages = most;
}

/* Pages of 8 bits have the bits of what these stand for, also in a long table. */
static void check_coded(const coded *s, const char *kernel) {
    attention_case c[3];
    unsigned char *result[3];
    for (int i = 0; i < 3; i++) {
        make_pages(&c[i], s->dim, s->dim, s->tokens, s->keys, s->page);
        make_coded(&c[i], 2 * s->keys * 2 * s->dim, s->dim, i > 0);
        if (i == 2)
            lengthen_table(&c[i], s->table_pages);
        attention_describe(&c[i], kernel);
        result[i] = arena_after(&c[i], kernel);
        for (int n = 0; n < 2 && i > 0 && result[0] && result[i]; n++)
            check_rows(&c[0], result[0], n, 0, &c[i], result[i], n, "of 8 bits");
    }
    for (int i = 0; i < 3; i++) {
        attention_free(&c[i]);
        free(result[i]);
    }
}

/* The table is so long that Hopper's kernel converts one head of a sequence after the other. */
TEST(attention_bits, pages_of_8_bits) {
    static const coded some = {128, 70, 192, 16, 20000};
    const char *kernel;
    attention_required();
    device_not_provided("bits depend on the layout");
    for (int k = 0; (kernel = device_kernel_of("attention", k)); k++)
        check_coded(&some, kernel);
}

/* So is this one. The call has tall tiles, where one key head alone would have none. */
TEST(attention_bits, tall_tiles_of_8_bits) {
    static const coded some = {64, 1600, 1856, 64, 8400};
    check_coded(&some, kernel_beside_products());
}

/* The two sequences are packed. */
static void pack(attention_case *c) {
    int64_t *ends =
        (int64_t *)(void *)((int32_t *)(uintptr_t)c->args.block_table + 2 * c->args.pages);
    for (int n = 0; n < 3; n++)
        ends[n] = n * c->args.rope.tokens;
    c->args.rope.cu_seqlens = ends;
    c->args.rope.sequences = 2;
    c->args.rope.tokens *= 2;
    c->args.rope.batch = 1;
}

/* Keys of 8 bits and their values within have the bits of what they stand for: in pages of any
 * size, packed, and in tables so long that sequences, or heads of one, are converted in turns. */
static void check_latent_coded(int64_t tokens) {
    static const int64_t sizes[] = {16, 12, 64, 64, 64};
    enum { CODED = sizeof sizes / sizeof *sizes };
    attention_case c[CODED];
    const char *kernel;
    for (int i = 0; i < CODED; i++) {
        make_latent_pages(&c[i], tokens, sizes[i]);
        make_coded(&c[i], c[i].args.pages * sizes[i] * 2 * 576, 576, i > 0);
        if (i == 3)
            pack(&c[i]);
        if (i == 2 || i == 4)
            lengthen_table(&c[i], i == 2 ? 1000 : 3000);
    }
    for (int k = 0; (kernel = device_kernel_of("attention", k)); k++) {
        unsigned char *const expected = arena_after(&c[0], kernel);
        for (int i = 1; i < CODED && expected; i++) {
            attention_describe(&c[i], kernel);
            unsigned char *result = arena_after(&c[i], kernel);
            for (int n = 0; n < 2 && result; n++)
                check_rows(&c[0], expected, n, 0, &c[i], result, n, "of 8 bits");
            free(result);
        }
        free(expected);
    }
    for (int i = 0; i < CODED; i++)
        attention_free(&c[i]);
}

TEST(attention_bits, latent_pages_of_8_bits) {
    static const int64_t tokens[] = {4, 1, 7};
    attention_required();
    device_not_provided("bits depend on the layout");
    for (int i = 0; i < (device_runs_on_cpu() ? 1 : 3); i++)
        check_latent_coded(tokens[i]);
}

enum { PACKED = 4, PACKED_TOKENS = 26 };

/* Packed sequences of one query and of more, with keys in pages. */
static void make_packed(attention_case *c, int32_t dtype, int64_t dim) {
    enum { HEADS = 2, SHARES = 4, PAGE = 16, PAGES = 57, ROOM = 32 };
    static const int64_t ends[PACKED + 1] = {0, 1, 4, 24, PACKED_TOKENS},
                                       keys[PACKED] = {900, 700, 40, 600};
    make_plain(c, dtype, dim, PACKED_TOKENS, PACKED * PAGES * PAGE * HEADS + ROOM, SHARES * HEADS);
    int32_t *table = (int32_t *)(void *)((uint16_t *)(uintptr_t)c->args.rope.k.in +
                                         PACKED * PAGES * PAGE * HEADS * dim);
    int64_t *lists = (int64_t *)(void *)(table + PACKED * PAGES);
    for (int64_t n = 0; n < PACKED * PAGES; n++)
        table[n] = (int32_t)(5 * n % (PACKED * PAGES)); /* 5 divides no such number */
    memcpy(lists, ends, sizeof ends);
    memcpy(lists + PACKED + 1, keys, sizeof keys);
    c->parts = c->args.rope.sequences = PACKED;
    for (int n = 0; n < PACKED; n++) {
        c->q_count[n] = ends[n + 1] - ends[n];
        c->k_count[n] = keys[n];
    }
    c->desc.rotation = ROPE_ATTENTION_ROTATE_Q;
    c->desc.cache = ROPE_CACHE_TABLE;
    c->desc.table_dtype = ROPE_I32;
    c->desc.page_size = PAGE;
    c->args.rope.cu_seqlens = lists;
    c->args.k_lengths = lists + PACKED + 1;
    c->args.rope.position_offset = 3;
    c->args.rope.k.heads = c->args.v.heads = HEADS;
    c->args.pages = PACKED * PAGES;
    c->args.table_pages = PAGES;
    c->args.block_table = table;
    c->args.k_tokens = 0;
    c->args.k_cache.data = (void *)(uintptr_t)c->args.rope.k.in;
    c->args.v_cache.data = (void *)(uintptr_t)c->args.v.in;
    c->args.rope.k.in = c->args.v.in = NULL;
}

/* The call in two parts: the last sequence has a query in each. */
static void check_parts(const attention_case *c, const char *kernel,
                        const unsigned char *expected) {
    enum { FIRST = PACKED_TOKENS - 1 };
    const size_t row = (size_t)(c->args.rope.q.heads * c->desc.rope.head_dim) * 2,
                 out = (size_t)((unsigned char *)c->args.out.data - c->base.arena);
    int64_t *ends = (int64_t *)(uintptr_t)c->args.rope.cu_seqlens;
    for (int rest = 0; rest < 2; rest++) {
        attention_case part = *c;
        part.args.rope.tokens = rest ? PACKED_TOKENS - FIRST : FIRST;
        part.args.rope.q.in = (const char *)c->args.rope.q.in + row * (rest ? FIRST : 0);
        for (int n = 0; n <= PACKED; n++)
            ends[n] -= rest ? FIRST : 0;
        unsigned char *result = arena_after(&part, kernel);
        for (int n = 0; n <= PACKED; n++)
            ends[n] += rest ? FIRST : 0;
        CHECK(memcmp(result + out, expected + out + row * (rest ? FIRST : 0),
                     row * (size_t)part.args.rope.tokens) == 0,
              "part %d of the call differs", rest);
        free(result);
    }
}

TEST(attention_bits, tokens_of_packed_sequences_with_pages) {
    const char *kernel;
    attention_required();
    device_not_provided("bits depend on the layout");
    for (int i = 0; i < 2; i++) {
        attention_case c;
        make_packed(&c, i ? ROPE_F16 : ROPE_BF16, i ? 64 : 128);
        for (int k = 0; (kernel = device_kernel_of("attention", k)); k++) {
            attention_describe(&c, kernel);
            unsigned char *expected = arena_after(&c, kernel);
            if (expected) {
                check_unfused(&c, kernel, expected);
                check_alone(&c, kernel, expected);
                check_parts(&c, kernel, expected);
            }
            free(expected);
        }
        attention_free(&c);
    }
}

/* Slots that begin between vectors of eight elements have the bits of those that do not. */
TEST(attention_bits, slots_between_vectors) {
    enum { DIM = 64, KEYS = 40, HEADS = 2 };
    const char *kernel;
    attention_required();
    device_not_provided("a cache of another dtype is declined");
    for (int k = 0; (kernel = device_kernel_of("attention", k)); k++) {
        unsigned char *result[2];
        const size_t q = HEADS * DIM * sizeof(uint16_t);
        for (int i = 0; i < 2; i++) {
            attention_case c;
            make_cached(&c, DIM, KEYS, DIM + 4 * i);
            attention_describe(&c, kernel);
            result[i] = arena_after(&c, kernel);
            attention_free(&c);
        }
        CHECK(!result[0] == !result[1] &&
                  (!result[0] || memcmp(result[0] + q, result[1] + q, q) == 0),
              "%s: the outputs differ", kernel);
        free(result[0]);
        free(result[1]);
    }
}

/* A call, in a graph and in the same layout without its rotation: all of them have one kernel. */
static void check_layout(const attention_case *c, const char *kernel) {
    attention_case plain = *c;
    unsigned char *result = malloc(c->base.bytes), *again = malloc(c->base.bytes);
    rope_status status = attention_run(c, kernel, result);
    if (status != ROPE_ERROR_UNSUPPORTED) {
        CHECK_STATUS(ROPE_OK, status);
        plain.base.arena = result;
        attention_relocate(&plain.args, c->base.arena, result);
        plain.desc.rotation = ROPE_ATTENTION_ROTATE_NONE;
        plain.args.rope.q.out = plain.args.rope.k.out = NULL;
        CHECK_STATUS(ROPE_OK, attention_run(&plain, kernel, again));
        CHECK(memcmp(result, again, c->base.bytes) == 0, "rotated before, in the same layout");
        CHECK_STATUS(ROPE_OK, attention_replay(c, kernel, again));
        CHECK(memcmp(result, again, c->base.bytes) == 0, "replayed from a graph");
    }
    free(result);
    free(again);
}

TEST(attention_bits, one_layout) {
    device_open();
    if (!device_kernel_of("attention", 0))
        SKIP("%s has no kernel for attention", device_backend());
    for (int i = 0; i < 8; i++) {
        attention_case c;
        const char *kernel;
        make_plain(&c, i & 1 ? ROPE_F16 : ROPE_BF16, i & 2 ? 64 : 128, i & 4 ? 40 : 64,
                   i & 4 ? 70 : 64, 4);
        rope_args *a = &c.args.rope;
        if (i % 3)
            a->q.out = (void *)(uintptr_t)a->q.in, a->k.out = (void *)(uintptr_t)a->k.in;
        else
            c.desc.rotation = ROPE_ATTENTION_ROTATE_NONE;
        for (int k = 0; (kernel = device_kernel_of("attention", k)); k++) {
            attention_describe(&c, kernel);
            check_layout(&c, kernel);
        }
        attention_free(&c);
    }
}

/* Keys whose elements lie apart, as long as they may be. */
TEST(attention_bits, longest_keys_apart) {
    enum { KEYS = 40, DIM = ROPE_MAX_ATTENTION_HEAD_DIM };
    const int64_t stride[4] = {KEYS * DIM, 1, KEYS * DIM, KEYS};
    attention_case c;
    const char *kernel;
    attention_required();
    device_not_provided("f32 is declined");
    make_plain(&c, ROPE_F32, DIM, 2, KEYS, 2);
    c.desc.rotation = ROPE_ATTENTION_ROTATE_NONE;
    memcpy(c.args.rope.k.in_stride, stride, sizeof stride);
    for (int k = 0; (kernel = device_kernel_of("attention", k)); k++) {
        attention_describe(&c, kernel);
        unsigned char *expected = arena_after(&c, kernel);
        if (expected) {
            check_again(&c, kernel, expected);
            check_alone(&c, kernel, expected);
        }
        free(expected);
    }
    attention_free(&c);
}

TEST(attention_bits, every_thread_count) {
    if (!device_is_host() || !device_threads(2))
        SKIP("the backend does not run on OpenMP");
    attention_required();
    for (int64_t i = -1; test_next(&i, 8);) {
        attention_case c;
        const char *kernel;
        make_large(&c, i < 4 ? ROPE_F32 : ROPE_BF16, i % 4);
        for (int k = 0; (kernel = device_kernel_of("attention", k)); k++) {
            attention_describe(&c, kernel);
            unsigned char *expected = arena_after(&c, kernel);
            if (expected) {
                check_threads(&c, kernel, expected);
                check_alone(&c, kernel, expected);
            }
            free(expected);
        }
        attention_free(&c);
    }
    device_threads(2);
    for_each_case(test_seed() + 4, CASES / 10, check_threads);
}

/* --- memory --- */

typedef struct guarded {
    guard_case g;
    guard_workspace w;
} guarded;

/* With more threads than the workspace was asked for. */
static void check_guarded(const attention_case *c, const char *kernel,
                          const unsigned char *expected) {
    rope_attention_desc desc = c->desc;
    const rope_attention_bounds bounds = attention_bounds(c);
    rope_plan *plan = NULL;
    size_t bytes = 0;
    guard_name_fault();
    device_choose(&desc.rope);
    desc.rope.kernel = kernel;
    CHECK_STATUS(ROPE_OK, rope_attention_plan_create(&desc, &plan));
    device_threads(1);
    CHECK_STATUS(ROPE_OK, rope_attention_workspace(plan, &bounds, &bytes));
    device_threads(7);
    for (guard_side side = GUARD_AFTER; side <= guard_last(); side++) {
        static guarded all;
        rope_attention_args args = c->args;
        const void **list[ATTENTION_POINTERS];
        CHECK(guard_make(&all.g, &c->base, side) && guard_workspace_make(&all.w, bytes, side),
              "no memory between guard pages");
        attention_pointers(&args, list);
        guard_move(&all.g, &c->base, list, ATTENTION_POINTERS);
        args.workspace = bytes ? all.w.g.block[0].at : NULL;
        args.workspace_bytes = bytes;
        CHECK_STATUS(ROPE_OK, rope_attention(plan, &args));
        CHECK_STATUS(ROPE_OK, rope_device_synchronize(device_open()));
        guard_check(&all.g, &c->base, expected);
        guard_free(&all.g, &c->base);
        guard_workspace_free(&all.w);
    }
    rope_plan_destroy(plan);
}

TEST(attention_bits, every_buffer_between_pages_that_fault) {
    device_not_provided("its kernels are not ours");
    for_each_case(test_seed() + 5, CASES, check_guarded);
    for (int i = 0; i < 4 && device_is_host(); i++) {
        attention_case c;
        const char *kernel;
        make_large(&c, i < 2 ? ROPE_F32 : ROPE_BF16, i % 2);
        for (int k = 0; (kernel = device_kernel_of("attention", k)); k++) {
            attention_describe(&c, kernel);
            unsigned char *expected = arena_after(&c, kernel);
            if (expected)
                check_guarded(&c, kernel, expected);
            free(expected);
        }
        attention_free(&c);
    }
    device_threads(2);
}

/* Workspace for larger calls serves, and no number of keys is that of tokens. */
static void check_workspace(const attention_case *c, const char *kernel,
                            const unsigned char *expected) {
    rope_attention_desc desc = c->desc;
    rope_attention_bounds bounds = attention_bounds(c), larger = bounds;
    test_random r = c->base.random;
    int64_t *const sizes[] = {&larger.batch,     &larger.tokens,  &larger.k_tokens,
                              &larger.sequences, &larger.q_heads, &larger.k_heads};
    rope_plan *plan = NULL;
    size_t own = 0, more = 0;
    (void)expected;
    device_choose(&desc.rope);
    desc.rope.kernel = kernel;
    for (int i = 0; i < 6; i++)
        *sizes[i] += *sizes[i] && random_chance(&r, 50) ? random_between(&r, 0, 100) : 0;
    CHECK_STATUS(ROPE_OK, rope_attention_plan_create(&desc, &plan));
    CHECK_STATUS(ROPE_OK, rope_attention_workspace(plan, &bounds, &own));
    CHECK_STATUS(ROPE_OK, rope_attention_workspace(plan, &larger, &more));
    CHECK(more >= own, "%zu bytes for larger calls, %zu for this one", more, own);
    larger.k_tokens = 0;
    CHECK_STATUS(ROPE_OK, rope_attention_workspace(plan, &larger, &own));
    larger.k_tokens = larger.tokens;
    CHECK_STATUS(ROPE_OK, rope_attention_workspace(plan, &larger, &more));
    CHECK(more == own, "%zu bytes without k_tokens, %zu with tokens of them", own, more);
    rope_plan_destroy(plan);
}

TEST(attention_bits, workspace_of_larger_calls) {
    device_not_provided("engines of larger calls may need less");
    for_each_case(test_seed() + 6, CASES, check_workspace);
}
