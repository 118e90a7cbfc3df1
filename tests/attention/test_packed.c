/* Packed sequences of which a call has a part: what it has of the whole is what the whole call has,
 * positions and masks included; and calls without queries. */
#include "tests/attention/compare.h"
#include "tests/oracle/oracle.h"
#include "tests/rope/case_parts.h"
#include "tests/support/device.h"
#include "tests/support/harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    TOKENS = 40,
    SEQUENCES = 3,
    DIM = 64,
    HEADS = 2, /* of q, which share one of k */
    TREE = 6,  /* keys of a tree */
    BOUNDARIES = 0,
    K_BOUNDARIES = 64,
    BITS = 128,
    LENGTHS = 320,
    DATA = 512
};

static const int64_t boundaries[SEQUENCES + 1] = {0, 7, 30, TOKENS};

/* What a call has: tokens q_first..q_last - 1 of the queries, and of the keys. */
typedef struct piece {
    int64_t q_first, q_last, k_first, k_last;
} piece;

/* Masks, each with what narrows it. */
static const rope_attention_desc masks[] = {
    {.mask = ROPE_MASK_CAUSAL},
    {.mask = ROPE_MASK_FULL},
    {.mask = ROPE_MASK_CAUSAL, .window = 5},
    {.mask = ROPE_MASK_CAUSAL, .chunk = 4},
    {.mask = ROPE_MASK_FULL, .window = 9, .window_right = 3},
    {.mask = ROPE_MASK_FULL, .chunk = 5},
    {.mask = ROPE_MASK_TREE},
    {.mask = ROPE_MASK_TREE, .window = 9, .chunk = 7},
};

enum { MASKS = sizeof masks / sizeof masks[0], PROVIDED = 2 /* the first ones */ };

/* The whole call, whose q.out and k.out are wanted. */
static void make(attention_case *c, int32_t dtype, const rope_attention_desc *mask) {
    const size_t size = (size_t)oracle_dtype_size(dtype), k = (size_t)TOKENS * DIM * size,
                 q = k * HEADS;
    memset(c, 0, sizeof *c);
    c->base.bytes = DATA + 3 * q + 3 * k + (size_t)TOKENS * HEADS * 4;
    c->base.arena = aligned_alloc(64, (c->base.bytes + 63) / 64 * 64);
    c->base.random = random_stream(test_seed(), dtype);
    unsigned char *at = c->base.arena + DATA;
    memset(c->base.arena, 0, c->base.bytes);
    for (size_t i = 0; i < (q + 2 * k) / size; i++)
        oracle_store(dtype, at, (int64_t)i, random_real(&c->base.random, -1, 1));
    uint32_t *bits = (uint32_t *)(void *)(c->base.arena + BITS);
    for (int64_t i = 0; i < TOKENS; i++)
        bits[i] = (uint32_t)random_bits(&c->base.random);
    c->desc = *mask;
    c->desc.struct_size = sizeof c->desc;
    c->desc.rope.struct_size = sizeof c->desc.rope;
    c->desc.rope.dtype = dtype;
    c->desc.rope.head_dim = DIM;
    c->args = (rope_attention_args)ROPE_ATTENTION_ARGS_INIT;
    c->args.rope.q = (rope_tensor){.in = at, .heads = HEADS, .out = at + q + 2 * k};
    c->args.rope.k = (rope_tensor){.in = at + q, .heads = 1, .out = at + 3 * q + 2 * k};
    c->args.v = (rope_tensor){.in = at + q + k, .heads = 1};
    c->args.out.data = at + 2 * q + 2 * k;
    c->args.lse = (float *)(void *)(at + 3 * q + 3 * k);
    c->args.rope.batch = 1;
    c->parts = c->args.rope.sequences = SEQUENCES;
    c->args.rope.cu_seqlens = c->base.arena + BOUNDARIES;
    c->args.k_cu_seqlens = c->base.arena + K_BOUNDARIES;
    if (mask->mask == ROPE_MASK_TREE) {
        c->args.tree_keys = TREE;
        c->args.tree_bits = bits;
    }
}

static void *advanced(const void *at, int64_t bytes) {
    return at ? (unsigned char *)(uintptr_t)at + bytes : NULL;
}

