/* The oracle itself: formats, angles, frequencies and rotations with known values. */
#include "tests/rope/compare.h"
#include "tests/support/harness.h"

#include <math.h>
#include <string.h>

/* Encodings from the definitions of binary16 and bfloat16: value, f16, bf16. */
static const struct {
    double value;
    uint16_t f16, bf16;
} encodings[] = {
    {0.0, 0x0000, 0x0000},           {-0.0, 0x8000, 0x8000},        {1.0, 0x3c00, 0x3f80},
    {-2.5, 0xc100, 0xc020},          {65504.0, 0x7bff, 0x4780},     {65519.99, 0x7bff, 0x4780},
    {65520.0, 0x7c00, 0x4780},       {0x1p-24, 0x0001, 0x3380},     {0x1p-25, 0x0000, 0x3300},
    {0x1.8p-25, 0x0001, 0x3340},     {0x1.ffcp-15, 0x0400, 0x3880}, {1 + 0x1p-11, 0x3c00, 0x3f80},
    {1 + 0x1.8p-10, 0x3c02, 0x3f80}, {1 + 0x1p-8, 0x3c04, 0x3f80},  {1 + 0x1.8p-7, 0x3c0c, 0x3f82},
    {0x1p-133, 0x0000, 0x0001},      {0x1.fep127, 0x7c00, 0x7f7f},  {0x1.ffp127, 0x7c00, 0x7f80},
    {INFINITY, 0x7c00, 0x7f80},      {-INFINITY, 0xfc00, 0xff80},
};

TEST(oracle, rounds_to_nearest_even) {
    for (size_t i = 0; i < sizeof encodings / sizeof encodings[0]; i++) {
        uint16_t f16, bf16;
        oracle_store(ROPE_F16, &f16, 0, encodings[i].value);
        oracle_store(ROPE_BF16, &bf16, 0, encodings[i].value);
        CHECK(f16 == encodings[i].f16, "f16 of %a is %#x, not %#x", encodings[i].value, f16,
              encodings[i].f16);
        CHECK(bf16 == encodings[i].bf16, "bf16 of %a is %#x, not %#x", encodings[i].value, bf16,
              encodings[i].bf16);
    }
}

TEST(oracle, loads_what_it_stores) {
    static const int32_t dtypes[] = {ROPE_F16, ROPE_BF16};
    for (int d = 0; d < 2; d++)
        for (uint32_t bits = 0; bits < 0x10000; bits++) {
            uint16_t from = (uint16_t)bits, to;
            double x = oracle_load(dtypes[d], &from, 0);
            oracle_store(dtypes[d], &to, 0, x);
            CHECK(from == to || isnan(x), "dtype %d: %#x is %a, which is stored as %#x", dtypes[d],
                  from, x, to);
        }
}

TEST(oracle, angles) {
    static const struct {
        int64_t position;
        double omega, c, s;
    } known[] = {
        /* cos and sin of 1 and of 10^22, to 17 digits */
        {1, 1.0, 0.54030230586813977, 0.84147098480789651},
        {1, 1e22, 0.52321478539513895, -0.85220084976718880},
        {0, 123.0, 1.0, 0.0},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        double c, s;
        oracle_angle_cos_sin(known[i].position, known[i].omega, &c, &s);
        CHECK(fabs(c - known[i].c) < 1e-15 && fabs(s - known[i].s) < 1e-15,
              "cos, sin of %lld * %g are %.17g, %.17g", (long long)known[i].position,
              known[i].omega, c, s);
    }
}

/* Addition theorem: the angle of p + q from those of p and of q. */
TEST(oracle, angles_add) {
    for (int64_t i = -1; test_next(&i, 200);) {
        test_random r = random_stream(test_seed(), i);
        int64_t p = random_signed(&r, 36), q = random_signed(&r, 36);
        double omega = random_real(&r, -8, 8), c[3], s[3];
        oracle_angle_cos_sin(p, omega, &c[0], &s[0]);
        oracle_angle_cos_sin(q, omega, &c[1], &s[1]);
        oracle_angle_cos_sin(p + q, omega, &c[2], &s[2]);
        CHECK(fabs(c[0] * c[1] - s[0] * s[1] - c[2]) < 5e-16, "p %lld, q %lld, omega %.17g",
              (long long)p, (long long)q, omega);
        CHECK(fabs(s[0] * c[1] + c[0] * s[1] - s[2]) < 5e-16, "p %lld, q %lld, omega %.17g",
              (long long)p, (long long)q, omega);
    }
}

/* theta^(-2i/r) where the powers are whole. */
TEST(oracle, default_frequencies) {
    rope_desc desc = {.struct_size = sizeof desc, .dtype = ROPE_F32, .head_dim = 8};
    oracle *o = oracle_create(&desc);
    for (int i = 0; i < 4; i++) {
        double expected = 1 / pow(10, i);
        CHECK(oracle_frequency(o, 0, i) == expected, "pair %d has %.17g, not %.17g", i,
              oracle_frequency(o, 0, i), expected);
    }
    CHECK(oracle_attention_factor(o, 0) == 1, "attention factor is %g",
          oracle_attention_factor(o, 0));
    oracle_destroy(o);
}

