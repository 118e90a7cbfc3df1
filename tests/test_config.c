/* The builder of descriptors from Hugging Face configurations. */
#include "tests/goldens.h"
#include "tests/harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PAIRS = 512 };

static rope_config *new_config(void) {
    rope_config *config;
    CHECK_STATUS(ROPE_OK, rope_config_create(&config));
    return config;
}

static void set_field(rope_config *config, const golden_field *field) {
    rope_status status =
        field->text ? rope_config_set_string(config, field->scope, field->name, field->text)
        : field->list
            ? rope_config_set_list(config, field->scope, field->name, field->list, field->count)
            : rope_config_set_number(config, field->scope, field->name, field->number);
    CHECK_STATUS(ROPE_OK, status);
}

static rope_config *config_of(const golden_field *fields, int32_t count) {
    rope_config *config = new_config();
    for (int32_t i = 0; i < count; i++)
        set_field(config, &fields[i]);
    return config;
}

static const golden_frequency *model(const char *name) {
    for (size_t g = 0; g < sizeof golden_models / sizeof golden_models[0]; g++)
        if (strcmp(golden_models[g].name, name) == 0)
            return &golden_models[g];
    CHECK(0, "no golden of %s", name);
    return NULL;
}

static int ignores(const rope_config *config, const char *name) {
    const char *field;
    for (int32_t i = 0; (field = rope_config_ignored(config, i)); i++)
        if (strcmp(field, name) == 0)
            return 1;
    return 0;
}

static void matches(const golden_frequency *golden) {
    rope_config *config = config_of(golden->fields, golden->field_count);
    rope_desc desc = {.struct_size = sizeof desc};
    CHECK_STATUS(ROPE_OK, rope_config_finish(config, &desc, NULL));
    if (golden->sequence_length)
        desc.sequence_length = golden->sequence_length;
    double inv_freq[MAX_PAIRS], factor;
    CHECK(desc.rotary_dim == 2 * golden->count ||
              (desc.rotary_dim == 0 && desc.head_dim == 2 * golden->count),
          "%s: rotary_dim is %d, not %d", golden->name, desc.rotary_dim, 2 * golden->count);
    CHECK_STATUS(ROPE_OK, rope_frequencies(&desc, golden->long_set, inv_freq, MAX_PAIRS, &factor));
    CHECK(fabs(factor - golden->attention_factor) <= 1e-6 * factor,
          "%s: attention factor %.9g, not %.9g", golden->name, factor, golden->attention_factor);
    double blend = desc.factor > 1 ? 6e-8 * desc.factor : 0;
    for (int32_t i = 0; i < golden->count; i++)
        CHECK(fabs(inv_freq[i] - golden->inv_freq[i]) <= (1e-6 + blend) * inv_freq[i],
              "%s: pair %d: %.9g, not %.9g", golden->name, i, inv_freq[i],
              (double)golden->inv_freq[i]);
    rope_config_destroy(config);
}

TEST(config, frequencies_of_transformers) {
    for (size_t g = 0; g < sizeof golden_rules / sizeof golden_rules[0]; g++)
        matches(&golden_rules[g]);
    for (size_t g = 0; g < sizeof golden_models / sizeof golden_models[0]; g++)
        matches(&golden_models[g]);
}

