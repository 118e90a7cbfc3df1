/* The same bits from every thread count, split of a call and placement of the output, and from
 * every kernel where one head a token is rotated. */
#include "tests/rope/compare.h"
#include "tests/support/device.h"
#include "tests/support/harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CASES = 500 };

/* Runs calls and gathers the outputs of the whole call `args`; NULL where the kernel declines. */
static void *outputs(const test_case *c, const rope_args *args, const rope_args *calls,
                     int32_t count, const char *kernel, size_t *bytes) {
    unsigned char *result = malloc(c->bytes);
    void *dense = NULL;
    rope_status status = device_run(c, &c->desc, calls, count, kernel, result);
    if (status != ROPE_ERROR_UNSUPPORTED || !kernel) {
        CHECK_STATUS(ROPE_OK, status);
        dense = compare_gather(c, &c->desc, args, result, bytes);
    }
    free(result);
    return dense;
}

/* Unless the kernel declines. */
static void check_same(const test_case *c, const rope_args *args, const rope_args *calls,
                       int32_t count, const char *kernel, const void *expected, size_t bytes,
                       const char *what) {
    size_t got_bytes;
    void *got = outputs(c, args, calls, count, kernel, &got_bytes);
    CHECK(!got || (bytes == got_bytes && memcmp(expected, got, bytes) == 0), "%s gives other bits",
          what);
    free(got);
}

typedef void check_case(test_case *c, const void *expected, size_t bytes);

/* For each generated case: the chosen kernel's outputs, then a check that compares with them. */
static void for_each_case(const case_wish *wish, int64_t cases, check_case *check) {
    for (int64_t i = -1; test_next(&i, cases);) {
        test_case c;
        size_t bytes;
        case_make(&c, test_seed(), i, wish);
        case_describe(&c, NULL);
        void *expected = outputs(&c, &c.args, &c.args, 1, NULL, &bytes);
        check(&c, expected, bytes);
        free(expected);
        case_free(&c);
    }
}

static void check_threads(test_case *c, const void *expected, size_t bytes) {
    static const int counts[] = {1, 2, 3, 7};
    for (int i = 0; i < 4; i++) {
        device_threads(counts[i]);
        check_same(c, &c->args, &c->args, 1, NULL, expected, bytes, "another number of threads");
    }
}

TEST(bitwise, every_thread_count) {
    static const case_wish wish = {.in_range = 1};
    if (!device_threads(2))
        SKIP("the library does not run on OpenMP");
    for_each_case(&wish, CASES / 5, check_threads);
}

static void check_separate(test_case *c, const void *expected, size_t bytes) {
    rope_args calls[2] = {c->args, c->args};
    calls[0].k = (rope_tensor){0};
    calls[1].q = (rope_tensor){0};
    check_same(c, &c->args, calls, 2, NULL, expected, bytes, "q and k in two calls");
}

TEST(bitwise, separate_q_and_k) {
    static const case_wish wish = {.in_range = 1};
    for_each_case(&wish, CASES, check_separate);
}

static void check_split(test_case *c, const void *expected, size_t bytes) {
    if (c->args.cu_seqlens || c->args.batch < 2)
        return;
    int64_t cut = random_between(&c->random, 1, c->args.batch - 1);
    rope_args calls[2] = {case_batch_rows(&c->desc, &c->args, 0, cut),
                          case_batch_rows(&c->desc, &c->args, cut, c->args.batch - cut)};
    check_same(c, &c->args, calls, 2, NULL, expected, bytes, "a batch in two calls");
}

TEST(bitwise, split_batch) {
    static const case_wish wish = {.in_range = 1};
    for_each_case(&wish, CASES, check_split);
}

static int may_write_back(const rope_desc *d, const rope_args *a) {
    for (int32_t i = 0; i < 2; i++) {
        const rope_tensor *t = i ? &a->k : &a->q;
        int64_t in[4], out[4];
        oracle_strides(d, a, i, in, out);
        for (int s = 0; s < 4 && t->heads; s++)
            if (in[s] == 0)
                return 0;
    }
    return 1;
}

static void check_in_place(test_case *c, const void *expected, size_t bytes) {
    rope_args a = c->args;
    case_fix_strides(&c->desc, &a);
    if (!may_write_back(&c->desc, &a))
        return;
    for (int32_t i = 0; i < 2; i++) {
        rope_tensor *t = case_tensor(&a, i);
        t->out = (void *)(uintptr_t)t->in;
        memcpy(t->out_stride, t->in_stride, sizeof t->out_stride);
    }
    check_same(c, &a, &a, 1, NULL, expected, bytes, "writing in place");
}

TEST(bitwise, in_place) {
    static const case_wish wish = {.in_range = 1, .out_of_place = 1};
    for_each_case(&wish, CASES, check_in_place);
}

