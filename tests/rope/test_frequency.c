/* The frequency rules: against their formulas, and against bad fields; and how Transformers
 * rotates. */
#include "tests/model/goldens.h"
#include "tests/support/device.h"
#include "tests/support/harness.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

enum { MAX_PAIRS = 512, MAX_ROWS = 16, MAX_ENTRIES = 1024 };

/* A descriptor of a rule with what the rule needs and no more. */
static const double ones[] = {1, 1, 1, 1, 1, 1, 1, 1};
static rope_desc least(int32_t rope_type) {
    rope_desc desc = {.struct_size = sizeof desc, .dtype = ROPE_F32, .head_dim = 16};
    desc.rope_type = rope_type;
    if (rope_type == ROPE_TYPE_LINEAR || rope_type == ROPE_TYPE_DYNAMIC ||
        rope_type == ROPE_TYPE_YARN || rope_type == ROPE_TYPE_LLAMA3)
        desc.factor = 4;
    if (rope_type == ROPE_TYPE_YARN || rope_type == ROPE_TYPE_LLAMA3 ||
        rope_type == ROPE_TYPE_LONGROPE)
        desc.original_max_position_embeddings = 4096;
    if (rope_type == ROPE_TYPE_DYNAMIC || rope_type == ROPE_TYPE_LONGROPE)
        desc.max_position_embeddings = 8192;
    if (rope_type == ROPE_TYPE_LLAMA3) {
        desc.low_freq_factor = 1;
        desc.high_freq_factor = 4;
    }
    if (rope_type == ROPE_TYPE_LONGROPE)
        desc.short_factor = desc.long_factor = ones;
    if (rope_type == ROPE_TYPE_INV_FREQ)
        desc.inv_freq = ones;
    if (desc.short_factor || desc.inv_freq)
        desc.factor_count = 8;
    return desc;
}

static rope_status frequencies(const rope_desc *desc) {
    double inv_freq[MAX_PAIRS];
    return rope_frequencies(desc, 0, inv_freq, MAX_PAIRS, NULL);
}

/* Expects INVALID_VALUE and a text that names the field. */
static void refuses(const rope_desc *desc, const char *field) {
    rope_status status = frequencies(desc);
    CHECK(status == ROPE_ERROR_INVALID_VALUE, "rope_type %d, %s: %s", desc->rope_type, field,
          rope_status_string(status));
    CHECK(strstr(rope_last_error(), field), "rope_type %d: \"%s\" does not name %s",
          desc->rope_type, rope_last_error(), field);
}

typedef enum field_kind { REAL, COUNT, CHOICE, LIST } field_kind;