TEST(config, shapes_of_models) {
    static const struct shape {
        const char *name;
        int32_t dtype, head_dim, rotary_dim, offset, k_head_dim, in, out;
        int64_t heads, kv_heads, longest;
    } shapes[] = {
        {"deepseek-v3", ROPE_BF16, 192, 64, 128, 64, 2, 1, 128, 1, 163840},
        {"gemma-3-4b", ROPE_BF16, 256, 0, 0, 0, 0, 0, 8, 4, 131072},
        {"gpt-j-6b", ROPE_F32, 256, 64, 0, 0, 2, 2, 16, 16, 2048},
        {"gpt-neox-20b", ROPE_F16, 96, 24, 0, 0, 0, 0, 64, 64, 2048},
        {"gpt-oss-20b", ROPE_F32, 64, 0, 0, 0, 0, 0, 64, 8, 131072},
        {"llama-3.1-8b", ROPE_BF16, 128, 0, 0, 0, 0, 0, 32, 8, 131072},
        {"phi-3.5-mini", ROPE_BF16, 96, 0, 0, 0, 0, 0, 32, 32, 131072},
        {"qwen2-vl-7b", ROPE_BF16, 128, 0, 0, 0, 0, 0, 28, 4, 32768},
        {"qwen3-8b", ROPE_BF16, 128, 0, 0, 0, 0, 0, 32, 8, 40960},
        {"qwen3-vl-8b", ROPE_BF16, 128, 0, 0, 0, 0, 0, 32, 8, 262144},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        const struct shape *s = &shapes[i];
        rope_config *config = config_of(model(s->name)->fields, model(s->name)->field_count);
        rope_desc d = {.struct_size = sizeof d};
        rope_model m = {.struct_size = sizeof m};
        CHECK_STATUS(ROPE_OK, rope_config_finish(config, &d, &m));
        CHECK(d.struct_size == sizeof d && d.dtype == s->dtype && d.head_dim == s->head_dim &&
                  d.rotary_dim == s->rotary_dim && d.rotary_offset == s->offset &&
                  d.k_head_dim == s->k_head_dim && d.pairing_in == s->in && d.pairing_out == s->out,
              "%s: dtype %d, head_dim %d, rotary_dim %d at %d, k_head_dim %d, pairing %d to %d",
              s->name, d.dtype, d.head_dim, d.rotary_dim, d.rotary_offset, d.k_head_dim,
              d.pairing_in, d.pairing_out);
        CHECK(m.num_attention_heads == s->heads && m.num_key_value_heads == s->kv_heads &&
                  m.max_position_embeddings == s->longest,
              "%s: %lld heads, %lld for keys, %lld positions", s->name,
              (long long)m.num_attention_heads, (long long)m.num_key_value_heads,
              (long long)m.max_position_embeddings);
        rope_config_destroy(config);
    }
}

TEST(config, axes_of_transformers) {
    for (size_t g = 0; g < sizeof golden_axis_maps / sizeof golden_axis_maps[0]; g++) {
        const golden_axes *golden = &golden_axis_maps[g];
        rope_config *config = new_config();
        CHECK_STATUS(ROPE_OK, rope_config_set_string(config, "", "model_type", golden->model_type));
        CHECK_STATUS(ROPE_OK, rope_config_set_number(config, "", "head_dim", 2 * golden->pairs));
        rope_desc desc = {.struct_size = sizeof desc};
        CHECK_STATUS(ROPE_OK, rope_config_finish(config, &desc, NULL));
        CHECK(desc.axes == 3 && desc.axis_layout == golden->layout &&
                  memcmp(desc.sections, golden->sections, sizeof golden->sections) == 0,
              "%s: %d axes, layout %d, sections %d %d %d", golden->model_type, desc.axes,
              desc.axis_layout, desc.sections[0], desc.sections[1], desc.sections[2]);
        rope_config_destroy(config);
    }
}

TEST(config, ignored_fields) {
    static const golden_field fields[] = {
        {"", "head_dim", 64, 0, 0, 0},
        {"", "vocab_size", 1, 0, 0, 0},
        {"", "compress_rope_theta", 10000, 0, 0, 0},
        {"", "no_rope_layer_interval", 4, 0, 0, 0},
        {"", "rotary_value", 0, 0, 0, 0},
        {"", "rope_theta", 10000, 0, 0, 0},
        {"rope", "rope_theta", 500000, 0, 0, 0},
        {"rope", "rope_type", 0, "linear", 0, 0},
        {"rope", "factor", 2, 0, 0, 0},
        {"rope", "mscale", 1, 0, 0, 0},
        {"rope", "attention_factor", 2, 0, 0, 0},
        {"rope", "no_such_field", 3, 0, 0, 0},
    };
    rope_config *config = config_of(fields, sizeof fields / sizeof fields[0]);
    rope_desc desc = {.struct_size = sizeof desc};
    CHECK(!rope_config_ignored(config, 0), "ignored before rope_config_finish");
    CHECK_STATUS(ROPE_OK, rope_config_finish(config, &desc, NULL));
    CHECK(desc.rope_theta == 500000 && desc.attention_factor == 0 && desc.mscale == 0,
          "theta %g, attention_factor %g", desc.rope_theta, desc.attention_factor);
    static const char *const names[] = {"compress_rope_theta", "rope_theta", "mscale",
                                        "attention_factor", "no_such_field"};
    for (int i = 0; i < 5; i++)
        CHECK(ignores(config, names[i]), "%s is not reported", names[i]);
    CHECK(!rope_config_ignored(config, 5), "%s is reported", rope_config_ignored(config, 5));
    CHECK(!rope_config_ignored(config, -1), "an ignored field at -1");
    CHECK_STATUS(ROPE_ERROR_INVALID_VALUE, rope_config_check(config));
    CHECK(strstr(rope_last_error(), "reads compress_rope_theta, rope_theta, which"), "%s",
          rope_last_error());
    rope_config_destroy(config);
}

