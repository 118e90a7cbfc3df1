/* Results of rope_attention that are known without an oracle: rows that see no key, keys that are
 * not seen, very large scores, subnormal values. */
#include "tests/attention/compare.h"
#include "tests/oracle/oracle.h"
#include "tests/support/device.h"
#include "tests/support/harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The first is too odd for matrix instructions, which take their time where they are emulated, and
 * for a provider. */
enum { DIM = 6, DIM_TILES = 64, DIM_MOST = 256, HEADS = 2, LENGTH_AT = 2048 };

/* A call without a rotation: one sequence, `keys` keys and `queries` queries of two heads that
 * share one of keys, all elements 0, and lse. A provider wants the number of keys on the device. */
static void make_dim(attention_case *c, int32_t dtype, int32_t dim, int64_t queries, int64_t keys) {
    const size_t size = (size_t)(oracle_dtype_size(dtype) * dim),
                 q = (size_t)queries * HEADS * size, k = (size_t)keys * size,
                 lse = (size_t)(queries * HEADS * 4 + 63) / 64 * 64, room = 4096;
    memset(c, 0, sizeof *c);
    c->base.bytes = 2 * q + 2 * k + lse + room;
    c->base.bytes = (c->base.bytes + 63) / 64 * 64;
    c->base.arena = aligned_alloc(64, c->base.bytes);
    memset(c->base.arena, 0, c->base.bytes);
    unsigned char *at = c->base.arena + room;
    c->desc = (rope_attention_desc)ROPE_ATTENTION_DESC_INIT;
    c->desc.rope.dtype = dtype;
    c->desc.rope.head_dim = dim;
    c->desc.rotation = ROPE_ATTENTION_ROTATE_NONE;
    c->desc.scale = 1;
    c->args = (rope_attention_args)ROPE_ATTENTION_ARGS_INIT;
    rope_attention_args *a = &c->args;
    c->parts = a->rope.batch = 1;
    c->q_count[0] = a->rope.tokens = queries;
    c->k_count[0] = a->k_tokens = keys;
    a->lse = (float *)(void *)at;
    at += lse;
    a->rope.q = (rope_tensor){.in = at, .heads = HEADS};
    a->out.data = at + q;
    a->rope.k = (rope_tensor){.in = at + 2 * q, .heads = 1};
    a->v = (rope_tensor){.in = at + 2 * q + k, .heads = 1};
    if (device_is_provider())
        a->k_lengths = memcpy(c->base.arena + LENGTH_AT, &keys, sizeof keys);
}

static void make(attention_case *c, int32_t dtype, int64_t queries, int64_t keys) {
    make_dim(c, dtype, device_is_provider() ? DIM_TILES : DIM, queries, keys);
}

static void set(const attention_case *c, const void *tensor, int64_t head, int64_t i, double x) {
    oracle_store(c->desc.rope.dtype, (void *)(uintptr_t)tensor, head * c->desc.rope.head_dim + i,
                 x);
}

static void set_head(const attention_case *c, const void *tensor, int64_t head, double x) {
    for (int64_t i = 0; i < c->desc.rope.head_dim; i++)
        set(c, tensor, head, i, x);
}

typedef struct row {
    double out[DIM_MOST], lse;
} row;

static row row_of(const attention_case *c, const unsigned char *result, int64_t query,
                  int64_t head) {
    rope_attention_args args = c->args;
    const int64_t dim = c->desc.rope.head_dim;
    row r = {0};
    attention_relocate(&args, c->base.arena, result);
    for (int64_t i = 0; i < dim; i++)
        r.out[i] = oracle_load(c->desc.rope.dtype, args.out.data, (query * HEADS + head) * dim + i);
    r.lse = (double)args.lse[query * HEADS + head];
    return r;
}

static int64_t runs; /* of kernels, until they are counted */

typedef void check_case(const attention_case *c, const unsigned char *result, const void *state);

