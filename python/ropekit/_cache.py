"""A cache of keys and values, and the orders of its dimensions."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from ropekit._append_errors import FLOATS
from ropekit._errors import count
from ropekit._fields import listed, merge
from ropekit._operators import fields_of

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


def scales(x: Tensor | None, name: str, cache: Tensor | None) -> Tensor | None:
    """Scales of [page, head, slot] as [page, slot, head], of a cache of `pages`."""
    if not isinstance(x, Tensor) or x.dim() != 3:
        return x
    if cache is not None:
        allowed = [cache.shape[0], cache.shape[2], cache.shape[1]]
        if list(x.shape) != allowed:
            raise ValueError(
                f"{name} has the shape {list(x.shape)}; allowed is {allowed}, one a token and head"
            )
    return x.transpose(1, 2)


class KeyValueCache:
    """Keys and values of one layer, in pages or a page for each sequence.

    Args:
        batch, capacity: sequences, and tokens that each can hold.
        kv_heads, head_dim, v_head_dim: of keys and values.
        page_size: tokens of a page; None: a page for each sequence.
        dtype: float32, float16 or bfloat16.
    """

    def __init__(
        self,
        batch: int,
        capacity: int,
        kv_heads: int,
        head_dim: int,
        *,
        v_head_dim: int | None = None,
        page_size: int | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        batch, capacity = count("batch", batch), count("capacity", capacity)
        kv_heads, head_dim = count("kv_heads", kv_heads), count("head_dim", head_dim)
        v_head_dim = head_dim if v_head_dim is None else count("v_head_dim", v_head_dim)
        page_size = page_size if page_size is None else count("page_size", page_size)
        dtype = torch.get_default_dtype() if dtype is None else dtype
        if dtype not in FLOATS:
            raise TypeError(f"dtype is {dtype}; allowed is {listed([str(x) for x in FLOATS])}")
        self.batch, self.capacity, self.page_size = batch, capacity, page_size
        self.tokens = 0  # of each sequence
        self.block_table: Tensor | None = None
        self.rotated = True  # whether keys were rotated when they were cached
        self.positions: Tensor | None = None  # of keys that were not
        pages, slots = batch, capacity
        if page_size is not None:
            per_sequence, slots = -(-capacity // page_size), page_size
            pages = batch * per_sequence
            table = torch.arange(pages, dtype=torch.int64, device=device)
            self.block_table = table.view(batch, per_sequence)
        self.k = torch.zeros(pages, slots, kv_heads, head_dim, dtype=dtype, device=device)
        self.v = torch.zeros(pages, slots, kv_heads, v_head_dim, dtype=dtype, device=device)
        self.lengths = torch.zeros(batch, dtype=torch.int64, device=device)

    def reset(self) -> None:
        """Forgets all tokens."""
        self.tokens = 0
        self.lengths.zero_()

    def place(self, positions: Tensor | None, tokens: int, axes: int) -> Tensor:
        """Keeps the positions of so many tokens behind those that there are; None: their index."""
        slots = self.k.shape[1] * (1 if self.block_table is None else self.block_table.shape[1])
        if self.positions is None:
            index = torch.arange(slots, device=self.lengths.device)
            sizes = (axes, self.batch, slots) if axes > 1 else (self.batch, slots)
            self.positions = index.expand(sizes).contiguous()
        own = self.lengths[:, None] + torch.arange(tokens, device=self.lengths.device)
        ids = (own if positions is None else positions).expand(*self.positions.shape[:-1], tokens)
        self.positions.scatter_(-1, own.expand_as(ids), ids.to(torch.int64))
        return ids

    def __repr__(self) -> str:
        paged = f", pages of {self.page_size}" if self.page_size else ""
        return (
            f"KeyValueCache({self.tokens} of {self.capacity} tokens, batch {self.batch}{paged}, "
            f"{self.k.shape[2]} heads of {self.k.shape[3]}, {self.k.dtype}, {self.k.device})"
        )


def text_of_cache(cache: KeyValueCache, text: str) -> str:
    """The text of a call that reads a cache, whose keys may be rotated when they are read."""
    if cache.rotated or fields_of(text).keys() & {"rotate", "rotation"}:
        return text
    return merge(text, {"rotate": "qk"})


def parts_of(cache: object, *others: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """k_cache, v_cache, block_table and k_lengths, of which none may be given beside it."""
    if not isinstance(cache, KeyValueCache):
        raise TypeError(f"cache is {type(cache).__name__}; allowed is a ropekit.KeyValueCache")
    if any(x is not None for x in others):
        raise ValueError(
            "cache is given; allowed with k_cache, v_cache, block_table or k_lengths is None"
        )
    return cache.k, cache.v, cache.block_table, cache.lengths
