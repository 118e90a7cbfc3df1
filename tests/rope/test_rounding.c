/* 16-bit results bit for bit: the fp32 rotation rounded once, and eager PyTorch's three roundings.
 */
#include "tests/rope/compare.h"
#include "tests/support/device.h"
#include "tests/support/harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CASES = 150, TOKENS = 4, HEADS = 2, PAIRS = 64, DIM = 2 * PAIRS };

/* In the arena: ids, then x as 16-bit numbers or fp32, then a table of cos and of sin. */
typedef struct layout {
    int64_t ids[TOKENS];
    union {
        uint16_t half[TOKENS][HEADS][DIM];
        float single[TOKENS][HEADS][DIM];
    } x;
    union {
        uint16_t half[2][TOKENS][PAIRS];
        float single[2][TOKENS][PAIRS];
    } table;
} layout;

static void make(test_case *c, int64_t index, int32_t dtype) {
    memset(c, 0, sizeof *c);
    c->random = random_stream(test_seed(), index);
    c->bytes = sizeof(layout);
    c->arena = calloc(1, c->bytes);
    layout *l = (layout *)(void *)c->arena;
    for (int t = 0; t < TOKENS; t++)
        l->ids[t] = random_signed(&c->random, 36);
    c->desc = (rope_desc){.struct_size = sizeof c->desc,
                          .dtype = dtype,
                          .head_dim = DIM,
                          .pairing_in = (int32_t)random_between(&c->random, 1, 2)};
    c->args = (rope_args){.struct_size = sizeof c->args,
                          .batch = 1,
                          .tokens = TOKENS,
                          .q = {.in = &l->x, .out = &l->x, .heads = HEADS},
                          .position_ids = l->ids};
}

/* Any 16-bit pattern, but mostly of middling exponent, so that sums round. */
static uint16_t any_half(test_random *r, int32_t dtype) {
    uint16_t h;
    if (random_chance(r, 15))
        return (uint16_t)random_bits(r);
    oracle_store(dtype, &h, 0, random_real(r, -4, 4));
    return h;
}

static void fill_half(test_case *c) {
    layout *l = (layout *)(void *)c->arena;
    for (int t = 0; t < TOKENS; t++)
        for (int h = 0; h < HEADS; h++)
            for (int i = 0; i < DIM; i++)
                l->x.half[t][h][i] = any_half(&c->random, c->desc.dtype);
}

static int first_of(const rope_desc *d, int i) {
    return d->pairing_in == ROPE_PAIRING_INTERLEAVED ? 2 * i : i;
}

static int second_of(const rope_desc *d, int i) {
    return d->pairing_in == ROPE_PAIRING_INTERLEAVED ? 2 * i + 1 : i + PAIRS;
}

static void check_half(const test_case *c, uint16_t got, float expected, float x1, float x2,
                       const char *kernel) {
    uint16_t wanted;
    oracle_store(c->desc.dtype, &wanted, 0, expected);
    CHECK(got == wanted || (isnan(expected) && isnan(oracle_load(c->desc.dtype, &got, 0))),
          "%s: dtype %d (%a, %a) gives %#x, not %#x", kernel, c->desc.dtype, x1, x2, got, wanted);
}

/* cos and sin as the fp32 plan has them: the rotation of (1, 0). */
static void recover(const test_case *half, float (*c)[PAIRS], float (*s)[PAIRS]) {
    test_case single = *half;
    layout *l = malloc(sizeof *l), *result = malloc(sizeof *result);
    memcpy(l, half->arena, sizeof *l);
    for (int t = 0; t < TOKENS; t++)
        for (int h = 0; h < HEADS; h++)
            for (int i = 0; i < PAIRS; i++) {
                l->x.single[t][h][first_of(&half->desc, i)] = 1;
                l->x.single[t][h][second_of(&half->desc, i)] = 0;
            }
    single.desc.dtype = ROPE_F32;
    single.arena = (unsigned char *)l;
    case_relocate(&single.args, half->arena, l);
    CHECK_STATUS(ROPE_OK,
                 device_run(&single, &single.desc, &single.args, 1, NULL, (unsigned char *)result));
    for (int t = 0; t < TOKENS; t++)
        for (int i = 0; i < PAIRS; i++) {
            c[t][i] = result->x.single[t][0][first_of(&half->desc, i)];
            s[t][i] = result->x.single[t][0][second_of(&half->desc, i)];
        }
    free(l);
    free(result);
}