/* A part of the whole call, whose results lie where the whole's do; 0 where the kernel declines. */
static int run(const attention_case *c, const piece *p, const char *kernel, unsigned char *result) {
    attention_case part = *c;
    rope_attention_args *a = &part.args;
    const int64_t k = p->k_first * DIM * oracle_dtype_size(c->desc.rope.dtype),
                  q = p->q_first * DIM * HEADS * oracle_dtype_size(c->desc.rope.dtype);
    a->rope.q.in = advanced(a->rope.q.in, q);
    a->rope.q.out = advanced(a->rope.q.out, q);
    a->out.data = advanced(a->out.data, q);
    a->lse += p->q_first * HEADS;
    a->tree_bits = advanced(a->tree_bits, p->q_first * 4);
    a->rope.k.in = advanced(a->rope.k.in, k);
    a->rope.k.out = advanced(a->rope.k.out, k);
    a->v.in = advanced(a->v.in, k);
    a->rope.tokens = p->q_last - p->q_first;
    a->k_tokens = p->k_last - p->k_first;
    for (int s = 0; s <= SEQUENCES; s++) {
        case_store_index(ROPE_I64, a->rope.cu_seqlens, s, boundaries[s] - p->q_first);
        case_store_index(ROPE_I64, a->k_cu_seqlens, s, boundaries[s] - p->k_first);
    }
    const rope_status status = attention_run(&part, kernel, result);
    if (status == ROPE_ERROR_UNSUPPORTED)
        return 0;
    CHECK_STATUS(ROPE_OK, status);
    return 1;
}

static const void *in_result(const attention_case *c, const unsigned char *result, const void *at) {
    return result + ((const unsigned char *)at - c->base.arena);
}

/* Tokens first..last - 1 of a result, `row` bytes each, are the whole call's. */
static void check_same(const attention_case *c, const void *of, const unsigned char *whole,
                       const unsigned char *part, int64_t row, int64_t first, int64_t last,
                       const char *name) {
    const char *a = in_result(c, whole, of), *b = in_result(c, part, of);
    for (int64_t i = first; i < last; i++)
        CHECK(memcmp(a + i * row, b + i * row, (size_t)row) == 0, "%s of token %lld differs", name,
              (long long)i);
}

static double eps_of(const attention_case *c) {
    const int32_t dtype = c->desc.rope.dtype;
    return dtype == ROPE_F32 ? 2e-6 : dtype == ROPE_F16 ? 2e-3 : 1.6e-2;
}

/* How many queries a sequence has may choose a kernel, and so the last bits of out and lse. */
static void check_queries(const attention_case *c, const unsigned char *whole,
                          const unsigned char *part, const piece *p) {
    const int32_t dtype = c->desc.rope.dtype;
    const int64_t row = HEADS * DIM;
    const void *out = c->args.out.data;
    const float *a = in_result(c, whole, c->args.lse), *b = in_result(c, part, c->args.lse);
    check_same(c, c->args.rope.q.out, whole, part, row * oracle_dtype_size(dtype), p->q_first,
               p->q_last, "q.out");
    for (int64_t i = p->q_first * HEADS; i < p->q_last * HEADS; i++)
        CHECK(a[i] == b[i] || fabs((double)a[i] - (double)b[i]) <= eps_of(c),
              "lse of row %lld is %g, not %g", (long long)i, (double)b[i], (double)a[i]);
    for (int64_t i = p->q_first * row; i < p->q_last * row; i++) {
        const double x = oracle_load(dtype, in_result(c, whole, out), i),
                     y = oracle_load(dtype, in_result(c, part, out), i);
        CHECK(fabs(x - y) <= eps_of(c), "element %lld of out is %g, not %g", (long long)i, y, x);
    }
}

static void check_keys(const attention_case *c, const unsigned char *whole,
                       const unsigned char *part, const piece *p) {
    check_same(c, c->args.rope.k.out, whole, part, DIM * oracle_dtype_size(c->desc.rope.dtype),
               p->k_first, p->k_last, "k.out");
}

/* What two parts of the keys have together. */
static void check_joined(const attention_case *c, const unsigned char *whole,
                         unsigned char *const part[2]) {
    const int32_t dtype = c->desc.rope.dtype;
    const double eps = eps_of(c);
    const float *of = in_result(c, whole, c->args.lse), *lse[2];
    const void *out[2];
    for (int i = 0; i < 2; i++) {
        lse[i] = in_result(c, part[i], c->args.lse);
        out[i] = in_result(c, part[i], c->args.out.data);
    }
    for (int64_t r = 0; r < TOKENS * HEADS; r++) {
        const double w[2] = {exp((double)lse[0][r]), exp((double)lse[1][r])}, sum = w[0] + w[1];
        CHECK(sum == 0 ? of[r] == -INFINITY : fabs(log(sum) - (double)of[r]) <= eps,
              "lse of row %lld is %g, of parts %g", (long long)r, (double)of[r], log(sum));
        for (int64_t e = r * DIM; e < (r + 1) * DIM; e++) {
            const double x = oracle_load(dtype, in_result(c, whole, c->args.out.data), e),
                         y = sum == 0 ? 0
                                      : (w[0] * oracle_load(dtype, out[0], e) +
                                         w[1] * oracle_load(dtype, out[1], e)) /
                                            sum;
            CHECK(fabs(x - y) <= eps, "element %lld is %g, of parts %g", (long long)e, x, y);
        }
    }
}

