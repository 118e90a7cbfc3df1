"""The methods: what travels, and when. Tensors are [batch, tokens, heads, head_dim] of this rank's
tokens, q and k rotated.

A method has `forward`, which returns out, lse and what its backward needs, and `backward`, which
returns the gradients of q, k, v and sinks. Those of sinks, as of any weight, are this rank's part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ropekit._attention_merge import attention_merge
from ropekit.distributed._collectives import Transfer, exchange, gather_blocks, pass_on
from ropekit.distributed._layout import Layout
from ropekit.distributed._local import Inputs, Local, Results

# Groups of key heads in which allgather moves, so that one moves while another attends.
GROUPS = 8
# Bytes that arrive while a group more costs its calls, of which a GPU's wait for the host.
_CALLS = {"cuda": 1 << 24}
# Pairs of a query head's token and a key from which a copy of the keys in order, and a call for
# each piece, take less time on an H200 than one call that reads chunks as pages.
_LONG = {"cpu": 1 << 12, "cuda": 1 << 30}

Forward = tuple[Tensor, Tensor, Sequence[Tensor]]
Gradients = tuple[Tensor, Tensor, Tensor, Tensor | None]


def _slices(layout: Layout) -> Iterator[tuple[range, slice]]:
    """This rank's pieces that have tokens, and where they are among its own."""
    at = 0
    for piece in layout.pieces():
        if piece:
            yield piece, slice(at, at + len(piece))
        at += len(piece)


def _flat(*tensors: Tensor) -> Tensor:
    return torch.cat([x.reshape(-1) for x in tensors])


def _unflat(x: Tensor, shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
    sizes = [torch.Size(shape).numel() for shape in shapes]
    parts = zip(x.split(sizes), shapes, strict=True)
    return [part.view(shape) for part, shape in parts]


def _of_tokens(x: Tensor, tokens: int) -> tuple[int, ...]:
    """x's shape with other tokens."""
    return (x.shape[0], tokens, *x.shape[2:])


def _joined(layout: Layout, rows: Sequence[Tensor], like: Sequence[Tensor]) -> list[Tensor]:
    """Whole tensors, of what each rank sent of several."""
    parts = []
    for row, n in zip(rows, layout.counts, strict=True):
        parts.append(_unflat(row, [_of_tokens(x, n) for x in like]))
    return [layout.join(each, 1) for each in zip(*parts, strict=True)]


def _cat(parts: Sequence[Tensor], dim: int) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim)


def _side_by_side(parts: Sequence[Tensor]) -> Tensor:
    """Joined along the last dimension, in elements of 8 bytes where they allow it, which copies
    move faster."""
    n = 8 // parts[0].element_size()
    sizes = [s for x in parts for s in (x.shape[-1], x.storage_offset(), *x.stride()[:-1])]
    is_wide = all(x.stride(-1) == 1 for x in parts) and all(size % n == 0 for size in sizes)
    wide = [x.view(torch.int64) for x in parts] if is_wide else list(parts)
    return torch.cat(wide, -1).view(parts[0].dtype)


def _arrived(moving: tuple[slice, Tensor, Transfer]) -> tuple[slice, Tensor]:
    *found, work = moving
    work.wait()
    return tuple(found)  # type: ignore[return-value]


def _sum_of_first(parts: Sequence[Tensor], like: Tensor) -> Tensor:
    """The sum of one or two parts, of as many tokens as `like`; the first one may have fewer."""
    if not parts:
        return torch.zeros_like(like)
    total = parts[-1]
    for part in parts[:-1]:
        total[:, : part.shape[1]] += part
    missing = like.shape[1] - total.shape[1]
    return total if not missing else torch.nn.functional.pad(total, (0, 0, 0, 0, 0, missing))


