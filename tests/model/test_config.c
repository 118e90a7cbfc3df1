/* What descriptors come of Hugging Face configurations. */
#define _GNU_SOURCE
#include "tests/model/goldens.h"
#include "tests/support/harness.h"

#include <ropekit/append.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A JSON in which ' stands for ". */
static char *quoted(const char *json) {
    char *text = strdup(json);
    for (char *at = text; at && *at; at++)
        if (*at == '\'')
            *at = '"';
    CHECK(text, "no memory");
    return text;
}

static rope_status parse(rope_config **config, const char *json, const char *layer_type) {
    char *text = quoted(json);
    rope_status status = rope_config_parse(config, text, strlen(text), layer_type);
    free(text);
    return status;
}

static rope_config *config_of(const char *json) {
    rope_config *config = NULL;
    CHECK_STATUS(ROPE_OK, parse(&config, json, NULL));
    return config;
}

/* The configuration of a model_type, with more fields behind it. */
static rope_config *config_of_type(const char *model_type, const char *more) {
    char json[200];
    snprintf(json, sizeof json, "{'model_type': '%s', 'head_dim': 128%s}", model_type, more);
    return config_of(json);
}

static int ignores(const rope_config *config, const char *name) {
    const char *field;
    for (int32_t i = 0; (field = rope_config_ignored(config, i)); i++)
        if (strcmp(field, name) == 0)
            return 1;
    return 0;
}

/*
 * Transformers works in fp32: a few roundings of each frequency, and where yarn and llama3 blend, a
 * rounding of the larger of two terms, which may be `factor` times the result.
 */
static double tolerance(const rope_desc *desc, double value) {
    double blend = desc->rope_type == ROPE_TYPE_YARN || desc->rope_type == ROPE_TYPE_LLAMA3
                       ? 6e-8 * fmax(desc->factor, 1)
                       : 0;
    return (1e-6 + blend) * fabs(value);
}

TEST(config, frequencies_of_transformers) {
    golden_frequency golden;
    for (int g = 0; golden_frequency_at(g, &golden); g++) {
        rope_config *config = config_of(golden.json);
        rope_desc desc = {.struct_size = sizeof desc};
        CHECK_STATUS(ROPE_OK, rope_config_finish(config, &desc, NULL));
        if (golden.sequence_length)
            desc.sequence_length = golden.sequence_length;
        double inv_freq[GOLDEN_MAX_PAIRS], factor;
        CHECK(desc.rotary_dim == 2 * golden.pairs ||
                  (desc.rotary_dim == 0 && desc.head_dim == 2 * golden.pairs),
              "%s: rotary_dim is %d, not %d", golden.name, desc.rotary_dim, 2 * golden.pairs);
        CHECK_STATUS(ROPE_OK,
                     rope_frequencies(&desc, golden.long_set, inv_freq, GOLDEN_MAX_PAIRS, &factor));
        CHECK(fabs(factor - golden.attention_factor) <= 1e-6 * golden.attention_factor,
              "%s: attention factor %.9g, not %.9g", golden.name, factor, golden.attention_factor);
        for (int32_t i = 0; i < golden.pairs; i++)
            CHECK(fabs(inv_freq[i] - golden.inv_freq[i]) <= tolerance(&desc, golden.inv_freq[i]),
                  "%s: pair %d: %.9g, not %.9g", golden.name, i, inv_freq[i],
                  (double)golden.inv_freq[i]);
        rope_config_destroy(config);
    }
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
        {"phi-4-mini", ROPE_BF16, 128, 96, 0, 0, 0, 0, 24, 8, 131072},
        {"qwen2-vl-7b", ROPE_BF16, 128, 0, 0, 0, 0, 0, 28, 4, 32768},
        {"qwen3-8b", ROPE_BF16, 128, 0, 0, 0, 0, 0, 32, 8, 40960},
        {"qwen3-vl-8b", ROPE_BF16, 128, 0, 0, 0, 0, 0, 32, 8, 262144},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        const struct shape *s = &shapes[i];
        golden_frequency golden;
        golden_frequency_of(s->name, &golden);
        rope_config *config = config_of(golden.json);
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
                  m.max_position_embeddings == s->longest && m.kv_lora_rank == (i == 0 ? 512 : 0),
              "%s: %lld heads, %lld for keys, %lld positions", s->name,
              (long long)m.num_attention_heads, (long long)m.num_key_value_heads,
              (long long)m.max_position_embeddings);
        rope_config_destroy(config);
    }
}

TEST(config, axes_of_transformers) {
    const golden_row *row;
    for (int g = 0; (row = golden_find("axes", g)); g++) {
        const char *model_type = (*row)[1];
        int64_t layout, sections[3];
        char json[100];
        golden_numbers((*row)[2], &layout, 1);
        golden_numbers((*row)[3], sections, 3);
        snprintf(json, sizeof json, "{'model_type': '%s', 'head_dim': %zu}", model_type,
                 2 * strlen((*row)[4]));
        rope_config *config = config_of(json);
        rope_desc desc = {.struct_size = sizeof desc};
        CHECK_STATUS(ROPE_OK, rope_config_finish(config, &desc, NULL));
        CHECK(desc.axes == 3 && desc.axis_layout == layout && desc.sections[0] == sections[0] &&
                  desc.sections[1] == sections[1] && desc.sections[2] == sections[2],
              "%s: %d axes, layout %d, sections %d %d %d", model_type, desc.axes, desc.axis_layout,
              desc.sections[0], desc.sections[1], desc.sections[2]);
        rope_config_destroy(config);
    }
}

TEST(config, ignored_fields) {
    rope_config *config = config_of(
        "{'head_dim': 64, 'vocab_size': 1, 'compress_rope_theta': 10000, 'rope_theta': 10000,"
        " 'no_rope_layer_interval': 4, 'rotary_value': 0, 'RoPE_base': 7, 'rope_more': {'a': 1},"
        " 'rope_parameters': {'rope_theta': 500000, 'rope_type': 'linear', 'factor': 2, 'mscale': "
        "1,"
        " 'attention_factor': 2, 'no_such_field': 3}}");
    rope_desc desc = {.struct_size = sizeof desc};
    CHECK(!rope_config_ignored(config, 0), "ignored before rope_config_finish");
    CHECK_STATUS(ROPE_OK, rope_config_finish(config, &desc, NULL));
    CHECK(desc.rope_theta == 500000 && desc.attention_factor == 0 && desc.mscale == 0,
          "theta %g, attention_factor %g", desc.rope_theta, desc.attention_factor);
    static const char *const names[] = {"compress_rope_theta", "rope_theta", "RoPE_base",
                                        "rope_more",           "mscale",     "attention_factor",
                                        "no_such_field"};
    for (int i = 0; i < 7; i++)
        CHECK(ignores(config, names[i]), "%s is not reported", names[i]);
    CHECK(!rope_config_ignored(config, 7), "%s is reported", rope_config_ignored(config, 7));
    CHECK(!rope_config_ignored(config, -1), "an ignored field at -1");
    CHECK_STATUS(ROPE_ERROR_INVALID_VALUE, rope_config_check(config));
    CHECK(strstr(rope_last_error(),
                 "reads compress_rope_theta, rope_theta, RoPE_base, rope_more, which"),
          "%s", rope_last_error());
    rope_config_destroy(config);
}