typedef void check_case(const attention_case *c, const char *kernel,
                        unsigned char *const result[3]);

/* Every mask and kernel; providers have the masks that count from neither end. */
static void for_each(check_case *check) {
    attention_required();
    const int32_t first = device_is_provider() ? ROPE_F16 : ROPE_F32;
    for (int32_t dtype = first; dtype <= ROPE_BF16; dtype++)
        for (int m = 0; m < (device_is_provider() ? PROVIDED : MASKS); m++) {
            attention_case c;
            make(&c, dtype, &masks[m]);
            unsigned char *result[3];
            for (int i = 0; i < 3; i++)
                result[i] = malloc(c.base.bytes);
            const char *kernel = "";
            for (int k = 0; kernel; k++) {
                kernel = device_kernel_of("attention", k);
                const char *name = kernel ? kernel : device_is_host() ? "reference" : NULL;
                const piece all = {0, TOKENS, 0, TOKENS};
                if (name && run(&c, &all, name, result[0]))
                    check(&c, name, result);
            }
            for (int i = 0; i < 3; i++)
                free(result[i]);
            attention_free(&c);
        }
}

static void check_sliced_queries(const attention_case *c, const char *kernel,
                                 unsigned char *const result[3]) {
    static const piece parts[] = {{0, 1, 0, TOKENS},
                                  {1, 20, 0, TOKENS},
                                  {20, TOKENS, 0, TOKENS},
                                  {8, 9, 0, TOKENS},
                                  {35, 38, 0, TOKENS}};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (run(c, &parts[i], kernel, result[1])) {
            check_queries(c, result[0], result[1], &parts[i]);
            check_keys(c, result[0], result[1], &parts[i]);
        }
}

TEST(attention_packed, queries_in_slices) {
    for_each(check_sliced_queries);
}

static void check_sliced_keys(const attention_case *c, const char *kernel,
                              unsigned char *const result[3]) {
    static const int64_t ends[] = {5, 7, 20, 33};
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        const piece parts[2] = {{0, TOKENS, 0, ends[i]}, {0, TOKENS, ends[i], TOKENS}};
        for (int n = 0; n < 2; n++)
            if (!run(c, &parts[n], kernel, result[1 + n]))
                return;
        check_joined(c, result[0], result + 1);
        for (int n = 0; n < 2; n++) {
            check_same(c, c->args.rope.q.out, result[0], result[1 + n],
                       HEADS * DIM * oracle_dtype_size(c->desc.rope.dtype), 0, TOKENS, "q.out");
            check_keys(c, result[0], result[1 + n], &parts[n]);
        }
    }
}

TEST(attention_packed, keys_in_slices) {
    device_not_provided("an engine's mask counts from the last key");
    for_each(check_sliced_keys);
}

/* The first tokens of both are what they are in the whole, but where queries see what follows. */
static void check_first_tokens(const attention_case *c, const char *kernel,
                               unsigned char *const result[3]) {
    const piece first = {0, 20, 0, 20};
    if (c->desc.mask != ROPE_MASK_CAUSAL || !run(c, &first, kernel, result[1]))
        return;
    check_queries(c, result[0], result[1], &first);
    check_keys(c, result[0], result[1], &first);
}

TEST(attention_packed, first_tokens) {
    for_each(check_first_tokens);
}

static void check_without_queries(const attention_case *c, const char *kernel,
                                  unsigned char *const result[3]) {
    const piece none = {0, 0, 0, TOKENS}, some = {0, 9, 3, 25};
    if (run(c, &none, kernel, result[1]))
        check_keys(c, result[0], result[1], &none);
    attention_case heads = *c;
    heads.args.rope.q.heads = 0;
    if (run(&heads, &some, kernel, result[1]))
        check_keys(c, result[0], result[1], &some);
}

TEST(attention_packed, calls_without_queries_write_keys) {
    device_not_provided("packed calls without queries are declined");
    for_each(check_without_queries);
}