/* Bases of their own for full and sliding layers, and scaling of full layers alone. */
TEST(config, layers_that_differ) {
    static const golden_field gemma[] = {{"", "head_dim", 64, 0, 0, 0},
                                         {"", "rope_theta", 1000000, 0, 0, 0},
                                         {"", "rope_local_base_freq", 10000, 0, 0, 0},
                                         {"rope", "rope_type", 0, "linear", 0, 0},
                                         {"rope", "factor", 8, 0, 0, 0}},
                              bert[] = {{"", "head_dim", 64, 0, 0, 0},
                                        {"", "global_rope_theta", 160000, 0, 0, 0},
                                        {"", "local_rope_theta", 20000, 0, 0, 0}},
                              olmo[] = {{"", "head_dim", 64, 0, 0, 0},
                                        {"", "model_type", 0, "olmo3", 0, 0},
                                        {"", "rope_theta", 500000, 0, 0, 0},
                                        {"rope", "rope_type", 0, "linear", 0, 0},
                                        {"rope", "factor", 8, 0, 0, 0}};
    static const struct {
        const golden_field *fields;
        int32_t count;
        double theta[2], factor; /* of full and sliding layers; of full ones */
    } models[] = {{gemma, 5, {1000000, 10000}, 8},
                  {bert, 3, {160000, 20000}, 0},
                  {olmo, 5, {500000, 500000}, 8}};
    static const char *const layers[] = {NULL, "full_attention", "sliding_attention"};
    for (int i = 0; i < 9; i++) {
        const int m = i / 3, sliding = i % 3 == 2;
        rope_config *config = config_of(models[m].fields, models[m].count);
        rope_desc desc = {.struct_size = sizeof desc};
        if (layers[i % 3])
            CHECK_STATUS(ROPE_OK, rope_config_set_string(config, "", "layer_type", layers[i % 3]));
        CHECK_STATUS(ROPE_OK, rope_config_finish(config, &desc, NULL));
        CHECK_STATUS(ROPE_OK, rope_config_check(config));
        CHECK(desc.rope_theta == models[m].theta[sliding] &&
                  desc.factor == (sliding ? 0 : models[m].factor),
              "model %d, layer %d: theta %g, factor %g", m, i % 3, desc.rope_theta, desc.factor);
        CHECK_STATUS(ROPE_OK, rope_config_set_string(config, "", "layer_type", "other"));
        CHECK_STATUS(ROPE_ERROR_INVALID_VALUE, rope_config_finish(config, &desc, NULL));
        rope_config_destroy(config);
    }
}

TEST(config, a_model_that_is_not_known) {
    static const char *const known[] = {"llama", "gptj", "qwen3_vl_text", "deepseek_v3", ""};
    for (int i = 0; i < 6; i++) {
        rope_config *config = NULL;
        rope_desc desc = {.struct_size = sizeof desc};
        CHECK_STATUS(ROPE_OK, rope_config_create(&config));
        CHECK_STATUS(ROPE_OK, rope_config_set_number(config, "", "head_dim", 128));
        CHECK_STATUS(ROPE_OK, rope_config_set_string(config, "", "model_type",
                                                     i < 5 ? known[i] : "no_such_model"));
        CHECK_STATUS(ROPE_OK, rope_config_finish(config, &desc, NULL));
        const char *note = rope_config_note(config);
        CHECK(i < 5 ? !note : note && strstr(note, "no_such_model"), "%d: %s", i,
              note ? note : "no note");
        rope_config_destroy(config);
    }
}

