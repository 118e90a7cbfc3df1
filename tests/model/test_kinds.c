/* The kinds of layers that a configuration has. */
#include "tests/support/harness.h"

#include <ropekit/rope.h>

#include <stddef.h>
#include <stdio.h>
#include <string.h>

static rope_config *config_of(const char *json) {
    char text[1000];
    rope_config *config = NULL;
    snprintf(text, sizeof text, "%s", json);
    for (char *at = text; (at = strchr(at, '\''));)
        *at = '"';
    CHECK(rope_config_parse(&config, text, strlen(text), NULL) == ROPE_OK, "%s: %s", json,
          rope_last_error());
    return config;
}

static rope_layer_kind kind_of(const rope_config *config, int32_t index) {
    rope_layer_kind kind = {.struct_size = sizeof kind};
    CHECK_STATUS(ROPE_OK, rope_config_kind_get(config, index, &kind));
    return kind;
}

/* Every kind: its name, unless it rotates "-", entries of layer_types and unrotated ones, window,
 * chunk. */
static void tell(const rope_config *config, char *text, size_t size) {
    for (int32_t i = 0; i < rope_config_kind_count(config); i++) {
        const rope_layer_kind kind = kind_of(config, i);
        const size_t used = strlen(text);
        snprintf(text + used, size - used, "%s%s%s %d/%d %lld/%lld", used ? ", " : "",
                 kind.rotates ? "" : "-", kind.name, kind.layers, kind.unrotated,
                 (long long)kind.window, (long long)kind.chunk);
    }
}