def _sum(parts: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """Their sum in this order, rounded once."""
    if len(parts) <= 2:  # of two PyTorch adds in float32 too
        return parts[0] + parts[1] if len(parts) == 2 else parts[0]
    total = parts[0].float()
    for part in parts[1:]:
        total = total + part
    return total.to(dtype)


def groups_of(received: float, k_heads: int, device: str) -> int:
    """Groups for so many bytes of keys and values: those of the first one are waited for."""
    if not received:
        return 1
    worth = (received / _CALLS[device]) ** 0.5 if device in _CALLS else GROUPS
    return max(1, min(GROUPS, k_heads, round(worth)))


class AllGather:
    """Every rank receives all keys and values, and attends with its own queries.

    Results, lse and dq are one device's bits: a query's row is the same call. Gradients of keys and
    values are summed over ranks in rank order.
    """

    def __init__(self, local: Local) -> None:
        self.local, self.layout = local, local.layout
        self.keys = range(local.layout.tokens)

    def forward(self, x: Inputs) -> Forward:
        found = [self._attend(x.part(heads=heads), blocks) for heads, blocks in self._gathered(x)]
        out, lse = (_cat(parts, 2) for parts in zip(*found, strict=True))
        return out, lse, ()

    def _attend(self, x: Inputs, blocks: Tensor) -> tuple[Tensor, ...]:
        batch, tokens, heads, dim = x.q.shape
        device, layout = x.q.device.type, self.layout
        pairs = batch * tokens * heads * layout.tokens / 2
        if pairs >= _LONG.get(device, 0) or not self.local.takes_pages(device):
            return self._by_pieces(x, blocks)
        # One call of all pieces. Keys are read where they arrived, each chunk a page.
        k, v = blocks.flatten(0, 2).split((dim, x.v.shape[-1]), -1)
        q = layout.even(x.q).flatten(0, 1)
        found = self.local.of_pages(Inputs(q, k, v, x.sinks), batch)
        return tuple(layout.uneven(each.unflatten(0, (batch, -1))) for each in found)

    def _by_pieces(self, x: Inputs, blocks: Tensor) -> tuple[Tensor, ...]:
        if not self.layout.count():
            return x.q.new_empty((*x.q.shape[:-1], x.v.shape[-1])), x.q[..., 0].float()
        whole, pieces = self._ordered(x, blocks), _slices(self.layout)
        found = [self.local.forward(whole.part(at), piece, self.keys) for piece, at in pieces]
        return tuple(_cat(parts, 1) for parts in zip(*found, strict=True))

    def backward(self, results: Results, x: Inputs, saved: Sequence[Tensor]) -> Gradients:
        dsinks = None if x.sinks is None else torch.zeros_like(x.sinks, dtype=torch.float32)
        of_queries, of_keys, moving = [], [], []
        for heads, blocks in self._gathered(x):
            whole = self._ordered(x.part(heads=heads), blocks)
            parts = []
            for piece, at in _slices(self.layout):
                given = results.part(at, heads), whole.part(at)
                parts.append(self.local.backward(*given, piece, self.keys))
                if dsinks is not None:
                    dsinks[heads] += parts[-1][3]
            of_queries.append(_cat([part[0] for part in parts] or [whole.q], 1))
            moving.append(self._sent(parts, whole))
            if len(moving) == 2:
                of_keys.append(self._received(*moving.pop(0)))
        of_keys += [self._received(*each) for each in moving]
        dk, dv = (_cat(each, 2) for each in zip(*of_keys, strict=True))
        return _cat(of_queries, 2), dk, dv, dsinks

    def _gathered(self, x: Inputs) -> Iterator[tuple[slice, Tensor]]:
        """Query heads, and all ranks' chunks of their keys and values: [rank, batch, piece, token,
        head, element], those of k before those of v. The next heads are on their way."""
        heads, ratio = x.k.shape[2], x.q.shape[2] // x.k.shape[2]
        own = [self.layout.even(each) for each in (x.k, x.v)]
        received = sum(each.nbytes for each in own) * (self.layout.ranks - 1)
        size = -(-heads // groups_of(received, heads, x.q.device.type))
        moving: list[tuple[slice, Tensor, Transfer]] = []
        for first in range(0, heads, size):
            sent = _side_by_side([each[..., first : first + size, :] for each in own])
            of_queries = slice(first * ratio, (first + sent.shape[-2]) * ratio)
            moving.append((of_queries, *gather_blocks(sent, self.layout.ranks, self.layout.group)))
            if len(moving) == 2:
                yield _arrived(moving.pop(0))
        yield _arrived(moving.pop())

    def _ordered(self, x: Inputs, blocks: Tensor) -> Inputs:
        """With k and v of all tokens in order."""
        whole = torch.cat([blocks[rank, :, i, :n] for rank, i, n in self.layout.chunks], 1)
        k, v = whole.split((x.q.shape[-1], x.v.shape[-1]), -1)
        return x._replace(k=k, v=v)

    def _sent(self, parts: Sequence[Sequence[Tensor]], whole: Inputs) -> tuple[Any, ...]:
        """Gradients of all keys and values, of this rank's queries, go to the keys' ranks. Returns
        what comes in their place, and its shapes."""
        layout = self.layout
        likes = (1, whole.k), (2, whole.v)
        sums = [_sum_of_first([part[i] for part in parts], like) for i, like in likes]
        send = [
            [x[:, piece.start : piece.stop] for x in sums for piece in layout.pieces(rank)]
            for rank in range(layout.ranks)
        ]
        shapes = [x.shape for x in send[layout.rank]]
        sizes = [sum(x.numel() for x in send[layout.rank])] * layout.ranks
        return *exchange(send, sizes, layout.group), shapes

    @staticmethod
    def _received(rows: Sequence[Tensor], work: Transfer, shapes: Any) -> list[Tensor]:
        """Gradients of this rank's k and v."""
        work.wait()
        parts = zip(*(_unflat(row, shapes) for row in rows), strict=True)
        sums, pieces = [_sum(each, each[0].dtype) for each in parts], len(shapes) // 2
        return [_cat(sums[:pieces], 1), _cat(sums[pieces:], 1)]


class Ulysses:
    """Every rank receives all tokens of its share of the heads, and attends as one device does.

    Results and dq are one device's bits, and so are dk and dv where the ranks divide the key heads.
    Else ranks share a key head, and its gradients are summed in rank order.
    """

    def __init__(self, local: Local) -> None:
        self.local, self.layout = local, local.layout
        self.tokens = range(local.layout.tokens)

    @staticmethod
    def reason(ranks: int, heads: int, k_heads: int) -> str:
        """Why the heads do not fit the ranks; "" where they do."""
        if heads % ranks:
            return (
                f"q has {heads} heads; allowed with method 'ulysses' is a multiple of the ranks, "
                f"{ranks}"
            )
        if k_heads % ranks and ranks % k_heads:
            return (
                f"k has {k_heads} heads; allowed with method 'ulysses' is a multiple or a divisor "
                f"of the ranks, {ranks}"
            )
        return ""

    def forward(self, x: Inputs) -> Forward:
        whole = self._whole(self._to_heads(*x[:3]), x)
        found = self.local.forward(whole, self.tokens, self.tokens)
        out, lse = (self._to_tokens([each])[0] for each in found)
        return _cat(out, 2), _cat(lse, 2), (*whole[:3], *found)

    def backward(self, results: Results, x: Inputs, saved: Sequence[Tensor]) -> Gradients:
        whole = self._whole(saved[:3], x)
        given = Results(*self._to_heads(results.dout), *saved[3:])
        *found, of_sinks = self.local.backward(given, whole, self.tokens, self.tokens)
        dq, dk, dv = self._to_tokens(found)
        dsinks = None
        if x.sinks is not None:
            dsinks = torch.zeros_like(x.sinks, dtype=torch.float32)
            dsinks[self._share(x.q.shape[2], self.layout.rank)] = of_sinks
        k_heads = x.k.shape[2]
        return _cat(dq, 2), self._shared(dk, k_heads), self._shared(dv, k_heads), dsinks

    def _whole(self, tensors: Sequence[Tensor], x: Inputs) -> Inputs:
        """All tokens of this rank's heads, and their sinks."""
        q, k, v = tensors
        share = self._share(x.q.shape[2], self.layout.rank)
        return Inputs(q, k, v, None if x.sinks is None else x.sinks[share])

    def _share(self, heads: int, rank: int) -> slice:
        """A rank's heads; one that several ranks share where there are fewer heads than ranks."""
        ranks = self.layout.ranks
        first = rank * heads // ranks
        return slice(first, max((rank + 1) * heads // ranks, first + 1))

    def _to_heads(self, *tensors: Tensor) -> list[Tensor]:
        """All tokens of this rank's heads."""
        layout = self.layout
        send = [[x[:, :, self._share(x.shape[2], r)] for x in tensors] for r in range(layout.ranks)]
        like = [x[:, :, self._share(x.shape[2], layout.rank)] for x in tensors]
        sizes = [sum(torch.Size(_of_tokens(x, n)).numel() for x in like) for n in layout.counts]
        rows, work = exchange(send, sizes, layout.group)
        work.wait()
        return _joined(layout, rows, like)

    def _to_tokens(self, tensors: Sequence[Tensor]) -> list[list[Tensor]]:
        """Of each tensor what every rank made of this rank's tokens."""
        layout = self.layout
        send = [[layout.cut(x, 1, r) for x in tensors] for r in range(layout.ranks)]
        like = [_of_tokens(x, layout.count()) for x in tensors]
        sizes = [sum(torch.Size(shape).numel() for shape in like)] * layout.ranks
        rows, work = exchange(send, sizes, layout.group)
        work.wait()
        parts = (_unflat(row, like) for row in rows)
        return [list(each) for each in zip(*parts, strict=True)]

    def _shared(self, parts: Sequence[Tensor], k_heads: int) -> Tensor:
        """Parts of a gradient, of which those of one key head are summed."""
        share = max(self.layout.ranks // k_heads, 1)
        groups = (parts[i : i + share] for i in range(0, len(parts), share))
        return _cat([_sum(group, group[0].dtype) for group in groups], 2)


class _Step(NamedTuple):
    """One attention of the ring: a piece of this rank's queries over a piece of a rank's keys."""

    inputs: Inputs
    queries: range
    keys: range
    own: slice  # of the queries, among this rank's
    there: int  # of the first key, in its block
    is_first: bool  # of these queries


class Ring:
    """Keys and values pass from rank to rank, and each rank attends with its queries as they come.

    Results are joined in float32 in the order of arrival: the rank's own, then those of the ranks
    before it. In the backward the gradients of keys and values travel along, in float32.
    """

    def __init__(self, local: Local) -> None:
        self.local, self.layout = local, local.layout
        self.most = max(local.layout.counts)

    def forward(self, x: Inputs) -> Forward:
        out = x.q.new_empty((*x.q.shape[:-1], x.v.shape[-1]), dtype=torch.float32)
        lse = x.q.new_empty(x.q.shape[:-1], dtype=torch.float32)
        for rank, block in self._blocks(x):
            for step in self._steps(x, rank, block):
                found = self.local.forward(step.inputs, step.queries, step.keys)
                if not step.is_first:
                    parts = [out[:, step.own], found[0].float()], [lse[:, step.own], found[1]]
                    found = attention_merge(*parts)
                out[:, step.own], lse[:, step.own] = found
        return out.to(x.q.dtype), lse, ()

    def backward(self, results: Results, x: Inputs, saved: Sequence[Tensor]) -> Gradients:
        dq = torch.zeros_like(x.q, dtype=torch.float32)
        dsinks = None if x.sinks is None else torch.zeros_like(x.sinks, dtype=torch.float32)
        carried, work = torch.zeros((), device=x.q.device), Transfer()
        for rank, block in self._blocks(x):
            grads = [torch.zeros_like(each, dtype=torch.float32) for each in block]
            for step in self._steps(x, rank, block):
                given = results.part(step.own), step.inputs
                found = self.local.backward(*given, step.queries, step.keys)
                dq[:, step.own] += found[0]
                for grad, each in zip(grads, found[1:3], strict=True):
                    grad[:, step.there : step.there + each.shape[1]] += each
                if dsinks is not None and step.keys == step.queries:
                    dsinks += found[3]
            work.wait()
            carried, work = pass_on(carried + _flat(*grads), self.layout.group)
        work.wait()
        parts = _unflat(carried, self._shapes(x))
        dk, dv = (each[:, : x.k.shape[1]].to(x.k.dtype) for each in parts)
        return dq.to(x.q.dtype), dk, dv, dsinks

    def _steps(self, x: Inputs, rank: int, block: Sequence[Tensor]) -> Iterator[_Step]:
        """What this rank's queries see of a rank's block. The sinks count where a piece sees
        itself: each query has a key there."""
        for queries, own in _slices(self.layout):
            is_first, there = rank == self.layout.rank, 0
            for keys in self.layout.pieces(rank):
                at = slice(there, there + len(keys))
                if keys and (self.local.sees(queries, keys) or keys == queries):
                    k, v = (each[:, at] for each in block)
                    part = Inputs(x.q[:, own], k, v, x.sinks if keys == queries else None)
                    yield _Step(part, queries, keys, own, there, is_first)
                    is_first = False
                there += len(keys)

    def _blocks(self, x: Inputs) -> Iterator[tuple[int, list[Tensor]]]:
        """Each rank's keys and values, this rank's first; the next ones are on their way."""
        layout = self.layout
        pad = (0, 0, 0, 0, 0, self.most - x.k.shape[1])
        block = _flat(*(torch.nn.functional.pad(each, pad) for each in (x.k, x.v)))
        for step in range(layout.ranks):
            is_last = step == layout.ranks - 1
            after, work = (block, Transfer()) if is_last else pass_on(block, layout.group)
            yield (layout.rank - step) % layout.ranks, _unflat(block, self._shapes(x))
            work.wait()
            block = after

    def _shapes(self, x: Inputs) -> list[tuple[int, ...]]:
        """Of blocks, which are as long on every rank."""
        return [_of_tokens(each, self.most) for each in (x.k, x.v)]


METHODS = {"allgather": AllGather, "ulysses": Ulysses, "ring": Ring}