/* Runs every kernel, the reference too. */
static void check_kernels(const attention_case *c, check_case *check, const void *state) {
    attention_required();
    unsigned char *result = malloc(c->base.bytes);
    const char *kernel = "";
    for (int k = 0; kernel; k++) {
        kernel = device_kernel_of("attention", k);
        const char *name = kernel ? kernel : device_is_host() ? "reference" : NULL;
        if (!name)
            break;
        attention_describe(c, name);
        rope_status status = attention_run(c, name, result);
        if (status == ROPE_ERROR_UNSUPPORTED)
            continue;
        CHECK_STATUS(ROPE_OK, status);
        check(c, result, state);
        runs++;
    }
    free(result);
}

/* Queries 0..state - 1 are 0 and their lse the sink's. */
static void check_empty_rows(const attention_case *c, const unsigned char *result,
                             const void *state) {
    const int64_t count = *(const int64_t *)state;
    for (int64_t i = 0; i < count * HEADS; i++) {
        const row r = row_of(c, result, i / HEADS, i % HEADS);
        const double sink = c->args.sinks ? oracle_load(ROPE_F32, c->args.sinks, 0) : -INFINITY;
        CHECK(r.lse == sink, "lse of a query that sees no key is %g, not %g", r.lse, sink);
        for (int64_t e = 0; e < c->desc.rope.head_dim; e++)
            CHECK(r.out[e] == 0 && !signbit(r.out[e]),
                  "element %lld of a query that sees no key is %g", (long long)e, r.out[e]);
    }
}

TEST(attention_values, queries_that_see_no_key) {
    for (int32_t dtype = ROPE_F32; dtype <= ROPE_BF16; dtype++)
        for (int way = 0; way < 12; way++) {
            attention_case c;
            const int64_t seen = 3, all = 5;
            const int32_t ways = way / 3;
            make(&c, dtype, all, ways % 3 == 0 ? all - seen : 4);
            for (int64_t k = 0; k < c.args.k_tokens; k++)
                set_head(&c, c.args.v.in, k, -1);
            int64_t count = ways % 3 == 0 ? seen : all;
            const int64_t none = 0;
            memcpy(c.base.arena, &none, sizeof none);
            if (ways == 1) /* no keys */
                c.args.k_lengths = c.base.arena;
            if (ways == 2) { /* no bits */
                c.desc.mask = ROPE_MASK_TREE;
                c.args.tree_bits = c.base.arena;
                c.args.tree_keys = 40;
            }
            if (ways == 3) { /* another chunk than any key's */
                c.desc.mask = ROPE_MASK_FULL;
                c.desc.chunk = 2;
            }
            if (way % 3) {
                c.desc.sink_dtype = ROPE_F32;
                c.args.sinks = c.base.arena + 64;
                for (int h = 0; h < HEADS; h++)
                    oracle_store(ROPE_F32, c.base.arena + 64, h, way % 3 == 1 ? 1.5 : -INFINITY);
            }
            check_kernels(&c, check_empty_rows, &count);
            attention_free(&c);
        }
    device_check_runs(&runs);
}

/* Head 0 has no sink, head 1 none that is a number: three queries, of which the first sees no key.
 */
static void check_sinks(const attention_case *c, const unsigned char *result, const void *state) {
    (void)state;
    for (int64_t i = 0; i < 3; i++) {
        const row none = row_of(c, result, i, 0), odd = row_of(c, result, i, 1);
        const double lse = i ? log((double)i) : -INFINITY;
        CHECK(none.out[0] == (i > 0) && (none.lse == lse || fabs(none.lse - lse) < 1e-6),
              "a sink of -infinity: query %lld is %g, its lse %g", (long long)i, none.out[0],
              none.lse);
        CHECK(isnan(odd.out[0]) && isnan(odd.out[c->desc.rope.head_dim - 1]) && isnan(odd.lse),
              "a sink of NaN or +infinity: query %lld is %g, its lse %g", (long long)i, odd.out[0],
              odd.lse);
    }
}

TEST(attention_values, sinks_that_are_no_numbers) {
    device_not_provided("sinks are numbers or -infinity");
    for (int i = 0; i < 12; i++) {
        attention_case c;
        const int32_t dtype = ROPE_F32 + i / 4;
        make_dim(&c, dtype, i & 1 ? DIM_TILES : DIM, 3, 2);
        for (int64_t k = 0; k < 2; k++)
            set_head(&c, c.args.v.in, k, 1);
        c.desc.sink_dtype = i & 1 ? dtype : ROPE_F32;
        c.args.sinks = c.base.arena;
        oracle_store(c.desc.sink_dtype, c.base.arena, 0, -INFINITY);
        oracle_store(c.desc.sink_dtype, c.base.arena, 1, i & 2 ? NAN : INFINITY);
        check_kernels(&c, check_sinks, NULL);
        attention_free(&c);
    }
}

