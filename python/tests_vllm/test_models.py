"""Log-probabilities of models in vLLM against those of Transformers and of vLLM's own attention."""

from __future__ import annotations

import engines
import pytest
import torch
import transformers
from ropekit.vllm import _attention
from transformers import masking_utils
from transformers.models.llama import modeling_llama

_BOUND = 1e-4  # of a log-probability in float32; vLLM's own attention is 3e-5 off Transformers


def _of_transformers(model, tokens: list[int]) -> torch.Tensor:
    with torch.no_grad():
        found = model(torch.tensor([tokens])).logits[0, :-1].double().log_softmax(-1)
    return found.gather(1, torch.tensor(tokens[1:])[:, None])[:, 0]


def _check(name, saved, results, attention="eager", bound=_BOUND) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(
        saved(name), dtype=torch.float32, attn_implementation=attention
    )
    for prompt, (tokens, found) in zip(engines.PROMPTS, results, strict=True):
        assert (found - _of_transformers(model, prompt + tokens)).abs().max() < bound


@pytest.mark.parametrize("name", engines.MODELS)
def test_model(name, saved, own):
    known = own(name)
    parts = "attention,rotation" if name == "gemma3" else "attention"
    with engines.engine(saved(name), parts) as llm:
        ours = engines.run(llm, engines.PROMPTS, new=12)
        assert engines.attention_of(llm) == {_attention.Attention}
    _check(name, saved, ours)
    for (tokens, found), (own_tokens, of_own) in zip(ours, known, strict=True):
        assert tokens == own_tokens
        assert (found - of_own).abs().max() < _BOUND


def test_a_token_is_one_call(saved, monkeypatch):
    """Of each layer: only a prompt is written ahead of its attention."""
    with engines.engine(saved("llama")) as llm:
        calls = engines.count_calls(monkeypatch)
        engines.run(llm, engines.PROMPTS, new=12)
    assert calls == {"append": 2, "attention": 2, "decode": 2 * 11}


@pytest.mark.parametrize(
    ("stored", "dtype"), [("fp8", torch.float8_e4m3fn), ("fp8_e5m2", torch.float8_e5m2)]
)
def test_caches_of_eight_bits(stored, dtype, saved):
    """As Transformers where each key and value is rounded to 8 bits. vLLM's own code has them on
    some processors alone."""

    def rounded(module, q, k, v, mask, **options):
        k, v = (x.to(dtype).float() for x in (k, v))
        return modeling_llama.eager_attention_forward(module, q, k, v, mask, **options)

    transformers.AttentionInterface.register("rounded", rounded)
    transformers.AttentionMaskInterface.register("rounded", masking_utils.eager_mask)
    with engines.engine(saved("llama"), kv_cache_dtype=stored) as llm:
        found = engines.run(llm, engines.PROMPTS, new=12)
        assert engines.attention_of(llm) == {_attention.Attention}
    _check("llama", saved, found, "rounded", 2e-3)  # a key near a tie may round the other way


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("deepseek", "ropekit leaves a layer to CPU_MLA: MLA caches latents"),
        ("phi3", "ropekit leaves Phi3LongRoPEScaledRotaryEmbedding to vLLM: it is no CustomOp"),
    ],
)
def test_what_is_left_to_vllm(name, line, saved, caplog_vllm):
    with engines.engine(saved(name), "attention,rotation") as llm:
        assert caplog_vllm.text.count(line) == 1
        found = engines.run(llm, engines.PROMPTS, new=12)
    _check(name, saved, found)
