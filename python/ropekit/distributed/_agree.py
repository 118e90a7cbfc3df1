"""Whether all ranks make the same call, before a tensor travels."""

from __future__ import annotations

import json
from collections.abc import Mapping

import torch
from torch import Tensor

from ropekit.distributed._collectives import gather_now
from ropekit.distributed._layout import Layout

_BYTES = 8192  # of each rank's message


def agree(
    layout: Layout, call: Mapping[str, object], error: Exception | None, like: Tensor
) -> None:
    """Raises on every rank where a rank has an error, or another call than rank 0.

    One collective.
    """
    if layout.ranks > 1:
        own = {"error": f"{type(error).__name__}: {error}"} if error else dict(call)
        told = _told(layout, own, like)
        _compare(told, error)
    if error is not None:
        raise error


def _told(layout: Layout, own: Mapping[str, object], like: Tensor) -> list[dict[str, object]]:
    """What each rank says."""
    text = json.dumps(own, default=str).encode()
    if len(text) > _BYTES:
        text = json.dumps({"error": f"the call takes {len(text)} bytes to tell"}).encode()
    sent = torch.tensor(list(text.ljust(_BYTES)), dtype=torch.uint8).to(like.device)
    rows = gather_now(sent, layout.ranks, layout.group).cpu()
    return [json.loads(bytes(row.tolist())) for row in rows]


def _compare(told: list[dict[str, object]], error: Exception | None) -> None:
    for rank, its in enumerate(told):
        if "error" in its and error is None:
            raise RuntimeError(f"rank {rank} refuses the call: {its['error']}")
    if error is not None:
        return
    first = told[0]
    for rank, its in enumerate(told):
        for name in dict.fromkeys((*first, *its)):
            if first.get(name) != its.get(name):
                raise ValueError(
                    f"{name} is {first.get(name)} on rank 0 and {its.get(name)} on rank {rank}; "
                    "allowed is the same on every rank"
                )
