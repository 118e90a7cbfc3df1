/* Gradients that are known: of rows that see no key, and of what is not seen. */
#include "tests/attention_backward/shapes.h"
#include "tests/oracle/oracle.h"
#include "tests/support/device.h"
#include "tests/support/harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int64_t runs; /* of kernels, until they are counted */

static void for_each_kernel(const backward_case *c, backward_check *check) {
    runs += backward_each_kernel(c, check);
}

/* --- what is not seen --- */

enum { HEADS = 2, ROOM = 256, WIDEST = 256 };

/* Elements of a head: 64, 128 or WIDEST, of which there are kernels of tiles. */
static int64_t dim = 64;

/* Kind i of heads: of WIDEST and of 128 elements of 16 bits, then of 64 in each dtype. 0 behind the
 * last one. */
static int next_kind(int *i, int32_t *dtype) {
    static const int32_t dtypes[] = {ROPE_F16, ROPE_BF16, ROPE_F16, ROPE_BF16,
                                     ROPE_F32, ROPE_F16,  ROPE_BF16};
    if (*i == sizeof dtypes / sizeof dtypes[0])
        return 0;
    dim = *i < 2 ? WIDEST : *i < 4 ? 128 : 64;
    *dtype = dtypes[(*i)++];
    return 1;
}

/* Whether sequences of LONG tokens may be taken another way. Heads of 128 need the most rows. */
enum { LONG = 41000 };
static int takes_long(int32_t dtype) {
    return dim <= 128 && dtype != ROPE_F32 && !device_runs_on_cpu();
}

/* `queries` queries of two heads that share one of `keys` keys, without a rotation. Elements are
 * random, lse is as if scores were near 0. */
static void make(backward_case *c, int32_t dtype, int64_t queries, int64_t keys) {
    const size_t size = (size_t)oracle_dtype_size(dtype), q = (size_t)queries * HEADS * dim * size,
                 k = (size_t)keys * dim * size, rows = (size_t)queries * HEADS * 4;
    attention_case *f = &c->forward;
    memset(c, 0, sizeof *c);
    f->base.bytes = (ROOM + 4 * q + 4 * k + rows + 63) / 64 * 64;
    f->base.arena = aligned_alloc(64, f->base.bytes);
    f->base.random = random_stream(7, queries);
    f->desc = (rope_attention_desc)ROPE_ATTENTION_DESC_INIT;
    f->desc.rope.dtype = dtype;
    f->desc.rope.head_dim = (int32_t)dim;
    f->desc.rotation = ROPE_ATTENTION_ROTATE_NONE;
    f->desc.sink_dtype = ROPE_F32;
    f->args = (rope_attention_args)ROPE_ATTENTION_ARGS_INIT;
    rope_attention_args *a = &f->args;
    unsigned char *at = f->base.arena + ROOM;
    memset(f->base.arena, 0, ROOM);
    for (size_t i = 0; i < (4 * q + 4 * k) / size; i++)
        oracle_store(dtype, at, (int64_t)i, random_real(&f->base.random, -1, 1));
    f->parts = a->rope.batch = 1;
    f->q_count[0] = a->rope.tokens = queries;
    f->k_count[0] = a->k_tokens = keys;
    a->rope.q = (rope_tensor){.in = at, .heads = HEADS};
    a->out.data = at + q;
    a->rope.k = (rope_tensor){.in = at + 4 * q, .heads = 1};
    a->v = (rope_tensor){.in = at + 4 * q + k, .heads = 1};
    a->lse = (float *)(void *)(at + 4 * q + 4 * k);
    for (int64_t i = 0; i < queries * HEADS; i++)
        a->lse[i] = 4;
    a->sinks = f->base.arena + 64;
    c->args = (rope_attention_backward_args)ROPE_ATTENTION_BACKWARD_ARGS_INIT;
    c->args.dout = at + 2 * q;
    c->args.dq.data = at + 3 * q;
    c->args.dk.data = at + 4 * q + 2 * k;
    c->args.dv.data = at + 4 * q + 3 * k;
    c->args.dsinks = device_is_provider() ? NULL : (float *)(void *)(f->base.arena + 128);
}

