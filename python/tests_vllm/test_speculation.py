"""Drafts by n-grams, and several samples of a prompt.

Last of the tests, by its name: vLLM makes no other engine in a process in which numba was loaded.
"""

from __future__ import annotations

import engines
import torch
from vllm import SamplingParams


def test_drafts_and_samples(saved):
    tokens = [x * 4 for x in engines.prompts([11, 20, 7])]  # repeats, so that drafts are right
    with engines.engine(saved("llama")) as llm:
        known = engines.run(llm, tokens, new=16)
        several = llm.generate(
            [{"prompt_token_ids": tokens[0]}],
            SamplingParams(n=4, temperature=1, seed=3, max_tokens=16, detokenize=False),
            use_tqdm=False,
        )[0]
        assert len({tuple(x.token_ids) for x in several.outputs}) == 4
    drafts = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}
    with engines.engine(saved("llama"), speculative_config=drafts) as llm:
        found = engines.run(llm, tokens, new=16)
    for (made, logprobs), (expected, of_known) in zip(found, known, strict=True):
        assert made == expected
        assert torch.equal(logprobs, of_known)
