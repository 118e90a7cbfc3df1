"""What travels between ranks. Every function returns before it has arrived."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

# Its name from PyTorch 2.13 on, and before.
_all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


class Transfer:
    """What has been started, and the tensors that it reads."""

    def __init__(self, works: Sequence[Any] = (), *kept: Tensor) -> None:
        self._works, self._kept = works, kept

    def wait(self) -> None:
        for work in self._works:
            work.wait()
        self._works, self._kept = (), ()


def gather(
    x: Tensor, sizes: Sequence[int], group: ProcessGroup | None
) -> tuple[tuple[Tensor, ...], Transfer]:
    """Each rank's x, of one dimension and `sizes` elements."""
    if len(sizes) == 1:
        return (x,), Transfer()
    most = max(sizes)
    sent = torch.nn.functional.pad(x, (0, most - x.numel())).contiguous()
    found = x.new_empty(len(sizes) * most)
    work = _all_gather(found, sent, group=group, async_op=True)
    rows = found.view(len(sizes), most)
    return tuple(row[:size] for row, size in zip(rows, sizes, strict=True)), Transfer([work], sent)


def gather_blocks(x: Tensor, ranks: int, group: ProcessGroup | None) -> tuple[Tensor, Transfer]:
    """[ranks, ...] of each rank's x, all of one shape."""
    if ranks == 1:
        return x[None], Transfer()
    found = x.new_empty((ranks, *x.shape))
    return found, Transfer([_all_gather(found, x[None], group=group, async_op=True)], x)


def gather_now(x: Tensor, ranks: int, group: ProcessGroup | None) -> Tensor:
    """The same, arrived."""
    found, work = gather_blocks(x, ranks, group)
    work.wait()
    return found


def exchange(
    parts: Sequence[Sequence[Tensor]], sizes: Sequence[int], group: ProcessGroup | None
) -> tuple[tuple[Tensor, ...], Transfer]:
    """What each rank has for this one, of `sizes` elements; the tensors of part i go to rank i."""
    sent = torch.cat([x.reshape(-1) for part in parts for x in part])
    if len(sizes) == 1:
        return (sent,), Transfer()
    found = sent.new_empty(sum(sizes))
    work = dist.all_to_all_single(
        found,
        sent,
        list(sizes),
        [sum(x.numel() for x in part) for part in parts],
        group=group,
        async_op=True,
    )
    return found.split(list(sizes)), Transfer([work], sent)


def pass_on(x: Tensor, group: ProcessGroup | None) -> tuple[Tensor, Transfer]:
    """x goes to the next rank of the ring; one as large comes from the rank before."""
    if dist.get_world_size(group) == 1:
        return x, Transfer()
    ranks, rank, world = dist.get_world_size(group), dist.get_rank(group), dist.group.WORLD
    own: Any = world if group is None else group
    after, before = (dist.get_global_rank(own, (rank + i) % ranks) for i in (1, -1))
    sent, found = x.contiguous(), torch.empty_like(x, memory_format=torch.contiguous_format)
    sends = dist.P2POp(dist.isend, sent, after, own)
    receives = dist.P2POp(dist.irecv, found, before, own)
    works = dist.batch_isend_irecv([sends, receives])
    return found, Transfer(works, sent)