/* Lists of the same boundaries are one list or two. */
static void check_lengths(const attention_case *c, const char *kernel,
                          unsigned char *const result[3], const int64_t *q_lengths,
                          const int64_t *k_lengths) {
    const piece all = {0, TOKENS, 0, TOKENS};
    attention_case own = *c;
    own.args.rope.q.out = own.args.rope.k.out = NULL;
    own.args.q_lengths = q_lengths;
    own.args.k_lengths = k_lengths;
    attention_case one = own;
    one.args.k_cu_seqlens = one.args.rope.cu_seqlens;
    if (!run(&own, &all, kernel, result[1]) || !run(&one, &all, kernel, result[2]))
        return;
    check_queries(c, result[1], result[2], &all);
    check_same(c, c->args.out.data, result[1], result[2],
               HEADS * DIM * oracle_dtype_size(c->desc.rope.dtype), 0, TOKENS, "out");
}

/* Lengths, and of all tokens frequencies by which the second sequence is a long one. */
static void check_one_list(const attention_case *c, const char *kernel,
                           unsigned char *const result[3]) {
    static const int64_t lengths[SEQUENCES] = {3, 20, 9};
    double factors[2][DIM / 2];
    attention_case longrope = *c;
    rope_desc *d = &longrope.desc.rope;
    const int64_t *some = memcpy(c->base.arena + LENGTHS, lengths, sizeof lengths);
    if (c->desc.mask != ROPE_MASK_CAUSAL || c->desc.window || c->desc.chunk)
        return;
    check_lengths(c, kernel, result, NULL, NULL);
    check_lengths(c, kernel, result, NULL, some);
    check_lengths(c, kernel, result, some, NULL);
    check_lengths(c, kernel, result, some, some);
    for (int i = 0; i < DIM; i++)
        factors[i / (DIM / 2)][i % (DIM / 2)] = i < DIM / 2 ? 1 : 3;
    d->rope_type = ROPE_TYPE_LONGROPE;
    d->original_max_position_embeddings = 15;
    d->max_position_embeddings = 60;
    d->short_factor = factors[0];
    d->long_factor = factors[1];
    d->factor_count = DIM / 2;
    check_lengths(&longrope, kernel, result, NULL, NULL);
}

TEST(attention_packed, one_list_of_boundaries) {
    device_not_provided("lengths of packed sequences are declined");
    for_each(check_one_list);
}

/* Tokens behind the last sequence, as many as several tiles have, change nothing ahead of them and
 * are left alone. */
static void check_behind(int32_t dtype) {
    enum { USED = 130, ALL = 300, WIDE = 128, ROW = HEADS * WIDE * 2, LSE = DATA + 4 * ALL * ROW };
    static const int64_t begin[] = {0, 100, USED};
    attention_case c = {
        .base = {.bytes = LSE + ALL * HEADS * 4, .random = random_stream(7, dtype)}};
    unsigned char *arena = c.base.arena = aligned_alloc(64, (c.base.bytes + 63) / 64 * 64);
    unsigned char *result[2] = {malloc(c.base.bytes), malloc(c.base.bytes)};
    memset(arena, 0x3c, c.base.bytes);
    for (int64_t i = 0; i < 3 * ALL * ROW / 2; i++)
        oracle_store(dtype, arena + DATA, i, random_real(&c.base.random, -1, 1));
    for (int s = 0; s <= 2; s++)
        case_store_index(ROPE_I64, arena, s, begin[s]);
    c.desc = (rope_attention_desc)ROPE_ATTENTION_DESC_INIT;
    c.desc.rope.dtype = dtype;
    c.desc.rope.head_dim = WIDE;
    c.desc.rotation = ROPE_ATTENTION_ROTATE_NONE;
    c.args = (rope_attention_args)ROPE_ATTENTION_ARGS_INIT;
    c.args.rope.q = (rope_tensor){.in = arena + DATA, .heads = HEADS};
    c.args.rope.k = (rope_tensor){.in = arena + DATA + ALL * ROW, .heads = 1};
    c.args.v = (rope_tensor){.in = arena + DATA + 2 * ALL * ROW, .heads = 1};
    c.args.out.data = arena + DATA + 3 * ALL * ROW;
    c.args.lse = (float *)(void *)(arena + LSE);
    c.args.rope.batch = 1;
    c.args.k_tokens = USED;
    c.parts = c.args.rope.sequences = 2;
    c.args.rope.cu_seqlens = c.args.k_cu_seqlens = arena;
    for (int i = 0; i < 2; i++) {
        c.args.rope.tokens = i ? ALL : USED;
        CHECK_STATUS(ROPE_OK, attention_run(&c, NULL, result[i]));
    }
    CHECK(memcmp(result[0], result[1], c.base.bytes) == 0,
          "tokens behind the last sequence change what a call writes");
    free(result[0]);
    free(result[1]);
    free(arena);
}

TEST(attention_packed, tokens_behind_the_last_sequence) {
    attention_required();
    device_not_provided("an engine may write them");
    check_behind(ROPE_F16);
    check_behind(ROPE_BF16);
}
