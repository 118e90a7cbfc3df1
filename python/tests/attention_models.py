"""Small models with random weights for attn_implementation "ropekit": what its layers have."""

from __future__ import annotations

import copy
from typing import Any

import models
import torch
import transformers

SLIDING = ["sliding_attention", "full_attention"]
GEMMA = {"head_dim": 16, "layer_types": SLIDING, "sliding_window": 8, "query_pre_attn_scalar": 16}
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
BASES = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    "full_attention": {"rope_type": "default", "rope_theta": 160000.0},
}

# Name: the class, and the fields of its configuration beside models.TEXT.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    name: models.MODELS[name]
    for name in ("llama", "qwen3", "mistral", "gemma3", "phi3", "deepseek_v3", "gpt_oss")
} | {
    "llama4": (
        "Llama4ForCausalLM",
        models.MODELS["llama4"][1]
        | {"attention_chunk_size": 16, "layer_types": ["chunked_attention", "full_attention"]},
    ),
    "qwen2": ("Qwen2ForCausalLM", {}),
    "qwen3_moe": ("Qwen3MoeForCausalLM", MOE | {"head_dim": 16}),
    "gemma2": ("Gemma2ForCausalLM", GEMMA | {"attn_logit_softcapping": 5.0}),
    "gemma4": (
        "Gemma4ForCausalLM",
        {
            "head_dim": 16,
            "layer_types": SLIDING,
            "sliding_window": 8,
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": 97,
            "rope_parameters": BASES,
        },
    ),
    "olmo2": ("Olmo2ForCausalLM", {}),
    "olmo3": ("Olmo3ForCausalLM", {"layer_types": SLIDING, "sliding_window": 8}),
    "glm4": ("Glm4ForCausalLM", {"head_dim": 16}),
    "cohere2": ("Cohere2ForCausalLM", {"layer_types": SLIDING, "sliding_window": 8}),
    "smollm3": ("SmolLM3ForCausalLM", {"no_rope_layers": [1, 0]}),
    "qwen2_5_vl": (
        "Qwen2_5_VLForConditionalGeneration",
        {"rope_parameters": models.SECTIONS},
    ),
    "modernbert": (
        "ModernBertForMaskedLM",
        {"local_attention": 8, "layer_types": SLIDING, "rope_parameters": BASES},
    ),
}
VISION25 = models.VISION | {"window_size": 16, "fullatt_block_indexes": [0]}


def build(
    name: str, attention: str, dtype: torch.dtype = torch.float32, device: str = "cpu", **more: Any
) -> Any:
    """The model, its weights from a fixed seed and so large that tokens differ."""
    class_name, fields = MODELS[name]
    model_class = getattr(transformers, class_name)
    fields = copy.deepcopy(models.TEXT | {"num_hidden_layers": 2} | fields | more)
    if name.endswith("_vl"):
        fields = {"text_config": fields, "vision_config": dict(VISION25), **models.IMAGE}
    if name == "modernbert":
        fields.pop("num_key_value_heads")
    config = model_class.config_class(**fields, attn_implementation=attention)
    torch.manual_seed(0)
    model = model_class._from_config(config, dtype=torch.float32)
    models.widen(model)
    model = model.to(device, dtype).eval()
    if model.can_generate():
        model.generation_config.eos_token_id = None
    return model


def inputs(
    name: str, device: str = "cpu", length: int = 24, padding: str = "", seed: int = 1
) -> dict[str, Any]:
    """Two sequences, one of them padded on that side; with an image where the model sees them."""
    given = models.inputs(name, device, length, seed)
    ids, mask = given["input_ids"], given["attention_mask"]
    if padding == "left":
        mask[1, :5], ids[1, :5] = 0, 0
    elif padding == "right":
        mask[1, -5:], ids[1, -5:] = 0, 0
    return given