/* Tokens first..last - 1 of a gradient are 0. */
static void check_zeros(const backward_case *c, const unsigned char *result, int32_t gradient,
                        int64_t first, int64_t last) {
    const int64_t row = gradient == GRADIENT_Q ? HEADS * dim : dim;
    size_t bytes;
    unsigned char *rows = backward_rows(c, result, gradient, 0, &bytes);
    for (int64_t i = first * row; i < last * row; i++) {
        const double x = oracle_load(c->forward.desc.rope.dtype, rows, i);
        CHECK(x == 0 && !signbit(x), "element %lld of d%c is %g", (long long)i, "qkv"[gradient], x);
    }
    free(rows);
}

/* The first 3 of 5 queries see no key. */
static void check_no_key(const backward_case *c, const char *kernel, unsigned char *result) {
    float sinks[HEADS];
    (void)kernel;
    memcpy(sinks, result + 128, sizeof sinks);
    CHECK(isfinite(sinks[0]) && isfinite(sinks[1]), "dsinks are %g and %g", (double)sinks[0],
          (double)sinks[1]);
    check_zeros(c, result, GRADIENT_Q, 0, 3);
}

/* Query i gives each key up to its own the same weight and keys have the same values, so that
 * gradients of scores are 0. */
static void check_equal_scores(const backward_case *c, const char *kernel, unsigned char *result) {
    const int32_t dtype = c->forward.desc.rope.dtype;
    const int64_t n = c->forward.args.rope.tokens;
    const double eps = dtype == ROPE_F16 ? 0x1p-11 : dtype == ROPE_BF16 ? 0x1p-8 : 0x1p-20;
    size_t bytes;
    (void)kernel;
    for (int32_t g = GRADIENT_Q; g <= GRADIENT_K; g++) {
        unsigned char *rows = backward_rows(c, result, g, 0, &bytes);
        for (int64_t i = 0; i < (int64_t)bytes / oracle_dtype_size(dtype); i++)
            CHECK(fabs(oracle_load(dtype, rows, i)) <= eps * dim, "element %lld of d%c is %g",
                  (long long)i, "qk"[g], oracle_load(dtype, rows, i));
        free(rows);
    }
    unsigned char *rows = backward_rows(c, result, GRADIENT_V, 0, &bytes);
    double sum = 0;
    for (int64_t i = n - 1; i >= 0; i--) {
        sum += (double)HEADS / (double)(i + 1); /* dout is 1 */
        for (int64_t e = 0; e < dim; e++) {
            const double x = oracle_load(dtype, rows, i * dim + e);
            CHECK(fabs(x - sum) <= 3 * eps * sum, "dv of token %lld is %.9g, not %.9g",
                  (long long)i, x, sum);
        }
    }
    free(rows);
}

static void try_equal_scores(int32_t dtype, int64_t tokens) {
    backward_case c;
    make(&c, dtype, tokens, tokens);
    rope_attention_args *a = &c.forward.args;
    c.forward.desc.sink_dtype = 0;
    a->sinks = c.args.dsinks = NULL;
    for (int64_t i = 0; i < tokens * HEADS * dim; i++) {
        oracle_store(dtype, (void *)(uintptr_t)c.args.dout, i, 1);
        oracle_store(dtype, a->out.data, i, 0.5);
    }
    for (int64_t i = 0; i < tokens * dim; i++) {
        oracle_store(dtype, (void *)(uintptr_t)a->rope.k.in, i, 0);
        oracle_store(dtype, (void *)(uintptr_t)a->v.in, i, 0.5);
    }
    for (int64_t i = 0; i < tokens * HEADS; i++) {
        const int64_t seen = 1 + i / HEADS;
        a->lse[i] = logf((float)seen);
    }
    for_each_kernel(&c, check_equal_scores);
    attention_free(&c.forward);
}

TEST(attention_backward_values, equal_scores) {
    int32_t dtype;
    for (int kind = 0; next_kind(&kind, &dtype);) {
        try_equal_scores(dtype, 70);
        if (takes_long(dtype))
            try_equal_scores(dtype, LONG);
    }
    device_check_runs(&runs);
}

