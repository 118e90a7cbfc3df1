#!/usr/bin/env python3
"""ropekit.distributed.attention on all GPUs of a machine beside one of them, or on CPU processes.

    scripts/context_parallel.py OUTPUT.json              NCCL, a process for each GPU
    scripts/context_parallel.py OUTPUT.json --ranks=4    gloo on CPUs, where there are fewer GPUs
    --tokens=32768,131072 --heads=32,8 --head-dim=128    the calls; --seconds=480 ends by then

Each method is checked against one device at the shortest length, on GPUs by the kernel `tiles`, which
takes every length: bits of what has one device's, a distance in units of the type elsewhere; on GPUs
also on a stream of its own and in a captured graph. Then
forward, and forward and backward, are timed: median of the slowest rank. `exposed_s` is the time less
that of the same calls with nothing sent, which is the exchange that is not hidden, `predicted_s` is
the cost model's, and `captured_s` that of the forward as a CUDA graph, which the host does not delay.
PyTorch's context_parallel has ropekit's rotation in front. Status 1 where a check fails. A result
belongs into bench/results.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import ropekit
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from ropekit.distributed import Layout, _methods, attention
from ropekit.distributed._collectives import Transfer
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional

METHODS = ("allgather", "ulysses", "ring")
ROUNDS = 5
CAPTURED = 1 << 15  # tokens of a forward up to which the host takes part of the time


class Bench:
    def __init__(self, rank: int, options: Any) -> None:
        self.rank, self.options = rank, options
        self.is_cuda = options.device == "cuda"
        self.device = torch.device("cuda", rank) if self.is_cuda else torch.device("cpu")
        self.dtype = torch.bfloat16 if self.is_cuda else torch.float32
        self.mesh = init_device_mesh(options.device, (options.ranks,), mesh_dim_names=("cp",))
        self.end = options.started + options.seconds

    def tensors(self, tokens: int) -> list[torch.Tensor]:
        """Whole q, k, v and dout, the same on every rank."""
        random = torch.Generator(self.device).manual_seed(1)
        heads, k_heads = self.options.heads
        shapes = ((1, tokens, n, self.options.head_dim) for n in (heads, k_heads, k_heads, heads))
        made = (torch.randn(s, generator=random, device=self.device) for s in shapes)
        return [x.to(self.dtype) for x in made]

    def time(self, function: Any, alone: bool = False) -> float:
        """Seconds of the slowest rank, or of rank 0 alone while the others wait. What takes more
        than a second is timed once after its first run, and of more than two the first run counts."""
        first = self.once(function, alone)  # which also begins what is made at first
        if first > 2:
            return first
        rounds = ROUNDS if first < 1 else 1
        return statistics.median(self.once(function, alone) for _ in range(rounds))

    def once(self, function: Any, alone: bool) -> float:
        self.wait()
        start = time.perf_counter()
        if not alone or self.rank == 0:
            function()
            self.synchronize()
        took = time.perf_counter() - start if not alone or self.rank == 0 else 0.0
        slowest = torch.tensor(took, device=self.device)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        return float(slowest)

    def wait(self) -> None:
        self.synchronize()
        dist.barrier()

    def synchronize(self) -> None:
        if self.is_cuda:
            torch.cuda.synchronize()

    def late(self) -> bool:
        """Whether the time is up, by rank 0's clock."""
        said = torch.tensor(float(time.time() > self.end), device=self.device)
        dist.broadcast(said, 0)
        return bool(said)


def derived(function: Any, tensors: list[torch.Tensor], backward: bool = True) -> list[torch.Tensor]:
    """Out, dq, dk and dv."""
    *inputs, dout = tensors
    with contextlib.nullcontext() if backward else torch.no_grad():
        leaves = [x.detach().requires_grad_(backward) for x in inputs]
        out = function(*leaves)
        grads = torch.autograd.grad(out, leaves, dout) if backward else ()
    return [out.detach(), *grads]