/* Frequencies and factors are the doubles nearest to the rule, which 256 bits tell. */
static void check_rule(const test_case *c, const oracle *o, int32_t set) {
    double inv_freq[CASE_MAX_PAIRS], factor;
    CHECK_STATUS(ROPE_OK, rope_frequencies(&c->desc, set, inv_freq, CASE_MAX_PAIRS, &factor));
    for (int32_t p = 0; p < case_rotary_dim(&c->desc) / 2; p++)
        CHECK(inv_freq[p] == oracle_frequency(o, set, p), "set %d pair %d has %a, not %a", set, p,
              inv_freq[p], oracle_frequency(o, set, p));
    CHECK(factor == oracle_attention_factor(o, set), "attention factor is %a, not %a", factor,
          oracle_attention_factor(o, set));
}

TEST(oracle, rules_agree_with_the_library) {
    for (int64_t i = -1; test_next(&i, 2000);) {
        static const case_wish wish = {.angle_mode = ROPE_ANGLE_EXACT};
        test_case c;
        case_make(&c, test_seed(), i, &wish);
        case_describe(&c, NULL);
        oracle *o = oracle_create(&c.desc);
        for (int32_t set = 0; set < oracle_sets(o); set++)
            check_rule(&c, o, set);
        oracle_destroy(o);
        case_free(&c);
    }
}

/* Multiplies or divides what a rule reads by up to 2^900; or takes the least base of yarn. */
static void stretch(test_random *r, rope_desc *d) {
    double *const fields[] = {&d->factor,          &d->rope_theta, &d->alpha,
                              &d->beta_fast,       &d->beta_slow,  &d->low_freq_factor,
                              &d->high_freq_factor};
    for (size_t f = 0; f < sizeof fields / sizeof fields[0]; f++)
        if (random_chance(r, 50))
            *fields[f] = ldexp(*fields[f], (int)random_between(r, -900, 900));
    if (d->rope_type == ROPE_TYPE_YARN && random_chance(r, 20))
        d->rope_theta = 1 + 0x1p-52;
}

/* Every bit of a frequency that is a small part of another, where the library accepts it. */
TEST(oracle, rules_agree_at_extremes) {
    int tried = 0, accepted = 0;
    for (int64_t i = -1; test_next(&i, 4000); tried++) {
        static const case_wish wish = {.angle_mode = ROPE_ANGLE_EXACT};
        test_case c;
        case_make(&c, test_seed(), i, &wish);
        stretch(&c.random, &c.desc);
        case_describe(&c, NULL);
        double inv_freq[CASE_MAX_PAIRS];
        int held = rope_frequencies(&c.desc, 0, inv_freq, CASE_MAX_PAIRS, NULL) == ROPE_OK;
        oracle *o = held ? oracle_create(&c.desc) : NULL;
        for (int32_t set = 0; o && set < oracle_sets(o); set++)
            check_rule(&c, o, set);
        oracle_destroy(o);
        case_free(&c);
        accepted += held;
    }
    CHECK(accepted * 4 >= tried, "%d of %d descriptors were accepted", accepted, tried);
}

/* A quarter turn: (1, 0) goes to (0, 1), and with the other pairing the window is read in pairs. */
TEST(oracle, quarter_turn) {
    double quarter[2] = {M_PI / 2, M_PI / 2}, value[4], bound[4];
    rope_desc desc = {.struct_size = sizeof desc,
                      .dtype = ROPE_F32,
                      .head_dim = 4,
                      .pairing_in = ROPE_PAIRING_INTERLEAVED,
                      .pairing_out = ROPE_PAIRING_HALF_SPLIT,
                      .rope_type = ROPE_TYPE_INV_FREQ,
                      .inv_freq = quarter,
                      .factor_count = 2};
    float x[4] = {1, 0, 3, 4}, y[4];
    static const double expected[4] = {0, -4, 1, 3};
    rope_args args = {.struct_size = sizeof args,
                      .batch = 1,
                      .tokens = 1,
                      .q = {.in = x, .out = y, .heads = 1},
                      .position_offset = 1};
    oracle *o = oracle_create(&desc);
    oracle_apply(o, &args, 0, value, bound);
    for (int i = 0; i < 4; i++)
        CHECK(fabs(value[i] - expected[i]) < 1e-15 && bound[i] > 0 && bound[i] < 2e-6,
              "element %d is %.17g within %g, not %g", i, value[i], bound[i], expected[i]);
    oracle_destroy(o);
}

TEST(oracle, accepts_what_the_contract_allows) {
    CHECK(oracle_accepts(ROPE_F32, 1.0, 1.25, 0.25), "a difference equal to the bound");
    CHECK(!oracle_accepts(ROPE_F32, 1.0, 1.25, 0.2), "a difference above the bound");
    CHECK(!oracle_accepts(ROPE_F32, -0.0, 0.0, 0), "a copy that lost its sign");
    CHECK(oracle_accepts(ROPE_F32, NAN, NAN, 0), "a NaN that is copied");
    CHECK(!oracle_accepts(ROPE_F32, INFINITY, NAN, 0), "a NaN copied as an infinity");
    CHECK(oracle_accepts(ROPE_F32, INFINITY, NAN, 1), "a NaN or infinity that is rotated");
    CHECK(!oracle_accepts(ROPE_F32, 1.0, NAN, 1), "a NaN that is lost");
    CHECK(!oracle_accepts(ROPE_F32, NAN, 1.0, 1), "a NaN from nothing");
    CHECK(oracle_accepts(ROPE_F16, INFINITY, 65519.9, 20), "an overflow within the bound");
    CHECK(!oracle_accepts(ROPE_F16, -INFINITY, 70000, 40), "an overflow of the other sign");
    CHECK(!oracle_accepts(ROPE_F16, INFINITY, 60000, 40), "an infinity far from the limit");
}