/* Bases of their own for full and sliding layers, and scaling of full layers alone. */
TEST(config, layers_that_differ) {
    static const struct {
        const char *json;
        double theta[2], factor; /* of full and sliding layers; of full ones */
    } models[] = {{"{'head_dim': 64, 'rope_theta': 1e6, 'rope_local_base_freq': 1e4,"
                   " 'rope_scaling': {'rope_type': 'linear', 'factor': 8}}",
                   {1000000, 10000},
                   8},
                  {"{'head_dim': 64, 'global_rope_theta': 160000, 'local_rope_theta': 20000}",
                   {160000, 20000},
                   0},
                  {"{'head_dim': 64, 'model_type': 'olmo3', 'rope_theta': 500000,"
                   " 'rope_scaling': {'rope_type': 'linear', 'factor': 8}}",
                   {500000, 500000},
                   8},
                  {"{'head_dim': 64, 'rope_parameters': {"
                   "'full_attention': {'rope_type': 'linear', 'rope_theta': 7, 'factor': 8},"
                   " 'sliding_attention': {'rope_theta': 5}, 'linear_attention': null}}",
                   {7, 5},
                   8}};
    static const char *const layers[] = {NULL, "full_attention", "sliding_attention", "other"};
    for (int i = 0; i < 16; i++) {
        const int m = i / 4, sliding = i % 4 == 2;
        rope_config *config = NULL;
        rope_desc desc = {.struct_size = sizeof desc};
        rope_status status = parse(&config, models[m].json, layers[i % 4]);
        if (status == ROPE_OK)
            status = rope_config_finish(config, &desc, NULL);
        CHECK_STATUS(i % 4 == 3 ? ROPE_ERROR_INVALID_VALUE : ROPE_OK, status);
        CHECK(status == ROPE_OK ||
                  strstr(rope_last_error(), "layer_type is \"other\"; allowed is full_attention"),
              "%s", rope_last_error());
        CHECK(status != ROPE_OK || (rope_config_check(config) == ROPE_OK &&
                                    desc.rope_theta == models[m].theta[sliding] &&
                                    desc.factor == (sliding ? 0 : models[m].factor)),
              "model %d, layer %d: theta %g, factor %g", m, i % 4, desc.rope_theta, desc.factor);
        rope_config_destroy(config);
    }
}

/* Gemma 3 as its authors ship it, and other models whose kinds of layers differ by default. */
#define GEMMA                                                                                      \
    "{'model_type': 'gemma3', 'text_config': {'model_type': 'gemma3_text', 'hidden_size': 2560,"   \
    " 'rope_scaling': {'rope_type': 'linear', 'factor': 8.0}, 'sliding_window': 1024}}"

static const struct {
    const char *json, *layer;
    double theta, factor; /* theta 0: refused, as those layers do not rotate */
    int32_t head_dim, rotary_dim;
} layers[] = {
    {GEMMA, "full_attention", 1e6, 8, 256, 0},
    {GEMMA, "sliding_attention", 1e4, 0, 256, 0},
    {"{'model_type': 'gemma3n'}", "full_attention", 1e6, 0, 256, 0},
    {"{'model_type': 'gemma3n'}", "sliding_attention", 1e4, 0, 256, 0},
    {"{'model_type': 'gemma4'}", "full_attention", 1e6, 0, 512, 0},
    {"{'model_type': 'gemma4'}", "sliding_attention", 1e4, 0, 256, 0},
    {"{'model_type': 'gemma4_text', 'global_head_dim': 384}", "full_attention", 1e6, 0, 384, 0},
    {"{'model_type': 'gemma4_text', 'layer_types': ['sliding_attention', 'full_attention'],"
     " 'per_layer_config': {'01': {'head_dim': 384}}}",
     "full_attention", 1e6, 0, 384, 0},
    {"{'model_type': 'gemma4_text', 'layer_types': ['sliding_attention', 'full_attention'],"
     " 'per_layer_config': {'01': {'num_key_value_heads': 2}}}",
     "full_attention", 1e6, 0, 256, 0},
    {"{'model_type': 'gemma4_text', 'layer_types': ['sliding_attention', 'full_attention'],"
     " 'per_layer_config': {'01': {'head_dim': 384}}}",
     "sliding_attention", 1e4, 0, 256, 0},
    {"{'model_type': 'beam'}", "sliding_attention", 1e4, 0, 128, 0},
    {"{'model_type': 'beam'}", "full_attention", 0, 0, 0, 0},
    {"{'model_type': 'modernbert'}", "full_attention", 160000, 0, 64, 0},
    {"{'model_type': 'modernbert', 'global_rope_theta': 7}", "full_attention", 7, 0, 64, 0},
    {"{'model_type': 'modernbert'}", "sliding_attention", 1e4, 0, 64, 0},
    {"{'model_type': 'mimo_v2_flash'}", "full_attention", 5e6, 0, 192, 64},
    {"{'model_type': 'mimo_v2_flash'}", "sliding_attention", 1e4, 0, 192, 64},
    {"{'model_type': 'mimo_v2_flash', 'rope_parameters': {'full_attention': {'rope_theta': 7},"
     " 'sliding_attention': {'rope_theta': 3}}}",
     "sliding_attention", 3, 0, 192, 64},
    {"{'model_type': 't5gemma2'}", "sliding_attention", 1e4, 0, 256, 0},
    {"{'model_type': 'olmo3', 'rope_scaling': {'type': 'linear', 'factor': 8}}",
     "sliding_attention", 5e5, 0, 128, 0},
    {"{'model_type': 'gpt_oss'}", "sliding_attention", 150000, 32, 64, 0},
    {"{'model_type': 'gemma2', 'layer_types': ['sliding_attention', 'full_attention']}",
     "sliding_attention", 1e4, 0, 256, 0},
    {"{'model_type': 'cohere2', 'rope_theta': 50000}", "sliding_attention", 5e4, 0, 128, 0},
    {"{'model_type': 'cohere2'}", "full_attention", 0, 0, 0, 0},
    {"{'model_type': 'exaone4', 'rope_theta': 1e6}", "sliding_attention", 1e6, 0, 128, 0},
    {"{'model_type': 'exaone4'}", "full_attention", 0, 0, 0, 0},
    {"{'model_type': 'exaone4', 'sliding_window': null}", "full_attention", 1e4, 0, 128, 0},
    {"{'model_type': 'qwen3_next'}", "full_attention", 1e4, 0, 256, 64},
    {"{'model_type': 'qwen3_next'}", "linear_attention", 0, 0, 0, 0},
    {"{'model_type': 'llama4'}", "chunked_attention", 5e5, 0, 128, 0},
    {"{'model_type': 'llama4'}", "full_attention", 0, 0, 0, 0},
    {"{'model_type': 'smollm3', 'layer_types': ['full_attention', 'full_attention'],"
     " 'no_rope_layers': [1, 0]}",
     "full_attention", 2e6, 0, 128, 0},
    {"{'head_dim': 64, 'layer_types': ['a', 'b'], 'no_rope_layers': [1, 0]}", "a", 0.5, 0, 64, 0},
    {"{'head_dim': 64, 'layer_types': ['a', 'b'], 'no_rope_layers': [1, 0]}", "b", 0, 0, 0, 0},
};