/* `plain` is what c leaves, `result` what other does. */
static void check_same_row(const attention_case *c, const unsigned char *plain,
                           const attention_case *other, const unsigned char *result, int64_t i) {
    const row got = row_of(other, result, i / HEADS, i % HEADS),
              exact = row_of(c, plain, i / HEADS, i % HEADS);
    CHECK(memcmp(&got, &exact, sizeof got) == 0,
          "query %lld, head %lld: a key that it does not see changes it: %g and lse %g, not %g and "
          "%g",
          (long long)(i / HEADS), (long long)(i % HEADS), got.out[0], got.lse, exact.out[0],
          exact.lse);
}

static void fill_random(attention_case *c, int64_t keys, int64_t queries) {
    c->base.random = random_stream(7, keys);
    const int64_t dim = c->desc.rope.head_dim;
    for (int64_t i = 0; i < queries * HEADS * dim; i++)
        set(c, c->args.rope.q.in, 0, i, random_real(&c->base.random, -1, 1));
    for (int64_t i = 0; i < keys * dim; i++) {
        set(c, c->args.rope.k.in, 0, i, random_real(&c->base.random, -1, 1));
        set(c, c->args.v.in, 0, i, random_real(&c->base.random, -1, 1));
    }
}

/* Every `step`-th of keys first..last - 1 holds what is no number; queries from..to - 1 see none of
 * them. */
typedef struct leak {
    int64_t first, last, step, from, to;
} leak;

/* Beside `plain`, of the same call with numbers. */
static void check_leak(const attention_case *c, const leak *l, const char *kernel,
                       const unsigned char *plain, double odd, int in_values) {
    attention_case other = *c;
    unsigned char *result = malloc(c->base.bytes);
    other.base.arena = aligned_alloc(64, c->base.bytes);
    memcpy(other.base.arena, c->base.arena, c->base.bytes);
    attention_relocate(&other.args, c->base.arena, other.base.arena);
    for (int64_t k = l->first; k < l->last; k += l->step)
        set_head(&other, in_values ? other.args.v.in : other.args.rope.k.in, k, odd);
    attention_describe(&other, kernel);
    CHECK_STATUS(ROPE_OK, attention_run(&other, kernel, result));
    for (int64_t i = l->from * HEADS; i < l->to * HEADS; i++)
        check_same_row(c, plain, &other, result, i);
    free(result);
    free(other.base.arena);
}

static void check_leaks(const attention_case *c, leak l) {
    static const double odd[] = {NAN, INFINITY, -INFINITY};
    const char *kernel;
    unsigned char *plain = malloc(c->base.bytes);
    attention_required();
    device_not_provided("keys that are not seen must be finite");
    for (int k = 0; (kernel = device_kernel_of("attention", k)); k++) {
        attention_describe(c, kernel);
        const rope_status status = attention_run(c, kernel, plain);
        if (status != ROPE_ERROR_UNSUPPORTED)
            CHECK_STATUS(ROPE_OK, status);
        for (int kind = 0; kind < 6 && status == ROPE_OK; kind++)
            check_leak(c, &l, kernel, plain, odd[kind / 2], kind % 2);
    }
    free(plain);
}

