"""Whether all ranks make the same call, before a tensor travels."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256

import torch

from ropekit.distributed._collectives import gather_now
from ropekit.distributed._layout import Layout

_BYTES = 8192  # of what a rank says
_DIGEST = 9  # bytes: an odd number, as no rank's keys and values have, should it wait for those


def agree(
    layout: Layout, call: Mapping[str, object], error: Exception | None, device: torch.device
) -> None:
    """Raises on every rank where a rank has an error, or another call than rank 0.

    A small collective, and another one where not all say the same.
    """
    if layout.ranks > 1:
        own = {"error": f"{type(error).__name__}: {error}"} if error else dict(call)
        text = json.dumps(own, default=str).encode()
        short = _gathered(layout, sha256(text).digest()[:_DIGEST], device)
        if error is not None or any(x != short[0] for x in short):
            _compare(_told(layout, text, device), error)
    if error is not None:
        raise error


def _gathered(layout: Layout, own: bytes, device: torch.device) -> list[bytes]:
    """Each rank's bytes, as many of each."""
    sent = torch.tensor(list(own), dtype=torch.uint8).to(device)
    return [bytes(row) for row in gather_now(sent, layout.ranks, layout.group).tolist()]


def _told(layout: Layout, text: bytes, device: torch.device) -> list[dict[str, object]]:
    """What each rank says."""
    if len(text) > _BYTES:
        text = json.dumps({"error": f"the call takes {len(text)} bytes to tell"}).encode()
    return [json.loads(row) for row in _gathered(layout, text.ljust(_BYTES), device)]


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
