"""Layout: which tokens of a sequence each rank of a group holds."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh

from ropekit._errors import whole
from ropekit.distributed._collectives import gather

Order = Literal["zigzag", "contiguous"]
_PIECES = {"zigzag": 2, "contiguous": 1}


@dataclass(frozen=True)
class Layout:
    """The tokens of one sequence, of rows that are as long, or of a packed stream, over ranks.

    They are cut into ranks, or twice as many, chunks of ceil(tokens / chunks); the last ones may be
    shorter or empty. A rank holds one chunk with order "contiguous", as DTensor's `Shard`, and
    chunks `rank` and `2 * ranks - 1 - rank` with "zigzag", which gives all ranks as much causal
    attention to do. Boundaries of packed sequences may lie anywhere in a chunk.

    `Layout.of` makes one for this process; nothing is sent for it.
    """

    tokens: int
    rank: int
    ranks: int
    order: Order = "zigzag"
    cu_seqlens: tuple[int, ...] | None = None
    group: ProcessGroup | None = field(default=None, compare=False, repr=False)
    _kept: dict[Any, Any] = field(default_factory=dict, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.order not in _PIECES:
            raise ValueError(f"order is {self.order!r}; allowed is 'zigzag' or 'contiguous'")
        if not 0 <= self.rank < self.ranks:
            raise ValueError(f"rank is {self.rank}; allowed is 0..{self.ranks - 1}")
        if self.tokens < 1:
            raise ValueError(f"tokens is {self.tokens}; allowed is > 0")
        if self.cu_seqlens is not None:
            _check_boundaries(self.cu_seqlens, self.tokens)

    @classmethod
    def of(
        cls,
        mesh: DeviceMesh | ProcessGroup,
        tokens: int,
        *,
        order: Order = "zigzag",
        cu_seqlens: Tensor | Sequence[int] | None = None,
    ) -> Layout:
        """That of `tokens` tokens over a mesh of one dimension or a process group.

        cu_seqlens are boundaries of packed sequences, from 0 to at most `tokens`; positions count
        from 0 in each. A tensor on a device is waited for.
        """
        group = group_of(mesh)
        bounds = cu_seqlens.tolist() if isinstance(cu_seqlens, Tensor) else cu_seqlens
        return cls(
            tokens=whole(tokens, "tokens"),
            rank=dist.get_rank(group),
            ranks=dist.get_world_size(group),
            order=order,
            cu_seqlens=None if bounds is None else tuple(bounds),
            group=group,
        )

    def pieces(self, rank: int | None = None) -> tuple[range, ...]:
        """The tokens of a rank, this one unless given, in the order in which it holds them."""
        at = self.rank if rank is None else rank
        found: tuple[range, ...] = self._keep(("pieces", at), lambda: self._pieces(at))
        return found

    @property
    def chunk(self) -> int:
        """Tokens of a chunk, of which the last ones may have fewer."""
        return -(-self.tokens // (self.ranks * _PIECES[self.order]))

    def _pieces(self, rank: int) -> tuple[range, ...]:
        chunks = self.ranks * _PIECES[self.order]
        size = self.chunk
        own = (rank,) if self.order == "contiguous" else (rank, chunks - 1 - rank)
        ends = (min(i * size, self.tokens) for chunk in own for i in (chunk, chunk + 1))
        return tuple(map(range, *([iter(ends)] * 2)))

    @property
    def chunks(self) -> tuple[tuple[int, int, int], ...]:
        """Of each chunk in order its rank, which of the rank's it is, and its tokens."""
        found: tuple[tuple[int, int, int], ...] = self._keep("chunks", self._chunks)
        return found

    def _chunks(self) -> tuple[tuple[int, int, int], ...]:
        n, ranks = _PIECES[self.order], self.ranks
        owners = [(c, 0) if c < ranks else (2 * ranks - 1 - c, 1) for c in range(n * ranks)]
        return tuple((rank, i, len(self.pieces(rank)[i])) for rank, i in owners)

    @property
    def is_even(self) -> bool:
        """Whether no chunk is shorter than another."""
        return self.tokens == self.chunk * self.ranks * _PIECES[self.order]

    def even(self, x: Tensor) -> Tensor:
        """[batch, piece, chunk, ...] of this rank's tokens, with zeros behind short pieces."""
        pieces = self.pieces()
        if self.is_even:
            return x.view(x.shape[0], len(pieces), self.chunk, *x.shape[2:])
        found = x.new_zeros((x.shape[0], len(pieces), self.chunk, *x.shape[2:]))
        at = 0
        for i, piece in enumerate(pieces):
            found[:, i, : len(piece)] = x[:, at : at + len(piece)]
            at += len(piece)
        return found

    def uneven(self, x: Tensor) -> Tensor:
        """This rank's tokens, of what `even` returned."""
        if self.is_even:
            return x.flatten(1, 2)
        return torch.cat([x[:, i, : len(piece)] for i, piece in enumerate(self.pieces())], 1)

    def count(self, rank: int | None = None) -> int:
        """How many tokens a rank holds, this one unless given."""
        return sum(map(len, self.pieces(rank)))

    @property
    def counts(self) -> tuple[int, ...]:
        """How many tokens each rank holds."""
        found: tuple[int, ...] = self._keep(
            "counts", lambda: tuple(map(self.count, range(self.ranks)))
        )
        return found

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        if self.cu_seqlens is None:
            return self.tokens
        return max((end - start for start, end in pairwise(self.cu_seqlens)), default=0)

    @property
    def costs(self) -> Any:
        """What the last call with method="auto" chose from, `Costs`; None before."""
        return self._kept.get("costs")

    def positions(self, device: torch.device | str = "cpu") -> Tensor:
        """[count] of int64: where each token of this rank stands in its sequence. Tokens behind the
        last sequence count on from it."""
        return self._positions_on(device).clone()

    def _positions_on(self, device: torch.device | str) -> Tensor:
        """The same, not to be written."""
        key = "positions", str(device)
        found: Tensor = self._keep(key, lambda: self._positions().to(device))
        return found

    def check_positions(self, ids: Tensor) -> None:
        """Refuses position ids, [..., count], that are not this rank's; looks at the first ones."""
        own = self._positions_on(ids.device)
        if "ids" in self._kept:
            return
        if ids.shape[-1] != len(own) or not bool((ids == own).all()):
            raise ValueError(
                f"position_ids begin with {ids.flatten()[:4].tolist()}; allowed on rank "
                f"{self.rank} are layout.positions(), which begin with {own[:4].tolist()}"
            )
        self._kept["ids"] = True

    def local_boundaries(self) -> list[int]:
        """cu_seqlens among this rank's tokens; a sequence may have none of them."""
        bounds = self.cu_seqlens or (0, self.tokens)
        return [sum(min(max(x - p.start, 0), len(p)) for p in self.pieces()) for x in bounds]

    def shard(self, x: Tensor, dim: int = 1) -> Tensor:
        """This rank's tokens of the whole tensor, which every rank has."""
        if x.shape[dim] != self.tokens:
            raise ValueError(f"x has {x.shape[dim]} tokens in dim {dim}; allowed is {self.tokens}")
        return self.cut(x, dim, self.rank)

    def unshard(self, x: Tensor, dim: int = 1) -> Tensor:
        """The whole tensor on every rank, of each rank's tokens. The gradient of a token goes to
        its rank; every rank must compute the same from the whole."""
        if x.shape[dim] != self.count():
            raise ValueError(
                f"x has {x.shape[dim]} tokens in dim {dim}; allowed is {self.count()}, those of "
                f"rank {self.rank}"
            )
        found: Tensor = _unshard(x, self, dim % x.dim())
        return found

    def cut(self, x: Tensor, dim: int, rank: int) -> Tensor:
        """A rank's tokens of all."""
        parts = [x.narrow(dim, p.start, len(p)) for p in self.pieces(rank)]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim)

    def join(self, parts: Sequence[Tensor], dim: int) -> Tensor:
        """All tokens in order, of each rank's."""
        found = []
        for rank, part in enumerate(parts):
            at = 0
            for piece in self.pieces(rank):
                found.append((piece.start, part.narrow(dim, at, len(piece))))
                at += len(piece)
        return torch.cat([x for _, x in sorted(found, key=lambda each: each[0])], dim)

    def boundaries(self, device: torch.device, start: int = 0) -> Tensor:
        """Boundaries of sequences on a device, counted from token `start`."""
        bounds = self.cu_seqlens or (0, self.tokens)
        found: Tensor = self._keep(
            ("boundaries", str(device), start),
            lambda: torch.tensor([x - start for x in bounds], device=device),
        )
        return found

    def _positions(self) -> Tensor:
        bounds = self.cu_seqlens or (0, self.tokens)
        own = torch.cat([torch.arange(p.start, p.stop) for p in self.pieces()])
        starts = torch.tensor(bounds)
        last = (torch.searchsorted(starts, own, right=True) - 1).clamp(0, max(len(bounds) - 2, 0))
        return own - starts[last]

    def sequence_at(self, token: int) -> range:
        """The tokens of the sequence that holds one; those behind the last are one of their own."""
        bounds = self.cu_seqlens or (0, self.tokens)
        at = bisect_right(bounds, token)
        return range(bounds[at - 1], bounds[at] if at < len(bounds) else self.tokens)

    def _keep(self, key: Any, make: Any) -> Any:
        if key not in self._kept:
            with torch.inference_mode(False):  # what is kept may be saved for a backward later
                self._kept[key] = make()
        return self._kept[key]