static void check_once_rounded(const test_case *c, const char *kernel, float (*cosine)[PAIRS],
                               float (*sine)[PAIRS]) {
    layout *l = (layout *)(void *)c->arena, *y = malloc(sizeof *y);
    CHECK_STATUS(ROPE_OK, device_run(c, &c->desc, &c->args, 1, kernel, (unsigned char *)y));
    for (int i = 0; i < TOKENS * HEADS * PAIRS; i++) {
        int t = i / PAIRS / HEADS, h = i / PAIRS % HEADS, p = i % PAIRS;
        int a = first_of(&c->desc, p), b = second_of(&c->desc, p);
        float x1 = (float)oracle_load(c->desc.dtype, l->x.half[t][h], a);
        float x2 = (float)oracle_load(c->desc.dtype, l->x.half[t][h], b);
        volatile float x2s = x2 * sine[t][p], x1s = x1 * sine[t][p];
        check_half(c, y->x.half[t][h][a], fmaf(x1, cosine[t][p], -x2s), x1, x2, kernel);
        check_half(c, y->x.half[t][h][b], fmaf(x2, cosine[t][p], x1s), x1, x2, kernel);
    }
    free(y);
}

static void check_rounded_once(int32_t dtype) {
    for (int64_t i = -1; test_next(&i, CASES);) {
        test_case c;
        float cosine[TOKENS][PAIRS], sine[TOKENS][PAIRS];
        make(&c, i, dtype);
        fill_half(&c);
        recover(&c, cosine, sine);
        const char *kernel;
        for (int k = 0; (kernel = device_kernel(k)); k++)
            check_once_rounded(&c, kernel, cosine, sine);
        case_free(&c);
    }
}

TEST(rounding, f16_is_rounded_once) {
    check_rounded_once(ROPE_F16);
}

TEST(rounding, bf16_is_rounded_once) {
    check_rounded_once(ROPE_BF16);
}

static void make_model(test_case *c, int64_t index, int32_t dtype) {
    make(c, index, dtype);
    layout *l = (layout *)(void *)c->arena;
    fill_half(c);
    for (int i = 0; i < 2 * TOKENS * PAIRS; i++)
        oracle_store(dtype, l->table.half, i, random_real(&c->random, -1, 1));
    for (int t = 0; t < TOKENS; t++)
        l->ids[t] = random_between(&c->random, 0, TOKENS - 1);
    c->desc.angle_mode = ROPE_ANGLE_TABLE;
    c->desc.arithmetic = ROPE_ARITHMETIC_MODEL_DTYPE;
    c->desc.table_dtype = dtype;
    c->args.cos = l->table.half[0];
    c->args.sin = l->table.half[1];
    c->args.table_rows = TOKENS;
}

/* a * b + c * d, each of the three operations rounded to dtype. */
static float three_roundings(int32_t dtype, float a, float b, float c, float d) {
    float first = (float)oracle_round(dtype, (double)a * b);
    float second = (float)oracle_round(dtype, (double)c * d);
    return (float)oracle_round(dtype, (double)first + second);
}

/* Returns 0 where the kernel declines. */
static int check_three_roundings(const test_case *c, const char *kernel) {
    layout *l = (layout *)(void *)c->arena, *y = malloc(sizeof *y);
    int32_t dtype = c->desc.dtype;
    rope_status status = device_run(c, &c->desc, &c->args, 1, kernel, (unsigned char *)y);
    if (status == ROPE_ERROR_UNSUPPORTED) {
        free(y);
        return 0;
    }
    CHECK_STATUS(ROPE_OK, status);
    for (int i = 0; i < TOKENS * HEADS * PAIRS; i++) {
        int t = i / PAIRS / HEADS, h = i / PAIRS % HEADS, p = i % PAIRS;
        int a = first_of(&c->desc, p), b = second_of(&c->desc, p);
        float x1 = (float)oracle_load(dtype, l->x.half[t][h], a);
        float x2 = (float)oracle_load(dtype, l->x.half[t][h], b);
        float cosine = (float)oracle_load(dtype, l->table.half[0][l->ids[t]], p);
        float sine = (float)oracle_load(dtype, l->table.half[1][l->ids[t]], p);
        check_half(c, y->x.half[t][h][a], three_roundings(dtype, x1, cosine, -x2, sine), x1, x2,
                   kernel);
        check_half(c, y->x.half[t][h][b], three_roundings(dtype, x2, cosine, x1, sine), x1, x2,
                   kernel);
    }
    free(y);
    return 1;
}

