"""Masks of Transformers, as its layers hand them to attention.

A mask that `ropekit.attention` has itself is an int64 tensor whose shape tells what a kernel is
chosen by, as a compiled graph and a copy to another device keep shapes, and whose numbers tell what
is read on the device:

    [1, OWN + size, 1 + flags, 0]   every query sees what window and order let it see
    [rows, 1, 1 + kind, n]          numbers, of which _KINDS[kind] tells what they are:
        LENGTHS                     the first of each row: how many keys a sequence has
        PACKED                      boundaries of sequences in the tokens of the batch
        PADDED                      a row of boundaries of queries and one of keys, by which real
                                    tokens attend and padding sees nothing; with two more rows,
                                    those by which padding behind a sequence sees all its keys
        BITS                        of a token over a static cache with padding: as LENGTHS, then
                                    words of a bit for each key, the last of them the token's own

`size` is that of a window or a chunk, or 0. Any other mask is int32 [batch, 1, queries, words], a
bit for each key, where no gradient can be asked for, and else what sdpa has; it has two heads where
keys are not as many as queries. So is one with which a model says that it will compute; one that
computes with another gets a last dimension that is neither 1 nor that of keys, and `check_own`
refuses what it makes of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import index
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling, is_dynamo_compiling
from transformers.masking_utils import (
    bidirectional_mask_function,
    causal_mask_function,
    sdpa_mask,
)

from ropekit._attention import bits_of
from ropekit._sharding import in_use

OWN = 4099  # heads that no model has
# Flags: no order; size is that of a chunk; keys go on behind the last query, which none sees; as
# many keys as queries, of a padded mask without order.
FULL, CHUNK, CUT, SQUARE = 1, 2, 4, 8
PLAIN, LENGTHS, PACKED, PADDED, BITS = range(5)  # what the numbers of a mask are; PLAIN has none

# Size, flags and what the numbers are. The first ones a compiled graph may make.
_KINDS = [(0, 0, LENGTHS), (0, FULL, LENGTHS), (0, 0, PACKED), (0, FULL, PACKED), (0, 0, BITS)]


def _unlike_keys(count: int, keys: int) -> int:
    """A length of at least `count` with which no scores of keys attend: they, or values, differ."""
    count = max(count, 2)
    return count + 1 if count == keys else count


def check_own(mask: Tensor, keys: int) -> None:
    """Refuses integers that are no mask of the kernels, as one that a model padded is not."""
    is_own = mask.dtype in (torch.int64, torch.int32)
    if is_own and (mask.shape[-1] == keys or mask.shape[1] >= OWN):
        raise ValueError(
            f"attention_mask has the shape {list(mask.shape)} of {mask.dtype}; allowed is bool or "
            "a floating type, or the kernels' mask as it was made: a model that changes it needs "
            "'eager' or 'sdpa'"
        )


@dataclass(frozen=True)
class Mask:
    """A mask of the kernels."""

    values: Tensor  # [rows, n]; of a mask that was decoded any shape without elements where n is 0
    size: int
    flags: int
    kind: int = PLAIN

    def encode(self, keys: int) -> Tensor:
        if self.kind == PLAIN:
            return self.values.new_empty((1, OWN + self.size, 1 + self.flags, 0))
        kind = self.size, self.flags, self.kind
        if kind not in _KINDS:
            _KINDS.append(kind)
        count = self.values.shape[-1]
        more = _unlike_keys(count, keys) - count  # empty sequences of those that have boundaries
        values = torch.cat((self.values, self.values[:, -1:].expand(-1, more)), -1)
        return values[:, None, None].expand(-1, 1, 1 + _KINDS.index(kind), -1)

    @classmethod
    def decode(cls, mask: Tensor) -> Mask:
        if mask.shape[-1] == 0:
            return cls(mask, mask.shape[1] - OWN, mask.shape[2] - 1)
        size, flags, kind = _KINDS[index(mask.shape[2] - 1)]
        values = mask[:, 0, 0, :1] if kind == LENGTHS else mask[:, 0, 0]
        return cls(values.contiguous(), size, flags, kind)

    def fields(self) -> dict[str, Any]:
        """Keywords of `attention`."""
        found: dict[str, Any] = {"causal": not self.flags & FULL}
        if self.size and self.flags & CHUNK:
            found["chunk"] = self.size
        elif self.size and self.flags & FULL:  # as many on both sides, beside a query's own
            found |= {"window": self.size, "window_right": self.size - 1}
        elif self.size:
            found["window"] = self.size
        return found

    def of_token(self) -> dict[str, Any]:
        """Keywords of `attention`, of LENGTHS and BITS."""
        lengths = {"k_lengths": self.values[:, 0].contiguous()}
        if self.kind != BITS:
            return lengths | self.fields()
        words = self.values[:, None, 1:].view(torch.int32)
        return lengths | {"tree_mask": words, "tree_keys": 32 * words.shape[-1]}

    def fits(self, tokens: int, keys: int) -> bool:
        """Whether it was made for as many keys, as far as it tells."""
        if self.flags & CUT:
            return keys > tokens
        if self.kind == LENGTHS and self.flags & FULL and not self.size:
            return bool(self.flags & SQUARE) == (keys == tokens)
        return self.kind != PADDED or keys == tokens


def is_of_lengths(mask: Tensor) -> bool:
    """Whether an encoded mask tells how many keys each sequence has."""
    return mask.shape[-1] > 0 and _KINDS[index(mask.shape[2] - 1)][2] in (LENGTHS, BITS)


@dataclass
class _Pattern:
    """Which keys a mask function of Transformers lets a query see."""

    is_full: bool = False
    size: int = 0
    is_chunk: bool = False
    sequences: Tensor | None = None  # [batch, tokens]: which sequence a token belongs to

    def flags(self) -> int:
        return FULL * self.is_full | CHUNK * self.is_chunk


def _cells(function: Callable[..., Any]) -> dict[str, Any]:
    code = getattr(function, "__code__", None)
    closure = getattr(function, "__closure__", None) or ()
    if code is None or function.__module__ != causal_mask_function.__module__:
        return {}
    return dict(zip(code.co_freevars, (cell.cell_contents for cell in closure), strict=True))


def _parts(function: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """The functions of which one is the intersection."""
    inner = _cells(function).get("mask_functions")
    if inner is None or not function.__qualname__.startswith("and_masks."):
        yield function
        return
    for part in inner:
        yield from _parts(part)


def _pattern(function: Callable[..., Any]) -> _Pattern | None:
    """None: one that is not known."""
    if function is causal_mask_function:
        return _Pattern()
    found = _Pattern()
    is_ordered = False
    for part in _parts(function):
        cells = _cells(part)
        kind = part.__qualname__.partition(".")[0] if cells else ""
        if part is causal_mask_function:
            is_ordered = True
        elif part is bidirectional_mask_function:
            found.is_full = True
        elif kind == "sliding_window_overlay" and not found.size:
            found.size = int(cells["sliding_window"])
        elif kind == "sliding_window_bidirectional_overlay" and not found.size:
            found.size, found.is_full = int(cells["sliding_window"]) + 1, True
        elif kind == "chunked_overlay" and not found.size:
            found.size, found.is_chunk = int(cells["chunk_size"]), True
        elif kind == "packed_sequence_mask_function" and found.sequences is None:
            found.sequences = cells["packed_sequence_mask"]
        elif kind == "remap_positions_for_packed_sequence":
            inner = _pattern(cells["mask_function"])
            # Chunks are counted from position 0, a sequence of a packed batch from its own first.
            if inner is None or inner.is_chunk or inner.sequences is not None:
                return None
            found.is_full |= inner.is_full
            found.size, is_ordered = inner.size, is_ordered or not inner.is_full
        else:
            return None
    return found if is_ordered != found.is_full and found.size >= 0 else None


def _boundaries(sequences: Tensor) -> Tensor:
    """Where a sequence begins in the tokens of the batch, and the end."""
    changed = torch.ones_like(sequences, dtype=torch.bool)
    changed[:, 1:] = sequences[:, 1:] != sequences[:, :-1]
    starts = changed.flatten().nonzero().squeeze(-1)
    return torch.cat((starts, starts.new_tensor([sequences.numel()])))


def _rows(seen: Tensor) -> list[tuple[int, int]] | None:
    """The first key of each sequence and the one behind its last; None where keys between them are
    left out."""
    keys, bits = seen.shape[-1], seen.int()
    first, behind = bits.argmax(-1), keys - bits.flip(-1).argmax(-1)
    found = torch.stack((bits.sum(-1), first, behind)).T.tolist()
    rows = [(first, behind) if count else (0, 0) for count, first, behind in found]
    whole = all(row[1] - row[0] == count for row, (count, _, _) in zip(rows, found, strict=True))
    return rows if whole else None


@dataclass(frozen=True)
class _Sizes:
    """Of a call: queries, keys and where the last query stands behind them."""

    batch: int
    queries: int
    keys: int
    end: int | Tensor
    device: Any


def _without_padding(pattern: _Pattern, sizes: _Sizes) -> Mask:
    size, flags = pattern.size, pattern.flags()
    end = sizes.keys if pattern.is_full and not size else sizes.end
    if isinstance(end, Tensor):
        lengths = end.to(sizes.device, torch.int64).repeat(sizes.batch, 1)
        return Mask(lengths, size, flags, LENGTHS)
    if end == sizes.keys:
        return Mask(torch.empty(1, 0, dtype=torch.int64, device=sizes.device), size, flags)
    if end == sizes.queries:
        none = torch.empty(1, 0, dtype=torch.int64, device=sizes.device)
        return Mask(none, size, flags | CUT)
    return Mask(torch.full((sizes.batch, 1), end, device=sizes.device), size, flags, LENGTHS)


def _padded(rows: list[tuple[int, int]], tokens: int) -> list[list[int]]:
    """Boundaries of queries and of keys, by which the tokens [first, behind) of a row attend, and
    two more by which those behind them see all of them; five sequences a row, most of them empty.
    """
    bounds: list[list[int]] = [[], [], [], []]
    for row, (first, behind) in enumerate(rows):
        of_row = (
            (0, first, first, behind, tokens),
            (0, 0, first, behind, behind),
            (0, behind, behind, tokens, tokens),
            (0, 0, first, behind, tokens),
        )
        for found, places in zip(bounds, of_row, strict=True):
            found.extend(row * tokens + place for place in places)
    is_behind = any(behind < tokens for _, behind in rows)
    return [[*found, len(rows) * tokens] for found in bounds[: 4 if is_behind else 2]]


def _with_padding(pattern: _Pattern, sizes: _Sizes, seen: Tensor) -> Mask | None:
    """None: no mask of the kernels."""
    rows = _rows(seen)
    if rows is None:
        return None
    end, queries = int(sizes.end), sizes.queries
    size, flags = pattern.size, pattern.flags()
    if size >= max(queries, sizes.keys):  # of which no query notices anything
        size, flags = 0, flags & ~CHUNK
    # Of no order and no window, queries may be those of another sequence, as a decoder's are.
    is_free = pattern.is_full and not size
    if is_free:
        end = sizes.keys
    elif not pattern.is_full:  # keys behind the last query are not seen anyway
        rows = [(min(first, end), min(behind, end)) for first, behind in rows]
    if all(row == (0, end) for row in rows):
        return _without_padding(pattern, sizes)
    if is_free and all(first == 0 for first, _ in rows):
        lengths = torch.tensor([[behind] for _, behind in rows], device=sizes.device)
        return Mask(lengths, size, flags | SQUARE * (sizes.keys == queries), LENGTHS)
    if pattern.is_full or end != queries:
        return None
    rows = [(first, behind) if first < behind else (end, end) for first, behind in rows]
    if size and any(behind < end for _, behind in rows):
        return None
    values = torch.tensor(_padded(rows, queries), device=sizes.device)
    return Mask(values, size, flags | CUT * (sizes.keys > queries), PADDED)


def _counts_alike(pattern: _Pattern, sizes: _Sizes, kv_offset: Any) -> bool:
    """Whether kernels count the places of windows and chunks as Transformers does."""
    if isinstance(kv_offset, Tensor) or (pattern.is_chunk and kv_offset):
        return False
    if not (pattern.is_full and pattern.size):
        return True
    return not isinstance(sizes.end, Tensor) and sizes.end == sizes.keys


def _structured(
    function: Callable[..., Any],
    sizes: _Sizes,
    kv_offset: Any,
    padding: Tensor | None,
) -> Mask | None:
    if is_compiling():  # whose functions cannot be looked into, nor its tensors
        known = function is causal_mask_function or function is bidirectional_mask_function
        pattern = _Pattern(is_full=function is bidirectional_mask_function) if known else None
        if padding is not None:
            return None
    else:
        pattern = _pattern(function)
    if pattern is None or not _counts_alike(pattern, sizes, kv_offset):
        return None
    if pattern.sequences is not None:
        is_whole = padding is None and sizes.queries == sizes.keys and not kv_offset
        bounds = _boundaries(pattern.sequences)[None] if is_whole else None
        return None if bounds is None else Mask(bounds, pattern.size, pattern.flags(), PACKED)
    if padding is None:
        return _without_padding(pattern, sizes)
    if not pattern.is_full and sizes.keys < int(sizes.end):
        raise ValueError(
            f"attention_mask has {padding.shape[-1]} tokens; allowed without a cache is as many as "
            f"input_ids has, {sizes.queries}"
        )
    real = min(padding.shape[-1] - kv_offset, sizes.keys)
    if real >= (sizes.keys if pattern.is_full else int(sizes.end)) and bool(padding.all()):
        return _without_padding(pattern, sizes)
    seen = padding[:, kv_offset : kv_offset + sizes.keys]
    seen = torch.nn.functional.pad(seen, (0, sizes.keys - seen.shape[-1]))
    return _with_padding(pattern, sizes, seen)


def dense_of(bits: Tensor, keys: int) -> Tensor:
    """[..., words] of int32 as [..., keys] of bool."""
    places = torch.arange(32, dtype=torch.int32, device=bits.device)
    return ((bits.unsqueeze(-1) >> places) & 1).bool().flatten(-2)[..., :keys]


def moved(dense: Tensor, by: Tensor, keys: int) -> Tensor:
    """[..., keys] of bool, each of a key so many places further on; False where there is none."""
    places = torch.arange(keys, device=dense.device) + by
    last = dense.shape[-1] - 1
    return dense.index_select(-1, places.clamp(0, last)) & (places >= 0) & (places <= last)


def _of_bits(padding: Tensor, end: Tensor, keys: int) -> Tensor:
    """The mask of one token, the last of so many keys that there are."""
    end = end.to(padding.device, torch.int64)
    bits = 64 * (_unlike_keys(1 + -(-keys // 64), keys) - 1)
    words = bits_of(moved(padding, end - bits, bits))[0].view(torch.int64)
    values = torch.cat((end.expand(words.shape[0], 1), words), 1)
    return Mask(values, 0, 0, BITS).encode(keys)


def _is_in_onnx_export() -> bool:
    """Of which no operator has bits."""
    is_exporting = is_compiling() and not is_dynamo_compiling()
    return is_exporting and torch.onnx.is_in_onnx_export()


def _of_shard(
    function: Callable[..., Any], padding: Tensor | None, keys: int, device: Any
) -> Tensor:
    """Order, window and chunks alone: where tokens and sequences stand the layout tells."""
    pattern = _pattern(function)
    if pattern is None or padding is not None:
        what = (
            "attention_mask is given" if padding is not None else "the model has a mask of its own"
        )
        raise ValueError(
            f"{what}; allowed within ropekit.distributed.use is a window or chunks, and sequences "
            "packed by the layout's cu_seqlens in place of padding"
        )
    none = torch.empty(1, 0, dtype=torch.int64, device=device)
    return Mask(none, pattern.size, pattern.flags()).encode(keys)


_COMPUTE = {"doge"}  # models that compute with their mask behind a static cache too


def build_mask(
    *,
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Any = 0,
    kv_offset: Any = 0,
    mask_function: Callable[..., Any] = causal_mask_function,
    attention_mask: Tensor | None = None,
    allow_is_causal_skip: bool = True,
    device: Any = "cpu",
    **kwargs: Any,
) -> Tensor:
    """The mask of attn_implementation "ropekit", of AttentionMaskInterface."""
    if in_use() is not None:
        return _of_shard(mask_function, attention_mask, kv_length, device)
    sizes = _Sizes(batch_size, q_length, kv_length, q_offset + q_length - kv_offset, device)
    mask = _structured(mask_function, sizes, kv_offset, attention_mask)
    # Transformers asks for a whole mask of causal order where a model computes with it, and of a
    # token behind a static cache, whose length is a tensor unless it slides.
    limited = kwargs.get("local_size") is not None
    computes = getattr(kwargs.get("config"), "model_type", "") in _COMPUTE
    is_static = q_length == 1 and (isinstance(q_offset, Tensor) or limited) and not computes
    is_free = allow_is_causal_skip or is_static or bool(kwargs.get("use_vmap"))
    is_packed = mask is not None and mask.kind == PACKED
    if mask is not None and (is_free or is_packed or mask.flags & FULL):
        return mask.encode(kv_length)
    has_bits = is_free and not torch.is_grad_enabled() and not _is_in_onnx_export()
    is_whole = not isinstance(kv_offset, Tensor) and not kv_offset
    is_token = has_bits and is_static and is_whole and mask_function is causal_mask_function
    if is_token and attention_mask is not None and isinstance(sizes.end, Tensor):
        return _of_bits(attention_mask, sizes.end, kv_length)
    dense: Any = sdpa_mask(
        batch_size=batch_size,
        q_length=q_length,
        kv_length=kv_length,
        q_offset=q_offset,
        kv_offset=kv_offset,
        mask_function=mask_function,
        attention_mask=attention_mask,
        device=device,
        **(kwargs | {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}),
    )
    found: Tensor = dense
    if has_bits:
        words = bits_of(dense[:, 0])[0][:, None]
        more = _unlike_keys(words.shape[-1], kv_length) - words.shape[-1]
        words = torch.nn.functional.pad(words, (0, more))
        found = words.expand(-1, 1 if kv_length == q_length else 2, -1, -1)
    return found