class _Unshard(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, layout: Layout, dim: int) -> Tensor:
        ctx.layout, ctx.dim = layout, dim
        shapes = [(*x.shape[:dim], n, *x.shape[dim + 1 :]) for n in layout.counts]
        sizes = [torch.Size(shape).numel() for shape in shapes]
        parts, work = gather(x.reshape(-1), sizes, layout.group)
        work.wait()
        found = (part.view(shape) for part, shape in zip(parts, shapes, strict=True))
        return layout.join(tuple(found), dim)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return ctx.layout.cut(grad, ctx.dim, ctx.layout.rank), None, None


_unshard: Any = _Unshard.apply


def shard(
    x: Tensor,
    mesh: DeviceMesh | ProcessGroup,
    *,
    dim: int = 1,
    order: Order = "zigzag",
    cu_seqlens: Tensor | Sequence[int] | None = None,
) -> tuple[Tensor, Layout]:
    """This rank's tokens of x, which every rank has whole, and their layout.

    Args:
        x: of any shape; `dim` counts the tokens.
        mesh: a DeviceMesh of one dimension, as mesh["cp"], or a process group.
        order: "zigzag", or "contiguous" as DTensor's Shard: `Layout`.
        cu_seqlens: boundaries of packed sequences in x.

    `layout.shard` cuts other tensors alike, as labels. Its gradient is a rank's part of the whole
    tensor's.
    """
    if not isinstance(x, Tensor):
        raise TypeError(f"x is {type(x).__name__}; allowed is a tensor")
    if not -x.dim() <= dim < x.dim():
        raise ValueError(f"dim is {dim}; allowed is {-x.dim()}..{x.dim() - 1}")
    layout = Layout.of(mesh, x.shape[dim], order=order, cu_seqlens=cu_seqlens)
    return layout.shard(x, dim), layout


def unshard(x: Tensor, layout: Layout, *, dim: int = 1) -> Tensor:
    """The whole tensor on every rank, of each rank's tokens: `Layout.unshard`."""
    return layout.unshard(x, dim)


def group_of(mesh: DeviceMesh | ProcessGroup) -> ProcessGroup:
    """The group of a mesh of one dimension."""
    if isinstance(mesh, DeviceMesh):
        if mesh.ndim != 1:
            raise ValueError(f"mesh has {mesh.ndim} dimensions; allowed is 1, as of mesh['cp']")
        return mesh.get_group()
    if not isinstance(mesh, ProcessGroup):
        raise TypeError(
            f"mesh is {type(mesh).__name__}; allowed is a DeviceMesh of one dimension or a group"
        )
    return mesh


def _check_boundaries(bounds: tuple[int, ...], tokens: int) -> None:
    if not bounds or bounds[0] != 0 or bounds[-1] > tokens:
        raise ValueError(
            f"cu_seqlens goes from {bounds[0] if bounds else None} to "
            f"{bounds[-1] if bounds else None}; allowed is from 0 to at most {tokens}"
        )
    if list(bounds) != list(accumulate(bounds, max)):
        raise ValueError("cu_seqlens falls; allowed are boundaries that do not")