/* Whether a layer that does not rotate is refused. */
static int is_refused(const char *json, rope_status status, double theta) {
    CHECK((status == ROPE_OK) == (theta != 0), "%s: %s", json, rope_last_error());
    if (theta != 0)
        return 0;
    CHECK(strstr(rope_last_error(), "\", whose layers do not rotate; allowed is"), "%s",
          rope_last_error());
    return 1;
}

TEST(config, kinds_of_layers) {
    for (size_t i = 0; i < sizeof layers / sizeof layers[0]; i++) {
        const double theta = layers[i].theta == 0.5 ? 0 : layers[i].theta;
        rope_config *config = NULL;
        rope_desc desc = {.struct_size = sizeof desc};
        if (is_refused(layers[i].json, parse(&config, layers[i].json, layers[i].layer),
                       layers[i].theta))
            continue;
        CHECK_STATUS(ROPE_OK, rope_config_finish(config, &desc, NULL));
        CHECK_STATUS(ROPE_OK, rope_config_check(config));
        CHECK(desc.rope_theta == theta && desc.factor == layers[i].factor &&
                  desc.head_dim == layers[i].head_dim && desc.rotary_dim == layers[i].rotary_dim,
              "%s, %s: theta %g, factor %g, head_dim %d, rotary_dim %d", layers[i].json,
              layers[i].layer, desc.rope_theta, desc.factor, desc.head_dim, desc.rotary_dim);
        rope_config_destroy(config);
    }
}

TEST(config, bases_that_are_left_out) {
    static const struct {
        const char *model_type;
        double theta; /* 0: refused */
    } models[] = {
        {"qwen2_vl", 1e6},
        {"qwen2_5_vl", 1e6},
        {"ministral3", 1e6},
        {"phimoe", 1e6},
        {"emu3", 1e6},
        {"solar_open", 1e6},
        {"mistral3", 1e9},
        {"voxtral", 1e8},
        {"gemma3n", 1e6},
        {"paddleocr_vl", 5e5},
        {"modernbert", 16e4},
        {"llama", 1e4},
        {"jina_embeddings_v3", 20000},
        {"no_such_model", 0},
    };
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        rope_config *config = config_of_type(models[i].model_type, "");
        rope_desc desc = {.struct_size = sizeof desc};
        CHECK_STATUS(models[i].theta != 0 ? ROPE_OK : ROPE_ERROR_INVALID_VALUE,
                     rope_config_finish(config, &desc, NULL));
        CHECK(desc.rope_theta == models[i].theta, "%s: theta %g", models[i].model_type,
              desc.rope_theta);
        rope_config_destroy(config);
    }
    CHECK(strstr(rope_last_error(), "rope_theta is not given and model_type \"no_such_model\" is "
                                    "not known; allowed is rope_theta"),
          "%s", rope_last_error());
}

