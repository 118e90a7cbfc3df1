/*
 * What Transformers 5.23 does for a model_type where it differs from half-split pairs over the
 * whole head with base 10000. A trailing "_text" or "_text_model" of model_type is left out.
 */
#ifndef ROPEKIT_COMMON_CONFIG_MODELS_H
#define ROPEKIT_COMMON_CONFIG_MODELS_H

#include <ropekit/append.h>

/* Pairs as the model's attention reads and writes them. */
typedef struct model_pairing {
    const char *model_type;
    int32_t in, out;
} model_pairing;

#define INTERLEAVED ROPE_PAIRING_INTERLEAVED, ROPE_PAIRING_INTERLEAVED
#define DEINTERLEAVED ROPE_PAIRING_INTERLEAVED, ROPE_PAIRING_HALF_SPLIT

static const model_pairing model_pairings[] = {
    {"axk1", DEINTERLEAVED},
    {"axk2", DEINTERLEAVED},
    {"bailing_hybrid", DEINTERLEAVED},
    {"blt", INTERLEAVED},
    {"codegen", INTERLEAVED},
    {"cohere", INTERLEAVED},
    {"cohere2", INTERLEAVED},
    {"cohere2_moe", INTERLEAVED},
    {"deepseek_v2", INTERLEAVED},
    {"deepseek_v3", DEINTERLEAVED},
    {"deepseek_v32", DEINTERLEAVED},
    {"deepseek_v4", INTERLEAVED},
    {"ernie4_5", INTERLEAVED},
    {"ernie4_5_moe", INTERLEAVED},
    {"ernie4_5_vl_moe", INTERLEAVED},
    {"glm", INTERLEAVED},
    {"glm4", INTERLEAVED},
    {"glm4_moe_lite", DEINTERLEAVED},
    {"glm4v", INTERLEAVED},
    {"glm_moe_dsa", DEINTERLEAVED},
    {"glm_ocr", INTERLEAVED},
    {"gptj", INTERLEAVED},
    {"helium", INTERLEAVED},
    {"kimi_k2", DEINTERLEAVED},
    {"llama4", INTERLEAVED},
    {"longcat_flash", DEINTERLEAVED},
    {"mistral4", DEINTERLEAVED},
    {"mistral_large4", DEINTERLEAVED},
    {"moonshine", INTERLEAVED},
    {"moonshine_streaming", INTERLEAVED},
    {"roformer", INTERLEAVED},
    {"youtu", DEINTERLEAVED},
};

/* Position axes; sections where a config states none, in the order of mrope_section. */
typedef struct model_axes {
    const char *model_type;
    int32_t layout;
    int32_t sections[3];
} model_axes;

static const model_axes model_axis_layouts[] = {
    {"ernie4_5_vl_moe", ROPE_AXES_ALTERNATING, {22, 22, 20}},
    {"glm4v", ROPE_AXES_CHUNKED, {8, 12, 12}},
    {"glm4v_moe", ROPE_AXES_CHUNKED, {8, 12, 12}},
    {"glm_image", ROPE_AXES_CHUNKED, {8, 12, 12}},
    {"glm_ocr", ROPE_AXES_CHUNKED, {8, 12, 12}},
    {"paddleocr_vl", ROPE_AXES_CHUNKED, {16, 24, 24}},
    {"qwen2_5_omni", ROPE_AXES_CHUNKED, {16, 24, 24}},
    {"qwen2_5_vl", ROPE_AXES_CHUNKED, {16, 24, 24}},
    {"qwen2_vl", ROPE_AXES_CHUNKED, {16, 24, 24}},
    {"qwen3_5", ROPE_AXES_INTERLEAVED, {11, 11, 10}},
    {"qwen3_5_moe", ROPE_AXES_INTERLEAVED, {11, 11, 10}},
    {"qwen3_omni_moe", ROPE_AXES_INTERLEAVED, {24, 20, 20}},
    {"qwen3_vl", ROPE_AXES_INTERLEAVED, {24, 20, 20}},
    {"qwen3_vl_moe", ROPE_AXES_INTERLEAVED, {24, 20, 20}},
};

/* Root mean square norms of q and k. */
typedef struct model_norm {
    const char *model_type;
    int32_t scope, weight, rounding;
} model_norm;

#define QWEN3_NORM ROPE_NORM_HEAD, ROPE_NORM_WEIGHT, ROPE_NORM_ROUND_TWICE
#define GEMMA3_NORM ROPE_NORM_HEAD, ROPE_NORM_ONE_PLUS_WEIGHT, ROPE_NORM_ROUND_ONCE
#define OLMO2_NORM ROPE_NORM_TOKEN, ROPE_NORM_WEIGHT, ROPE_NORM_ROUND_ONCE

static const model_norm model_norms[] = {
    {"dots1", QWEN3_NORM},     {"flex_olmo", OLMO2_NORM}, {"gemma3", GEMMA3_NORM},
    {"olmo2", OLMO2_NORM},     {"olmo3", OLMO2_NORM},     {"qwen3", QWEN3_NORM},
    {"qwen3_moe", QWEN3_NORM}, {"qwen3_vl", QWEN3_NORM},  {"qwen3_vl_moe", QWEN3_NORM},
};

#undef INTERLEAVED
#undef DEINTERLEAVED

#endif
