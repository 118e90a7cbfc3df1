"""What a method costs: bytes, seconds and memory of a rank, predicted from rates; method="auto"."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import torch
import torch.distributed as dist

from ropekit.distributed._collectives import gather_now
from ropekit.distributed._layout import Layout
from ropekit.distributed._local import Inputs, Local, Results
from ropekit.distributed._methods import Ulysses, groups_of

Exact = Literal["allgather", "ulysses", "ring"]
_BACKWARD = 2.5  # products of a backward, of those of a forward
# The host's time of a call on H200s, in latencies of a transfer: of any, and of a group or rank.
_HOST = {"allgather": (5.0, 4.5), "ulysses": (12.0, 2.0), "ring": (8.0, 7.0)}


@dataclass(frozen=True)
class Rates:
    """Of one rank: operations of attention a second, bytes a second each way, and seconds until
    a transfer begins."""

    flops: float
    bandwidth: float
    latency: float = 2e-5


@dataclass(frozen=True)
class Cost:
    """Of one rank. Seconds are a prediction, not a measurement."""

    method: Exact
    sent_bytes: float
    exchange_s: float
    compute_s: float
    exposed_s: float  # of the exchange, behind which nothing is computed
    memory_bytes: float  # beside this rank's q, k, v and out
    host_s: float = 0  # beside which all this happens

    @property
    def total_s(self) -> float:
        return max(self.compute_s + self.exposed_s, self.host_s)


@dataclass(frozen=True)
class Costs:
    """A cost for each method that the heads allow. `str` is a table."""

    rows: tuple[Cost, ...]

    @property
    def best(self) -> Exact:
        """The method of the least predicted time; the ring where it saves a third, as its results
        have not the bits of one device, and joining them was measured to take up to that long."""
        tax = {"ring": 1.5}
        return min(self.rows, key=lambda row: row.total_s * tax.get(row.method, 1)).method

    def __str__(self) -> str:
        names = (
            "predicted",
            "MB sent",
            "exchange ms",
            "compute ms",
            "exposed ms",
            "host ms",
            "total ms",
        )
        lines = ["  ".join(f"{name:>11}" for name in (*names, "MB held"))]
        for row in self.rows:
            times = (row.exchange_s, row.compute_s, row.exposed_s, row.host_s, row.total_s)
            values = (row.sent_bytes / 1e6, *(x * 1e3 for x in times), row.memory_bytes / 1e6)
            lines.append("  ".join((f"{row.method:>11}", *(f"{x:>11.4g}" for x in values))))
        return "\n".join(lines)


@dataclass(frozen=True)
class Call:
    """The sizes of a call of all ranks."""

    tokens: int
    ranks: int
    heads: int
    k_heads: int
    head_dim: int
    v_head_dim: int = 0
    batch: int = 1
    element_bytes: int = 2
    causal: bool = True
    backward: bool = False
    device: str = "cuda"
    keys: float = 0  # that a query sees on average; 0: those before it, or all

    @property
    def row(self) -> float:
        """Bytes of k and v of a token of each row, of one head."""
        dims = self.head_dim + (self.v_head_dim or self.head_dim)
        return self.batch * dims * self.element_bytes

    @property
    def flops(self) -> float:
        """Of one rank."""
        keys = self.keys or self.tokens * (0.5 if self.causal else 1)
        pairs = self.tokens / self.ranks * keys
        each = 2 * self.row / self.element_bytes * self.heads
        return pairs * each * (1 + _BACKWARD * self.backward)


def costs(call: Call, rates: Rates) -> Costs:
    """Predicted costs of each method on ranks of these rates.

    Example:
        >>> call = Call(tokens=131072, ranks=8, heads=32, k_heads=8, head_dim=128)
        >>> print(costs(call, Rates(flops=5e14, bandwidth=250e9)))
    """
    for name in ("tokens", "ranks", "heads", "k_heads", "head_dim"):
        if getattr(call, name) < 1:
            raise ValueError(f"{name} is {getattr(call, name)}; allowed is > 0")
    return Costs(tuple(_rows(call, rates)))


def _rows(call: Call, rates: Rates) -> Iterator[Cost]:
    ranks, compute = call.ranks, call.flops / rates.flops
    others, own = ranks - 1, call.tokens / ranks
    blocks = others * own * call.k_heads * call.row  # of all other ranks' keys and values
    # allgather: the first group of heads is waited for; the backward gathers again, and sums
    sent = blocks * (1 + 2 * call.backward)
    groups = groups_of(blocks, call.k_heads, call.device)
    took = _seconds(sent, others and groups * (1 + 2 * call.backward), rates)
    exposed = took / groups + max(0.0, (took - compute) * (groups - 1) / groups)
    # two groups there or on their way, one in order; then gradients, of which two are sent and come
    each, most = call.tokens * call.k_heads * call.row / groups, min(2, groups)
    held = each * (most + 1 + (2 * most + 1) * call.backward)
    yield Cost(
        "allgather", sent, took, compute, exposed, held, _host(call, rates, "allgather", groups)
    )
    if not Ulysses.reason(ranks, call.heads, call.k_heads):
        shared = max(call.k_heads, ranks)
        sent = others / ranks * own * (call.heads + shared) * call.row * (1 + 2 * call.backward)
        took = _seconds(sent, others and 2 * (1 + call.backward), rates)
        held = own * (call.heads + shared) * call.row * (1 + call.backward)
        yield Cost("ulysses", sent, took, compute, took, held, _host(call, rates, "ulysses", ranks))
    # ring: a block is hidden behind the attention over the block before; gradients are of 4 bytes
    wide = 4 / call.element_bytes
    sent = blocks * (1 + call.backward * (1 + wide * ranks / max(others, 1)))
    took = _seconds(sent, others * (1 + 2 * call.backward), rates)
    exposed = max(0.0, took - compute * others / ranks)
    # two blocks, out and dq in float32, and gradients of two blocks
    held = own * call.row * (2 * call.k_heads * (1 + wide * call.backward) + wide * call.heads)
    yield Cost("ring", sent, took, compute, exposed, held, _host(call, rates, "ring", ranks))


def _host(call: Call, rates: Rates, method: str, parts: int) -> float:
    fixed, each = _HOST[method]
    times = fixed + each * parts if call.ranks > 1 else 0
    return rates.latency * times * (1 + _BACKWARD * call.backward)


def _seconds(sent: float, times: int, rates: Rates) -> float:
    return sent / rates.bandwidth + times * rates.latency


# ---- method="auto" ----

_LONG = 2e-3  # seconds
_MOVED = {"cpu": 1 << 22, "cuda": 1 << 25}  # elements of a large block, of all ranks
_measured: dict[Any, Rates] = {}


def choose(local: Local, x: Inputs, derives: bool) -> Costs:
    """The costs of a call, by rates that are measured once for a group, a type, sizes of heads, and
    with a backward or without. Every rank has the same."""
    layout, q = local.layout, x.q
    key = layout.group, q.device, q.dtype, q.shape[2:], x.k.shape[2], x.v.shape[3], derives
    call = Call(
        tokens=layout.tokens,
        ranks=layout.ranks,
        heads=q.shape[2],
        k_heads=x.k.shape[2],
        head_dim=q.shape[3],
        v_head_dim=x.v.shape[3],
        batch=q.shape[0],
        element_bytes=q.element_size(),
        causal=local.settings.causal,
        backward=derives,
        device=q.device.type,
        keys=_keys(local),
    )
    if key not in _measured:
        _measured[key] = _measure(local, x, call)
    return costs(call, _measured[key])


def _keys(local: Local) -> float:
    """How many keys a query sees on average."""
    layout, own = local.layout, local.settings
    bounds = layout.cu_seqlens or (0, layout.tokens)
    most = float("inf") if own.window is None else own.window + (own.window_right or 0)
    total = 0.0
    for length in (end - start for start, end in pairwise(bounds)):
        chunk = min(length, own.chunk or length)
        total += length * min(chunk * (0.5 if own.causal else 1), most)
    return total / layout.tokens


def _measure(local: Local, x: Inputs, call: Call) -> Rates:
    """The slowest rank's rates, of attention and of gathers of small and large blocks."""
    layout, device = local.layout, x.q.device
    count = _MOVED[device.type] // layout.ranks
    small, large = (
        _time(lambda n=n: gather_now(x.q.new_zeros(n), layout.ranks, layout.group), device)
        for n in (1, count)
    )
    per_operation = _attend(local, x, call)
    took = torch.tensor([per_operation, small, large], device=device, dtype=torch.float64)
    dist.all_reduce(took, dist.ReduceOp.MAX, group=layout.group)
    per_operation, small, large = took.tolist()
    sent = (layout.ranks - 1) * count * x.q.element_size()
    return Rates(1 / per_operation, max(sent, 1) / max(large - small, 1e-9), small)