/* Names of fields in configurations that came with a model's own code. */
TEST(config, names_of_other_libraries) {
    static const golden_field fields[] = {
        {"", "rope_pct", 0.25, 0, 0, 0},
        {"", "rotary_emb_fraction", 0.5, 0, 0, 0},
        {"", "rotary_embedding_base", 500, 0, 0, 0},
        {"", "rotary_emb_interleaved", 1, 0, 0, 0},
    };
    for (int i = 0; i < 4; i++) {
        rope_config *config = config_of(&fields[i], 1);
        rope_desc desc = {.struct_size = sizeof desc};
        CHECK_STATUS(ROPE_OK, rope_config_set_number(config, "", "head_dim", 64));
        CHECK_STATUS(ROPE_OK, rope_config_finish(config, &desc, NULL));
        CHECK_STATUS(ROPE_OK, rope_config_check(config));
        const int interleaved = desc.pairing_in == ROPE_PAIRING_INTERLEAVED &&
                                desc.pairing_out == ROPE_PAIRING_INTERLEAVED;
        CHECK(desc.rotary_dim == (i < 2 ? 16 << i : 0) && desc.rope_theta == (i == 2 ? 500 : 0) &&
                  interleaved == (i == 3),
              "%s: rotary_dim %d, theta %g, pairing %d", fields[i].name, desc.rotary_dim,
              desc.rope_theta, desc.pairing_in);
        rope_config_destroy(config);
    }
}

/* ModernBERT states a position_embedding_type that it does not read. */
TEST(config, models_that_do_not_rotate) {
    static const struct {
        const char *model_type, *kind;
        rope_status status;
    } cases[] = {{"esm", "absolute", ROPE_ERROR_INVALID_VALUE},
                 {"esm", "rotary", ROPE_OK},
                 {"granitemoehybrid", "nope", ROPE_ERROR_INVALID_VALUE},
                 {"granitemoehybrid", "rope", ROPE_OK},
                 {"modernbert", "absolute", ROPE_OK},
                 {"no_such_model", "alibi", ROPE_ERROR_INVALID_VALUE}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        rope_config *config = new_config();
        rope_desc desc = {.struct_size = sizeof desc};
        CHECK_STATUS(ROPE_OK, rope_config_set_number(config, "", "head_dim", 64));
        CHECK_STATUS(ROPE_OK,
                     rope_config_set_string(config, "", "model_type", cases[i].model_type));
        CHECK_STATUS(ROPE_OK,
                     rope_config_set_string(config, "", "position_embedding_type", cases[i].kind));
        CHECK_STATUS(cases[i].status, rope_config_finish(config, &desc, NULL));
        rope_config_destroy(config);
    }
}

TEST(config, models_ignore_little) {
    static const char *const silent[] = {"llama-3.1-8b", "qwen3-8b",    "deepseek-v3",
                                         "phi-3.5-mini", "gpt-oss-20b", "gpt-neox-20b",
                                         "gpt-j-6b",     "qwen2-vl-7b", "qwen3-vl-8b"};
    for (size_t i = 0; i < sizeof silent / sizeof silent[0]; i++) {
        const golden_frequency *golden = model(silent[i]);
        rope_config *config = config_of(golden->fields, golden->field_count);
        rope_desc desc = {.struct_size = sizeof desc};
        CHECK_STATUS(ROPE_OK, rope_config_finish(config, &desc, NULL));
        CHECK(!rope_config_ignored(config, 0), "%s: %s is ignored", silent[i],
              rope_config_ignored(config, 0));
        rope_config_destroy(config);
    }
}