TEST(attention_values, keys_that_are_not_seen_do_not_leak) {
    enum { N = 133, M = 70 };
    for (int32_t dtype = ROPE_F32; dtype <= ROPE_BF16; dtype++) {
        attention_case c;
        const int64_t length = 100;
        make(&c, dtype, M, N);
        fill_random(&c, N, M);
        check_leaks(&c, (leak){90, N, 1, 0, M - (N - 90)}); /* ahead of their own */
        c.desc.window = 9;
        check_leaks(&c, (leak){0, N - M - 8, 1, 0, M}); /* too far back */
        c.desc.window = 0;
        c.desc.chunk = 50;
        check_leaks(&c, (leak){50, 100, 1, 37, M}); /* of a chunk before */
        c.desc.chunk = 0;
        memcpy(c.base.arena, &length, sizeof length);
        c.args.k_lengths = c.base.arena;
        check_leaks(&c, (leak){length, N, 1, 0, M}); /* behind the end */
        c.args.k_lengths = NULL;
        c.desc.mask = ROPE_MASK_TREE;
        c.args.tree_bits = c.base.arena;
        c.args.tree_keys = 20;
        memset(c.base.arena, 0x55, (size_t)M * 4);
        check_leaks(&c, (leak){N - 19, N, 2, 0, M}); /* whose bit is 0 */
        attention_free(&c);
    }
}

/* Kernels compute rows together that see the same keys, and read other rows' keys with theirs. */
TEST(attention_values, keys_of_neighbours_do_not_leak) {
    enum { N = 133, M = 65, WINDOW = 9 };
    static const struct {
        int32_t dtype, dim;
    } of[] = {{ROPE_F32, DIM},  {ROPE_F32, DIM_TILES}, {ROPE_F16, DIM}, {ROPE_F16, DIM_TILES},
              {ROPE_BF16, DIM}, {ROPE_BF16, 7 * 8},    {ROPE_F16, 128}, {ROPE_BF16, 128}};
    for (size_t i = 0; i < sizeof of / sizeof of[0]; i++) { /* of matrix instructions, shorter */
        attention_case c;
        make_dim(&c, of[i].dtype, of[i].dim, M, N);
        fill_random(&c, N, M);
        c.desc.window = WINDOW;
        check_leaks(&c, (leak){N - M, N - WINDOW, 1, M - 1, M});
        check_leaks(&c, (leak){N - M + WINDOW, N, 1, 0, WINDOW});
        attention_free(&c);
    }
}

/* Each of a GPU's blocks has several tiles of such rows. Element 3 of every 40th value from FIRST
 * on is no number: rows that see one have none there, and all else is as without. */
static void check_odd_element(const attention_case *c, const unsigned char *plain,
                              const unsigned char *result, int64_t first) {
    rope_attention_args clean = c->args, odd = c->args;
    const int64_t dim = c->desc.rope.head_dim;
    attention_relocate(&clean, c->base.arena, plain);
    attention_relocate(&odd, c->base.arena, result);
    for (int64_t row = 0; row < c->args.rope.tokens * HEADS; row++)
        for (int64_t i = 0; i < dim; i++) {
            const double was = oracle_load(c->desc.rope.dtype, clean.out.data, row * dim + i),
                         is = oracle_load(c->desc.rope.dtype, odd.out.data, row * dim + i);
            CHECK(i == 3 && row / HEADS >= first ? !isfinite(is) : is == was,
                  "query %lld, element %lld: %g, without such values %g", (long long)(row / HEADS),
                  (long long)i, is, was);
        }
}

TEST(attention_values, many_rows_see_values_that_are_no_numbers) {
    enum { N = 24000, FIRST = 200 };
    attention_required();
    device_not_provided("bits depend on values");
    if (device_runs_on_cpu())
        SKIP("for the blocks of a GPU");
    for (int32_t dtype = ROPE_F16; dtype <= ROPE_BF16; dtype++) {
        attention_case c;
        const char *kernel;
        make_dim(&c, dtype, 128, N, N);
        fill_random(&c, N, N);
        unsigned char *plain = malloc(c.base.bytes), *result = malloc(c.base.bytes);
        for (int k = 0; (kernel = device_kernel_of("attention", k)); k++) {
            for (int64_t n = FIRST; n < N; n += 40)
                set(&c, c.args.v.in, n, 3, 0.5);
            attention_describe(&c, kernel);
            const rope_status status = attention_run(&c, kernel, plain);
            for (int64_t n = FIRST; n < N; n += 40)
                set(&c, c.args.v.in, n, 3, n % 80 ? INFINITY : NAN);
            if (status == ROPE_ERROR_UNSUPPORTED)
                continue;
            CHECK_STATUS(ROPE_OK, status);
            CHECK_STATUS(ROPE_OK, attention_run(&c, kernel, result));
            check_odd_element(&c, plain, result, FIRST);
        }
        free(plain);
        free(result);
        attention_free(&c);
    }
}