enum { MANY_TOKENS = 1 << 14, MANY_PAIRS = 64, MANY_ROUNDS = 10, SINGLE_CASES = 400 };

/* One head a token, at positions of its own; data is any bit pattern. Nothing here passes through
 * libm or a seed, so that the outputs are the same everywhere. */
static void make_single_head(test_case *c, int64_t index, int64_t tokens, int pairs) {
    static const int32_t types[] = {ROPE_F32, ROPE_BF16, ROPE_F16, ROPE_F32, ROPE_F64};
    int32_t dtype = types[index % 5];
    memset(c, 0, sizeof *c);
    c->random = random_stream(0, index);
    size_t ids = (size_t)tokens * sizeof(int64_t);
    c->bytes = ids + (size_t)(tokens * 2 * pairs * oracle_dtype_size(dtype));
    c->arena = malloc(c->bytes);
    for (size_t i = 0; i + 8 <= c->bytes; i += 8) {
        uint64_t bits = random_bits(&c->random);
        int64_t position = random_signed(&c->random, 36);
        memcpy(c->arena + i, i < ids ? (const void *)&position : (const void *)&bits, 8);
    }
    for (int i = 0; i < pairs; i++)
        c->list[0][i] = ldexp(random_real(&c->random, 1, 2), -(i / 4));
    c->desc = (rope_desc){.struct_size = sizeof c->desc,
                          .dtype = dtype,
                          .head_dim = 2 * pairs,
                          .pairing_in = (int32_t)(index % 2) + 1,
                          .angle_mode = index % 3 == 2 ? ROPE_ANGLE_F32 : ROPE_ANGLE_EXACT,
                          .rope_type = ROPE_TYPE_INV_FREQ,
                          .inv_freq = c->list[0],
                          .factor_count = pairs};
    c->args = (rope_args){.struct_size = sizeof c->args,
                          .batch = 1,
                          .tokens = tokens,
                          .q = {.in = c->arena + ids, .out = c->arena + ids, .heads = 1},
                          .position_ids = c->arena};
}

static uint64_t checksum(const unsigned char *bytes, size_t count) {
    uint64_t sum = 0;
    for (size_t i = 0; i + 8 <= count; i += 8) {
        uint64_t word;
        memcpy(&word, bytes + i, 8);
        sum = (sum ^ word) * 0x9e3779b97f4a7c15u;
        sum ^= sum >> 32;
    }
    return sum;
}

static void check_kernels(test_case *c, const void *expected, size_t bytes) {
    const char *kernel;
    for (int k = 0; (kernel = device_kernel(k)); k++) {
        case_describe(c, kernel);
        check_same(c, &c->args, &c->args, 1, kernel, expected, bytes, kernel);
    }
}

/*
 * One wrong last bit of a coefficient leaves most blocks of a million pairs equal, and one that
 * every kernel shares leaves them all equal: so ten blocks, and the sums of their bits.
 */
TEST(bitwise, ten_million_pairs) {
    static const uint64_t sums[MANY_ROUNDS] = {
        0x16be7728e2010ccd, 0xb499ba56f473dc37, 0x467f80bcb9833b7f, 0x820d9d71ee6607a6,
        0x9e2ed0113963c554, 0x4b81b0299665e54f, 0x42ba086373acf8d7, 0x0b898178616fa5b0,
        0xf0ce8dc0aa4f73eb, 0xcc3f500d89e15a40,
    };
    for (int64_t i = -1; test_next(&i, MANY_ROUNDS) && i < MANY_ROUNDS;) {
        test_case c;
        size_t bytes;
        make_single_head(&c, i, MANY_TOKENS, MANY_PAIRS);
        void *expected = outputs(&c, &c.args, &c.args, 1, NULL, &bytes);
        CHECK(checksum(expected, bytes) == sums[i], "block %lld sums to %#llx, not %#llx",
              (long long)i, (unsigned long long)checksum(expected, bytes),
              (unsigned long long)sums[i]);
        check_kernels(&c, expected, bytes);
        free(expected);
        case_free(&c);
    }
}

/* Positions that count, in runs of every length up to 45. */
TEST(bitwise, single_heads) {
    for (int64_t i = -1; test_next(&i, SINGLE_CASES);) {
        test_case c;
        size_t bytes;
        make_single_head(&c, i, 1 + i % 45, 32 * (int)(1 + i / 45 % 3));
        c.args.position_ids = NULL;
        c.args.position_offset = random_signed(&c.random, 62);
        case_describe(&c, NULL);
        void *expected = outputs(&c, &c.args, &c.args, 1, NULL, &bytes);
        check_kernels(&c, expected, bytes);
        free(expected);
        case_free(&c);
    }
}
