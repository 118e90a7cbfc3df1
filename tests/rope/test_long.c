/* Windows of more pairs than a kernel of the CPU has coefficients of at once have the bits of their
 * parts, whichever way they lie. */
#include "tests/oracle/oracle.h"
#include "tests/support/device.h"
#include "tests/support/harness.h"

#include <stdlib.h>
#include <string.h>

enum { PAIRS = 1500, PART = 100, OFFSET = 4, DIM = 2 * PAIRS + 9, TOKENS = 2, HEADS = 2 };
enum { ELEMENTS = TOKENS * HEADS * DIM, POSITION = 70001, TABLE_POSITION = 1 };

typedef struct long_case {
    int32_t dtype, pairing_in, pairing_out;
    int32_t table;    /* of full width */
    int32_t in_place; /* 1: in and out are one */
    int32_t apart;    /* elements from one to the next */
} long_case;

static double frequency[PAIRS];
static float table[2][TOKENS + TABLE_POSITION][2 * PAIRS]; /* of interleaved elements */

static void fill_rule(void) {
    test_random r = random_stream(test_seed(), 31);
    for (int i = 0; i < PAIRS; i++)
        frequency[i] = random_real(&r, 0, 1);
    for (int n = 0; n < 2; n++)
        for (int row = 0; row < TOKENS + TABLE_POSITION; row++)
            for (int i = 0; i < 2 * PAIRS; i++)
                table[n][row][i] = (float)random_real(&r, -1, 1);
}

/* Place of the first or second element of a pair in a window. */
static int64_t place(int32_t pairing, int64_t pair, int64_t second) {
    return pairing == ROPE_PAIRING_INTERLEAVED ? 2 * pair + second : pair + second * PAIRS;
}

/* Pairs first..first + count - 1 by a kernel. cos and sin: of pair `first`. */
static rope_status rotate(const long_case *c, const rope_desc *rule, const char *kernel,
                          int64_t first, int64_t count, rope_tensor q, const float *cos,
                          const float *sin) {
    rope_desc desc = *rule;
    rope_args args = ROPE_ARGS_INIT;
    rope_plan *plan = NULL;
    desc.dtype = c->dtype;
    desc.head_dim = DIM;
    desc.rotary_dim = (int32_t)(2 * count);
    desc.backend = "cpu";
    desc.kernel = kernel;
    args.batch = 1;
    args.tokens = TOKENS;
    args.q = q;
    if (c->table) {
        desc.angle_mode = ROPE_ANGLE_TABLE;
        desc.table_width = ROPE_TABLE_FULL;
        args.cos = cos;
        args.sin = sin;
        args.table_rows = TOKENS + TABLE_POSITION;
        args.table_stride[1] = 2 * PAIRS;
        args.table_stride[2] = 1;
        args.position_offset = TABLE_POSITION;
    } else {
        desc.rope_type = ROPE_TYPE_INV_FREQ;
        desc.inv_freq = frequency + first;
        desc.factor_count = (int32_t)count;
        args.position_offset = POSITION;
    }
    CHECK_STATUS(ROPE_OK, rope_plan_create(&desc, &plan));
    const rope_status status = rope_apply(plan, &args);
    rope_plan_destroy(plan);
    return status;
}

/* Element i of head n of a list, of one pairing, from that of another. */
static void move_pairing(const long_case *c, int32_t from_pairing, const char *from,
                         int32_t to_pairing, char *to) {
    const size_t size = (size_t)oracle_dtype_size(c->dtype);
    memcpy(to, from, ELEMENTS * size);
    for (int64_t n = 0; n < TOKENS * HEADS; n++)
        for (int64_t i = 0; i < 2 * PAIRS; i++)
            memcpy(to + (size_t)(n * DIM + OFFSET + place(to_pairing, i / 2, i % 2)) * size,
                   from + (size_t)(n * DIM + OFFSET + place(from_pairing, i / 2, i % 2)) * size,
                   size);
}