/* Values are at most 1; weights and out are rounded. */
static void check_beside(const attention_case *c, const unsigned char *expected,
                         const unsigned char *result) {
    rope_attention_args known = c->args, given = c->args;
    const int64_t elements = c->args.rope.tokens * HEADS * c->desc.rope.head_dim;
    attention_relocate(&known, c->base.arena, expected);
    attention_relocate(&given, c->base.arena, result);
    for (int64_t i = 0; i < elements; i++) {
        const double x = oracle_load(c->desc.rope.dtype, known.out.data, i),
                     y = oracle_load(c->desc.rope.dtype, given.out.data, i);
        CHECK(fabs(x - y) <= 0x1p-6, "element %lld of out is %g, not %g", (long long)i, y, x);
    }
}

/* The largest score of such rows moves in many of their tiles. */
TEST(attention_values, long_rows_beside_the_kernel_without_matrix_instructions) {
    static const int64_t tokens[][2] = {{64, 26000}, {128, 6000}, {256, 3000}};
    attention_required();
    device_not_provided("it has no such kernel");
    if (device_runs_on_cpu())
        SKIP("for the blocks of a GPU");
    for (int n = 0; n < 6; n++) {
        attention_case c;
        const char *kernel;
        const int64_t *of = tokens[n / 2];
        make_dim(&c, n % 2 ? ROPE_BF16 : ROPE_F16, (int32_t)of[0], of[1], of[1]);
        fill_random(&c, of[1], of[1]);
        unsigned char *expected = malloc(c.base.bytes), *result = malloc(c.base.bytes);
        CHECK_STATUS(ROPE_OK, attention_run(&c, "generic", expected));
        for (int k = 0; (kernel = device_kernel_of("attention", k)); k++) {
            attention_describe(&c, kernel);
            const rope_status status = attention_run(&c, kernel, result);
            if (status == ROPE_ERROR_UNSUPPORTED)
                continue;
            CHECK_STATUS(ROPE_OK, status);
            check_beside(&c, expected, result);
        }
        free(expected);
        free(result);
        attention_free(&c);
    }
}

/* Query head 0 has a score of *state for key 1 and 0 for others; head 1 the negative. */
static void check_large(const attention_case *c, const unsigned char *result, const void *state) {
    static const double rounded_twice[] = {1e-6, 0x1p-10, 0x1p-7}; /* weight and out, on a GPU */
    const double score = *(const double *)state,
                 most = rounded_twice[device_is_host() ? 0 : c->desc.rope.dtype - ROPE_F32];
    const row one = row_of(c, result, 0, 0), others = row_of(c, result, 0, 1);
    CHECK(fabs(one.out[0] - 1) <= most && fabs(one.lse / score - 1) < 1e-6,
          "score %g: out %g and lse %g", score, one.out[0], one.lse);
    CHECK(fabs(others.out[0] - 0.5) < 4e-3 && fabs(others.lse - log(2)) < 1e-5,
          "score -%g: out %g and lse %g", score, others.out[0], others.lse);
}

/* Products with log2 of e are not exact in fp32. */
TEST(attention_values, large_scores) {
    device_not_provided("errors grow with scores");
    for (int32_t dtype = ROPE_F32; dtype <= ROPE_BF16; dtype++)
        for (int power = 8; power <= (!device_is_host() || dtype == ROPE_F16 ? 26 : 124); power++) {
            attention_case c;
            const double q = ldexp(1.375, power / 2), k = ldexp(1.3125, power - power / 2),
                         score = q * k;
            make_dim(&c, dtype, power & 1 ? DIM_TILES : DIM, 1, 3);
            set(&c, c.args.rope.q.in, 0, 0, q);
            set(&c, c.args.rope.q.in, 1, 0, -q);
            set(&c, c.args.rope.k.in, 1, 0, k);
            set_head(&c, c.args.v.in, 0, 0.25);
            set_head(&c, c.args.v.in, 1, 1);
            set_head(&c, c.args.v.in, 2, 0.75);
            check_kernels(&c, check_large, &score);
            attention_free(&c);
        }
}

