#!/usr/bin/env python3
"""Time of ropekit.apply on the CPU as a share of clone() and apply_, over sizes of q.

Both take turns; the time is a median. From about 32 MiB on every result is new memory of the
system, which huge pages make cheap: --small-pages is a system that has none to give.
"""

import argparse
import ctypes
import statistics
import time
from collections.abc import Callable

import ropekit
import torch

HEADS, HEAD_DIM = 32, 128
SIZES = (8, 16, 24, 32, 48, 64, 128, 256, 512, 1024)  # MiB
DTYPES = (torch.float32, torch.bfloat16)
CONFIG = ropekit.Config()
THP_DISABLE = 41  # PR_SET_THP_DISABLE


def milliseconds(call: Callable[[torch.Tensor], torch.Tensor], q: torch.Tensor) -> float:
    start = time.perf_counter()
    y = call(q)
    taken = time.perf_counter() - start
    del y
    return taken * 1e3


def direct(q: torch.Tensor) -> torch.Tensor:
    return ropekit.apply(q, config=CONFIG)


def copied(q: torch.Tensor) -> torch.Tensor:
    y = q.clone()
    ropekit.apply_(y, config=CONFIG)
    return y


def measure(size: int, dtype: torch.dtype) -> tuple[float, float]:
    tokens = size * 2**20 // (HEADS * HEAD_DIM * dtype.itemsize)
    q = torch.randn(1, tokens, HEADS, HEAD_DIM).to(dtype)
    assert torch.equal(direct(q), copied(q))
    count = max(7, min(31, 4096 // size))
    rounds = [(milliseconds(direct, q), milliseconds(copied, q)) for _ in range(count)]
    ours, theirs = zip(*rounds, strict=True)
    return statistics.median(ours), statistics.median(theirs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--small-pages", action="store_true", help="without huge pages")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, metavar="MiB")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.small_pages and ctypes.CDLL(None).prctl(THP_DISABLE, 1, 0, 0, 0):
        parser.error("this system cannot refuse huge pages")
    print(f"torch {torch.__version__}, {options.threads} threads")
    print(f"{'type':9} {'MiB':>5} {'apply':>9} {'clone, apply_':>14} {'ratio':>6}")
    largest = 0.0
    for dtype in DTYPES:
        for size in options.sizes:
            ours, theirs = measure(size, dtype)
            largest = max(largest, ours / theirs)
            name = str(dtype).removeprefix("torch.")
            print(f"{name:9} {size:5} {ours:6.2f} ms {theirs:11.2f} ms {ours / theirs:6.2f}")
    print(f"largest ratio {largest:.2f}")


if __name__ == "__main__":
    main()