/* --- a key that rows see nearly alone --- */

enum { ALONE = 40 };
static double alone_dq[ALONE * HEADS * WIDEST], alone_dk[ALONE * WIDEST];

static double alone_at(const backward_case *c, const void *tensor, int64_t head, int64_t e) {
    return oracle_load(c->forward.desc.rope.dtype, tensor, head * dim + e);
}

static double alone_product(const backward_case *c, const void *a, int64_t head, const void *b,
                            int64_t key) {
    double sum = 0;
    for (int64_t e = 0; e < dim; e++)
        sum += alone_at(c, a, head, e) * alone_at(c, b, key, e);
    return sum;
}

/* The forward of a row and its exact gradients, of out ahead of its rounding. */
static void add_alone_row(const backward_case *c, int64_t row) {
    const rope_attention_args *a = &c->forward.args;
    const int64_t seen = row / HEADS + 1;
    const double scale = 1 / sqrt((double)dim),
                 sink = c->forward.desc.sink_dtype ? oracle_load(ROPE_F32, a->sinks, row % HEADS)
                                                   : -INFINITY;
    double p[ALONE], sum = exp(sink), delta = 0;
    for (int64_t k = 0; k < seen; k++)
        sum += p[k] = exp(scale * alone_product(c, a->rope.q.in, row, a->rope.k.in, k));
    a->lse[row] = (float)log(sum);
    for (int64_t e = 0; e < dim; e++) {
        double out = 0;
        for (int64_t k = 0; k < seen; k++)
            out += p[k] / sum * alone_at(c, a->v.in, k, e);
        oracle_store(c->forward.desc.rope.dtype, a->out.data, row * dim + e, out);
        delta += out * alone_at(c, c->args.dout, row, e);
    }
    for (int64_t k = 0; k < seen; k++) {
        const double dp = alone_product(c, c->args.dout, row, a->v.in, k),
                     ds = scale * p[k] / sum * (dp - delta);
        for (int64_t e = 0; e < dim; e++) {
            alone_dq[row * dim + e] += ds * alone_at(c, a->rope.k.in, k, e);
            alone_dk[k * dim + e] += ds * alone_at(c, a->rope.q.in, row, e);
        }
    }
}

static void check_near(const backward_case *c, const unsigned char *result, int32_t gradient,
                       const double *exact, int64_t count) {
    double error = 0, largest = 0;
    size_t bytes;
    unsigned char *rows = backward_rows(c, result, gradient, 0, &bytes);
    for (int64_t i = 0; i < count; i++) {
        error = fmax(error, fabs(oracle_load(c->forward.desc.rope.dtype, rows, i) - exact[i]));
        largest = fmax(largest, fabs(exact[i]));
    }
    free(rows);
    CHECK(error <= 0x1p-7 * largest, "d%c is up to %g off where it is up to %g", "qkv"[gradient],
          error, largest);
}

static void check_alone(const backward_case *c, const char *kernel, unsigned char *result) {
    (void)kernel;
    check_near(c, result, GRADIENT_Q, alone_dq, ALONE * HEADS * dim);
    check_near(c, result, GRADIENT_K, alone_dk, ALONE * dim);
}

/* Rows give key 0 all but 1e-2, 1e-4 and 1e-6 of their weight, where the rounding of out to 16 bits
 * is as large as gradients of scores, and larger. */
