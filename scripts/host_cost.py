#!/usr/bin/env python3
"""Host time of one eager call that rotates q and k of a decoded token, or attends by it, beside peers.

On a GPU calls are queued without waiting, and the device is idle before each round, so the time
is that of the host alone; on the CPU it holds the rotation too. Peers are measured where they
import.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import ropekit
import torch

HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
CALLS, ROUNDS = 200, 25  # fewer calls than a launch queue holds

Call = Callable[[], object]


def ours(q: torch.Tensor, k: torch.Tensor, ids: torch.Tensor) -> Iterator[tuple[str, Call]]:
    config = ropekit.Config(rope_theta=500000.0)
    yield "ropekit.apply", lambda: ropekit.apply(q, k, positions=ids, config=config)
    path = str(Path(__file__).parents[1] / "examples" / "configs" / "llama-3.1-8b.json")
    yield "ropekit.apply, config.json", lambda: ropekit.apply(q, k, positions=ids, config=path)
    yield "ropekit.apply, keywords", lambda: ropekit.apply(q, k, positions=ids, rope_theta=5e5)
    yield "ropekit.apply_", lambda: ropekit.apply_(q, k, positions=ids, config=config)
    leaf = q.detach().requires_grad_()
    yield "ropekit.apply, gradient", lambda: ropekit.apply(leaf, k, positions=ids, config=config)
    cache = torch.zeros(2, 1, 16, KV_HEADS, HEAD_DIM, dtype=q.dtype, device=q.device)
    caches = {"k_cache": cache[0], "v_cache": cache[1], "k_lengths": ids[0] + 1}
    yield "ropekit.attention", lambda: ropekit.attention(q, k, k, config=config)
    named = {kernel: ropekit.Config(rope_theta=500000.0, kernel=kernel) for kernel in ("library", "sdpa")}
    yield "the same by the library", lambda: ropekit.attention(q, k, k, config=named["library"])
    yield "the same by sdpa", lambda: ropekit.attention(q, k, k, config=named["sdpa"])
    yield "the same of a cache", lambda: ropekit.attention(q, config=config, **caches)
    yield "the same, gradient", lambda: ropekit.attention(leaf, k, k, config=config)


def peers(q: torch.Tensor, k: torch.Tensor, ids: torch.Tensor) -> Iterator[tuple[str, Call]]:
    table = torch.randn(1, 1, HEAD_DIM, dtype=q.dtype, device=q.device)
    heads_first = q.transpose(1, 2), k.transpose(1, 2)
    grouped = {"enable_gqa": True}
    attend = torch.nn.functional.scaled_dot_product_attention
    yield "SDPA alone", lambda: attend(*heads_first, heads_first[1], **grouped)
    yield "torch.empty_like, twice", lambda: (torch.empty_like(q), torch.empty_like(k))
    try:
        from transformers.models.llama.modeling_llama import (
            apply_rotary_pos_emb,
        )

        yield "Transformers, eager", lambda: apply_rotary_pos_emb(*heads_first, table, table)
    except ImportError:
        pass
    try:
        from liger_kernel.transformers.rope import liger_rotary_pos_emb

        if q.is_cuda:
            yield "Liger", lambda: liger_rotary_pos_emb(*heads_first, table, table)
    except ImportError:
        pass
    try:
        from flashinfer.rope import apply_rope_pos_ids_inplace

        flat = q.flatten(0, 1), k.flatten(0, 1), ids.flatten()
        yield "FlashInfer, in place", lambda: apply_rope_pos_ids_inplace(*flat)
    except ImportError:
        pass


def round_of(call: Call, wait: Callable[[], object]) -> float:
    """Microseconds of a call, the mean of a round."""
    wait()
    start = time.perf_counter()
    for _ in range(CALLS):
        call()
    return (time.perf_counter() - start) / CALLS * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(parser.parse_args().device)
    q = torch.randn(1, 1, HEADS, HEAD_DIM, dtype=torch.bfloat16, device=device)
    k = torch.randn(1, 1, KV_HEADS, HEAD_DIM, dtype=torch.bfloat16, device=device)
    ids = torch.zeros(1, 1, dtype=torch.int64, device=device)
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "the CPU"
    print(f"torch {torch.__version__}, tensors on {name}")
    calls = dict(ours(q, k, ids))
    for title, call in peers(q, k, ids):
        try:
            call()
            calls[title] = call
        except RuntimeError as error:  # as of one that does not compile here
            print(f"{title} failed: {error}")
    for call in calls.values():
        for _ in range(20):
            call()
    # All take turns, so that a host's slower seconds fall to each alike.
    rounds = [[round_of(call, wait) for call in calls.values()] for _ in range(ROUNDS)]
    wait()
    print(f"{'':26}  median   least")
    for title, times in zip(calls, zip(*rounds, strict=True), strict=True):
        print(f"{title:26} {statistics.median(times):7.2f} {min(times):7.2f} us")


if __name__ == "__main__":
    main()