/* Fields within attn_config, models that do not rotate, and parameters that are there twice. */
TEST(config, where_fields_are) {
    static const struct {
        const char *json, *error; /* NULL: base 5e5 */
    } cases[] = {
        {"{'model_type': 'dbrx', 'd_model': 6144, 'n_heads': 48,"
         " 'attn_config': {'rope_theta': 5e5, 'kv_n_heads': 8}}",
         NULL},
        {"{'model_type': 'mpt', 'd_model': 4096, 'n_heads': 32,"
         " 'attn_config': {'alibi': false, 'rope': true, 'rope_theta': 5e5}}",
         NULL},
        {"{'model_type': 'mpt', 'attn_config': {'alibi': true}}", "alibi is true; allowed is"},
        {"{'model_type': 'mpt'}", "alibi is true; allowed is"},
        {"{'model_type': 'mpt', 'attn_config': {'alibi': false}}", "rope is false; allowed is"},
        {"{'model_type': 'jamba', 'head_dim': 128}", "\"jamba\"; allowed is another, as nothing"},
        {"{'model_type': 'bloom', 'head_dim': 128}", "\"bloom\"; allowed is another, as nothing"},
        {"{'model_type': 'nemotron_h', 'head_dim': 128, 'rope_theta': 10000}", "\"nemotron_h\";"},
        {"{'head_dim': 64, 'rope_scaling': {'rope_theta': 5e5, 'type': 'default'},"
         " 'rope_parameters': {'rope_theta': 500000.0, 'type': 'default'}}",
         NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        rope_config *config = config_of(cases[i].json);
        rope_desc desc = {.struct_size = sizeof desc};
        rope_status status = rope_config_finish(config, &desc, NULL);
        CHECK(cases[i].error
                  ? status == ROPE_ERROR_INVALID_VALUE && strstr(rope_last_error(), cases[i].error)
                  : status == ROPE_OK && desc.rope_theta == 5e5,
              "%s: %s, theta %g", cases[i].json, rope_last_error(), desc.rope_theta);
        rope_config_destroy(config);
    }
}

TEST(config, a_model_that_is_not_known) {
    static const char *const known[] = {"llama", "gptj", "qwen3_vl_text", "deepseek_v3", ""};
    for (int i = 0; i < 6; i++) {
        rope_config *config =
            config_of_type(i < 5 ? known[i] : "no_such_model", i < 5 ? "" : ", 'rope_theta': 1e4");
        rope_desc desc = {.struct_size = sizeof desc};
        CHECK_STATUS(ROPE_OK, rope_config_finish(config, &desc, NULL));
        const char *note = rope_config_note(config);
        CHECK(i < 5 ? !note : note && strstr(note, "no_such_model"), "%d: %s", i,
              note ? note : "no note");
        rope_config_destroy(config);
    }
}

/* Names of fields in configurations that came with a model's own code. */
TEST(config, names_of_other_libraries) {
    static const char *const fields[] = {"{'head_dim': 64, 'rope_pct': 0.25}",
                                         "{'head_dim': 64, 'rotary_emb_fraction': 0.5}",
                                         "{'head_dim': 64, 'rotary_embedding_base': 500}",
                                         "{'head_dim': 64, 'rotary_emb_interleaved': true}"};
    for (int i = 0; i < 4; i++) {
        rope_config *config = config_of(fields[i]);
        rope_desc desc = {.struct_size = sizeof desc};
        CHECK_STATUS(ROPE_OK, rope_config_finish(config, &desc, NULL));
        CHECK_STATUS(ROPE_OK, rope_config_check(config));
        const int interleaved = desc.pairing_in == ROPE_PAIRING_INTERLEAVED &&
                                desc.pairing_out == ROPE_PAIRING_INTERLEAVED;
        CHECK(desc.rotary_dim == (i < 2 ? 16 << i : 0) && desc.rope_theta == (i == 2 ? 500 : 0) &&
                  interleaved == (i == 3),
              "%s: rotary_dim %d, theta %g, pairing %d", fields[i], desc.rotary_dim,
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
        char kind[60];
        snprintf(kind, sizeof kind, ", 'position_embedding_type': '%s'", cases[i].kind);
        rope_config *config = config_of_type(cases[i].model_type, kind);
        rope_desc desc = {.struct_size = sizeof desc};
        CHECK_STATUS(cases[i].status, rope_config_finish(config, &desc, NULL));
        rope_config_destroy(config);
    }
}

TEST(config, models_ignore_little) {
    static const char *const silent[] = {
        "llama-3.1-8b", "qwen3-8b",     "deepseek-v3", "phi-3.5-mini", "phi-4-mini",
        "gpt-oss-20b",  "gpt-neox-20b", "gpt-j-6b",    "qwen2-vl-7b",  "qwen3-vl-8b"};
    for (size_t i = 0; i < sizeof silent / sizeof silent[0]; i++) {
        golden_frequency golden;
        golden_frequency_of(silent[i], &golden);
        rope_config *config = config_of(golden.json);
        rope_desc desc = {.struct_size = sizeof desc};
        CHECK_STATUS(ROPE_OK, rope_config_finish(config, &desc, NULL));
        CHECK(!rope_config_ignored(config, 0), "%s: %s is ignored", silent[i],
              rope_config_ignored(config, 0));
        rope_config_destroy(config);
    }
}

/* Fields that one change makes wrong: the text must name what `named` says. */
static const struct refusal {
    const char *model, *rope, *named;
} refusals[] = {
    {"'head_dim': 0", "", "head_dim"},
    {"'head_dim': 63.5", "", "head_dim"},
    {"'head_dim': 1e30", "", "head_dim"},
    {"'head_dim': 1e999", "", "head_dim is inf"},
    {"'head_dim': -64", "", "head_dim is -64"},
    {"'text_config': {'head_dim': 0}", "", "head_dim is 0"},
    {"'num_attention_heads': 1e18", "", "num_attention_heads is 1e+18"},
    {"'head_dim': '64'", "", "head_dim is the string \"64\"; allowed is a number"},
    {"'head_dim': [64, '64']", "", "head_dim is a list"},
    {"'head_dim': {'a': 64}", "", "head_dim is a list or an object"},
    {"'rope_theta': 0", "", "rope_theta"},
    {"'rope_theta': true", "", "rope_theta is true; allowed is a number"},
    {"'rope_theta': -5", "", "rope_theta"},
    {"'rope_theta': -1e999", "", "rope_theta is -inf"},
    {"'rope_theta': [1]", "", "rope_theta is a list"},
    {"'partial_rotary_factor': 0", "", "partial_rotary_factor"},
    {"'partial_rotary_factor': 1.5", "", "partial_rotary_factor"},
    {"'partial_rotary_factor': 0.001", "", "partial_rotary_factor"},
    {"'rope_interleave': 2", "", "rope_interleave"},
    {"'rotary': false", "", "rotary is false; allowed is true"},
    {"'use_rope': false", "", "use_rope is false; allowed is true"},
    {"'alibi': true", "", "alibi is true; allowed is false"},
    {"'alibi': 'yes'", "", "alibi is the string \"yes\"; allowed is true or false"},
    {"'position_embeddings_type': 'relative_key'", "", "allowed is rotary or rope"},
    {"'torch_dtype': 'float8_e4m3fn'", "", "torch_dtype"},
    {"'max_position_embeddings': -1", "", "max_position_embeddings"},
    {"'max_position_embeddings': 1e300", "", "max_position_embeddings"},
    {"", "'factor': 0", "factor"},
    {"", "'factor': 1e999", "factor is inf"},
    {"", "'factor': '2'", "factor is the string \"2\"; allowed is a number"},
    {"", "'attention_factor': 0", "attention_factor"},
    {"", "'beta_fast': -1", "beta_fast"},
    {"", "'rope_type': 'ntk-by-magic'", "yarn"},
    {"", "'rope_type': 3", "rope_type is the number 3; allowed is a string"},
    {"", "'rope_type': false", "rope_type is false; allowed is a string"},
    {"", "'original_max_position_embeddings': 0", "original_max_position_embeddings"},
    {"", "'truncate': 0.5", "truncate"},
    {"", "'truncate': 'yes'", "truncate is the string \"yes\"; allowed is true or false"},
    {"", "'rope_type': 'default', 'mrope_section': [16, 17]", "sum to 33"},
    {"", "'rope_type': 'default', 'mrope_section': [8, 8, 8, 4, 4]", "mrope_section has 5 entries"},
    {"", "'rope_type': 'default', 'mrope_section': [40, -8]", "mrope_section[1] is -8"},
};

TEST(config, refuses) {
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        const struct refusal *r = &refusals[i];
        char json[300];
        snprintf(json, sizeof json,
                 "{'head_dim': 64%s%s, 'rope_parameters': {'rope_type': 'yarn', 'factor': 4,"
                 " 'original_max_position_embeddings': 4096%s%s}}",
                 *r->model ? ", " : "", r->model, *r->rope ? ", " : "", r->rope);
        rope_config *config = config_of(json);
        rope_desc desc = {.struct_size = sizeof desc, .dtype = 77};
        CHECK_STATUS(ROPE_ERROR_INVALID_VALUE, rope_config_finish(config, &desc, NULL));
        CHECK(strstr(rope_last_error(), r->named), "\"%s\" does not name %s", rope_last_error(),
              r->named);
        CHECK(desc.struct_size == sizeof desc && desc.dtype == 77 && desc.head_dim == 0,
              "%s: the descriptor is written", json);
        rope_config_destroy(config);
    }
}

/* A program that knows only the first fields gets only those; one that sets no size gets none. */
TEST(config, a_descriptor_is_filled_no_further_than_it_reaches) {
    rope_config *config = config_of("{'head_dim': 64}");
    rope_desc desc = {.struct_size = offsetof(rope_desc, rope_type), .rope_type = 77};
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
    static const struct {
        const char *json, *named;
    } cases[] = {
        {"{}", "head_dim is not given"},
        {"{'hidden_size': 4096, 'rope_scaling': {'factor': 2}}", "head_dim is not given"},
        {"{'head_dim': 64, 'rope_scaling': {'rope_type': 'linear'}}", "factor is not given"},
        {"{'head_dim': 64, 'rope_scaling': {},"
         " 'rope_parameters': {'rope_type': 'linear', 'factor': -3}}",
         "factor is -3"},
        {"{'head_dim': 64, 'max_position_embeddings': 64,"
         " 'rope_scaling': {'type': 'su', 'long_factor': [1]}}",
         "short_factor"}};
    rope_desc desc = {.struct_size = sizeof desc};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        rope_config *config = config_of(cases[i].json);
        CHECK_STATUS(ROPE_ERROR_INVALID_VALUE, rope_config_finish(config, &desc, NULL));
        CHECK(strstr(rope_last_error(), cases[i].named), "%s", rope_last_error());
        rope_config_destroy(config);
    }
    rope_config *config = config_of("{'hidden_size': 4096, 'num_attention_heads': 32}");
    CHECK_STATUS(ROPE_OK, rope_config_finish(config, &desc, NULL));
    CHECK(desc.head_dim == 128 && desc.dtype == ROPE_F32, "head_dim %d, dtype %d", desc.head_dim,
          desc.dtype);
    rope_config_destroy(config);
}