def _attend(local: Local, x: Inputs, call: Call) -> float:
    """Seconds an operation on this rank alone, of the first length that takes it _LONG, or of as
    many tokens as it has: short calls do not fill a GPU."""
    random = torch.Generator(x.q.device).manual_seed(0)  # zeros would cost a GPU less power
    tokens, most = 256, max(local.layout.counts)
    while True:
        sizes = ((1, tokens, *each.shape[2:]) for each in x[:3])
        q, k, v = (x.q.new_empty(size).normal_(generator=random) for size in sizes)
        alone, whole = Local(Layout(tokens, 0, 1), local.settings), range(tokens)

        def attend(x: Inputs, alone: Local = alone, whole: range = whole) -> None:
            out, lse = alone.forward(x, whole, whole)
            if call.backward:
                alone.backward(Results(out, out, lse), x, whole, whole)

        took = _time(partial(attend, Inputs(q, k, v, None)), q.device)
        if took > _LONG or tokens >= most:
            return took / replace(call, tokens=tokens, ranks=1, batch=1, keys=_keys(alone)).flops
        tokens *= 4


def _time(function: Any, device: torch.device) -> float:
    """The least seconds of a few runs."""
    found = []
    for _ in range(4):
        start = time.perf_counter()
        function()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        found.append(time.perf_counter() - start)
    return min(found[1:])
