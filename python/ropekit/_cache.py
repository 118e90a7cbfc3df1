"""The orders of a cache's dimensions."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from ropekit._fields import listed

CacheLayout = Literal["nhd", "hnd", "vllm"]


def pages(x: Tensor | None, part: str, layout: str) -> Tensor | None:
    """A cache as [page, slot, head, element], or with blocks of elements."""
    if layout not in ("hnd", "vllm"):
        allowed = listed(["'nhd'", "'hnd'", "'vllm'"])
        raise ValueError(f"cache_layout is {layout!r}; allowed is {allowed}")
    if x is None:
        return x
    dims = x.dim()
    if layout == "vllm" and (dims == 4 or (dims == 5 and part == "k")):
        return x.permute(0, 3, 1, 2) if dims == 4 else x.permute(0, 3, 1, 2, 4)
    if layout == "hnd" and dims == 4:
        return x.transpose(1, 2)
    allowed = "4, or 5 of k_cache" if layout == "vllm" else "4"
    raise ValueError(
        f"{part}_cache has {dims} dimensions; allowed is {allowed}, for cache_layout {layout!r}"
    )


def scales(x: Tensor | None) -> Tensor | None:
    """Scales of [page, head, slot] as [page, slot, head]."""
    return x.transpose(1, 2) if x is not None and x.dim() == 3 else x
