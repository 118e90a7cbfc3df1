"""Small random models and engines of vLLM that run them in this process."""

from __future__ import annotations

import gc
import os
from contextlib import contextmanager

import torch
import transformers
from ropekit.vllm import _attention, register
from vllm import LLM, SamplingParams
from vllm.distributed import cleanup_dist_env_and_memory
from vllm.model_executor.custom_op import op_registry_oot
from vllm.model_executor.layers import rotary_embedding
from vllm.model_executor.models import registry
from vllm.v1.attention import selector
from vllm.v1.attention.backends.registry import AttentionBackendEnum

# vLLM looks at each model once, in a process that imports all of it anew, so as not to open a GPU.
registry._run_in_subprocess = lambda look: look()

VOCABULARY = 384
_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 1024,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_WINDOW = {"sliding_window": 20}
_CHUNK = {"attention_chunk_size": 32}
_LATENT = {
    "kv_lora_rank": 512,
    "q_lora_rank": None,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 32,
    "v_head_dim": 32,
    "num_key_value_heads": 4,
}
MODELS = {
    "llama": ("Llama", {"num_hidden_layers": 2}),
    "qwen3": ("Qwen3", {}),
    "mistral": ("Mistral", _WINDOW),
    "gemma2": ("Gemma2", _WINDOW | {"query_pre_attn_scalar": 32}),
    "gemma3": ("Gemma3", _WINDOW | {"query_pre_attn_scalar": 32}),
    "gpt_oss": ("GptOss", _WINDOW | {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "llama4": ("Llama4", _CHUNK | {"num_local_experts": 4, "intermediate_size_mlp": 192}),
}
PARTLY = {  # what vLLM keeps a part of, and experts, whose products depend on the batch, left out
    "llama4_dense": (
        "Llama4",
        _CHUNK | {"interleave_moe_layer_step": 8, "intermediate_size_mlp": 192},
    ),
    "deepseek": ("DeepseekV2", _LATENT | {"num_hidden_layers": 1, "first_k_dense_replace": 1}),
    "phi3": (
        "Phi3",
        {
            "original_max_position_embeddings": 512,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 10000.0,
                "short_factor": [1.0 + i / 8 for i in range(16)],
                "long_factor": [2.0 + i for i in range(16)],
            },
        },
    ),
}


def save(name: str, folder: str) -> str:
    """A model of random weights, which tell tokens well apart, as files."""
    kind, fields = (MODELS | PARTLY)[name]
    text = "Text" if name in {"gemma3", "llama4", "llama4_dense"} else ""
    config = getattr(transformers, f"{kind}{text}Config")(**_SIZES | fields)
    torch.manual_seed(0)
    model = getattr(transformers, f"{kind}ForCausalLM")(config).float()
    with torch.no_grad():
        for x in model.parameters():
            x.normal_(std=0.15) if x.dim() > 1 else x.add_(torch.randn_like(x), alpha=0.1)
    model.save_pretrained(folder)
    return folder


def prompts(lengths: list[int], seed: int = 0) -> list[list[int]]:
    draw = torch.Generator().manual_seed(seed)
    return [torch.randint(3, VOCABULARY, (n,), generator=draw).tolist() for n in lengths]


PROMPTS = prompts([3, 31, 64, 90])


@contextmanager
def engine(folder: str, parts: str = "attention", **options):
    """An engine with what `parts` names on ropekit's kernels; "" is vLLM's own."""
    os.environ |= {"ROPE_VLLM": parts, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    AttentionBackendEnum.CPU_ATTN.clear_override()
    selector._cached_get_attn_backend.cache_clear()
    rotary_embedding._ROPE_DICT.clear()
    op_registry_oot.clear()
    register()
    fields = {
        "dtype": "float32",
        "max_model_len": 512,
        "max_num_seqs": 16,
        "block_size": 32,
        "enforce_eager": True,
        "kv_cache_memory_bytes": 1 << 26,
        "enable_prefix_caching": False,
        "seed": 0,
    }
    llm = LLM(folder, skip_tokenizer_init=True, **fields | options)
    try:
        yield llm
    finally:
        llm.llm_engine.engine_core.shutdown()
        del llm
        gc.collect()
        cleanup_dist_env_and_memory()


def attention_of(llm: LLM) -> set[type]:
    layers = llm.llm_engine.vllm_config.compilation_config.static_forward_context.values()
    return {type(x.impl) for x in layers if hasattr(x, "impl")}  # experts are layers too


def count_calls(monkeypatch) -> dict[str, int]:
    """How often vLLM's attention calls each function of ropekit, from here on."""
    made: dict[str, int] = {}

    def counted(name: str):
        function = getattr(_attention, name)

        def call(*args, **options):
            made[name] = made.get(name, 0) + 1
            return function(*args, **options)

        return call

    for name in ("append", "attention", "decode"):
        monkeypatch.setattr(_attention, name, counted(name))
    return made


def scheduler(llm: LLM):
    return llm.llm_engine.engine_core.engine_core.scheduler


def run(llm: LLM, tokens: list[list[int]], new: int = 8, **options):
    """Of each prompt the new tokens and their log-probabilities, with those of the prompt."""
    fields = {"temperature": 0, "max_tokens": new, "logprobs": 0, "prompt_logprobs": 0}
    settings = SamplingParams(detokenize=False, ignore_eos=True, **fields | options)
    given = [{"prompt_token_ids": x} for x in tokens]
    found = llm.generate(given, settings, use_tqdm=False)
    return [(list(x.outputs[0].token_ids), _logprobs(x, tokens[i])) for i, x in enumerate(found)]


def _logprobs(result, prompt: list[int]) -> torch.Tensor:
    """Of each token but the first, given those before it."""
    given = zip(prompt[1:], (result.prompt_logprobs or [])[1:], strict=False)
    made = zip(result.outputs[0].token_ids, result.outputs[0].logprobs, strict=True)
    return torch.tensor([of[token].logprob for token, of in (*given, *made)], dtype=torch.float64)