static const struct frequency_field {
    const char *name;
    size_t offset;
    field_kind kind;
    const char *rules; /* letters of the rules that read it; capital: that need it */
} fields[] = {
#define FIELD(name, kind, rules)                                                                   \
    { #name, offsetof(rope_desc, name), kind, rules }
    /* d default, l linear, n dynamic, y yarn, o longrope, a llama3, p proportional, i inv_freq */
    FIELD(rope_theta, REAL, "dlnyoap"),
    FIELD(factor, REAL, "LNYoAp"),
    FIELD(low_freq_factor, REAL, "A"),
    FIELD(high_freq_factor, REAL, "A"),
    FIELD(beta_fast, REAL, "y"),
    FIELD(beta_slow, REAL, "y"),
    FIELD(mscale, REAL, "y"),
    FIELD(mscale_all_dim, REAL, "y"),
    FIELD(attention_factor, REAL, "dlnyoapi"),
    FIELD(alpha, REAL, "n"),
    FIELD(partial_rotary_factor, REAL, "p"),
    FIELD(short_mscale, REAL, "o"),
    FIELD(long_mscale, REAL, "o"),
    FIELD(xpos_scale_base, REAL, "dlnyoapi"),
    FIELD(original_max_position_embeddings, COUNT, "YOA"),
    FIELD(max_position_embeddings, COUNT, "NO"),
    FIELD(sequence_length, COUNT, "n"),
    FIELD(short_factor, LIST, "o"),
    FIELD(long_factor, LIST, "o"),
    FIELD(inv_freq, LIST, "i"),
    FIELD(factor_count, CHOICE, "OI"),
    FIELD(truncate, CHOICE, "y"),
    FIELD(longrope_select, CHOICE, "o"),
#undef FIELD
};
enum { FIELD_COUNT = sizeof fields / sizeof fields[0] };

static void store(rope_desc *desc, const struct frequency_field *field, double value) {
    char *at = (char *)desc + field->offset;
    int64_t count = isfinite(value) ? (int64_t)value : -1;
    int32_t choice = (int32_t)count;
    const double *list = value != 0 ? ones : NULL;
    if (field->kind == REAL)
        memcpy(at, &value, sizeof value);
    if (field->kind == COUNT)
        memcpy(at, &count, sizeof count);
    if (field->kind == CHOICE)
        memcpy(at, &choice, sizeof choice);
    if (field->kind == LIST)
        memcpy(at, &list, sizeof list);
}

TEST(frequency, unread_fields_are_refused) {
    static const char letters[] = "dlnyoapi";
    for (int32_t type = ROPE_TYPE_DEFAULT; type <= ROPE_TYPE_INV_FREQ; type++) {
        char rule = letters[type - 1];
        rope_desc desc = least(type);
        CHECK_STATUS(ROPE_OK, frequencies(&desc));
        for (int f = 0; f < FIELD_COUNT; f++) {
            desc = least(type);
            store(&desc, &fields[f], 1);
            if (!strchr(fields[f].rules, rule) && !strchr(fields[f].rules, rule - 32))
                refuses(&desc, fields[f].name);
        }
    }
}

TEST(frequency, ranges) {
    static const char letters[] = "dlnyoapi";
    static const double bad[] = {NAN, INFINITY, -INFINITY, -1};
    for (int32_t type = ROPE_TYPE_DEFAULT; type <= ROPE_TYPE_INV_FREQ; type++)
        for (int f = 0; f < FIELD_COUNT; f++) {
            int needed = strchr(fields[f].rules, letters[type - 1] - 32) != NULL;
            if (fields[f].kind == LIST || (!needed && !strchr(fields[f].rules, letters[type - 1])))
                continue;
            rope_desc desc = least(type);
            for (size_t b = 0; b < sizeof bad / sizeof bad[0]; b++) {
                store(&desc, &fields[f], bad[b]);
                refuses(&desc, fields[f].name);
            }
            store(&desc, &fields[f], 0);
            if (needed)
                refuses(&desc, fields[f].name);
        }
}

TEST(frequency, tables_have_no_frequencies) {
    for (int f = 0; f < FIELD_COUNT; f++) {
        rope_desc desc = {.struct_size = sizeof desc, .dtype = ROPE_F32, .head_dim = 16};
        desc.angle_mode = ROPE_ANGLE_TABLE;
        store(&desc, &fields[f], 1);
        refuses(&desc, fields[f].name);
    }
    rope_desc desc = {.struct_size = sizeof desc, .dtype = ROPE_F32, .head_dim = 16};
    desc.angle_mode = ROPE_ANGLE_TABLE;
    desc.rope_type = ROPE_TYPE_DEFAULT;
    refuses(&desc, "rope_type");
}

TEST(frequency, fields_that_depend_on_each_other) {
    rope_desc desc = least(ROPE_TYPE_DYNAMIC);
    desc.rotary_dim = 2;
    refuses(&desc, "rotary_dim");
    desc = least(ROPE_TYPE_DYNAMIC);
    desc.alpha = 2;
    refuses(&desc, "factor");
    desc = least(ROPE_TYPE_YARN);
    desc.rope_theta = 1;
    refuses(&desc, "rope_theta");
    desc = least(ROPE_TYPE_YARN);
    desc.mscale = 1;
    refuses(&desc, "mscale_all_dim");
    desc.mscale_all_dim = 1;
    CHECK_STATUS(ROPE_OK, frequencies(&desc));
    desc.attention_factor = 1;
    refuses(&desc, "attention_factor");
    desc = least(ROPE_TYPE_LLAMA3);
    desc.high_freq_factor = 0.5;
    refuses(&desc, "high_freq_factor");
    desc = least(ROPE_TYPE_PROPORTIONAL);
    desc.partial_rotary_factor = 1.01;
    refuses(&desc, "partial_rotary_factor");
    desc = least(ROPE_TYPE_DEFAULT);
    desc.xpos_center = 1;
    refuses(&desc, "xpos_center");
    desc.xpos_scale_base = 1;
    refuses(&desc, "xpos_scale_base");
    desc = least(ROPE_TYPE_YARN);
    desc.axis_layout = ROPE_AXES_CHUNKED;
    desc.axis_frequency = ROPE_AXIS_FREQUENCY_RESTART;
    desc.sections[0] = 8;
    refuses(&desc, "axis_frequency");
}

TEST(frequency, results_that_nothing_holds) {
    rope_desc desc = least(ROPE_TYPE_DEFAULT);
    desc.rope_theta = 1e-300;
    refuses(&desc, "frequency of pair");
    desc = least(ROPE_TYPE_DEFAULT);
    desc.attention_factor = 1e300;
    refuses(&desc, "attention factor");
    desc = least(ROPE_TYPE_DYNAMIC);
    desc.rope_theta = 1e4;
    desc.factor = 1e308;
    desc.sequence_length = INT64_MAX;
    refuses(&desc, "the base that rope_theta 10000 becomes is inf");
}

TEST(frequency, lists) {
    double list[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    static const double bad[] = {0, -1, NAN, INFINITY};
    for (size_t b = 0; b < sizeof bad / sizeof bad[0]; b++) {
        list[5] = bad[b];
        rope_desc desc = least(ROPE_TYPE_LONGROPE);
        desc.short_factor = list;
        refuses(&desc, "short_factor[5]");
        desc.longrope_select = ROPE_LONGROPE_LONG;
        refuses(&desc, "short_factor[5]");
        desc = least(ROPE_TYPE_LONGROPE);
        desc.long_factor = list;
        refuses(&desc, "long_factor[5]");
    }
    rope_desc desc = least(ROPE_TYPE_LONGROPE);
    desc.factor_count = 7;
    refuses(&desc, "factor_count");
    desc = least(ROPE_TYPE_LONGROPE);
    desc.long_factor = NULL;
    CHECK_STATUS(ROPE_ERROR_NULL_POINTER, frequencies(&desc));
    desc.longrope_select = ROPE_LONGROPE_SHORT;
    CHECK_STATUS(ROPE_OK, frequencies(&desc));
    desc = least(ROPE_TYPE_INV_FREQ);
    list[5] = -0x1p63;
    desc.inv_freq = list;
    refuses(&desc, "inv_freq[5]");
    list[5] = -0x1p62;
    CHECK_STATUS(ROPE_OK, frequencies(&desc));
    desc.inv_freq = NULL;
    CHECK_STATUS(ROPE_ERROR_NULL_POINTER, frequencies(&desc));
}

TEST(frequency, longrope_selects) {
    double inv_freq[MAX_PAIRS], factor, two[8] = {2, 2, 2, 2, 2, 2, 2, 2};
    rope_desc desc = least(ROPE_TYPE_LONGROPE);
    desc.long_factor = two;
    desc.short_mscale = 1.5;
    desc.long_mscale = 2.5;
    static const int32_t select[] = {ROPE_LONGROPE_STATIC, ROPE_LONGROPE_SHORT, ROPE_LONGROPE_LONG};
    static const double first[] = {0.5, 1, 0.5}, scale[] = {2.5, 1.5, 2.5};
    for (int i = 0; i < 3; i++) {
        desc.longrope_select = select[i];
        CHECK_STATUS(ROPE_OK, rope_frequencies(&desc, 0, inv_freq, MAX_PAIRS, &factor));
        CHECK(inv_freq[0] == first[i] && factor == scale[i], "select %d: %g, factor %g", select[i],
              inv_freq[0], factor);
        CHECK_STATUS(ROPE_ERROR_INVALID_VALUE,
                     rope_frequencies(&desc, 1, inv_freq, MAX_PAIRS, &factor));
    }
    desc.longrope_select = 0;
    CHECK_STATUS(ROPE_OK, rope_frequencies(&desc, 1, inv_freq, MAX_PAIRS, &factor));
    CHECK(inv_freq[0] == 0.5 && factor == 2.5, "long: %g, factor %g", inv_freq[0], factor);
    desc.longrope_select = ROPE_LONGROPE_STATIC;
    desc.max_position_embeddings = 4096;
    CHECK_STATUS(ROPE_OK, rope_frequencies(&desc, 0, inv_freq, MAX_PAIRS, &factor));
    CHECK(inv_freq[0] == 1 && factor == 1.5, "static: %g, factor %g", inv_freq[0], factor);
}

TEST(frequency, powers_are_nearly_exact) {
    for (int32_t d = 2; d <= 1024; d *= 2) {
        rope_desc desc = least(ROPE_TYPE_DEFAULT);
        desc.head_dim = d;
        desc.rope_theta = 500000;
        double inv_freq[MAX_PAIRS];
        CHECK_STATUS(ROPE_OK, rope_frequencies(&desc, 0, inv_freq, MAX_PAIRS, NULL));
        for (int32_t i = 0; i < d / 2; i++) {
            double want = (double)powl(500000.0L, -2.0L * i / d);
            CHECK(fabs(inv_freq[i] - want) <= 4e-15 * want, "d %d, pair %d: %.17g, not %.17g", d, i,
                  inv_freq[i], want);
        }
    }
}

TEST(frequency, restarts_in_each_section) {
    rope_desc desc = least(ROPE_TYPE_LINEAR);
    desc.axes = 2;
    desc.axis_layout = ROPE_AXES_CHUNKED;
    desc.axis_frequency = ROPE_AXIS_FREQUENCY_RESTART;
    desc.sections[0] = 5;
    desc.sections[1] = 3;
    double inv_freq[8];
    CHECK_STATUS(ROPE_OK, rope_frequencies(&desc, 0, inv_freq, 8, NULL));
    for (int i = 0; i < 8; i++) {
        double want = pow(10000, i < 5 ? -i / 5.0 : -(i - 5) / 3.0) / 4;
        CHECK(fabs(inv_freq[i] - want) <= 1e-14 * want, "pair %d: %g, not %g", i, inv_freq[i],
              want);
    }
}

TEST(frequency, llama3_with_equal_factors_is_a_threshold) {
    rope_desc desc = least(ROPE_TYPE_LLAMA3);
    desc.high_freq_factor = desc.low_freq_factor;
    double inv_freq[8];
    CHECK_STATUS(ROPE_OK, rope_frequencies(&desc, 0, inv_freq, 8, NULL));
    for (int i = 0; i < 8; i++) {
        double plain = pow(10000, -i / 8.0);
        double want = plain * 4096 / 6.283185307179586 < 1 ? plain / 4 : plain;
        CHECK(fabs(inv_freq[i] - want) <= 1e-14 * want, "pair %d: %g, not %g", i, inv_freq[i],
              want);
    }
}

/* Device memory with a copy of the host's, the caller's to free. */
static void *to_device(const void *source, size_t bytes) {
    void *target;
    CHECK_STATUS(ROPE_OK, rope_device_alloc(device_open(), bytes, &target));
    CHECK_STATUS(ROPE_OK, rope_device_copy_in(device_open(), target, source, bytes));
    return target;
}

/* Applies a plan to one head of `tokens` tokens; input, positions and tables are host memory. */
static void rotate(const rope_desc *desc, const rope_args *call, const void *input, void *output,
                   size_t bytes, size_t table_bytes) {
    rope_plan *plan;
    rope_args args = *call;
    rope_desc where = *desc;
    device_choose(&where);
    CHECK_STATUS(ROPE_OK, rope_plan_create(&where, &plan));
    args.q.heads = 1;
    args.q.in = args.q.out = to_device(input, bytes);
    args.position_ids =
        to_device(call->position_ids,
                  (size_t)args.tokens * (size_t)(desc->axes ? desc->axes : 1) * sizeof(int64_t));
    args.cos = table_bytes ? to_device(call->cos, table_bytes) : NULL;
    args.sin = table_bytes ? to_device(call->sin, table_bytes) : NULL;
    CHECK_STATUS(ROPE_OK, rope_apply(plan, &args));
    CHECK_STATUS(ROPE_OK, rope_device_synchronize(device_open()));
    CHECK_STATUS(ROPE_OK, rope_device_copy_out(device_open(), output, args.q.out, bytes));
    void *const used[] = {args.q.out, (void *)args.position_ids, (void *)args.cos,
                          (void *)args.sin};
    for (int i = 0; i < 4; i++)
        CHECK_STATUS(ROPE_OK, rope_device_free(device_open(), used[i]));
    rope_plan_destroy(plan);
}

/* Pairs (1, 0) become (cos, sin). */
static void check_cos_sin(const golden_frequency *golden, const int64_t *positions, int32_t count,
                          const float *cosine, const float *sine) {
    double inv_freq[MAX_PAIRS], factor = golden->attention_factor;
    float pairs[2 * MAX_ENTRIES];
    const int32_t n = golden->pairs;
    for (int32_t i = 0; i < n; i++)
        inv_freq[i] = golden->inv_freq[i];
    for (int32_t i = 0; i < 2 * n * count; i++)
        pairs[i] = (float)(i % 2 == 0);
    rope_desc desc = {.struct_size = sizeof desc, .dtype = ROPE_F32, .head_dim = 2 * n};
    desc.pairing_in = ROPE_PAIRING_INTERLEAVED;
    desc.angle_mode = ROPE_ANGLE_F32;
    desc.rope_type = ROPE_TYPE_INV_FREQ;
    desc.inv_freq = inv_freq;
    desc.factor_count = n;
    desc.attention_factor = factor;
    rope_args args = {.struct_size = sizeof args, .batch = 1, .tokens = count};
    args.position_ids = positions;
    rotate(&desc, &args, pairs, pairs, sizeof(float) * (size_t)(2 * n * count), 0);
    for (int32_t i = 0; i < n * count; i++)
        CHECK(fabs(pairs[2 * i] - (double)cosine[i]) <= 1.2e-7 * factor &&
                  fabs(pairs[2 * i + 1] - (double)sine[i]) <= 1.2e-7 * factor,
              "%s: position %lld, pair %d: (%.9g, %.9g), not (%.9g, %.9g)", golden->name,
              (long long)positions[i / n], i % n, (double)pairs[2 * i], (double)pairs[2 * i + 1],
              (double)cosine[i], (double)sine[i]);
}

TEST(frequency, f32_angles_of_transformers) {
    const golden_row *row;
    for (int g = 0; (row = golden_find("cos_sin", g)); g++) {
        golden_frequency golden;
        int64_t positions[MAX_ROWS];
        float cosine[MAX_ENTRIES], sine[MAX_ENTRIES];
        golden_frequency_of((*row)[1], &golden);
        int32_t count = golden_numbers((*row)[2], positions, MAX_ROWS);
        int32_t entries = golden_bits((*row)[3], 4, cosine, MAX_ENTRIES);
        CHECK(entries == count * golden.pairs &&
                  entries == golden_bits((*row)[4], 4, sine, MAX_ENTRIES),
              "%s: %d cosines of %d positions", golden.name, entries, count);
        check_cos_sin(&golden, positions, count, cosine, sine);
    }
}

/* An axis alone turns the pairs that are its own. */
TEST(frequency, axes_of_transformers) {
    const golden_row *row;
    for (int g = 0; (row = golden_find("axes", g)); g++) {
        const char *axis_of = (*row)[4];
        int64_t layout, sections[3];
        const int32_t pairs = (int32_t)strlen(axis_of);
        golden_numbers((*row)[2], &layout, 1);
        golden_numbers((*row)[3], sections, 3);
        rope_desc desc = {.struct_size = sizeof desc, .dtype = ROPE_F32, .head_dim = 2 * pairs};
        desc.pairing_in = ROPE_PAIRING_INTERLEAVED;
        desc.axes = 3;
        desc.axis_layout = (int32_t)layout;
        for (int a = 0; a < 3; a++)
            desc.sections[a] = (int32_t)sections[a];
        for (int turned = 0; turned < 3; turned++) {
            float x[2 * MAX_PAIRS] = {0};
            int64_t ids[3] = {0};
            ids[turned] = 3;
            for (int32_t i = 0; i < pairs; i++)
                x[2 * i] = 1;
            rope_args args = {.struct_size = sizeof args, .batch = 1, .tokens = 1};
            args.position_ids = ids;
            rotate(&desc, &args, x, x, sizeof(float) * (size_t)(2 * pairs), 0);
            for (int32_t i = 0; i < pairs; i++)
                CHECK((x[2 * i + 1] != 0) == (axis_of[i] - '0' == turned),
                      "%s: axis %d and pair %d of axis %c", (*row)[1], turned, i, axis_of[i]);
        }
    }
}

TEST(frequency, eager_rotation_of_transformers) {
    static const int64_t rows[] = {0, 1, 2, 3};
    const golden_row *row;
    for (int g = 0; (row = golden_find("rotation", g)); g++) {
        int64_t kind[3]; /* dtype, pairing in, pairing out */
        uint32_t input[1024], want[1024], cosine[512], sine[512];
        golden_numbers((*row)[2], kind, 3);
        const int32_t element = kind[0] == ROPE_F32 ? 4 : 2;
        const int32_t count = golden_bits((*row)[3], element, input, 1024);
        CHECK(count == golden_bits((*row)[6], element, want, 1024) &&
                  count == 2 * golden_bits((*row)[4], element, cosine, 512) &&
                  count == 2 * golden_bits((*row)[5], element, sine, 512),
              "%s: %d elements", (*row)[1], count);
        rope_desc desc = {.struct_size = sizeof desc, .dtype = (int32_t)kind[0]};
        desc.head_dim = count / 4;
        desc.pairing_in = (int32_t)kind[1];
        desc.pairing_out = (int32_t)kind[2];
        desc.angle_mode = ROPE_ANGLE_TABLE;
        desc.arithmetic = ROPE_ARITHMETIC_MODEL_DTYPE;
        desc.table_dtype = desc.dtype;
        rope_args args = {.struct_size = sizeof args, .batch = 1, .tokens = 4};
        args.position_ids = rows;
        args.cos = cosine;
        args.sin = sine;
        args.table_rows = args.tokens;
        const size_t bytes = (size_t)(count * element);
        rotate(&desc, &args, input, input, bytes, bytes / 2);
        CHECK(memcmp(input, want, bytes) == 0, "%s in dtype %d differs from eager PyTorch",
              (*row)[1], desc.dtype);
    }
}
