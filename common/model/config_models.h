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

/* Values of fields that a config may leave out. */
typedef struct model_default {
    const char *model_type, *name;
    double value;
} model_default;

static const model_default model_defaults[] = {
    {"apertus", "rope_theta", 12000000},
    {"bamba", "partial_rotary_factor", 0.5},
    {"bitnet", "rope_theta", 500000},
    {"blt", "rope_theta", 500000},
    {"codegen", "n_embd", 4096},
    {"codegen", "n_head", 16},
    {"codegen", "n_positions", 2048},
    {"codegen", "rotary_dim", 64},
    {"cohere", "rope_theta", 500000},
    {"csm", "rope_theta", 500000},
    {"cwm", "rope_theta", 1000000},
    {"deepseek_v2", "kv_lora_rank", 512},
    {"deepseek_v2", "qk_nope_head_dim", 128},
    {"deepseek_v2", "qk_rope_head_dim", 64},
    {"deepseek_v3", "kv_lora_rank", 512},
    {"deepseek_v3", "qk_nope_head_dim", 128},
    {"deepseek_v3", "qk_rope_head_dim", 64},
    {"diffusion_gemma", "global_head_dim", 512},
    {"dots1", "rms_norm_eps", 1e-6},
    {"embedding_gemma2", "global_head_dim", 512},
    {"ernie4_5", "rope_theta", 500000},
    {"ernie4_5_moe", "rope_theta", 500000},
    {"ernie4_5_vl_moe", "rope_theta", 500000},
    {"flex_olmo", "rms_norm_eps", 1e-6},
    {"flex_olmo", "rope_theta", 500000},
    {"gemma3", "rope_theta", 1000000},
    {"gemma3", "head_dim", 256},
    {"gemma3", "num_attention_heads", 8},
    {"gemma3", "num_key_value_heads", 4},
    {"gemma3", "max_position_embeddings", 131072},
    {"gemma3", "rms_norm_eps", 1e-6},
    {"gemma4", "global_head_dim", 512},
    {"gemma4_unified", "global_head_dim", 512},
    {"glm", "partial_rotary_factor", 0.5},
    {"glm4", "partial_rotary_factor", 0.5},
    {"glm4_moe", "partial_rotary_factor", 0.5},
    {"glm4v_moe", "partial_rotary_factor", 0.5},
    {"gpt_neox", "rotary_pct", 0.25},
    {"gpt_oss", "rope_theta", 150000},
    {"gptj", "n_embd", 4096},
    {"gptj", "n_head", 16},
    {"gptj", "n_positions", 2048},
    {"gptj", "rotary_dim", 64},
    {"helium", "rope_theta", 100000},
    {"lfm2", "rope_theta", 1000000},
    {"lfm2_moe", "rope_theta", 1000000},
    {"llama4", "rope_theta", 500000},
    {"longcat_flash", "rope_theta", 10000000},
    {"minimax", "rope_theta", 1000000},
    {"minimax_m2", "rope_theta", 5000000},
    {"mixtral", "rope_theta", 1000000},
    {"mllama", "rope_theta", 500000},
    {"moonshine", "partial_rotary_factor", 0.9},
    {"nemotron", "partial_rotary_factor", 0.5},
    {"nomic_bert", "rope_theta", 1000},
    {"olmo2", "rms_norm_eps", 1e-5},
    {"olmo3", "rms_norm_eps", 1e-5},
    {"olmo3", "rope_theta", 500000},
    {"persimmon", "partial_rotary_factor", 0.5},
    {"phi", "partial_rotary_factor", 0.5},
    {"qwen3", "rms_norm_eps", 1e-6},
    {"qwen3_5", "partial_rotary_factor", 0.25},
    {"qwen3_5_moe", "partial_rotary_factor", 0.25},
    {"qwen3_moe", "rms_norm_eps", 1e-6},
    {"qwen3_next", "partial_rotary_factor", 0.25},
    {"qwen3_omni_moe", "rope_theta", 1000000},
    {"qwen3_vl", "rms_norm_eps", 1e-6},
    {"qwen3_vl", "rope_theta", 500000},
    {"qwen3_vl_moe", "rms_norm_eps", 1e-6},
    {"qwen3_vl_moe", "rope_theta", 500000},
    {"recurrent_gemma", "partial_rotary_factor", 0.5},
    {"smollm3", "rope_theta", 2000000},
    {"stablelm", "partial_rotary_factor", 0.25},
};

#undef INTERLEAVED
#undef DEINTERLEAVED

#endif
