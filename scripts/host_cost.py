#!/usr/bin/env python3
"""Host time of one eager call that rotates q and k of a decoded token, attends by it, or does both and
caches k and v, beside PyTorch's.

On a GPU calls are queued without waiting, and the device is idle before each round, so the time
is that of the host alone; on the CPU it holds the work too.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import ropekit
import torch

HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
CALLS, ROUNDS = 200, 25  # fewer calls than a launch queue holds

Call = Callable[[], object]


def make_calls(device: torch.device) -> dict[str, Call]:
    q = torch.randn(1, 1, HEADS, HEAD_DIM, dtype=torch.bfloat16, device=device)
    k = torch.randn(1, 1, KV_HEADS, HEAD_DIM, dtype=torch.bfloat16, device=device)
    ids = torch.zeros(1, 1, dtype=torch.int64, device=device)
    config, leaf = ropekit.Config(rope_theta=500000.0), q.detach().requires_grad_()
    cache = torch.zeros(2, 1, 16, KV_HEADS, HEAD_DIM, dtype=q.dtype, device=device)
    caches = {"k_cache": cache[0], "v_cache": cache[1], "k_lengths": ids[0] + 1}
    flat = [x.transpose(1, 2) for x in (q, k, k)]
    attend = torch.nn.functional.scaled_dot_product_attention
    return {
        "ropekit.apply": lambda: ropekit.apply(q, k, positions=ids, config=config),
        "ropekit.apply, keywords": lambda: ropekit.apply(q, k, positions=ids, rope_theta=5e5),
        "ropekit.apply_": lambda: ropekit.apply_(q, k, positions=ids, config=config),
        "ropekit.apply, gradient": lambda: ropekit.apply(leaf, k, positions=ids, config=config),
        "ropekit.attention": lambda: ropekit.attention(q, k, k, config=config),
        "the same of a cache": lambda: ropekit.attention(q, config=config, **caches),
        "the same, gradient": lambda: ropekit.attention(leaf, k, k, config=config),
        "ropekit.decode": lambda: ropekit.decode(q, k, k, config=config, **caches),
        "SDPA alone": lambda: attend(*flat, enable_gqa=True),
        "torch.empty_like, twice": lambda: (torch.empty_like(q), torch.empty_like(k)),
    }


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
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    print(f"torch {torch.__version__}, tensors on {device}")
    calls = make_calls(device)
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