/* By the scalar kernel, part by part of interleaved pairs. */
static void expect(const long_case *c, const char *x, char *expected) {
    const size_t size = (size_t)oracle_dtype_size(c->dtype);
    char *pairs = malloc(ELEMENTS * size);
    rope_desc rule = ROPE_DESC_INIT;
    rule.pairing_in = rule.pairing_out = ROPE_PAIRING_INTERLEAVED;
    move_pairing(c, c->pairing_in, x, ROPE_PAIRING_INTERLEAVED, pairs);
    for (int64_t first = 0; first < PAIRS; first += PART) {
        rule.rotary_offset = (int32_t)(OFFSET + 2 * first);
        CHECK_STATUS(ROPE_OK, rotate(c, &rule, "scalar", first, PART,
                                     (rope_tensor){.in = pairs, .out = pairs, .heads = HEADS},
                                     table[0][0] + 2 * first, table[1][0] + 2 * first));
    }
    move_pairing(c, ROPE_PAIRING_INTERLEAVED, pairs, c->pairing_out, expected);
    free(pairs);
}

static void check_kernel(const long_case *c, const char *kernel, const char *x,
                         const char *expected) {
    static float by_pairing[2][TOKENS + TABLE_POSITION][2 * PAIRS];
    const size_t size = (size_t)oracle_dtype_size(c->dtype), apart = (size_t)c->apart;
    char *in = calloc(ELEMENTS * apart, size), *other = calloc(ELEMENTS * apart, size),
         *out = c->in_place ? in : other;
    rope_desc rule = ROPE_DESC_INIT;
    rope_tensor q = {.in = in, .out = out, .heads = HEADS};
    const int64_t stride[4] = {0, HEADS * DIM * c->apart, DIM * c->apart, c->apart};
    memcpy(q.in_stride, stride, sizeof stride);
    memcpy(q.out_stride, stride, sizeof stride);
    rule.rotary_offset = OFFSET;
    rule.pairing_in = c->pairing_in;
    rule.pairing_out = c->pairing_out;
    for (int64_t i = 0; i < ELEMENTS; i++)
        memcpy(in + (size_t)i * apart * size, x + (size_t)i * size, size);
    for (int n = 0; n < 2; n++)
        for (int row = 0; row < TOKENS + TABLE_POSITION; row++)
            for (int i = 0; i < 2 * PAIRS; i++)
                by_pairing[n][row][place(c->pairing_out, i / 2, i % 2)] = table[n][row][i];
    test_describe(test_text("kernel=%s dtype=%d pairing=%d/%d table=%d in_place=%d apart=%d",
                            kernel, c->dtype, c->pairing_in, c->pairing_out, c->table, c->in_place,
                            c->apart));
    CHECK_STATUS(ROPE_OK,
                 rotate(c, &rule, kernel, 0, PAIRS, q, by_pairing[0][0], by_pairing[1][0]));
    for (int64_t i = 0; i < ELEMENTS; i++)
        CHECK(memcmp(out + (size_t)i * apart * size, expected + (size_t)i * size, size) == 0,
              "element %lld of head %lld differs", (long long)(i % DIM), (long long)(i / DIM));
    free(in);
    free(other);
}

TEST(bitwise, long_windows) {
    static const int32_t types[] = {ROPE_F32, ROPE_F16, ROPE_BF16, ROPE_F64};
    if (!device_is_host())
        SKIP("kernels of the CPU alone go through windows in parts");
    fill_rule();
    for (int32_t n = 0; n < 128; n++) {
        const long_case c = {types[n % 4], 1 + n / 4 % 2, 1 + n / 8 % 2,
                             n / 16 % 2,   n / 32 % 2,    1 + n / 64 % 2};
        const int64_t size = oracle_dtype_size(c.dtype);
        char *x = malloc((size_t)(ELEMENTS * size)), *expected = malloc((size_t)(ELEMENTS * size));
        const char *kernel;
        test_random r = random_stream(test_seed(), n);
        for (int64_t i = 0; i < ELEMENTS; i++)
            oracle_store(c.dtype, x, i, random_real(&r, -4, 4));
        expect(&c, x, expected);
        for (int k = 0; (kernel = device_kernel(k)); k++)
            check_kernel(&c, kernel, x, expected);
        free(x);
        free(expected);
    }
    test_describe(NULL);
}