/* Fields that one change makes wrong: the text must name `named`. */
static const struct refusal {
    golden_field field;
    const char *named;
} refusals[] = {
    {{"", "head_dim", 0, 0, 0, 0}, "head_dim"},
    {{"", "head_dim", 63.5, 0, 0, 0}, "head_dim"},
    {{"", "head_dim", 1e30, 0, 0, 0}, "head_dim"},
    {{"", "head_dim", NAN, 0, 0, 0}, "head_dim"},
    {{"", "head_dim", 0, "64", 0, 0}, "head_dim"},
    {{"", "rope_theta", 0, 0, 0, 0}, "rope_theta"},
    {{"", "rope_theta", -5, 0, 0, 0}, "rope_theta"},
    {{"", "rope_theta", INFINITY, 0, 0, 0}, "rope_theta"},
    {{"", "partial_rotary_factor", 0, 0, 0, 0}, "partial_rotary_factor"},
    {{"", "partial_rotary_factor", 1.5, 0, 0, 0}, "partial_rotary_factor"},
    {{"", "partial_rotary_factor", 0.001, 0, 0, 0}, "partial_rotary_factor"},
    {{"", "rope_interleave", 2, 0, 0, 0}, "rope_interleave"},
    {{"", "rotary", 0, 0, 0, 0}, "rotary is false; allowed is true"},
    {{"", "use_rope", 0, 0, 0, 0}, "use_rope is false; allowed is true"},
    {{"", "alibi", 1, 0, 0, 0}, "alibi is true; allowed is false"},
    {{"", "alibi", 0, "yes", 0, 0}, "alibi is the string \"yes\"; allowed is true or false"},
    {{"", "position_embeddings_type", 0, "relative_key", 0, 0}, "allowed is rotary or rope"},
    {{"", "torch_dtype", 0, "float8_e4m3fn", 0, 0}, "torch_dtype"},
    {{"", "max_position_embeddings", -1, 0, 0, 0}, "max_position_embeddings"},
    {{"", "max_position_embeddings", 1e300, 0, 0, 0}, "max_position_embeddings"},
    {{"rope", "factor", 0, 0, 0, 0}, "factor"},
    {{"rope", "factor", NAN, 0, 0, 0}, "factor"},
    {{"rope", "attention_factor", 0, 0, 0, 0}, "attention_factor"},
    {{"rope", "beta_fast", -1, 0, 0, 0}, "beta_fast"},
    {{"rope", "rope_type", 0, "ntk-by-magic", 0, 0}, "yarn"},
    {{"rope", "rope_type", 3, 0, 0, 0}, "rope_type"},
    {{"rope", "original_max_position_embeddings", 0, 0, 0, 0}, "original_max_position_embeddings"},
    {{"rope", "truncate", 0.5, 0, 0, 0}, "truncate"},
};

TEST(config, refuses) {
    static const golden_field yarn[] = {
        {"", "head_dim", 64, 0, 0, 0},
        {"rope", "rope_type", 0, "yarn", 0, 0},
        {"rope", "factor", 4, 0, 0, 0},
        {"rope", "original_max_position_embeddings", 4096, 0, 0, 0},
    };
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        rope_config *config = config_of(yarn, 4);
        rope_desc desc = {.struct_size = sizeof desc, .dtype = 77};
        set_field(config, &refusals[i].field);
        rope_status status = rope_config_finish(config, &desc, NULL);
        CHECK(status == ROPE_ERROR_INVALID_VALUE, "%s: %s", refusals[i].field.name,
              rope_status_string(status));
        CHECK(strstr(rope_last_error(), refusals[i].named), "\"%s\" does not name %s",
              rope_last_error(), refusals[i].named);
        CHECK(desc.struct_size == sizeof desc && desc.dtype == 77 && desc.head_dim == 0,
              "%s: the descriptor is written", refusals[i].field.name);
        rope_config_destroy(config);
    }
}

/* A program that knows only the first fields gets only those; one that sets no size gets none. */
TEST(config, a_descriptor_is_filled_no_further_than_it_reaches) {
    rope_config *config = new_config();
    rope_desc desc = {.struct_size = offsetof(rope_desc, rope_type), .rope_type = 77};
    CHECK_STATUS(ROPE_OK, rope_config_set_number(config, "", "head_dim", 64));
    CHECK_STATUS(ROPE_OK, rope_config_finish(config, &desc, NULL));
    CHECK(desc.head_dim == 64 && desc.rope_type == 77, "head_dim %d, rope_type %d", desc.head_dim,
          desc.rope_type);
    CHECK(desc.struct_size == offsetof(rope_desc, rope_type), "struct_size was written");
    rope_model model = {0};
    CHECK_STATUS(ROPE_ERROR_ABI, rope_config_finish(config, &desc, &model));
    desc.struct_size = 0;
    CHECK_STATUS(ROPE_ERROR_ABI, rope_config_finish(config, &desc, NULL));
    rope_config_destroy(config);
}

