"""A busy server: requests arrive, are preempted and aborted, and memory stays flat."""

from __future__ import annotations

import ctypes
import gc

import engines
import psutil
import torch
from vllm import SamplingParams

_REQUESTS = 200
_NEW = 16


def _requests() -> list[list[int]]:
    draw = torch.Generator().manual_seed(7)
    return engines.prompts(torch.randint(1, 160, (_REQUESTS,), generator=draw).tolist(), seed=8)


def _settings() -> SamplingParams:
    return SamplingParams(
        temperature=0, max_tokens=_NEW, logprobs=0, detokenize=False, ignore_eos=True
    )


def _memory() -> int:
    """Bytes that this process holds, without what is free."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return psutil.Process().memory_info().rss


def _serve(llm, tokens: list[list[int]], requests: range, aborted: set[int]):
    """What the requests gave; some arrive at each step, and some are aborted on their way."""
    found, arrived = {}, requests.start
    draw = torch.Generator().manual_seed(requests.start)
    while arrived < requests.stop or llm.has_unfinished_requests():
        until = min(arrived + int(torch.randint(0, 4, (), generator=draw)), requests.stop)
        for i in range(arrived, until):
            llm.add_request(str(i), {"prompt_token_ids": tokens[i]}, _settings())
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


def test_load(saved):
    tokens = _requests()
    with engines.engine(saved("llama"), max_num_seqs=64) as llm:
        known = engines.run(llm, tokens, new=_NEW, prompt_logprobs=None)
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
        found = _serve(llm.llm_engine, tokens, range(_REQUESTS), set(aborted))
        scheduler._preempt_request = preempt
        memory = []
        for _ in range(2):
            _serve(llm.llm_engine, tokens, range(60), set())
            memory.append(_memory())
    assert preempted
    assert _REQUESTS - len(aborted) <= len(found) < _REQUESTS
    for i, (made, numbers) in found.items():
        assert made == known[i][0], i
        assert numbers == known[i][1].tolist(), i
    assert memory[1] - memory[0] < 4 << 20