/* Scores of the three keys are 1, 2 and 0 ahead of the cap. */
static void check_factors(const attention_case *c, const unsigned char *result, const void *state) {
    static const double value[] = {0.25, 1, 0.75};
    const double cap = c->desc.soft_cap;
    double sum = 0, out = 0;
    (void)state;
    for (int k = 0; k < 3; k++) {
        const double score = (k + 1) % 3, weight = exp(cap == 0 ? score : cap * tanh(score / cap));
        sum += weight;
        out += weight / sum * (value[k] - out);
    }
    const row r = row_of(c, result, 0, 0);
    CHECK(fabs(r.out[0] - out) < 4e-3 && fabs(r.lse - log(sum)) < 1e-5,
          "scale %g, soft_cap %g: out %g and lse %g, not %g and %g", c->desc.scale, cap, r.out[0],
          r.lse, out, log(sum));
}

TEST(attention_values, factors_from_the_least_to_the_largest) {
    static const double caps[] = {0, 1, 0x1p-60, 0x1p60};
    for (int n = 0; n < 2 * 3 * 4 * 6; n++) {
        attention_case c;
        const int i = n / 2, few = device_is_provider() ? 2 : 1; /* lse */
        const int32_t dtype = ROPE_F32 + i / 2 % 3;
        const double root = ldexp(1, (i / 6 % 3 - 1) * (dtype == ROPE_F16 ? 14 : 30));
        make_dim(&c, dtype, i & 1 ? DIM_TILES : DIM, n & 1 ? 20 : few, 3);
        c.desc.mask = ROPE_MASK_FULL;
        c.desc.scale = root * root;
        c.desc.soft_cap = caps[i / 18];
        set(&c, c.args.rope.q.in, 0, 0, 1 / root);
        set(&c, c.args.rope.k.in, 0, 0, 1 / root);
        set(&c, c.args.rope.k.in, 1, 0, 2 / root);
        set_head(&c, c.args.v.in, 0, 0.25);
        set_head(&c, c.args.v.in, 1, 1);
        set_head(&c, c.args.v.in, 2, 0.75);
        check_kernels(&c, check_factors, NULL);
        attention_free(&c);
    }
    device_check_runs(&runs);
}

static void check_constant(const attention_case *c, const unsigned char *result,
                           const void *state) {
    const double value = *(const double *)state;
    for (int64_t h = 0; h < HEADS; h++) {
        const row r = row_of(c, result, 0, h);
        CHECK(r.out[0] == value && r.out[DIM - 1] == value, "out is %g, not %g as all values are",
              r.out[0], value);
    }
}

/* Weights of four equal scores are exact, so the least subnormal number comes out of itself. */
TEST(attention_values, subnormal_values) {
    device_not_provided("subnormal numbers may be flushed");
    for (int32_t dtype = ROPE_F32; dtype <= ROPE_BF16; dtype++) {
        attention_case c;
        const double least = dtype == ROPE_F32 ? 0x1p-149 : dtype == ROPE_F16 ? 0x1p-24 : 0x1p-133;
        make(&c, dtype, 1, 4);
        for (int64_t k = 0; k < 4; k++)
            set_head(&c, c.args.v.in, k, least);
        check_kernels(&c, check_constant, &least);
        attention_free(&c);
    }
}

/* --- heads of every size --- */

/* Tensors of a call as numbers. */
typedef struct plain_call {
    double *q, *k, *v;
} plain_call;

static double *load_all(int32_t dtype, const void *tensor, int64_t count) {
    double *all = malloc((size_t)count * sizeof *all);
    for (int64_t i = 0; i < count; i++)
        all[i] = oracle_load(dtype, tensor, i);
    return all;
}

/* Weights of the first keys for a row, not divided; their sum. */
static double weigh(const attention_case *c, const plain_call *call, int64_t row, int64_t seen,
                    double *weight) {
    const int64_t dim = c->desc.rope.head_dim;
    double sum = 0;
    for (int64_t k = 0; k < seen; k++) {
        double score = 0;
        for (int64_t e = 0; e < dim; e++)
            score += call->q[row * dim + e] * call->k[k * dim + e];
        sum += weight[k] = exp(score * c->desc.scale);
    }
    return sum;
}