TEST(attention_backward_values, a_key_that_rows_see_nearly_alone) {
    if (!device_is_host())
        SKIP("the backend takes <dout, out> as it is");
    for (int i = 0; i < 12; i++) {
        backward_case c;
        make(&c, i % 2 ? ROPE_BF16 : ROPE_F16, ALONE, ALONE);
        rope_attention_args *a = &c.forward.args;
        const double size = (double[]){8, 10, 12}[i / 4];
        memset(alone_dq, 0, sizeof alone_dq);
        memset(alone_dk, 0, sizeof alone_dk);
        if (i / 2 % 2) {
            oracle_store(ROPE_F32, c.forward.base.arena + 64, 0, size - 3);
            oracle_store(ROPE_F32, c.forward.base.arena + 64, 1, -INFINITY);
        } else {
            c.forward.desc.sink_dtype = 0;
            a->sinks = c.args.dsinks = NULL;
        }
        for (int64_t h = 0; h < ALONE * HEADS; h++)
            oracle_store(c.forward.desc.rope.dtype, (void *)(uintptr_t)a->rope.q.in, h * dim, size);
        for (int64_t k = 0; k < ALONE; k++)
            oracle_store(c.forward.desc.rope.dtype, (void *)(uintptr_t)a->rope.k.in, k * dim,
                         k ? 0 : size);
        for (int64_t row = 0; row < ALONE * HEADS; row++)
            add_alone_row(&c, row);
        for_each_kernel(&c, check_alone);
        attention_free(&c.forward);
    }
    device_check_runs(&runs);
}

/* There is no query. */
static void check_nothing(const backward_case *c, const char *kernel, unsigned char *result) {
    (void)kernel;
    check_zeros(c, result, GRADIENT_K, 0, c->forward.args.k_tokens);
    check_zeros(c, result, GRADIENT_V, 0, c->forward.args.k_tokens);
    float sinks[HEADS];
    memcpy(sinks, result + 128, sizeof sinks);
    CHECK(sinks[0] == 0 && sinks[1] == 0, "dsinks are %g and %g", (double)sinks[0],
          (double)sinks[1]);
}

/* Rows that see no key have an lse of -infinity and a dout that is no number. */
TEST(attention_backward_values, rows_that_see_no_key) {
    int32_t dtype;
    for (int kind = 0; next_kind(&kind, &dtype);) {
        backward_case c;
        make(&c, dtype, 5, 2);
        for (int64_t i = 0; i < 3 * HEADS * dim; i++)
            oracle_store(dtype, (void *)(uintptr_t)c.args.dout, i, i % 2 ? NAN : INFINITY);
        for (int64_t i = 0; i < 3 * HEADS; i++)
            c.forward.args.lse[i] = -INFINITY;
        for_each_kernel(&c, check_no_key);
        c.forward.desc.mask = ROPE_MASK_FULL;
        c.forward.desc.chunk = 2;
        for_each_kernel(&c, check_no_key);
        attention_free(&c.forward);
        make(&c, dtype, 2, 6);
        int64_t none = 0;
        memcpy(c.forward.base.arena, &none, sizeof none);
        c.forward.args.q_lengths = c.forward.base.arena;
        c.forward.q_count[0] = 0;
        for_each_kernel(&c, check_nothing);
        attention_free(&c.forward);
    }
    device_check_runs(&runs);
}

TEST(attention_backward_values, calls_without_queries) {
    device_not_provided("a backward of fewer queries than keys is declined");
    for (int32_t dtype = ROPE_F32; dtype <= ROPE_BF16; dtype++)
        for (int32_t rotation = ROPE_ATTENTION_ROTATE_QK; rotation <= ROPE_ATTENTION_ROTATE_NONE;
             rotation++) {
            backward_case c;
            make(&c, dtype, 2, 6);
            c.forward.desc.rotation = rotation;
            c.forward.args.rope.tokens = c.forward.q_count[0] = 0;
            if (c.args.dsinks)
                memset(c.args.dsinks, 0xff, HEADS * sizeof *c.args.dsinks);
            for_each_kernel(&c, check_nothing);
            attention_free(&c.forward);
        }
}

/* Keys that no query sees have gradients of 0, whatever they hold. */
static void check_window(const backward_case *c, const char *kernel, unsigned char *result) {
    (void)kernel;
    check_zeros(c, result, GRADIENT_K, 0, 4);
    check_zeros(c, result, GRADIENT_V, 0, 4);
}