TEST(config, a_width_that_the_caller_supposes) {
    static const struct {
        const char *json;
        int32_t given, head_dim, rotary_dim;
    } cases[] = {{"{'partial_rotary_factor': 0.5}", 64, 64, 32},
                 {"{'partial_rotary_factor': 0.5, 'head_dim': 80}", 64, 80, 40},
                 {"{'hidden_size': 4096, 'num_attention_heads': 32}", 64, 128, 0},
                 {"{'hidden_size': 4096}", 64, 64, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        rope_config *config = config_of(cases[i].json);
        rope_desc desc = {.struct_size = sizeof desc, .head_dim = cases[i].given};
        CHECK_STATUS(ROPE_OK, rope_config_finish(config, &desc, NULL));
        CHECK(desc.head_dim == cases[i].head_dim && desc.rotary_dim == cases[i].rotary_dim,
              "%s: head_dim %d, rotary_dim %d", cases[i].json, desc.head_dim, desc.rotary_dim);
        desc = (rope_desc){.struct_size = sizeof desc, .head_dim = 63};
        CHECK_STATUS(strstr(cases[i].json, "head") ? ROPE_OK : ROPE_ERROR_INVALID_VALUE,
                     rope_config_finish(config, &desc, NULL));
        rope_config_destroy(config);
    }
}

/* The fields of text_config count before those around it, whatever their order. */
TEST(config, the_last_of_a_name_counts) {
    static const char *const same[] = {
        "{'head_dim': 64, 'head_dim': 128, 'rope_theta': 5, 'rope_parameters': {"
        "'mrope_section': [16, 24, 24], 'mrope_section': [24, 20, 20], 'mrope_interleaved': true}}",
        "{'text_config': {'head_dim': 128}, 'x': ['}\\\\', ']\\'[', {}], 'head_dim': 64,"
        " 'rope_theta': 5, 'rope_scaling': {},"
        " 'rope_parameters': {'mrope_section': [24, 20, 20], 'mrope_interleaved': true}}",
        "{'text_config': null, 'text_config': {'h\\u0065ad_dim': 128, 'rope_theta': 5,"
        " 'rope_parameters': {'mrope_section': [24, 2e1, 20.0], 'mrope_interleaved': true}},"
        " 'rope_parameters': {'mrope_section': [1]}, 'rope_theta': 7}"};
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++) {
        rope_config *config = config_of(same[i]);
        rope_desc desc = {.struct_size = sizeof desc};
        CHECK_STATUS(ROPE_OK, rope_config_finish(config, &desc, NULL));
        CHECK(desc.head_dim == 128 && desc.sections[0] == 24 && desc.sections[1] == 20 &&
                  desc.rope_theta == 5 && desc.axis_layout == ROPE_AXES_INTERLEAVED &&
                  !rope_config_ignored(config, 0),
              "%zu: head_dim %d, section %d, layout %d", i, desc.head_dim, desc.sections[0],
              desc.axis_layout);
        rope_config_destroy(config);
    }
}

/* A string as the error for a wrong type shows it. */
TEST(config, strings_are_decoded) {
    rope_config *config =
        config_of("{'head_dim': '\\/\\t\\\\\\u00e9\\uD83d\\ude00\\u20AC\\\'\303\251'}");
    rope_desc desc = {.struct_size = sizeof desc};
    CHECK_STATUS(ROPE_ERROR_INVALID_VALUE, rope_config_finish(config, &desc, NULL));
    CHECK(strstr(rope_last_error(), "\"/\t\\\303\251\360\237\230\200\342\202\254\"\303\251\""),
          "%s", rope_last_error());
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
        rope_config *config =
            config_of_type(p->model_type, p->interleave < 0    ? ""
                                          : p->interleave == 0 ? ", 'rope_interleave': false"
                                                               : ", 'rope_interleave': true");
        rope_desc desc = {.struct_size = sizeof desc};
        CHECK_STATUS(ROPE_OK, rope_config_finish(config, &desc, NULL));
        CHECK(desc.pairing_in == p->in && desc.pairing_out == p->out, "%s: pairing %d to %d",
              p->model_type, desc.pairing_in, desc.pairing_out);
        rope_config_destroy(config);
    }
}