/* A row of causal attention in double: weights are rounded once, and results. */
static void check_plain_row(const attention_case *c, const plain_call *call, const void *out,
                            int64_t row, int64_t seen) {
    const int32_t dtype = c->desc.rope.dtype;
    const int64_t dim = c->desc.v_head_dim;
    const double eps = dtype == ROPE_F16 ? 0x1p-11 : 0x1p-8;
    double weight[270];
    const double sum = weigh(c, call, row, seen, weight);
    for (int64_t e = 0; e < dim; e++) {
        double exact = 0, size = 0;
        for (int64_t k = 0; k < seen; k++) {
            const double v = weight[k] / sum * call->v[k * dim + e];
            exact += v;
            size += fabs(v);
        }
        const double y = oracle_load(dtype, out, row * dim + e);
        CHECK(fabs(y - exact) <= 3 * eps * size, "element %lld of row %lld is %.6g, not %.6g",
              (long long)e, (long long)row, y, exact);
    }
}

static void check_plain(const attention_case *c, const unsigned char *result, const void *state) {
    const int32_t dtype = c->desc.rope.dtype;
    rope_attention_args got = c->args;
    const int64_t queries = got.rope.tokens, keys = got.k_tokens, dim = c->desc.rope.head_dim;
    const plain_call call = {load_all(dtype, got.rope.q.in, queries * HEADS * dim),
                             load_all(dtype, got.rope.k.in, keys * dim),
                             load_all(dtype, got.v.in, keys * c->desc.v_head_dim)};
    (void)state;
    attention_relocate(&got, c->base.arena, result);
    for (int64_t i = 0; i < queries * HEADS; i++)
        check_plain_row(c, &call, got.out.data, i, keys - queries + i / HEADS + 1);
    free(call.q);
    free(call.k);
    free(call.v);
}

/* A prompt of more rows and keys than a block has at a time, and few queries of two splits. */
TEST(attention_values, heads_of_every_size) {
    static const struct {
        int32_t dtype, dim, v_dim;
    } heads[] = {{ROPE_BF16, 80, 80},   {ROPE_F16, 96, 96},   {ROPE_BF16, 192, 128},
                 {ROPE_BF16, 256, 256}, {ROPE_F16, 256, 256}, {ROPE_BF16, 64, 168}};
    for (size_t i = 0; i < 2 * sizeof heads / sizeof *heads; i++) {
        attention_case c;
        make_dim(&c, heads[i / 2].dtype, DIM_MOST, i % 2 ? 2 : 33, i % 2 ? 270 : 132);
        fill_random(&c, c.args.k_tokens, c.args.rope.tokens);
        c.desc.rope.head_dim = heads[i / 2].dim;
        c.desc.v_head_dim = heads[i / 2].v_dim;
        c.desc.scale = 0.25;
        c.desc.mask = ROPE_MASK_CAUSAL;
        check_kernels(&c, check_plain, NULL);
        attention_free(&c);
    }
    device_check_runs(&runs);
}

/* A drawing of docs/attention.md: which of 6 keys each of 4 queries sees. */
typedef struct drawing {
    int32_t mask;
    int64_t window, window_right, chunk;
    const char *seen[4];
    const int64_t *ids, *k_ids; /* of queries and keys, or NULL */
} drawing;

/* Values are rows of the unit matrix and scores equal, so that out is a row of the mask. */
static void check_drawing(const attention_case *c, const unsigned char *result, const void *state) {
    const drawing *d = state;
    for (int64_t i = 0; i < 4 * HEADS; i++) {
        const row r = row_of(c, result, i / HEADS, i % HEADS);
        for (int64_t k = 0; k < 6; k++)
            CHECK((r.out[k] > 0) == (d->seen[i / HEADS][k] == '#'),
                  "mask %d, window %lld, chunk %lld, ids %d: query %lld has weight %g for key %lld",
                  d->mask, (long long)d->window, (long long)d->chunk, d->ids != NULL,
                  (long long)(i / HEADS), r.out[k], (long long)k);
    }
}