TEST(attention_backward_values, keys_that_no_query_sees) {
    device_not_provided("a backward of fewer queries than keys is declined");
    int32_t dtype;
    for (int kind = 0; next_kind(&kind, &dtype);) {
        backward_case c;
        make(&c, dtype, 3, 9);
        c.forward.desc.window = 3;
        for (int64_t i = 0; i < 4 * dim; i++)
            oracle_store(dtype, (void *)(uintptr_t)c.forward.args.rope.k.in, i, NAN);
        for_each_kernel(&c, check_window);
        attention_free(&c.forward);
    }
}

/* Of 5 queries the last has no position, and no number as out and lse. */
static void check_sinks(const backward_case *c, const char *kernel, unsigned char *result) {
    const int32_t dtype = c->forward.desc.rope.dtype;
    float sinks[HEADS];
    (void)kernel;
    memcpy(sinks, result + 128, sizeof sinks);
    for (int64_t h = 0; h < HEADS; h++) {
        double sum = 0;
        for (int64_t i = 0; i < 4 * dim; i++) {
            const int64_t at = (i / dim * HEADS + h) * dim + i % dim;
            sum -= exp(-4.0) * oracle_load(dtype, c->args.dout, at) *
                   oracle_load(dtype, c->forward.args.out.data, at);
        }
        CHECK(fabs((double)sinks[h] - sum) < 1e-5, "dsinks of head %lld is %g, not %g",
              (long long)h, (double)sinks[h], sum);
    }
}

TEST(attention_backward_values, sinks_of_queries_without_a_position) {
    if (device_is_host())
        SKIP("such a call fails");
    device_not_provided("dsinks are declined");
    for (int32_t dtype = ROPE_F32; dtype <= ROPE_BF16; dtype++) {
        backward_case c;
        make(&c, dtype, 5, 5);
        rope_attention_desc *desc = &c.forward.desc;
        rope_attention_args *a = &c.forward.args;
        desc->rotation = ROPE_ATTENTION_ROTATE_Q;
        desc->rope.angle_mode = ROPE_ANGLE_TABLE;
        desc->rope.table_dtype = ROPE_F32;
        a->rope.cos = c.args.dk.data;
        a->rope.sin = c.args.dv.data;
        a->rope.table_rows = 4;
        c.args.dq.data = c.args.dk.data = c.args.dv.data = NULL;
        for (int64_t i = 4 * HEADS * dim; i < 5 * HEADS * dim; i++)
            oracle_store(dtype, a->out.data, i, NAN);
        a->lse[4 * HEADS] = a->lse[4 * HEADS + 1] = NAN;
        for_each_kernel(&c, check_sinks);
        attention_free(&c.forward);
    }
}

static void check_bits(const backward_case *c, const unsigned char *result,
                       const unsigned char *expected, int32_t gradient, int64_t first,
                       int64_t last) {
    size_t bytes;
    unsigned char *a = backward_rows(c, result, gradient, 0, &bytes),
                  *b = backward_rows(c, expected, gradient, 0, &bytes);
    const int64_t row =
        (gradient == GRADIENT_Q ? HEADS : 1) * dim * oracle_dtype_size(c->forward.desc.rope.dtype);
    for (int64_t i = first; i < last; i++)
        CHECK(memcmp(a + i * row, b + i * row, (size_t)row) == 0,
              "d%c of token %lld changes with what it does not see", "qkv"[gradient], (long long)i);
    free(a);
    free(b);
}

/* Keys, or queries, that hold what is no number, and tokens that have nothing to do with them. */
typedef struct leak {
    int of_queries;
    int64_t first, last, q_first, q_last, k_first, k_last;
    int turn;
} leak;
static leak leaks;

/* Safe tokens have the bits that they have among numbers. Of a type, keys or queries and what goes
 * with them each hold NaN in one leak and an infinity in the other. */