TEST(config, latents) {
    static const struct {
        const char *model_type, *rest;
        int32_t elements; /* -1: refused */
    } latents[] = {
        {"deepseek_v3", "", 512},
        {"deepseek_v2", ", 'kv_lora_rank': 256", 256},
        {"llama", ", 'kv_lora_rank': 256", 0},
        {"deepseek_v3", ", 'kv_lora_rank': 0.5", -1},
    };
    for (size_t i = 0; i < sizeof latents / sizeof latents[0]; i++) {
        rope_config *config = config_of_type(latents[i].model_type, latents[i].rest);
        rope_desc desc = {.struct_size = sizeof desc};
        rope_model model = {.struct_size = sizeof model};
        const int refused = latents[i].elements < 0;
        CHECK_STATUS(refused ? ROPE_ERROR_INVALID_VALUE : ROPE_OK,
                     rope_config_finish(config, &desc, &model));
        CHECK(refused ? strstr(rope_last_error(), "kv_lora_rank is 0.5") != NULL
                      : model.kv_lora_rank == latents[i].elements,
              "%s%s: %d, %s", latents[i].model_type, latents[i].rest, model.kv_lora_rank,
              rope_last_error());
        rope_config_destroy(config);
    }
}

/* Full layers of Gemma 4 have heads of their own, as shipped and as Transformers saves them. */
TEST(config, key_heads_of_a_kind_of_layer) {
    static const struct {
        const char *rest, *layer;
        int64_t heads;
    } cases[] = {
        {"", "full_attention", 4},
        {", 'num_global_key_value_heads': 2", "full_attention", 4},
        {", 'num_global_key_value_heads': 2, 'attention_k_eq_v': true", "full_attention", 2},
        {", 'num_global_key_value_heads': 2, 'attention_k_eq_v': true", "sliding_attention", 4},
        {", 'layer_types': ['full_attention'], 'per_layer_config': {'0': {'num_key_value_heads': "
         "1}}",
         "full_attention", 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char json[300];
        rope_config *config = NULL;
        rope_desc desc = {.struct_size = sizeof desc};
        rope_model model = {.struct_size = sizeof model};
        snprintf(json, sizeof json, "{'model_type': 'gemma4_text'%s}", cases[i].rest);
        CHECK_STATUS(ROPE_OK, parse(&config, json, cases[i].layer));
        CHECK_STATUS(ROPE_OK, rope_config_finish(config, &desc, &model));
        CHECK(model.num_key_value_heads == cases[i].heads && model.num_attention_heads == 8,
              "%s, %s: %lld", json, cases[i].layer, (long long)model.num_key_value_heads);
        rope_config_destroy(config);
    }
}

TEST(config, no_kind_of_layer_rotates) {
    static const char *const models[] = {
        "{'head_dim': 64, 'layer_types': ['linear_attention']}",
        "{'model_type': 'qwen3_next', 'layer_types': ['linear_attention', 'linear_attention']}"};
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        rope_config *config = NULL;
        CHECK_STATUS(ROPE_ERROR_INVALID_VALUE, parse(&config, models[i], "linear_attention"));
        CHECK(strcmp(rope_last_error(),
                     "layer_type is \"linear_attention\", whose layers do not rotate; allowed is "
                     "none, as no layer rotates") == 0,
              "%s", rope_last_error());
    }
}

/* Its heads rotate their last elements, and yarn does not scale what it rotates. */
TEST(config, deepseek_v4) {
    static const struct {
        const char *rest;
        int32_t head_dim, rotary_dim;
        double attention_factor;
    } cases[] = {
        {"", 512, 64, 0},
        {", 'qk_rope_head_dim': 32", 512, 32, 0},
        {", 'partial_rotary_factor': 0.25", 512, 128, 0},
        {", 'partial_rotary_factor': 0.25, 'qk_rope_head_dim': 32", 512, 128, 0},
        {", 'head_dim': 256", 256, 32, 0},
        {", 'rope_scaling': {'type': 'yarn', 'factor': 16, 'original_max_position_embeddings': "
         "65536}",
         512, 64, 1},
        {", 'rope_scaling': {'type': 'yarn', 'factor': 16, 'original_max_position_embeddings': "
         "65536, 'attention_factor': 2}",
         512, 64, 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char json[300];
        rope_config *config = NULL;
        rope_desc desc = {.struct_size = sizeof desc};
        snprintf(json, sizeof json, "{'model_type': 'deepseek_v4'%s}", cases[i].rest);
        CHECK_STATUS(ROPE_OK, parse(&config, json, "compress"));
        CHECK_STATUS(ROPE_OK, rope_config_finish(config, &desc, NULL));
        CHECK(desc.head_dim == cases[i].head_dim && desc.rotary_dim == cases[i].rotary_dim &&
                  desc.rotary_offset == cases[i].head_dim - cases[i].rotary_dim &&
                  desc.attention_factor == cases[i].attention_factor && desc.rope_theta == 160000,
              "%s: %d of %d elements from %d, factor %g, theta %g", json, desc.rotary_dim,
              desc.head_dim, desc.rotary_offset, desc.attention_factor, desc.rope_theta);
        rope_config_destroy(config);
    }
}

TEST(config, a_model_that_turns_the_other_way) {
    static const struct {
        const char *model_type;
        int32_t direction;
    } models[] = {{"llama", 0}, {"nanochat", ROPE_TRANSPOSE}};
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        rope_config *config = config_of_type(models[i].model_type, "");
        rope_desc desc = {.struct_size = sizeof desc};
        CHECK_STATUS(ROPE_OK, rope_config_finish(config, &desc, NULL));
        CHECK(desc.direction == models[i].direction, "%s: direction is %d", models[i].model_type,
              desc.direction);
        rope_config_destroy(config);
    }
}