TEST(kinds, are_those_of_transformers) {
    static const char *const cases[][2] = {
        {"{'head_dim': 64}", " 0/0 0/0"},
        {"{'head_dim': 64, 'sliding_window': 7}", " 0/0 7/0"},
        {"{'model_type': 'llama'}", " 0/0 0/0"},
        {"{'model_type': 'llama', 'sliding_window': 7}", " 0/0 0/0"}, /* which it does not read */
        {"{'model_type': 'mistral'}", " 0/0 4096/0"},
        {"{'model_type': 'mistral', 'sliding_window': null}", " 0/0 0/0"},
        {"{'model_type': 'phi3', 'sliding_window': 262144}", " 0/0 262144/0"},
        {"{'model_type': 'qwen3_moe'}", " 0/0 0/0"},
        {"{'model_type': 'qwen3_moe', 'use_sliding_window': true}", " 0/0 4096/0"},
        {"{'model_type': 'qwen2'}", "full_attention 0/0 0/0"},
        {"{'model_type': 'qwen2', 'use_sliding_window': true, 'sliding_window': 9}",
         "full_attention 0/0 0/0, sliding_attention 0/0 9/0"},
        {"{'model_type': 'gemma3', 'text_config': {'model_type': 'gemma3_text', 'hidden_size': "
         "2560, 'rope_scaling': {'rope_type': 'linear', 'factor': 8.0}, 'sliding_window': 1024}}",
         "full_attention 0/0 0/0, sliding_attention 0/0 1024/0"},
        {"{'model_type': 'gpt_oss', 'layer_types': ['sliding_attention', 'full_attention',"
         " 'sliding_attention']}",
         "sliding_attention 2/0 128/0, full_attention 1/0 0/0"},
        {"{'model_type': 'cohere2'}", "-full_attention 0/0 0/0, sliding_attention 0/0 4096/0"},
        {"{'model_type': 'exaone4', 'layer_types': ['full_attention', 'sliding_attention']}",
         "-full_attention 1/1 0/0, sliding_attention 1/0 4096/0"},
        {"{'model_type': 'beam'}", "-full_attention 0/0 0/0, sliding_attention 0/0 512/0"},
        {"{'model_type': 'llama4', 'text_config': {'attention_chunk_size': 8192}}",
         "chunked_attention 0/0 0/8192, -full_attention 0/0 0/0"},
        {"{'model_type': 'qwen3_next'}", "full_attention 0/0 0/0, -linear_attention 0/0 0/0"},
        {"{'model_type': 'smollm3', 'layer_types': ['full_attention', 'full_attention',"
         " 'full_attention'], 'no_rope_layers': [1, 1, 0]}",
         "full_attention 3/1 0/0"},
        {"{'model_type': 'modernbert', 'local_attention': 256}",
         "full_attention 0/0 0/0, sliding_attention 0/0 128/0"},
        {"{'model_type': 'recurrent_gemma', 'layer_types': ['sliding_attention']}",
         "sliding_attention 1/0 2048/0"},
        {"{'model_type': 'deepseek_v4'}",
         "compressed_sparse_attention 0/0 128/0, heavily_compressed_attention 0/0 128/0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char told[400] = "";
        rope_config *config = config_of(cases[i][0]);
        tell(config, told, sizeof told);
        CHECK(strcmp(told, cases[i][1]) == 0, "%s: %s, not %s", cases[i][0], told, cases[i][1]);
        rope_config_destroy(config);
    }
}

/* Each that rotates can be parsed by its name, and the others not. */
TEST(kinds, have_the_names_that_parse_takes) {
    static const char json[] = "{\"model_type\": \"cohere2\"}";
    rope_config *config = config_of(json);
    for (int32_t i = 0; i < rope_config_kind_count(config); i++) {
        const rope_layer_kind kind = kind_of(config, i);
        rope_config *own = NULL;
        CHECK_STATUS(kind.rotates ? ROPE_OK : ROPE_ERROR_INVALID_VALUE,
                     rope_config_parse(&own, json, strlen(json), kind.name));
        CHECK(!own || rope_config_kind_count(own) == 2, "%s alone", kind.name);
        rope_config_destroy(own);
    }
    rope_config_destroy(config);
}

TEST(kinds, errors) {
    rope_config *config = config_of("{'head_dim': 64}");
    rope_layer_kind kind = {.struct_size = sizeof kind, .layers = 7};
    CHECK(rope_config_kind_count(NULL) == 0, "kinds of no configuration");
    CHECK_STATUS(ROPE_ERROR_NULL_POINTER, rope_config_kind_get(NULL, 0, &kind));
    CHECK_STATUS(ROPE_ERROR_NULL_POINTER, rope_config_kind_get(config, 0, NULL));
    CHECK_STATUS(ROPE_ERROR_INVALID_VALUE, rope_config_kind_get(config, -1, &kind));
    CHECK_STATUS(ROPE_ERROR_INVALID_VALUE, rope_config_kind_get(config, 1, &kind));
    CHECK(strcmp(rope_last_error(), "index is 1; allowed is 0..0") == 0, "%s", rope_last_error());
    kind.struct_size = 0;
    CHECK_STATUS(ROPE_ERROR_ABI, rope_config_kind_get(config, 0, &kind));
    CHECK(kind.layers == 7, "an error wrote its result");
    rope_config_destroy(config);
    static const char *const bad[][2] = {
        {"{'model_type': 'mistral', 'sliding_window': '9'}",
         "sliding_window is the string \"9\"; allowed is a whole number in 0..2^53, or null"},
        {"{'model_type': 'mistral', 'sliding_window': -1}", "sliding_window is the number -1;"},
        {"{'model_type': 'mistral', 'sliding_window': 1.5}", "sliding_window is the number 1.5;"},
        {"{'model_type': 'llama4', 'attention_chunk_size': true}", "attention_chunk_size is true;"},
    };
    kind.struct_size = sizeof kind;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        config = config_of(bad[i][0]);
        CHECK_STATUS(ROPE_ERROR_INVALID_VALUE, rope_config_kind_get(config, 0, &kind));
        CHECK(strstr(rope_last_error(), bad[i][1]), "%s", rope_last_error());
        rope_config_destroy(config);
    }
}

/* A program that knows the first fields alone gets them. */
TEST(kinds, an_older_struct) {
    rope_config *config = config_of("{'model_type': 'mistral'}");
    rope_layer_kind kind = {.struct_size = offsetof(rope_layer_kind, window), .window = 5};
    CHECK_STATUS(ROPE_OK, rope_config_kind_get(config, 0, &kind));
    CHECK(kind.rotates == 1 && kind.window == 5, "%d, %lld", kind.rotates, (long long)kind.window);
    rope_config_destroy(config);
}