static void check_leak(const backward_case *c, const char *kernel, unsigned char *expected) {
    const double infinity = c->forward.desc.window ? INFINITY : -INFINITY,
                 odd[] = {NAN, NAN, infinity, -infinity};
    const int32_t dtype = c->forward.desc.rope.dtype;
    const size_t bytes = c->forward.base.bytes;
    unsigned char *arena = malloc(bytes), *got = malloc(bytes);
    memcpy(arena, c->forward.base.arena, bytes);
    for (int i = 0; i < 2; i++) {
        const int kind = leaks.turn ? 1 + i : 3 * i;
        const int64_t row = (leaks.of_queries ? HEADS : 1) * dim;
        const void *of_q = kind % 2 ? c->args.dout : c->forward.args.rope.q.in,
                   *of_k = kind % 2 ? c->forward.args.v.in : c->forward.args.rope.k.in,
                   *tensor = leaks.of_queries ? of_q : of_k;
        for (int64_t e = leaks.first * row; e < leaks.last * row; e++)
            oracle_store(dtype, (void *)(uintptr_t)tensor, e, odd[kind]);
        CHECK_STATUS(ROPE_OK, backward_run(c, kernel, got));
        memcpy(c->forward.base.arena, arena, bytes);
        check_bits(c, got, expected, GRADIENT_Q, leaks.q_first, leaks.q_last);
        check_bits(c, got, expected, GRADIENT_K, leaks.k_first, leaks.k_last);
        check_bits(c, got, expected, GRADIENT_V, leaks.k_first, leaks.k_last);
    }
    free(arena);
    free(got);
}

/* Leak j of m queries behind n - m keys; where there are none, they rotate. */
static void try_leak(int32_t dtype, int j, int64_t m, int64_t n) {
    const leak list[] = {
        /* keys ahead of their own; queries with the keys behind them */
        {.first = n - 43, .last = n, .q_last = m - 43},
        {1, 0, 40, .q_first = 40, .q_last = m, .k_first = n - m + 40, .k_last = n},
        /* with a window of 9: keys too far back; queries with the keys that are too far back */
        {.first = 0, .last = n - m - 8, .q_last = m, .k_first = n - m - 8, .k_last = n},
        {1, 50, m, .q_last = 50, .k_last = n - m + 50 - 8},
    };
    backward_case c;
    make(&c, dtype, m, n);
    c.forward.desc.window = j < 2 ? 0 : 9;
    if (m == n)
        c.forward.desc.rotation = ROPE_ATTENTION_ROTATE_QK;
    leaks = list[j];
    leaks.turn = (dtype ^ j ^ j >> 1 ^ (dim > 64)) & 1;
    for_each_kernel(&c, check_leak);
    attention_free(&c.forward);
}

TEST(attention_backward_values, what_is_not_seen_does_not_leak) {
    device_not_provided("what is not seen must be finite");
    enum { LEAKS = 4 };
    int32_t dtype;
    for (int kind = 0; next_kind(&kind, &dtype);)
        for (int j = 0; j < LEAKS; j++) {
            if (dim > 64 && (device_is_host() || (dtype ^ j ^ dim >> 8) & 1))
                continue; /* wide heads: of keys in one type, of queries in the other; a CPU has one
                             code for all */
            try_leak(dtype, j, 70, 133);
            if (j < 2)
                try_leak(dtype, j, 133, 133);
            if (takes_long(dtype) && j < 2 && (dtype ^ j) % 2 == 0) /* so here, and no windows */
                try_leak(dtype, j, LONG, LONG + (dtype == ROPE_F16 ? 0 : 63));
        }
}

/* --- packed sequences --- */

enum { PACKED = 4 };
static const int64_t packed[PACKED + 1] = {0, 37, 102, 103, 150};

/* Each has the bits of a plain call. */
static void check_packed(const backward_case *c, const char *kernel, unsigned char *result) {
    unsigned char *alone = malloc(c->forward.base.bytes);
    for (int n = 0; n < PACKED; n++) {
        backward_case one;
        backward_alone(&one, c, n);
        CHECK_STATUS(ROPE_OK, backward_run(&one, kernel, alone));
        backward_check_bits("alone", c, result, n, &one, alone, 0);
    }
    free(alone);
}

