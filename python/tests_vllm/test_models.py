"""Log-probabilities of models in vLLM against those of Transformers and of vLLM's own attention."""

from __future__ import annotations

import engines
import pytest
import torch
import transformers
from ropekit.vllm import _attention

_BOUND = 1e-4  # of a log-probability in float32; vLLM's own attention is 3e-5 off Transformers
_PROMPTS = engines.prompts([3, 31, 64, 90])


def _of_transformers(model, tokens: list[int]) -> torch.Tensor:
    with torch.no_grad():
        found = model(torch.tensor([tokens])).logits[0, :-1].double().log_softmax(-1)
    return found.gather(1, torch.tensor(tokens[1:])[:, None])[:, 0]


def _attention_of(llm) -> set[type]:
    layers = llm.llm_engine.vllm_config.compilation_config.static_forward_context.values()
    return {type(x.impl) for x in layers if hasattr(x, "impl")}  # experts are layers too


@pytest.mark.parametrize("name", engines.MODELS)
def test_model(name, saved):
    with engines.engine(saved(name), "") as llm:
        own = engines.run(llm, _PROMPTS, new=12)
        assert _attention.Attention not in _attention_of(llm)
    with engines.engine(saved(name), "attention") as llm:
        ours = engines.run(llm, _PROMPTS, new=12)
        assert _attention_of(llm) == {_attention.Attention}
    model = transformers.AutoModelForCausalLM.from_pretrained(
        saved(name), dtype=torch.float32, attn_implementation="eager"
    )
    for prompt, (tokens, found), (own_tokens, of_own) in zip(_PROMPTS, ours, own, strict=True):
        assert tokens == own_tokens
        known = _of_transformers(model, prompt + tokens)
        assert (found - known).abs().max() < _BOUND
        assert (found - of_own).abs().max() < _BOUND
