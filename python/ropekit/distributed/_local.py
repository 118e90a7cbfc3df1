"""Attention of some queries over some keys of a layout, on this device alone.

Tensors are [batch, tokens, heads, head_dim]; queries and keys are ranges of tokens of the layout.
Keys and queries are rotated already.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ropekit._attention_arguments import FULL, Arguments
from ropekit._sdpa import Settings
from ropekit.distributed._layout import Layout

_forward: Any = torch.ops.ropekit.attention_lse_no_grad.default
_backward: Any = torch.ops.ropekit.attention_backward.default
# Tokens of which a page is a multiple, for Hopper's kernels.
_PAGES = {"cuda": 16}
_NAMES = ("scale", "softcap", "window", "window_right", "chunk", "kernel", "mask")


class Inputs(NamedTuple):
    """Queries and keys that are rotated, values, and a sink for each head of q or none."""

    q: Tensor
    k: Tensor
    v: Tensor
    sinks: Tensor | None

    def part(self, tokens: slice = slice(None), heads: slice = slice(None)) -> Inputs:
        """The same for some of the queries and their heads."""
        own = None if self.sinks is None else self.sinks[heads]
        return self._replace(q=self.q[:, tokens, heads], sinks=own)


class Results(NamedTuple):
    """What a backward begins with, of which out and lse may be over more keys."""

    dout: Tensor
    out: Tensor
    lse: Tensor

    def part(self, tokens: slice, heads: slice = slice(None)) -> Results:
        return Results(*(x[:, tokens, heads] for x in self))


@dataclass(frozen=True)
class Local:
    """What a rank attends by: its layout and the fields of attention."""

    layout: Layout
    settings: Settings

    @cached_property
    def text(self) -> str:
        own = (part for part in self.settings.text.split() if part.partition("=")[0] in _NAMES)
        return " ".join(("rotate=none", *own))

    def seen(self, queries: range) -> range:
        """Bounds of the keys that some of the queries see."""
        if not queries:
            return range(0)
        layout, own = self.layout, self.settings
        first = layout.sequence_at(queries.start)
        last = layout.sequence_at(queries.stop - 1)
        start, stop = first.start, queries.stop if own.causal else last.stop
        if own.window is not None:
            start = max(start, queries.start - own.window + 1)
        if own.window_right is not None:
            stop = min(stop, queries.stop + own.window_right)
        if own.chunk is not None:
            start = max(start, queries.start - (queries.start - first.start) % own.chunk)
            stop = min(stop, queries.stop + own.chunk)
        return range(start, stop)

    def sees(self, queries: range, keys: range) -> bool:
        seen = self.seen(queries)
        return max(seen.start, keys.start) < min(seen.stop, keys.stop)

    def forward(self, x: Inputs, queries: range, keys: range) -> tuple[Tensor, Tensor]:
        """Out and lse of the queries over these keys alone."""
        found = [_forward(*FULL.values(call)) for call in self._calls(x, queries, keys)]
        if found[0][0].dim() == 4:
            return found[0][0], found[0][1]
        return torch.stack([x for x, _ in found]), torch.stack([x for _, x in found])

    def takes_pages(self, device: str) -> bool:
        """Whether this rank's pieces are each the last queries of the keys that they see, and a
        chunk is a page that a device reads fast."""
        is_last = self.layout.cu_seqlens is None and (
            self.settings.causal or not self.settings.is_limited
        )
        return is_last and self.layout.chunk % _PAGES.get(device, 1) == 0

    def of_pages(self, x: Inputs, batch: int) -> tuple[Tensor, Tensor]:
        """Out and lse of this rank's pieces, [batch * pieces, chunk, heads, head_dim]. Keys and
        values are all chunks, [ranks * batch * pieces, chunk, heads, head_dim]."""
        q, k, v, sinks = x
        call = Arguments(q, None, None, self.text, k_cache=k, v_cache=v, sinks=sinks)
        key = "rows", batch, str(q.device), self.settings.causal
        call.block_table, call.q_lengths, call.k_lengths = self.layout._keep(
            key, lambda: self._rows(batch, q.device)
        )
        return _forward(*FULL.values(call))  # type: ignore[no-any-return]

    def _rows(self, batch: int, device: torch.device) -> tuple[Tensor, Tensor | None, Tensor]:
        """The block table of each batch row's pieces, their queries, None where all are as many,
        and the keys that they see."""
        layout, pieces, is_causal = self.layout, self.layout.pieces(), self.settings.causal
        n, chunks = len(pieces), layout.chunks
        tables = [[(r * batch + b) * n + i for r, i, _ in chunks] for b in range(batch)]
        rows = [table for table in tables for _ in pieces]
        queries = [len(piece) for piece in pieces] * batch
        keys = [piece.stop if is_causal else layout.tokens for piece in pieces] * batch
        table, q, k = (
            torch.tensor(x, dtype=torch.int32, device=device) for x in (rows, queries, keys)
        )
        return table, None if layout.is_even else q, k

    def backward(
        self, results: Results, x: Inputs, queries: range, keys: range
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Gradients of q, k, v and sinks; of k and v for the first tokens, which were read."""
        calls = tuple(self._calls(x, queries, keys))
        if calls[0].q.dim() == 4:
            return _backward(*results, *FULL.values(calls[0]))[:4]  # type: ignore[no-any-return]
        found = [
            _backward(*(each[row] for each in results), *FULL.values(call))[:4]
            for row, call in enumerate(calls)
        ]
        dq, dk, dv, dsinks = (torch.stack(each) for each in zip(*found, strict=True))
        return dq, dk, dv, dsinks.sum(0)

    def _calls(self, x: Inputs, queries: range, keys: range) -> Iterator[Arguments]:
        """One call of all rows where the queries are the last of the keys, or see all of them; else
        one a row, as a packed sequence of which a call has a part."""
        own, text = self.settings, self.text
        q, k, v, sinks = x
        is_plain = self.layout.cu_seqlens is None
        if is_plain and own.causal and keys.start == 0 and queries.stop <= keys.stop:
            k, v = (x[:, : queries.stop] for x in (k, v))
            yield Arguments(q, k, v, text, sinks=sinks)
        elif is_plain and not own.is_limited and (not own.causal or keys.stop <= queries.start):
            yield Arguments(q, k, v, _full(text), sinks=sinks)
        elif is_plain and not own.is_limited and keys == queries:
            yield Arguments(q, k, v, text, sinks=sinks)
        else:
            device, bounds = q.device, self.layout.boundaries
            packed = Arguments(q, k, v, text, sinks=sinks)
            packed.cu_seqlens = bounds(device, queries.start)
            packed.k_cu_seqlens = bounds(device, keys.start)
            for row in range(q.shape[0]):
                yield replace(packed, q=q[row], k=k[row], v=v[row])


def _full(text: str) -> str:
    """That of attention of all keys."""
    kept = (part for part in text.split() if part.split("=")[0] not in ("mask", "window_right"))
    return " ".join((*kept, "mask=full"))