/* A tree: query 0 is the root, 1 and 2 its children, 3 a child of 1. Its first key is 2. */
TEST(attention_values, masks_as_drawn) {
    static const int64_t depths[4] = {2, 3, 3, 4}, before[4] = {-90, 0, 1, 2},
                         behind[4] = {90, 91, 92, 93}, of_keys[6] = {77, 77, 2, 2, 3, 4};
    static const drawing drawings[] = {
        {ROPE_MASK_CAUSAL, 0, 0, 0, {"###...", "####..", "#####.", "######"}, NULL, NULL},
        {ROPE_MASK_FULL, 0, 0, 0, {"######", "######", "######", "######"}, NULL, NULL},
        {ROPE_MASK_CAUSAL, 2, 0, 0, {".##...", "..##..", "...##.", "....##"}, NULL, NULL},
        {ROPE_MASK_FULL, 2, 1, 0, {".###..", "..###.", "...###", "....##"}, NULL, NULL},
        {ROPE_MASK_CAUSAL, 0, 0, 2, {"..#...", "..##..", "....#.", "....##"}, NULL, NULL},
        {ROPE_MASK_TREE, 0, 0, 0, {"###...", "####..", "###.#.", "####.#"}, NULL, NULL},
        {ROPE_MASK_TREE, 2, 0, 0, {".##...", "..##..", "....#.", ".....#"}, NULL, NULL},
        {ROPE_MASK_TREE, 3, 0, 0, {"###...", ".###..", "..#.#.", "...#.#"}, NULL, NULL},
        {ROPE_MASK_TREE, 0, 0, 2, {"..#...", "..##..", "....#.", ".....#"}, NULL, NULL},
        {ROPE_MASK_TREE, 3, 0, 0, {"###...", ".###..", ".##.#.", "..##.#"}, depths, NULL},
        {ROPE_MASK_TREE, 2, 0, 0, {".##...", "..##..", "..#.#.", "...#.#"}, depths, NULL},
        {ROPE_MASK_TREE, 1, 0, 0, {"..#...", "...#..", "....#.", ".....#"}, depths, NULL},
        {ROPE_MASK_TREE, 0, 0, 2, {"..#...", "..##..", "..#.#.", ".....#"}, depths, NULL},
        {ROPE_MASK_TREE, 2, 0, 3, {".##...", "...#..", "....#.", "...#.#"}, depths, NULL},
        {ROPE_MASK_TREE, 2, 0, 0, {".##...", "..##..", "..#.#.", ".....#"}, depths, of_keys},
        {ROPE_MASK_TREE, 2, 0, 0, {".##...", ".###..", ".##.#.", ".###.#"}, before, NULL},
        {ROPE_MASK_TREE, 2, 0, 0, {".##...", "..##..", "....#.", ".....#"}, behind, NULL},
    };
    static const uint32_t bits[4] = {1, 3, 5, 11};
    for (size_t n = 0; n < 2 * sizeof drawings / sizeof drawings[0]; n++) {
        const drawing *d = &drawings[n / 2];
        attention_case c;
        if (n % 2) /* heads of matrix instructions too */
            make_dim(&c, ROPE_BF16, DIM_TILES, 4, 6);
        else
            make(&c, device_is_provider() ? ROPE_BF16 : ROPE_F32, 4, 6);
        for (int64_t k = 0; k < 6; k++)
            set(&c, c.args.v.in, k, k, 1);
        c.desc.mask = d->mask;
        c.desc.window = d->window;
        c.desc.window_right = d->window_right;
        c.desc.chunk = d->chunk;
        if (d->mask == ROPE_MASK_TREE) {
            c.args.tree_bits = memcpy(c.base.arena, bits, sizeof bits);
            c.args.tree_keys = 4;
        }
        if (d->ids)
            c.args.rope.position_ids = memcpy(c.base.arena + 64, d->ids, sizeof depths);
        if (d->k_ids)
            c.args.k_position_ids = memcpy(c.base.arena + 128, d->k_ids, sizeof of_keys);
        check_kernels(&c, check_drawing, d);
        attention_free(&c);
    }
    device_check_runs(&runs);
}