TEST(attention_backward_values, packed_sequences_that_begin_anywhere) {
    int32_t dtype;
    device_not_provided("bits depend on packing");
    for (int kind = 0; next_kind(&kind, &dtype);) {
        backward_case c;
        make(&c, dtype, packed[PACKED], packed[PACKED]);
        rope_attention_args *a = &c.forward.args;
        a->rope.cu_seqlens = a->k_cu_seqlens =
            memcpy(c.forward.base.arena + 192, packed, sizeof packed);
        a->rope.sequences = c.forward.parts = PACKED;
        for (int n = 0; n < PACKED; n++)
            c.forward.q_count[n] = c.forward.k_count[n] = packed[n + 1] - packed[n];
        c.forward.desc.sink_dtype = 0;
        a->sinks = c.args.dsinks = NULL;
        for_each_kernel(&c, check_packed);
        attention_free(&c.forward);
    }
}

/* Of a sequence that goes on behind the call's queries dq has the bits of a plain call without the
 * keys behind them, whose gradients are 0. */
static void check_part(const backward_case *c, const char *kernel, unsigned char *result) {
    backward_case one = *c;
    rope_attention_args *a = &one.forward.args;
    const int64_t m = a->rope.tokens, n = a->k_tokens,
                  row = dim * oracle_dtype_size(c->forward.desc.rope.dtype);
    unsigned char *plain = malloc(c->forward.base.bytes);
    a->rope.cu_seqlens = a->k_cu_seqlens = NULL;
    a->rope.sequences = 0;
    a->k_tokens = one.forward.k_count[0] = m;
    CHECK_STATUS(ROPE_OK, backward_run(&one, kernel, plain));
    const ptrdiff_t dq = (unsigned char *)one.args.dq.data - c->forward.base.arena;
    CHECK(memcmp(plain + dq, result + dq, (size_t)(m * HEADS * row)) == 0,
          "dq differs from that of a plain call");
    check_zeros(c, result, GRADIENT_K, m, n);
    check_zeros(c, result, GRADIENT_V, m, n);
    free(plain);
}

/* m queries of a sequence of n tokens. */
static void try_part(int32_t dtype, int64_t m, int64_t n) {
    const int64_t all[] = {0, n};
    backward_case c;
    make(&c, dtype, m, n);
    rope_attention_args *a = &c.forward.args;
    a->rope.cu_seqlens = a->k_cu_seqlens = memcpy(c.forward.base.arena + 192, all, sizeof all);
    a->rope.sequences = 1;
    c.forward.desc.sink_dtype = 0;
    a->sinks = c.args.dsinks = NULL;
    for_each_kernel(&c, check_part);
    attention_free(&c.forward);
}

TEST(attention_backward_values, part_of_a_sequence_ahead_of_its_last_keys) {
    int32_t dtype;
    device_not_provided("bits depend on packing");
    for (int kind = 0; next_kind(&kind, &dtype);) {
        try_part(dtype, 70, 333);
        if (takes_long(dtype))
            try_part(dtype, LONG, 2 * LONG);
    }
}

/* dout of one row for all tokens. */
static void check_broadcast(const backward_case *c, const char *kernel, unsigned char *result) {
    backward_case other = *c;
    unsigned char *again = malloc(c->forward.base.bytes);
    const int64_t dout[4] = {0, 0, dim, 1};
    const size_t row = (size_t)(HEADS * dim * oracle_dtype_size(c->forward.desc.rope.dtype));
    (void)kernel;
    for (int64_t i = 1; i < c->forward.args.rope.tokens; i++)
        CHECK(memcmp((const char *)c->args.dout + (size_t)i * row, c->args.dout, row) == 0, "rows");
    memcpy(other.args.dout_stride, dout, sizeof dout);
    CHECK_STATUS(ROPE_OK, backward_run(&other, kernel, again));
    CHECK(memcmp(again, result, c->forward.base.bytes) == 0, "a stride of 0 changes gradients");
    free(again);
}

TEST(attention_backward_values, dout_of_stride_0) {
    device_not_provided("strides of 0 are declined");
    backward_case c;
    make(&c, ROPE_F32, 20, 30);
    for (int64_t i = HEADS * dim; i < 20 * HEADS * dim; i++)
        ((float *)(uintptr_t)c.args.dout)[i] = ((const float *)c.args.dout)[i % (HEADS * dim)];
    for_each_kernel(&c, check_broadcast);
    attention_free(&c.forward);
}
