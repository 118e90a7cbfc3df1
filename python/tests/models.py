"""Small models of Transformers with random weights."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers")
REQUIREMENTS = (Path(__file__).parents[1] / "requirements.txt").read_text(encoding="utf-8")
IS_PINNED = transformers.__version__ in re.findall(r"(?m)^transformers==(.*)$", REQUIREMENTS)

TEXT: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0 + 0.1 * i for i in range(8)],
    "long_factor": [2.0 + 0.5 * i for i in range(8)],
}
BY_LAYER = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    "full_attention": {"rope_type": "linear", "rope_theta": 1000000.0, "factor": 8.0},
}
MLA = {
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "num_key_value_heads": 4,
}
VISION2 = {"depth": 1, "embed_dim": 32, "hidden_size": 64, "num_heads": 2, "patch_size": 4}
VISION = {
    "depth": 1,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_heads": 2,
    "patch_size": 4,
    "out_hidden_size": 64,
}
VISION3 = VISION | {"num_position_embeddings": 16, "deepstack_visual_indexes": [0]}
IMAGE = {"image_token_id": 90, "vision_start_token_id": 91, "vision_end_token_id": 92}
SECTIONS = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}

# Name: the class, and the fields of its configuration beside TEXT.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", {"rope_parameters": LLAMA3}),
    "qwen3": ("Qwen3ForCausalLM", {"head_dim": 16, "rope_parameters": YARN}),
    "mistral": ("MistralForCausalLM", {"head_dim": 16, "sliding_window": 8}),
    "gemma3": (
        "Gemma3ForCausalLM",
        {
            "head_dim": 16,
            "layer_types": ["sliding_attention", "full_attention"],
            "sliding_window": 8,
            "rope_parameters": BY_LAYER,
        },
    ),
    "gpt_neox": ("GPTNeoXForCausalLM", {}),
    "gptj": ("GPTJForCausalLM", {"n_embd": 64, "n_head": 4, "rotary_dim": 8}),
    "phi3": (
        "Phi3ForCausalLM",
        {"rope_parameters": LONGROPE, "original_max_position_embeddings": 64},
    ),
    "deepseek_v3": ("DeepseekV3ForCausalLM", MLA | {"rope_parameters": YARN}),
    # Of complex numbers 16 or more, else a patch keeps the model's own function on a CPU.
    "deepseek_v2": (
        "DeepseekV2ForCausalLM",
        MLA | {"qk_rope_head_dim": 32, "rope_parameters": YARN},
    ),
    "llama4": (
        "Llama4ForCausalLM",
        {
            "head_dim": 32,
            "intermediate_size_mlp": 96,
            "num_local_experts": 4,
            "attention_chunk_size": 64,
            "rope_parameters": LLAMA3,
        },
    ),
    "nanochat": ("NanoChatForCausalLM", {"rope_parameters": LLAMA3}),
    "gpt_oss": (
        "GptOssForCausalLM",
        {
            "head_dim": 16,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": 8,
            "rope_parameters": YARN | {"truncate": False},
        },
    ),
    "qwen2_vl": ("Qwen2VLForConditionalGeneration", {"rope_parameters": SECTIONS}),
    "qwen3_vl": (
        "Qwen3VLForConditionalGeneration",
        {
            "head_dim": 16,
            "rope_parameters": SECTIONS | {"mrope_section": [3, 3, 2], "mrope_interleaved": True},
        },
    ),
}


# How many layers show each kind of attention that a family has, where it has more than one.
KINDS = {"gemma3": 2, "gpt_oss": 2}


def build(
    name: str,
    dtype: torch.dtype = torch.bfloat16,
    device: str = "cpu",
    layers: int = 2,
) -> Any:
    """The model in eager attention, its weights from a fixed seed."""
    class_name, fields = MODELS[name]
    model_class = getattr(transformers, class_name)
    fields = copy.deepcopy(TEXT | {"num_hidden_layers": layers, "n_layer": layers} | fields)
    if name == "gptj":
        fields = {key: value for key, value in fields.items() if not key.startswith("num_")}
        fields.pop("hidden_size")
    else:
        fields.pop("n_layer")
    if name.endswith("_vl"):
        vision = VISION2 if name == "qwen2_vl" else VISION3
        fields = {"text_config": fields, "vision_config": dict(vision), **IMAGE}
    config = model_class.config_class(**fields, attn_implementation="eager")
    torch.manual_seed(0)
    model = model_class._from_config(config, dtype=dtype).to(device).eval()
    model.generation_config.eos_token_id = None
    return model


def inputs(
    name: str, device: str = "cpu", length: int = 24, seed: int = 1
) -> dict[str, torch.Tensor]:
    """A batch of two sequences, with an image each where the model sees them."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, 80, (2, length), generator=generator)
    made = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if name.endswith("_vl"):
        patches = 2 * 16
        ids[:, 4], ids[:, 5:9], ids[:, 9] = 91, 90, 92
        made["pixel_values"] = torch.randn(patches, 3 * 2 * 4 * 4, generator=generator)
        made["image_grid_thw"] = torch.tensor([[1, 4, 4]] * 2)
        made["mm_token_type_ids"] = (ids == 90).int()
    return {key: value.to(device) for key, value in made.items()}


def widen(model: Any) -> None:
    """Weights so large that attention tells."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                scale = 1.5 * weight.shape[-1] ** -0.5
                weight.copy_(scale * torch.randn(weight.shape, generator=generator))
