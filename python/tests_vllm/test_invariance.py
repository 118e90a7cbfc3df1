"""Log-probabilities have the same bits whatever a request shares its steps with."""

from __future__ import annotations

import engines
import pytest
import torch
from vllm import SamplingParams
from vllm.model_executor.layers.linear import LinearBase

_PROMPTS = engines.prompts([70, 3, 33, 150, 64, 17, 1, 90, 41, 128, 5, 77, 12, 100, 29, 61])
_BATCHES = (2, 3, 4, 8, 16)
_ROWS = sum(map(len, _PROMPTS))  # of the largest step
# Of the projections around attention: docs/python.md has what PyTorch's and oneDNN's do.
_CASES = [  # name, types of the model and its cache, how far from float32 log-probabilities may be
    ("llama", "float16", {}, 0.05),
    ("llama", "float16", {"kv_cache_dtype": "fp8"}, 1.0),
    ("gemma2", "bfloat16", {}, 0.3),
    ("llama4_dense", "float32", {}, 1e-4),
]


def _equal(found, known) -> bool:
    return all(a[0] == b[0] and torch.equal(a[1], b[1]) for a, b in zip(found, known, strict=True))


def _vary(model) -> bool:
    """Whether a row of a projection depends on how many others there are, as some of vLLM's do."""
    for layer in (x for x in model.modules() if isinstance(x, LinearBase)):
        x = torch.randn(_ROWS, layer.input_size, dtype=layer.weight.dtype)
        known = layer(x)[0]
        for rows in (1, 2, 3, 7, 16, 48, 70, 106, 256, 512):
            if any(
                not torch.equal(layer(x[i : i + rows])[0], known[i : i + rows]) for i in (0, 40)
            ):
                return True
    return False


def _check_projections(llm) -> None:
    if any(llm.apply_model(_vary)):
        pytest.skip("vLLM's projections on this processor have other bits in other batches")


def _off(found, known) -> float:
    """The greatest difference of log-probabilities of PROMPTS without what is made of them."""
    compared = zip(engines.PROMPTS, found, known, strict=True)
    return max(float((a[1] - b[1])[: len(x) - 1].abs().max()) for x, a, b in compared)


@pytest.mark.parametrize("case", _CASES, ids=lambda case: "-".join(map(str, case[:2])))
def test_batches(case, saved, own):
    name, dtype, options, bound = case
    known = own(name)
    with engines.engine(saved(name), dtype=dtype, enable_chunked_prefill=True, **options) as llm:
        assert _off(engines.run(llm, engines.PROMPTS, new=12), known) < bound
        _check_projections(llm)
        alone = [engines.run(llm, [x])[0] for x in _PROMPTS]
        for size in _BATCHES:
            assert _equal(engines.run(llm, _PROMPTS[:size]), alone[:size]), size
        longer = [x + tokens for x, (tokens, _) in zip(_PROMPTS, alone, strict=True)]
        for (_, found), (_, known) in zip(engines.run(llm, longer, new=1), alone, strict=True):
            assert torch.equal(found[:-1], known), "decode against prefill"
        for most in (16, 48, 100):
            engines.scheduler(llm).max_num_scheduled_tokens = most
            assert _equal(engines.run(llm, _PROMPTS), alone), f"chunks of {most}"


def test_prefix_caching(saved):
    shared = engines.prompts([96])[0]
    tokens = [shared + x for x in engines.prompts([9, 20, 33], seed=1)]
    fields = {"prompt_logprobs": None, "logprobs": 3}
    with engines.engine(saved("llama"), enable_prefix_caching=True, block_size=32) as llm:
        _check_projections(llm)
        known = []
        for x in tokens:
            known += engines.run(llm, [x], **fields)
            assert llm.reset_prefix_cache()
        for x, expected in zip(tokens, known, strict=True):
            assert _equal(engines.run(llm, [x], **fields), [expected])
        assert _equal(engines.run(llm, tokens, **fields), known)
        given = [{"prompt_token_ids": tokens[0]}]
        again = llm.generate(given, SamplingParams(max_tokens=1, detokenize=False), use_tqdm=False)
        assert again[0].num_cached_tokens >= len(shared)