/* What RFC 8259 does not have, and the first byte of it. */
static const struct bad_json {
    const char *text;
    size_t length; /* 0: that of the text */
    const char *error;
} bad_jsons[] = {
    {"", 0, "byte 0 of 0 is the end; allowed is a JSON value"},
    {" \n", 0, "byte 2 of 2 is the end"},
    {"[]", 0, "the config is a list; allowed is an object"},
    {"7", 0, "the config is a single value; allowed is an object"},
    {"\"a\"", 0, "the config is a single value"},
    {"{\"a\": NaN}", 0, "byte 6 of 10 is 'N'; allowed is a JSON value"},
    {"{\"a\": Infinity}", 0, "byte 6 of 15 is 'I'"},
    {"{\"a\": nul}", 0, "byte 6 of 10 is 'n'"},
    {"{\"a\": trueish}", 0, "byte 10 of 14 is 'i'; allowed is ',' or '}'"},
    {"{\"a\": 064}", 0, "byte 7 of 10 is '6'; allowed is ',' or '}'"},
    {"{\"a\": 64.}", 0, "byte 9 of 10 is '}'; allowed is a digit"},
    {"{\"a\": .5}", 0, "byte 6 of 9 is '.'"},
    {"{\"a\": +5}", 0, "byte 6 of 9 is '+'"},
    {"{\"a\": -}", 0, "byte 7 of 8 is '}'; allowed is a digit"},
    {"{\"a\": 1e}", 0, "byte 8 of 9 is '}'; allowed is a digit"},
    {"{\"a\": 0x10}", 0, "byte 7 of 11 is 'x'"},
    {"{\"a\": [1 2]}", 0, "byte 9 of 12 is '2'; allowed is ',' or ']'"},
    {"{\"a\": [1,]}", 0, "byte 9 of 11 is ']'"},
    {"{\"a\": [1}", 0, "byte 8 of 9 is '}'"},
    {"{\"a\": 1,}", 0, "byte 8 of 9 is '}'; allowed is a name in quotes"},
    {"{\"a\"; 1}", 0, "byte 4 of 8 is ';'; allowed is ':'"},
    {"{a: 1}", 0, "byte 1 of 6 is 'a'; allowed is a name in quotes"},
    {"{\"a\": 1", 0, "byte 7 of 7 is the end; allowed is ',' or '}'"},
    {"{\"a\": \"b", 0, "byte 8 of 8 is the end; allowed is a string's character"},
    {"{\"a", 0, "byte 3 of 3 is the end"},
    {"{} {}", 0, "byte 3 of 5 is '{'; allowed is nothing behind the value"},
    {"{}\v", 0, "byte 2 of 3 is 0x0b"},
    {"{}\n\0", 4, "byte 3 of 4 is 0x00"},
    {"{\0}", 3, "byte 1 of 3 is 0x00"},
    {"{\"a\": \"\0\"}", 10, "byte 7 of 10 is 0x00"},
    {"{\"a\": \"x\ny\"}", 0, "byte 8 of 12 is 0x0a"},
    {"\357\273\277{}", 0, "byte 0 of 5 is 0xef"},
    {"{\"a\": \"\377\"}", 0, "byte 7 of 10 is 0xff"},
    {"{\"a\": \"\300\200\"}", 0, "byte 7 of 11 is 0xc0"},
    {"{\"a\": \"\340\200\200\"}", 0, "byte 7 of 12 is 0xe0"},
    {"{\"a\": \"\355\240\200\"}", 0, "byte 7 of 12 is 0xed"},
    {"{\"a\": \"\364\220\200\200\"}", 0, "byte 7 of 13 is 0xf4"},
    {"{\"a\": \"\303\"}", 0, "byte 7 of 10 is 0xc3"},
    {"{\"a\": \"\360\237\230", 0, "byte 7 of 10 is 0xf0"},
    {"{\"a\": \"\\u0000\"}", 0, "byte 7 of 15 is '\\'; allowed is an escape as in"},
    {"{\"a\": \"\\ud800\"}", 0, "byte 7 of 15 is '\\'"},
    {"{\"a\": \"\\ude00\\ud83d\"}", 0, "byte 7 of 21 is '\\'"},
    {"{\"a\": \"\\ud83d\\u0041\"}", 0, "byte 7 of 21 is '\\'"},
    {"{\"a\": \"\\u00\"}", 0, "byte 7 of 13 is '\\'"},
    {"{\"a\": \"\\x41\"}", 0, "byte 7 of 13 is '\\'"},
    {"{\"a\": \"\\", 0, "byte 7 of 8 is '\\'"},
    {"{\"a\": \"\\\0\"}", 11, "byte 7 of 11 is '\\'"},
};

TEST(config, json_is_strict) {
    for (size_t i = 0; i < sizeof bad_jsons / sizeof bad_jsons[0]; i++) {
        const struct bad_json *bad = &bad_jsons[i];
        const size_t length = bad->length ? bad->length : strlen(bad->text);
        char *text = malloc(length ? length : 1); /* no byte behind it, as a sanitizer sees */
        rope_config *config = NULL;
        CHECK(text, "no memory");
        memcpy(text, bad->text, length);
        rope_status status = rope_config_parse(&config, text, length, NULL);
        free(text);
        CHECK(status == ROPE_ERROR_INVALID_VALUE && !config, "%s is read", bad->text);
        CHECK(strstr(rope_last_error(), bad->error), "%s: %s", bad->text, rope_last_error());
    }
}

/* A character as often as it is given, between two texts. */
static char *repeated(const char *before, const char *middle, int times, const char *after) {
    char *text = NULL;
    size_t size;
    FILE *file = open_memstream(&text, &size);
    CHECK(file, "no memory");
    fputs(before, file);
    for (int i = 0; i < times; i++)
        fputs(middle, file);
    fputs(after, file);
    fclose(file);
    return text;
}