def checked(bench: Bench, tokens: int) -> dict[str, Any]:
    """Each method beside one device."""
    kernel = "tiles" if bench.is_cuda else "library"
    whole = bench.tensors(tokens)
    layout = Layout.of(bench.mesh, tokens)
    shards = [layout.shard(x) for x in whole]
    wanted = derived(lambda *x: ropekit.attention(*x, kernel=kernel), whole)
    divides = bench.options.heads[1] % bench.options.ranks == 0
    exact = {"allgather": 2, "ulysses": 4 if divides else 2, "ring": 0}
    found: dict[str, Any] = {}
    for method in METHODS:

        def call(*x: torch.Tensor, method: Any = method) -> torch.Tensor:
            return attention(*x, layout=layout, method=method, kernel=kernel)

        got, again = ([layout.unshard(y) for y in derived(call, shards)] for _ in range(2))
        rows = found[method] = {}
        for i, name in enumerate(("out", "dq", "dk", "dv")):
            off = (got[i].double() - wanted[i].double()).norm() / wanted[i].double().norm()
            same = torch.equal(got[i], wanted[i])
            units = float(off) / torch.finfo(bench.dtype).eps
            repeats = torch.equal(got[i], again[i])
            needs_bits = i < exact[method]
            passed = repeats and units < 4 and (same or not needs_bits)
            rows[name] = {"same_bits": same, "repeats": repeats, "eps": units, "passed": passed}
        if bench.is_cuda:
            shown = call(*shards[:3])
            for name, how in (("stream", on_a_stream), ("graph", replayed)):
                try:
                    same = torch.equal(how(call, shards[:3]), shown)
                    rows[name] = {"same_bits": same, "passed": same}
                except RuntimeError as error:
                    rows[name] = {"error": str(error)[:200], "passed": False}
    return found


def on_a_stream(call: Any, inputs: list[torch.Tensor]) -> torch.Tensor:
    """Out of a stream that is not the default one, which waits for its inputs on the device alone."""
    stream = torch.cuda.Stream()
    torch.cuda._sleep(10**7)
    late = [x.clone() for x in inputs]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), torch.no_grad():
        out = call(*late)
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    return out


def captured(call: Any, inputs: list[torch.Tensor]) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
    """A graph of a forward, and its out."""
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad():
        call(*inputs)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            out = call(*inputs)
    return graph, out


def replayed(call: Any, inputs: list[torch.Tensor]) -> torch.Tensor:
    """Out of a captured forward whose inputs are written after the capture."""
    held = [torch.zeros_like(x) for x in inputs]
    graph, out = captured(call, held)
    for to, x in zip(held, inputs, strict=True):
        to.copy_(x)
    graph.replay()
    torch.cuda.synchronize()
    return out


def stubs() -> Any:
    """Collectives that send nothing. What arrives is random: a GPU computes faster with zeros."""
    kept: dict[Any, torch.Tensor] = {}

    def some(like: torch.Tensor, n: int) -> torch.Tensor:
        if like.dtype not in kept or kept[like.dtype].numel() < n:
            kept[like.dtype] = torch.randn(n, dtype=like.dtype, device=like.device)
        return kept[like.dtype][:n]

    def gather_blocks(x: Any, ranks: int, _: Any) -> Any:
        return some(x, ranks * x.numel()).view(ranks, *x.shape), Transfer()

    def exchange(parts: Any, sizes: Any, _: Any) -> Any:
        sent = torch.cat([x.reshape(-1) for part in parts for x in part])
        return tuple(some(sent, n) for n in sizes), Transfer()

    def pass_on(x: Any, _: Any) -> Any:
        return x, Transfer()

    return patch.multiple(_methods, gather_blocks=gather_blocks, exchange=exchange, pass_on=pass_on)


def predictions(layout: Layout, shards: list[torch.Tensor], backward: bool) -> Any:
    """What method="auto" chooses from: measured rates, predicted times."""
    derived(lambda *x: attention(*x, layout=layout, method="auto"), shards, backward)
    return layout.costs.rows


