"""A cache of keys and values, and the orders of its dimensions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from ropekit._append_errors import STORED
from ropekit._errors import count, whole
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

    `tokens` is how many the longest sequence has, `lengths` on the device what each has.

    Args:
        batch, capacity: sequences, and tokens that each can hold.
        kv_heads, head_dim, v_head_dim: of keys and values.
        page_size: tokens of a page; None: a page for each sequence.
        dtype: float32, float16 or bfloat16, or a float8 or int8, which has a scale for each token
            and head.
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
        if dtype not in STORED:
            raise TypeError(f"dtype is {dtype}; allowed is {listed([str(x) for x in STORED])}")
        self.batch, self.capacity, self.page_size = batch, capacity, page_size
        self.tokens = 0
        self._counts: list[int] | None = None  # tokens of each sequence; None: all have `tokens`
        self.ring: tuple[int, int] | None = None  # tokens kept, and keys that a token sees
        self._most: list[int] | None = None  # in a ring, tokens of each before it was cropped
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
        self.k_scale: Tensor | None = None
        self.v_scale: Tensor | None = None
        if dtype.itemsize == 1:
            self.k_scale, self.v_scale = torch.ones(2, pages, slots, kv_heads, device=device)
        self.lengths = torch.zeros(batch, dtype=torch.int64, device=device)

    def reset(self) -> None:
        """Forgets all tokens."""
        self._set_counts([0] * self.batch)
        self._most = None
        self.lengths.zero_()

    def crop(self, lengths: int | Sequence[int] | Tensor) -> None:
        """Forgets what each sequence has behind its first so many tokens.

        A number is of every sequence, of which a shorter one keeps what it has; else one a
        sequence. A tensor on a device is waited for. What a ring has overwritten does not come
        back: a sequence keeps all that its next token sees, or 0.
        """
        counts = self.counts()
        most = [max(pair) for pair in zip(counts, self._most or counts, strict=True)]
        if isinstance(lengths, (Sequence, Tensor)):
            wanted = numbers("lengths", lengths, self.batch)
        else:
            first = whole(lengths, "lengths")
            if not 0 <= first <= self.tokens:
                raise ValueError(f"lengths is {first}; allowed is 0..{self.tokens}")
            wanted = [min(first, own) for own in counts]
        for i, (n, own) in enumerate(zip(wanted, counts, strict=True)):
            least = self._least(most[i])
            if n != 0 and not least <= n <= own:
                lost = f" 0 or {least}..{own}, as a ring has lost earlier keys" if least else ""
                raise ValueError(f"lengths[{i}] is {n}; allowed is{lost or f' 0..{own}'}")
        if self.ring:
            self._most = [n and most[i] for i, n in enumerate(wanted)]
        self._set_counts(wanted)
        self.lengths.copy_(torch.tensor(wanted))

    def reorder(self, index: Sequence[int] | Tensor) -> None:
        """Makes sequence i what sequence index[i] was, as the beams of a search.

        A tensor on a device is waited for where sequences differ in length.
        """
        order = None
        if (
            not isinstance(index, Tensor)
            or index.device.type == "cpu"
            or self._counts
            or self._most
        ):
            order = numbers("index", index, self.batch)
            for i, n in enumerate(order):
                if not 0 <= n < self.batch:
                    raise ValueError(f"index[{i}] is {n}; allowed is 0..{self.batch - 1}")
        device = self.lengths.device
        rows: Any = torch.tensor(order, device=device) if order else index
        used = min(self.tokens, self.capacity)
        for kept in (self.k, self.v, self.k_scale, self.v_scale):
            if kept is None:
                continue
            x = kept.view(torch.uint8) if kept.element_size() == 1 else kept
            if self.block_table is None:
                x[:, :used] = x[:, :used].index_select(0, rows)
            else:
                table = self.block_table[:, : -(-used // x.shape[1])]
                x[table.flatten()] = x[table.index_select(0, rows).flatten()]
        self.lengths.copy_(self.lengths.index_select(0, rows))
        if self.positions is not None:
            self.positions.copy_(self.positions.index_select(-2, rows))
        if order and self._most:
            self._most = [self._most[i] for i in order]
        if order and self._counts:
            self._set_counts([self._counts[i] for i in order])

    def is_even(self) -> bool:
        """Whether all sequences have as many tokens."""
        return self._counts is None

    def counts(self) -> list[int]:
        """Tokens of each sequence, as the host knows them."""
        return [self.tokens] * self.batch if self._counts is None else self._counts

    def grow(self, new: int | list[int], lengths: Tensor) -> None:
        """Tokens that a call has cached, and how many each sequence then has."""
        self.lengths.copy_(lengths)
        if isinstance(new, int) and self._counts is None:
            self.tokens += new
            return
        each = [new] * self.batch if isinstance(new, int) else new
        self._set_counts([n + own for n, own in zip(each, self.counts(), strict=True)])

    def _set_counts(self, counts: list[int]) -> None:
        self.tokens = max(counts)
        self._counts = None if min(counts) == self.tokens else counts

    def _least(self, most: int) -> int:
        """Tokens that a sequence which had so many keeps at least, for what its next token sees."""
        ring, seen = self.ring or (most, 0)
        return most - ring + seen - 1 if most > ring else 0

    def slots(self, new: Tensor, tokens: int, ring: int) -> Tensor:
        """Where the first `new` of so many tokens go, of each sequence: -1 for the others."""
        device, size = self.lengths.device, self.k.shape[1]
        token = torch.arange(tokens, device=device)
        place = self.lengths[:, None] + token
        place = place % ring if ring else place
        if self.block_table is None:
            page = torch.arange(self.batch, device=device)[:, None]
        else:
            last = self.block_table.shape[1] - 1
            page = self.block_table.gather(1, (place // size).clamp(max=last))
        return torch.where(token < new[:, None], page * size + place % size, -1)

    def place(self, positions: Tensor | None, tokens: int, axes: int) -> tuple[Tensor, Tensor]:
        """Keeps the positions of so many tokens behind those that there are (None: their index),
        and gives them and those of all keys."""
        slots = self.k.shape[1] * (1 if self.block_table is None else self.block_table.shape[1])
        if self.positions is None:
            index = torch.arange(slots + 1, device=self.lengths.device)  # the last one of padding
            sizes = (axes, self.batch, slots + 1) if axes > 1 else (self.batch, slots + 1)
            self.positions = index.expand(sizes).contiguous()
        own = self.lengths[:, None] + torch.arange(tokens, device=self.lengths.device)
        ids = (own if positions is None else positions).expand(*self.positions.shape[:-1], tokens)
        places = own.clamp(max=slots).expand_as(ids)
        self.positions.scatter_(-1, places, ids.to(torch.int64))
        return ids, self.positions[..., :slots]

    def __repr__(self) -> str:
        paged = f", pages of {self.page_size}" if self.page_size else ""
        least = f"{min(self._counts)} to " if self._counts else ""
        return (
            f"KeyValueCache({least}{self.tokens} of {self.capacity} tokens, batch {self.batch}"
            f"{paged}, {self.k.shape[2]} heads of {self.k.shape[3]}, {self.k.dtype}, "
            f"{self.k.device})"
        )


def numbers(name: str, values: Sequence[int] | Tensor, size: int) -> list[int]:
    """Whole numbers, one a sequence."""
    if not isinstance(values, (Sequence, Tensor)):
        kind = type(values).__name__
        raise TypeError(f"{name} is {kind}; allowed is a list or a tensor, one number a sequence")
    if isinstance(values, Tensor):
        if values.dtype not in (torch.int32, torch.int64):
            raise TypeError(f"{name} is {values.dtype}; allowed is torch.int32 or torch.int64")
        if values.dim() != 1:
            raise ValueError(f"{name} has {values.dim()} dimensions; allowed is 1")
        values = values.tolist()
    found = [whole(x, f"{name}[{i}]") for i, x in enumerate(values)]
    if len(found) != size:
        raise ValueError(f"{name} has {len(found)} entries; allowed is {size}, one a sequence")
    return found


def text_of_cache(cache: KeyValueCache, text: str) -> str:
    """The text of a call that reads a cache, whose keys may be rotated when they are read."""
    if cache.rotated or fields_of(text).keys() & {"rotate", "rotation"}:
        return text
    return merge(text, {"rotate": "qk"})


PARTS = "k_cache", "v_cache", "block_table", "k_lengths", "k_scale", "v_scale"


def parts_of(cache: object, others: Iterable[Tensor | None] = ()) -> tuple[Any, ...]:
    """PARTS of a cache, of which none may be given beside it."""
    if not isinstance(cache, KeyValueCache):
        raise TypeError(f"cache is {type(cache).__name__}; allowed is a ropekit.KeyValueCache")
    if any(x is not None for x in others):
        names = f"{', '.join(PARTS[:-1])} or {PARTS[-1]}"
        raise ValueError(f"cache is given; allowed with {names} is None")
    return cache.k, cache.v, cache.block_table, cache.lengths, cache.k_scale, cache.v_scale
