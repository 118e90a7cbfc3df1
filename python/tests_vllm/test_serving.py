"""A busy server: requests arrive, are preempted and aborted, and memory stays flat. Then drafts by
n-grams, and several samples of a prompt.

Last of the tests, by its name: vLLM makes no other engine in a process in which numba was loaded.
"""

from __future__ import annotations

import ctypes
import gc

import engines
import psutil
import pytest
import torch
from vllm import SamplingParams

_REQUESTS = 200
_NEW = 16
_LENGTHS = torch.randint(1, 160, (_REQUESTS,), generator=torch.Generator().manual_seed(7)).tolist()
_TOKENS = engines.prompts(_LENGTHS, seed=8)
_REPEATED = [x * 4 for x in engines.prompts([11, 20, 7])]  # so that drafts are right


def _settings() -> SamplingParams:
    return SamplingParams(
        temperature=0, max_tokens=_NEW, logprobs=0, detokenize=False, ignore_eos=True
    )


def _memory() -> int:
    """Bytes that this process holds, without what is free."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return psutil.Process().memory_info().rss


def _serve(llm, count: int, aborted: set[int]):
    """What requests gave; some arrive at each step, and some are aborted on their way."""
    found, arrived, aborted = {}, 0, set(aborted)
    draw = torch.Generator().manual_seed(0)
    while arrived < count or llm.has_unfinished_requests():
        until = min(arrived + int(torch.randint(0, 4, (), generator=draw)), count)
        for i in range(arrived, until):
            llm.add_request(str(i), {"prompt_token_ids": _TOKENS[i]}, _settings())
        arrived = until
        for x in llm.step():
            if x.finished:
                made = x.outputs[0]
                pairs = zip(made.token_ids, made.logprobs, strict=True)
                numbers = [of[token].logprob for token, of in pairs]
                found[int(x.request_id.split("-")[0])] = list(made.token_ids), numbers
        late = {i for i in aborted if i < arrived - 2} - found.keys()
        llm.abort_request([str(i) for i in late])
        aborted -= late
    return found


@pytest.fixture(scope="module")
def plain(saved):
    """Of an engine without drafts and with pages for all: _TOKENS, _REPEATED, and samples."""
    with engines.engine(saved("llama"), max_num_seqs=64) as llm:
        load = engines.run(llm, _TOKENS, new=_NEW, prompt_logprobs=None)
        repeated = engines.run(llm, _REPEATED, new=_NEW)
        settings = SamplingParams(n=4, temperature=1, seed=3, max_tokens=_NEW, detokenize=False)
        given = [{"prompt_token_ids": _REPEATED[0]}]
        return load, repeated, llm.generate(given, settings, use_tqdm=False)[0].outputs


def test_load(saved, plain):
    known = plain[0]
    with engines.engine(
        saved("llama"),
        block_size=32,
        num_gpu_blocks_override=20,  # of 16 requests, which ask for 80 at times
        max_num_batched_tokens=96,
        max_model_len=192,
        enable_chunked_prefill=True,
        enable_prefix_caching=True,
    ) as llm:
        scheduler = engines.scheduler(llm)
        preempted, preempt = [], scheduler._preempt_request

        def preempting(request, *rest, **options):
            preempted.append(request)
            return preempt(request, *rest, **options)

        scheduler._preempt_request = preempting
        aborted = set(range(5, _REQUESTS, 11))
        found = _serve(llm.llm_engine, _REQUESTS, aborted)
        scheduler._preempt_request = preempt
        memory = []
        for _ in range(2):
            assert len(_serve(llm.llm_engine, 60, aborted)) < 60
            memory.append(_memory())
    assert preempted
    assert _REQUESTS - len(aborted) <= len(found) < _REQUESTS
    for i, (made, numbers) in found.items():
        assert made == known[i][0], i
        assert numbers == known[i][1].tolist(), i
    assert memory[1] - memory[0] < 4 << 20


def test_samples(plain):
    assert len({tuple(x.token_ids) for x in plain[2]}) == 4


def test_drafts(saved, plain):
    drafts = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}
    with engines.engine(saved("llama"), speculative_config=drafts) as llm:
        found = engines.run(llm, _REPEATED, new=_NEW)
    for (made, logprobs), (expected, of_known) in zip(found, plain[1], strict=True):
        assert made == expected
        assert torch.equal(logprobs, of_known)