def timed(bench: Bench, tokens: int) -> dict[str, Any]:
    whole, layout = bench.tensors(tokens), Layout.of(bench.mesh, tokens)
    shards = [layout.shard(x).contiguous() for x in whole]
    found: dict[str, Any] = {"tokens": tokens}
    for name, backward in (("forward", False), ("forward and backward", True)):
        if bench.late():
            return found
        rows = found[name] = {}
        one = rows["one device"] = {
            "s": bench.time(lambda b=backward: derived(ropekit.attention, whole, b), alone=True)
        }
        captures = bench.is_cuda and not backward and tokens <= CAPTURED
        if captures:
            replay = captured(ropekit.attention, whole[:3])[0].replay
            one["captured_s"] = bench.time(replay, alone=True)
        for method in METHODS:
            if bench.late():
                return found

            def call(*x: torch.Tensor, method: Any = method) -> torch.Tensor:
                return attention(*x, layout=layout, method=method, kernel="library")

            seconds = bench.time(lambda b=backward, c=call: derived(c, shards, b))
            predicted = {row.method: row for row in predictions(layout, shards, backward)}
            with stubs():
                local = bench.time(lambda b=backward, c=call: derived(c, shards, b))
            rows[method] = {"s": seconds, "exposed_s": seconds - local}
            if captures:
                rows[method]["captured_s"] = bench.time(captured(call, shards[:3])[0].replay)
            if method in predicted:
                its = predicted[method]
                rows[method] |= {"predicted_s": its.total_s, "predicted_exposed_s": its.exposed_s}
        rows["PyTorch"] = of_pytorch(bench, whole, tokens, backward)
    return found


def of_pytorch(bench: Bench, whole: Any, tokens: int, backward: bool) -> dict[str, Any]:
    """context_parallel of scaled_dot_product_attention, or why it has no time."""
    from torch.distributed.tensor.experimental import _attention, context_parallel

    heads, k_heads = bench.options.heads
    positions = torch.arange(tokens, device=bench.device)
    buffers = [x.clone() for x in whole]

    def call(q: Any, k: Any, v: Any) -> Any:
        q, k = ropekit.apply(q, k, positions=positions)
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        # By its module, where context_parallel puts its own.
        attend = functional.scaled_dot_product_attention
        out = attend(q, k, v, is_causal=True, enable_gqa=heads != k_heads)
        return out.transpose(1, 2)

    reason = ""
    try:
        cut = [*buffers, positions]
        with context_parallel(bench.mesh, buffers=cut, buffer_seq_dims=[1, 1, 1, 1, 0]):
            out = derived(call, buffers, backward)[0]
            seconds = bench.time(lambda: derived(call, buffers, backward))
        (out,) = _attention.context_parallel_unshard(bench.mesh, [out], [1])
        wanted = derived(ropekit.attention, whole, False)[0]
        off = float((out.double() - wanted.double()).norm() / wanted.double().norm())
        if off < 8 * torch.finfo(bench.dtype).eps:
            return {"s": seconds}
        reason = f"the result is off by {off:.3g} of its norm"
    except Exception as error:  # it is a prototype
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    return {"refused": reason}


def main(rank: int, options: Any, folder: str) -> None:
    backend = "nccl" if options.device == "cuda" else "gloo"
    if options.device == "cuda":
        torch.cuda.set_device(rank)
    else:
        torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", options.ranks)
    dist.init_process_group(backend, store=store, rank=rank, world_size=options.ranks)
    bench = Bench(rank, options)
    name = torch.cuda.get_device_name(rank) if bench.is_cuda else "CPU"
    found: dict[str, Any] = {
        "device": name, "ranks": options.ranks, "backend": backend, "torch": torch.__version__,
        "heads": options.heads, "head_dim": options.head_dim, "dtype": str(bench.dtype),
        "checks": checked(bench, min(options.tokens)), "lengths": [],
    }  # fmt: skip
    for tokens in (None, *sorted(options.tokens)):
        if tokens is not None and not bench.late():
            found["lengths"].append(timed(bench, tokens))
        if rank == 0:
            Path(options.output).write_text(json.dumps(found, indent=1) + "\n")
    bench.wait()
    dist.destroy_process_group()


def numbers(text: str) -> list[int]:
    return [int(x) for x in text.split(",")]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output")
    parser.add_argument("--ranks", type=int, default=max(torch.cuda.device_count(), 2))
    parser.add_argument("--tokens", type=numbers)
    parser.add_argument("--heads", type=numbers)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=480)
    given = parser.parse_args()
    given.started = time.time()
    given.device = "cuda" if torch.cuda.device_count() >= given.ranks else "cpu"
    on_cuda = given.device == "cuda"
    given.tokens = given.tokens or ([8192, 32768, 131072] if on_cuda else [64, 256])
    given.heads = given.heads or ([32, 32] if on_cuda else [8, 4])
    with tempfile.TemporaryDirectory() as place:
        mp.spawn(main, (given, place), given.ranks)
    told = json.loads(Path(given.output).read_text())
    rows = [row for method in told["checks"].values() for row in method.values()]
    sys.exit(not all(row["passed"] for row in rows))
