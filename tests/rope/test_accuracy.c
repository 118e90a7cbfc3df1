/* cos and sin against the truth: rotating (1, 0) gives them, with no other rounding in fp32. */
#include "tests/rope/compare.h"
#include "tests/support/device.h"
#include "tests/support/harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 24, CASES = 120, POSITION_BITS = 36 };

/* A call over unit vectors in interleaved pairs, a position of its own for each token. */
typedef struct unit_call {
    test_case c;
    oracle *truth;
    int32_t pairs;
} unit_call;

/* Two axes, of which each begins its frequencies anew. */
static void restart(rope_desc *d, int32_t pairs) {
    d->axes = 2;
    d->axis_layout = ROPE_AXES_CHUNKED;
    d->axis_frequency = ROPE_AXIS_FREQUENCY_RESTART;
    d->sections[0] = pairs / 3;
    d->sections[1] = pairs - pairs / 3;
}

static int can_restart(const rope_desc *d) {
    return d->rope_type == ROPE_TYPE_DEFAULT || d->rope_type == ROPE_TYPE_LINEAR ||
           d->rope_type == ROPE_TYPE_LONGROPE || d->rope_type == ROPE_TYPE_LLAMA3;
}

static int64_t position_of(const unit_call *u, int token, int32_t pair) {
    int axis = u->c.desc.axes == 2 && pair >= u->c.desc.sections[0];
    return case_block_ids(&u->c)[axis * TOKENS + token];
}

static void unit_make(unit_call *u, int64_t index, int32_t angle_mode, int32_t dtype, int bits) {
    case_block block = {angle_mode, dtype, bits, TOKENS, 1};
    case_make_block(&u->c, test_seed(), index, &block);
    rope_desc *d = &u->c.desc;
    u->pairs = d->head_dim / 2;
    d->pairing_in = d->pairing_out = ROPE_PAIRING_INTERLEAVED;
    d->short_mscale = d->long_mscale = d->mscale = d->mscale_all_dim = 0;
    d->attention_factor = 1;
    if (can_restart(d) && u->c.index / ROPE_TYPE_INV_FREQ % 2)
        restart(d, u->pairs);
    for (int32_t i = 0; i < TOKENS * d->head_dim; i++)
        oracle_store(dtype, u->c.args.q.out, i, i % 2 ? 0 : 1);
    u->truth = oracle_create(d);
    CHECK(u->truth != NULL, "no memory for an oracle");
}

static void check_unit(const unit_call *u, const unsigned char *result, double limit) {
    const unsigned char *y = result + ((const unsigned char *)u->c.args.q.out - u->c.arena);
    for (int t = 0; t < TOKENS; t++)
        for (int32_t i = 0; i < u->pairs; i++) {
            double c, s;
            int64_t at = (int64_t)t * 2 * u->pairs + 2 * i;
            oracle_cos_sin(u->truth, 0, position_of(u, t, i), i, &c, &s);
            double got[2] = {oracle_load(u->c.desc.dtype, y, at),
                             oracle_load(u->c.desc.dtype, y, at + 1)};
            double worst = fmax(fabs(got[0] - c), fabs(got[1] - s));
            CHECK(worst <= limit, "position %lld, pair %d: %.17g, %.17g, not %.17g, %.17g: %.3g",
                  (long long)position_of(u, t, i), i, got[0], got[1], c, s, worst);
        }
}

static void check_mode(int32_t angle_mode, int32_t dtype, int bits, double limit) {
    for (int64_t i = -1; test_next(&i, CASES);) {
        unit_call u;
        unit_make(&u, i, angle_mode, dtype, bits);
        case_describe(&u.c, NULL);
        unsigned char *result = malloc(u.c.bytes);
        CHECK_STATUS(ROPE_OK, device_run(&u.c, &u.c.desc, &u.c.args, 1, NULL, result));
        check_unit(&u, result, limit);
        oracle_destroy(u.truth);
        free(result);
        case_free(&u.c);
    }
}

TEST(accuracy, exact) {
    check_mode(ROPE_ANGLE_EXACT, ROPE_F32, POSITION_BITS, 8e-8);
}

TEST(accuracy, exact_near_zero) {
    check_mode(ROPE_ANGLE_EXACT, ROPE_F32, 17, 8e-8);
}

TEST(accuracy, f32) {
    check_mode(ROPE_ANGLE_F32, ROPE_F32, 20, 1.2e-7);
}

TEST(accuracy, f32_huge_angles) {
    check_mode(ROPE_ANGLE_F32, ROPE_F32, 63, 1.2e-7);
}

/* Far from its centre XPos scales q by 2^-126 and k by 2^126, inverse the other way; frequency 0
 * leaves nothing but the scale. */
TEST(accuracy, xpos_has_limits) {
    static const int32_t dtypes[] = {ROPE_F32, ROPE_BF16, ROPE_F64};
    static const double still[32] = {0};
    for (int i = 0; i < 12; i++) {
        double data[2][64];
        int32_t inverse = i % 2;
        int64_t away = i / 2 % 2 ? INT64_MAX : 10000000;
        rope_desc desc = {.struct_size = sizeof desc, .dtype = dtypes[i / 4], .head_dim = 64};
        desc.rope_type = ROPE_TYPE_INV_FREQ;
        desc.inv_freq = still;
        desc.factor_count = 32;
        desc.xpos_scale_base = 512;
        desc.direction = inverse ? ROPE_INVERSE : ROPE_FORWARD;
        for (int e = 0; e < 64; e++)
            for (int t = 0; t < 2; t++)
                oracle_store(desc.dtype, data[t], e, 1);
        test_case c = {.desc = desc, .arena = (unsigned char *)data, .bytes = sizeof data};
        c.args = (rope_args){.struct_size = sizeof c.args, .batch = 1, .tokens = 1};
        c.args.q = (rope_tensor){.in = data[0], .out = data[0], .heads = 1};
        c.args.k = (rope_tensor){.in = data[1], .out = data[1], .heads = 1};
        c.args.position_offset = away;
        double result[2][64];
        CHECK_STATUS(ROPE_OK, device_run(&c, &desc, &c.args, 1, NULL, (unsigned char *)result));
        for (int e = 0; e < 64; e++)
            for (int t = 0; t < 2; t++)
                CHECK(oracle_load(desc.dtype, result[t], e) == (t != inverse ? 0x1p126 : 0x1p-126),
                      "dtype %d, position %lld, %s, element %d is %a", desc.dtype, (long long)away,
                      t ? "k" : "q", e, oracle_load(desc.dtype, result[t], e));
    }
}

TEST(accuracy, f64) {
    check_mode(ROPE_ANGLE_EXACT, ROPE_F64, POSITION_BITS, 4e-16);
}

/* 128 bits of a frequency are enough for every position there is. */
TEST(accuracy, f64_everywhere) {
    check_mode(ROPE_ANGLE_EXACT, ROPE_F64, 63, 4e-16);
}