static void check_rounded_thrice(int32_t dtype) {
    for (int64_t i = -1; test_next(&i, CASES);) {
        test_case c;
        make_model(&c, i, dtype);
        const char *kernel;
        int accepted = 0;
        for (int k = 0; (kernel = device_kernel(k)); k++)
            accepted += check_three_roundings(&c, kernel);
        CHECK(accepted > 0, "every kernel declines model-dtype arithmetic");
        case_free(&c);
    }
}

TEST(rounding, f16_model_arithmetic) {
    check_rounded_thrice(ROPE_F16);
}

TEST(rounding, bf16_model_arithmetic) {
    check_rounded_thrice(ROPE_BF16);
}

typedef struct nan_layout {
    float cosine[2 * DIM], sine[2 * DIM]; /* entries side by side, or every other one */
    float x[DIM];                         /* of any dtype */
} nan_layout;

static const uint32_t nans[] = {0x7fffffff, 0xffffffff, 0x7f800001, 0xff808000, 0x7fc00000};

/* Element `at` is the product with an entry that is a NaN; other pairs have nothing to do with it.
 * Returns 0 where the kernel declines. */
static int check_nan(const test_case *c, int at, const char *kernel) {
    nan_layout y;
    rope_status status = device_run(c, &c->desc, &c->args, 1, kernel, (unsigned char *)&y);
    if (status == ROPE_ERROR_UNSUPPORTED)
        return 0;
    CHECK_STATUS(ROPE_OK, status);
    for (int i = 0; i < DIM; i++) {
        double got = oracle_load(c->desc.dtype, y.x, i);
        CHECK(i % PAIRS == at % PAIRS ? i != at || isnan(got) : isfinite(got),
              "%s: dtype %d, table_width %d, arithmetic %d: element %d is %g where entry %d is NaN",
              kernel, c->desc.dtype, c->desc.table_width, c->desc.arithmetic, i, got, at);
    }
    return 1;
}

/* A table whose entry `at` has the bits of a NaN, at every kernel. */
static void run_nan(const rope_desc *desc, int stride, uint32_t bits, int at) {
    static nan_layout l;
    test_case c = {.desc = *desc, .arena = (unsigned char *)&l, .bytes = sizeof l};
    c.args = (rope_args){.struct_size = sizeof c.args,
                         .batch = 1,
                         .tokens = 1,
                         .q = {.in = l.x, .out = l.x, .heads = 1},
                         .cos = l.cosine,
                         .sin = l.sine,
                         .table_rows = 1,
                         .table_stride = {0, sizeof l.cosine / sizeof *l.cosine, stride}};
    for (int i = 0; i < 2 * DIM; i++)
        l.cosine[i] = l.sine[i] = 0.5F;
    for (int i = 0; i < DIM; i++)
        oracle_store(desc->dtype, l.x, i, 1);
    memcpy(&l.cosine[at * stride], &bits, sizeof bits);
    const char *kernel;
    int accepted = 0;
    for (int k = 0; (kernel = device_kernel(k)); k++)
        accepted += check_nan(&c, at, kernel);
    CHECK(accepted > 0, "every kernel declines this table");
}

TEST(rounding, a_nan_of_any_table) {
    const rope_desc desc = {.struct_size = sizeof desc, .head_dim = DIM};
    for (int i = 0; i < 3 * 2 * 2 * 2 * 5; i++) {
        rope_desc d = desc;
        d.angle_mode = ROPE_ANGLE_TABLE;
        d.dtype = (int32_t[]){ROPE_F32, ROPE_F16, ROPE_BF16}[i % 3];
        d.table_width = i / 3 % 2 ? ROPE_TABLE_FULL : ROPE_TABLE_HALF;
        d.arithmetic = i / 6 % 2 ? ROPE_ARITHMETIC_MODEL_DTYPE : ROPE_ARITHMETIC_FP32;
        for (int at = 0; at < (i / 3 % 2 ? DIM : PAIRS); at += 21)
            run_nan(&d, 1 + i / 12 % 2, nans[i / 24], at);
    }
}