TEST(config, limits) {
    static const struct {
        const char *before, *middle;
        int times;
        const char *after, *error; /* NULL: none */
    } cases[] = {
        {"{'head_dim': 64, '", "x", 1 << 20, "': 1}", NULL},
        {"{'head_dim': 64, 'x': '", "x", 1 << 20, "'}", NULL},
        {"{'head_dim': 64, 'x': [1", ",1", 1 << 20, "]}", NULL},
        {"{'head_dim': 64", ", 'x': 1", 1 << 16, "}", NULL},
        {"{'rope_scaling': {'", "x", 1 << 20, "': 1}}",
         "has 1048576 characters; allowed is 0..128"},
        {"{'model_type': '", "x", 1 << 20, "'}", "model_type has 1048576 characters"},
        {"{'rope_scaling': {'short_factor': [1", ", 1", ROPE_MAX_ROTARY_DIM, "]}}",
         "short_factor has 4097 entries; allowed is 0..4096"},
        {"{'rope_scaling': {'x': 1", ", 'x': 1", 1 << 16, "}}",
         "x is field 1025 of a configuration; allowed is 1..1024"},
        {"{'a': ", "[", 1 << 20, "", "byte 105 of 1048582 is '['; allowed is at most 100"},
        {"", "{'a': ", 1 << 20, "", "byte 600 of 6291456 is '{'; allowed is at most 100"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *json = repeated(cases[i].before, cases[i].middle, cases[i].times, cases[i].after);
        rope_config *config = NULL;
        rope_status status = parse(&config, json, NULL);
        free(json);
        CHECK(status == (cases[i].error ? ROPE_ERROR_INVALID_VALUE : ROPE_OK), "%s: %s",
              cases[i].before, rope_last_error());
        CHECK(!cases[i].error || strstr(rope_last_error(), cases[i].error), "%s: %s",
              cases[i].before, rope_last_error());
        rope_config_destroy(config);
    }
}

TEST(config, values_that_rope_parameters_cannot_have) {
    static const struct {
        const char *json, *error;
    } cases[] = {
        {"{'rope_scaling': 'yarn'}", "rope_scaling is \"yarn\"; allowed is an object or null"},
        {"{'rope_scaling': {'a': 1}, 'rope_scaling': 7}", "rope_scaling is 7; allowed is an"},
        {"{'rope_scaling': {}, 'rope_parameters': [1]}", "rope_parameters is a list; allowed is"},
        {"{'rope_scaling': {'type': {}}}", "type is an object; allowed is a number, a string or"},
        {"{'rope_scaling': {'factor': [2, '2']}}", "factor[1] is \"2\"; allowed is a number"},
        {"{'rope_scaling': {'short_factor': [null]}}", "short_factor[0] is null; allowed is a"},
        {"{'rope_scaling': {'mrope_section': [true]}}", "mrope_section[0] is true"},
        {"{'rope_scaling': {'rope_type': 'linear'}, 'rope_parameters': {'rope_type': 'yarn'}}",
         "rope_scaling and rope_parameters are given; allowed is one of them, or the same in both"},
        {"{'model_type': 'gemma4_text', 'rope_scaling': {'rope_type': 'linear', 'factor': 8}}",
         "rope_scaling is of all layers; allowed is an object for each kind of layer"},
        {"{'model_type': 'gemma3_text', 'rope_parameters': {'rope_theta': 777}}",
         "rope_parameters is of all layers; allowed is an object for each kind of layer"},
        {"{'rope_scaling': {'full_attention': {}, 'b': 1}}", "full_attention is an object"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        rope_config *config = NULL;
        CHECK_STATUS(ROPE_ERROR_INVALID_VALUE, parse(&config, cases[i].json, NULL));
        CHECK(strstr(rope_last_error(), cases[i].error), "%s: %s", cases[i].json,
              rope_last_error());
    }
}

TEST(config, norms_of_q_and_k) {
    static const struct {
        const char *json;
        rope_norm norm;
    } cases[] = {
        {"{'model_type': 'qwen3', 'head_dim': 64, 'rms_norm_eps': 1e-05}",
         {ROPE_NORM_RMS, ROPE_NORM_HEAD, 0, 0, ROPE_NORM_WEIGHT, 0, ROPE_NORM_ROUND_TWICE, 1e-5}},
        {"{'model_type': 'qwen3_vl', 'text_config': {'model_type': 'qwen3_vl_text'}}",
         {ROPE_NORM_RMS, ROPE_NORM_HEAD, 0, 0, ROPE_NORM_WEIGHT, 0, ROPE_NORM_ROUND_TWICE, 1e-6}},
        {"{'model_type': 'gemma3_text'}",
         {ROPE_NORM_RMS, ROPE_NORM_HEAD, 0, 0, ROPE_NORM_ONE_PLUS_WEIGHT, 0, ROPE_NORM_ROUND_ONCE,
          1e-6}},
        {"{'model_type': 'olmo2'}",
         {ROPE_NORM_RMS, ROPE_NORM_TOKEN, 0, 0, ROPE_NORM_WEIGHT, 0, ROPE_NORM_ROUND_ONCE, 1e-5}},
        {"{'model_type': 'olmo3'}",
         {ROPE_NORM_RMS, ROPE_NORM_TOKEN, 0, 0, ROPE_NORM_WEIGHT, 0, ROPE_NORM_ROUND_ONCE, 1e-5}},
        {"{'model_type': 'flex_olmo'}",
         {ROPE_NORM_RMS, ROPE_NORM_TOKEN, 0, 0, ROPE_NORM_WEIGHT, 0, ROPE_NORM_ROUND_ONCE, 1e-6}},
        {"{'model_type': 'dots1'}",
         {ROPE_NORM_RMS, ROPE_NORM_HEAD, 0, 0, ROPE_NORM_WEIGHT, 0, ROPE_NORM_ROUND_TWICE, 1e-6}},
        {"{'model_type': 'llama', 'rms_norm_eps': 1e-05}", {0}},
        {"{'head_dim': 64}", {0}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        rope_config *config = config_of(cases[i].json);
        rope_norm norm = {.type = 7};
        CHECK_STATUS(ROPE_OK, rope_append_config_norm(config, &norm));
        const rope_norm *want = &cases[i].norm;
        CHECK(norm.type == want->type && norm.scope == want->scope && norm.offset == 0 &&
                  norm.dim == 0 && norm.weight == want->weight && norm.weight_dtype == 0 &&
                  norm.rounding == want->rounding && norm.eps == want->eps,
              "%s: type %d, scope %d, weight %d, rounding %d, eps %g", cases[i].json, norm.type,
              norm.scope, norm.weight, norm.rounding, norm.eps);
        rope_config_destroy(config);
    }
    rope_config *config = config_of("{'model_type': 'qwen3', 'rms_norm_eps': 'small'}");
    rope_norm norm = {.type = 7};
    CHECK_STATUS(ROPE_ERROR_INVALID_VALUE, rope_append_config_norm(config, &norm));
    CHECK(strstr(rope_last_error(), "rms_norm_eps is the string \"small\"; allowed is a number") &&
              norm.type == 7,
          "%s", rope_last_error());
    CHECK_STATUS(ROPE_ERROR_NULL_POINTER, rope_append_config_norm(NULL, &norm));
    CHECK_STATUS(ROPE_ERROR_NULL_POINTER, rope_append_config_norm(config, NULL));
    rope_config_destroy(config);
}

TEST(config, parameters_that_are_null_are_of_all_layers) {
    rope_config *config = config_of("{'head_dim': 64, 'rope_scaling': {'rope_theta': null}}");
    rope_desc desc = {.struct_size = sizeof desc};
    CHECK_STATUS(ROPE_OK, rope_config_finish(config, &desc, NULL));
    CHECK(desc.rope_theta == 0, "theta %g", desc.rope_theta);
    rope_config_destroy(config);
}

TEST(config, null_arguments) {
    char *name = repeated("", "x", 200, "");
    rope_config *config = NULL;
    CHECK_STATUS(ROPE_ERROR_NULL_POINTER, rope_config_parse(NULL, "{}", 2, NULL));
    CHECK_STATUS(ROPE_ERROR_NULL_POINTER, rope_config_parse(&config, NULL, 2, NULL));
    CHECK_STATUS(ROPE_ERROR_INVALID_VALUE, rope_config_parse(&config, "{}", 2, name));
    free(name);
    config = config_of("{'rope_scaling': {'mrope_section': []}, 'head_dim': 64}");
    rope_desc desc = {.struct_size = sizeof desc};
    CHECK_STATUS(ROPE_ERROR_NULL_POINTER, rope_config_finish(config, NULL, NULL));
    CHECK_STATUS(ROPE_ERROR_NULL_POINTER, rope_config_finish(NULL, &desc, NULL));
    CHECK_STATUS(ROPE_ERROR_INVALID_VALUE, rope_config_finish(config, &desc, NULL));
    CHECK(strstr(rope_last_error(), "mrope_section has 0 entries"), "%s", rope_last_error());
    rope_config_destroy(config);
    rope_config_destroy(NULL);
}