TEST(config, missing_fields) {
    rope_config *config = new_config();
    rope_desc desc = {.struct_size = sizeof desc};
    CHECK_STATUS(ROPE_ERROR_INVALID_VALUE, rope_config_finish(config, &desc, NULL));
    CHECK(strstr(rope_last_error(), "head_dim"), "%s", rope_last_error());
    CHECK_STATUS(ROPE_OK, rope_config_set_number(config, "", "hidden_size", 4096));
    CHECK_STATUS(ROPE_OK, rope_config_set_number(config, "", "num_attention_heads", 32));
    CHECK_STATUS(ROPE_OK, rope_config_finish(config, &desc, NULL));
    CHECK(desc.head_dim == 128 && desc.dtype == ROPE_F32, "head_dim %d, dtype %d", desc.head_dim,
          desc.dtype);
    CHECK_STATUS(ROPE_OK, rope_config_set_string(config, "rope", "rope_type", "linear"));
    CHECK_STATUS(ROPE_ERROR_INVALID_VALUE, rope_config_finish(config, &desc, NULL));
    CHECK(strstr(rope_last_error(), "factor"), "%s", rope_last_error());
    CHECK_STATUS(ROPE_OK, rope_config_set_string(config, "rope", "rope_type", "longrope"));
    CHECK_STATUS(ROPE_OK, rope_config_set_number(config, "", "max_position_embeddings", 64));
    CHECK_STATUS(ROPE_OK, rope_config_set_list(config, "rope", "long_factor", &desc.rope_theta, 1));
    CHECK_STATUS(ROPE_ERROR_INVALID_VALUE, rope_config_finish(config, &desc, NULL));
    CHECK(strstr(rope_last_error(), "short_factor"), "%s", rope_last_error());
    rope_config_destroy(config);
}

TEST(config, last_value_wins_and_old_lists_live_on) {
    static const double first[] = {16, 24, 24}, second[] = {24, 20, 20};
    double factors[4] = {2, 2, 2, 2};
    rope_config *config = new_config();
    CHECK_STATUS(ROPE_OK, rope_config_set_number(config, "", "head_dim", 64));
    CHECK_STATUS(ROPE_OK, rope_config_set_number(config, "", "head_dim", 128));
    CHECK_STATUS(ROPE_OK, rope_config_set_list(config, "rope", "mrope_section", first, 3));
    CHECK_STATUS(ROPE_OK, rope_config_set_list(config, "rope", "mrope_section", second, 3));
    CHECK_STATUS(ROPE_OK, rope_config_set_number(config, "rope", "mrope_interleaved", 1));
    rope_desc desc = {.struct_size = sizeof desc};
    CHECK_STATUS(ROPE_OK, rope_config_finish(config, &desc, NULL));
    CHECK(desc.head_dim == 128 && desc.sections[0] == 24 &&
              desc.axis_layout == ROPE_AXES_INTERLEAVED && !rope_config_ignored(config, 0),
          "head_dim %d, section %d, layout %d", desc.head_dim, desc.sections[0], desc.axis_layout);
    rope_config_destroy(config);

    config = new_config();
    CHECK_STATUS(ROPE_OK, rope_config_set_number(config, "", "head_dim", 8));
    CHECK_STATUS(ROPE_OK, rope_config_set_string(config, "rope", "type", "su"));
    CHECK_STATUS(ROPE_OK, rope_config_set_number(config, "", "max_position_embeddings", 64));
    CHECK_STATUS(ROPE_OK, rope_config_set_list(config, "rope", "short_factor", factors, 4));
    CHECK_STATUS(ROPE_OK, rope_config_set_list(config, "rope", "long_factor", factors, 4));
    CHECK_STATUS(ROPE_OK, rope_config_finish(config, &desc, NULL));
    factors[0] = 5;
    CHECK_STATUS(ROPE_OK, rope_config_set_list(config, "rope", "short_factor", factors, 4));
    CHECK(desc.short_factor[0] == 2, "short_factor[0] is %g", desc.short_factor[0]);
    rope_config_destroy(config);
}

TEST(config, pairings) {
    static const struct pairing {
        const char *model_type;
        int32_t interleave, in, out;
    } pairings[] = {
        {"llama", -1, 0, 0},         {"mistral", -1, 0, 0},     {"cohere", -1, 2, 2},
        {"glm4", -1, 2, 2},          {"deepseek_v2", -1, 2, 2}, {"deepseek_v3", -1, 2, 1},
        {"deepseek_v3", 1, 2, 1},    {"deepseek_v3", 0, 1, 1},  {"llama4_text", -1, 2, 2},
        {"ernie4_5", -1, 2, 2},      {"codegen", -1, 2, 2},     {"helium", -1, 2, 2},
        {"longcat_flash", -1, 2, 1},
    };
    for (size_t i = 0; i < sizeof pairings / sizeof pairings[0]; i++) {
        const struct pairing *p = &pairings[i];
        rope_config *config = new_config();
        CHECK_STATUS(ROPE_OK, rope_config_set_string(config, "", "model_type", p->model_type));
        CHECK_STATUS(ROPE_OK, rope_config_set_number(config, "", "head_dim", 128));
        if (p->interleave >= 0)
            CHECK_STATUS(ROPE_OK,
                         rope_config_set_number(config, "", "rope_interleave", p->interleave));
        rope_desc desc = {.struct_size = sizeof desc};
        CHECK_STATUS(ROPE_OK, rope_config_finish(config, &desc, NULL));
        CHECK(desc.pairing_in == p->in && desc.pairing_out == p->out, "%s: pairing %d to %d",
              p->model_type, desc.pairing_in, desc.pairing_out);
        rope_config_destroy(config);
    }
}

TEST(config, hostile_input) {
    rope_config *config = new_config();
    static double list[ROPE_MAX_ROTARY_DIM + 1];
    char *name = malloc(1 << 20);
    CHECK(name, "no memory");
    memset(name, 'x', (1 << 20) - 1);
    name[(1 << 20) - 1] = '\0';
    CHECK_STATUS(ROPE_OK, rope_config_set_number(config, "", name, 1));
    CHECK_STATUS(ROPE_ERROR_INVALID_VALUE, rope_config_set_number(config, "rope", name, 1));
    CHECK_STATUS(ROPE_ERROR_INVALID_VALUE, rope_config_set_string(config, "", "model_type", name));
    CHECK_STATUS(ROPE_ERROR_INVALID_VALUE, rope_config_set_number(config, name, "factor", 1));
    CHECK_STATUS(ROPE_ERROR_INVALID_VALUE, rope_config_set_list(config, "rope", "short_factor",
                                                                list, ROPE_MAX_ROTARY_DIM + 1));
    CHECK_STATUS(ROPE_ERROR_INVALID_VALUE,
                 rope_config_set_list(config, "rope", "short_factor", list, -1));
    CHECK_STATUS(ROPE_OK, rope_config_set_list(config, "rope", "mrope_section", NULL, 0));
    CHECK_STATUS(ROPE_ERROR_NULL_POINTER,
                 rope_config_set_list(config, "rope", "short_factor", NULL, 4));
    CHECK_STATUS(ROPE_ERROR_NULL_POINTER, rope_config_set_string(config, "rope", "type", NULL));
    CHECK_STATUS(ROPE_ERROR_NULL_POINTER, rope_config_set_number(config, "rope", NULL, 1));
    CHECK_STATUS(ROPE_ERROR_NULL_POINTER, rope_config_set_number(config, NULL, "factor", 1));
    CHECK_STATUS(ROPE_ERROR_NULL_POINTER, rope_config_set_number(NULL, "rope", "factor", 1));
    rope_desc desc = {.struct_size = sizeof desc};
    CHECK_STATUS(ROPE_OK, rope_config_set_number(config, "", "head_dim", 64));
    CHECK_STATUS(ROPE_ERROR_INVALID_VALUE, rope_config_finish(config, &desc, NULL));
    CHECK(strstr(rope_last_error(), "mrope_section"), "%s", rope_last_error());
    CHECK_STATUS(ROPE_ERROR_NULL_POINTER, rope_config_finish(config, NULL, NULL));
    CHECK_STATUS(ROPE_ERROR_NULL_POINTER, rope_config_create(NULL));
    rope_status status = ROPE_OK;
    for (int i = 0; i < 100000 && status == ROPE_OK; i++)
        status = rope_config_set_number(config, "rope", "factor", i);
    CHECK_STATUS(ROPE_ERROR_INVALID_VALUE, status);
    rope_config_destroy(config);
    rope_config_destroy(NULL);
    free(name);
}
