"""append: norm, rotation and the cache's write as one operator, torch.ops.ropekit.append."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, overload

import torch
from torch import Tensor
from torch.compiler import is_compiling
from typing_extensions import Unpack

from ropekit._append_errors import (
    ARGUMENTS,
    CACHES,
    WRITTEN,
    check_append,
    refuse_append,
    refuse_gradients,
)
from ropekit._cache import CacheLayout, pages, scales
from ropekit._errors import whole
from ropekit._fields import AppendFields, refuse_fields
from ropekit._functions import text_for
from ropekit._operators import (
    are_transforms_active,
    check_may_write,
    define,
    implement,
    increment_version,
)

_NO_OFFSET = 0  # by identity, as of `apply`


def _argument(name: str) -> str:
    letter = "abcdefghij"[WRITTEN.index(name)] if name in WRITTEN else ""
    return f"Tensor{f'({letter}!)' if letter else ''}? {name}"


# What is given alone as q_out is read and written there.
_TENSORS, _REST = ARGUMENTS[:3], ARGUMENTS[3:]
_SCHEMA = (
    f"({', '.join(map(_argument, _TENSORS))}, str config, "
    f"{', '.join(f'{_argument(name)}=None' for name in _REST)}, SymInt position_offset=0) -> ()"
)


# Inductor takes an offset of a graph's input for one within that input.
_LOSES_OFFSETS = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13)


def _fake(q: Any, k: Any, v: Any, config: str, *rest: Any) -> None:
    named = zip(ARGUMENTS, (q, k, v, *rest), strict=False)
    given = {name: x for name, x in named if isinstance(x, Tensor)}
    check_append(given)
    settle(given)


def settle(given: Mapping[str, Tensor]) -> None:
    """A graph is of the sizes that its caches have."""
    for name in CACHES if _LOSES_OFFSETS else ():
        if name in given and given[name].storage_offset() != 0:
            raise RuntimeError(
                f"{name}.storage_offset() is {int(given[name].storage_offset())}; allowed in a "
                "function compiled by PyTorch before 2.13 is 0, a tensor of its own for each cache"
            )
    # Inductor of PyTorch 2.13 loses the offset of a view whose sizes are symbols, as kv[1] of one
    # tensor, and kv[0] is written.
    for x in (given[name] for name in CACHES if name in given):
        for size in (*x.shape, *x.stride(), x.storage_offset()):
            int(size)


for _name in ("append", "append_no_grad"):  # the second for a caller that counts what is written
    define(_name, _SCHEMA, _fake)


def _named(arguments: Any) -> Iterable[tuple[str, Any]]:
    return zip(ARGUMENTS, (*arguments[:3], *arguments[4:]), strict=False)


def _written(arguments: Any) -> dict[str, Tensor]:
    return {name: x for name, x in _named(arguments) if x is not None and name in WRITTEN}


def _counted(keyset: Any, *arguments: Any) -> None:
    if torch.is_grad_enabled():
        refuse_gradients(_named(arguments))
    written = _written(arguments)
    check_may_write(written)
    below = keyset & torch._C._after_ADInplaceOrView_keyset
    _OPERATOR.redispatch(below, *arguments)
    increment_version(list(written.values()))


implement("append", _counted, "ADInplaceOrView", with_keyset=True)
_OPERATOR = torch.ops.ropekit.append.default
_DIRECT: Any = torch.ops.ropekit.append_no_grad.default._op


class Options(AppendFields, total=False):
    """Keywords of `append`."""

    k_cache: Tensor | None
    v_cache: Tensor | None
    slots: Tensor | None
    block_table: Tensor | None
    cache_starts: Tensor | None
    cache_layout: CacheLayout
    positions: Tensor | None
    config: object
    q_weight: Tensor | None
    k_weight: Tensor | None
    v_weight: Tensor | None
    q_scale: Tensor | None
    k_scale: Tensor | None
    v_scale: Tensor | None
    q_scale_out: Tensor | None
    k_scale_out: Tensor | None
    v_scale_out: Tensor | None
    q_out: Tensor | None
    k_out: Tensor | None
    v_out: Tensor | None
    position_offset: int
    sequence_offsets: Tensor | None
    cu_seqlens: Tensor | None
    sequence_lengths: Tensor | None
    cos: Tensor | None
    sin: Tensor | None
    position_flag: Tensor | None


_KEYWORDS = frozenset(Options.__annotations__)


@overload
def append(
    q: Tensor, k: Tensor | None = None, v: Tensor | None = None, **options: Unpack[Options]
) -> Tensor: ...


@overload
def append(
    q: None = None, k: Tensor | None = None, v: Tensor | None = None, **options: Unpack[Options]
) -> None: ...


def append(
    q: Tensor | None = None,
    k: Tensor | None = None,
    v: Tensor | None = None,
    *,
    k_cache: Tensor | None = None,
    v_cache: Tensor | None = None,
    slots: Tensor | None = None,
    block_table: Tensor | None = None,
    cache_starts: Tensor | None = None,
    cache_layout: CacheLayout = "nhd",
    positions: Tensor | None = None,
    config: object = None,
    q_weight: Tensor | None = None,
    k_weight: Tensor | None = None,
    v_weight: Tensor | None = None,
    q_scale: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    q_scale_out: Tensor | None = None,
    k_scale_out: Tensor | None = None,
    v_scale_out: Tensor | None = None,
    q_out: Tensor | None = None,
    k_out: Tensor | None = None,
    v_out: Tensor | None = None,
    position_offset: int = 0,
    sequence_offsets: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    sequence_lengths: Tensor | None = None,
    cos: Tensor | None = None,
    sin: Tensor | None = None,
    position_flag: Tensor | None = None,
    **fields: Unpack[AppendFields],
) -> Tensor | None:
    """Normalises q and k, rotates them, and writes k and v into their caches.

    Example:
        >>> k_cache, v_cache = torch.zeros(2, 4, 16, 8, 64)  # page, slot, head, element
        >>> q, k, v = torch.randn(3, 2, 8, 64)  # a token of each of two sequences
        >>> places = {"slots": torch.tensor([5, 16]), "positions": torch.tensor([5, 0])}
        >>> q = ropekit.append(q, k, v, k_cache=k_cache, v_cache=v_cache, **places)
        >>> torch.equal(v_cache[0, 5], v[0]) and torch.equal(v_cache[1, 0], v[1])
        True

    Tensors:
        q, k, v: [tokens, heads, elements], or four dimensions in the order of `layout`, "bshd"
            unless given. Each may be None. Without q, k and v the keys in k_cache that slots or
            sequences name are rotated in place by `positions`, one a key, as of -256; a cache of 8
            bits then needs dtype, that of keys.
        q_out, k_out, v_out: where results go too; q itself for one in place. q_out may be of 8
            bits. Without a cache k and v need one.

    Cache:
        k_cache, v_cache: pages in the order of `cache_layout`, in the type of k, float32, float16,
            bfloat16, a float8 or int8. "nhd" is [page, slot, head, element], or without heads
            [page, slot, element]; "hnd" is [page, head, slot, element]; "vllm" is
            [page, head, element / x, slot, x] of k and [page, head, element, slot] of v.
        slots: [tokens] or [batch, tokens], int32 or int64: page * page size + slot; -1 leaves a
            token out. Of FlashInfer's indices:
            kv_indices[kv_indptr[i] + n // size] * size + n % size.
        block_table: [sequences, pages], the pages of each sequence. With neither of them a page
            holds a sequence.
        cache_starts: [sequences], the index in its sequence of the first token of each, for a block
            table or sequences. None: what position_offset and sequence_offsets give.
        q_scale, k_scale, v_scale: float32, of results of 8 bits: one number, [heads] or one a
            token and head, [page, slot, head] in the order of the cache. None is scale 1: values
            are rounded as they are, of int8 to whole numbers.
        q_scale_out, k_scale_out, v_scale_out: such scales of tokens and heads, that are computed
            and written.
        ring: R keeps the last R tokens of each sequence.

    Rotation and positions:
        config, positions, position_offset, sequence_offsets, cu_seqlens, sequence_lengths, cos,
            sin: as of `apply`. A cached key keeps the factors that longrope had for it: give the
            final sequence_lengths in every call, or longrope_select, or rotation="off" here and
            rotate="qk" to `attention`. A call whose keys would mix is refused where it is seen.
        rotation: "off" leaves out what `config` says of angles.
        position_flag: as of `apply_`; it also tells of a token that has no place.

    Norms:
        q_weight, k_weight, v_weight: [elements] or [heads, elements], of the norms that `config` or
            `fields` name.
        norm_type, norm_eps, norm_scope, norm_weight, norm_rounding, norm_dim, norm_offset: of q and
            k, or of one as in v_norm_type. norm_type is "rms" or "layer".
        q_factor, k_factor, v_factor: what multiplies each.
        fields: these and every other field of ropekit.AppendFields, as `kernel`; they go before
            those of `config`.

    Values are those of the separate steps, bit for bit. Norms round as Transformers' modules; a sum
    that fp32 does not hold exactly may differ by a few units of the type, as PyTorch adds in
    another order. There is no gradient: where a weight requires one, call it within
    torch.no_grad(). Under torch.compile a function is compiled anew for other sizes of its caches.

    Returns:
        q_out, a new tensor where that is not given; None without q.

    Raises:
        TypeError, ValueError, RuntimeError: as `apply` does; nothing is written then.
    """
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x is not None and not isinstance(x, Tensor):
            raise TypeError(f"{name} is {type(x).__name__}; allowed is a tensor")
    if q is not None and q_out is None:
        q_out = torch.empty_like(q)
    refuse_fields(fields, _KEYWORDS, "AppendFields")
    if cache_layout != "nhd":
        k_cache, v_cache = (pages(x, n, cache_layout) for n, x in (("k", k_cache), ("v", v_cache)))
        k_scale, k_scale_out = (
            scales(x, n, k_cache) for n, x in (("k_scale", k_scale), ("k_scale_out", k_scale_out))
        )
        v_scale, v_scale_out = (
            scales(x, n, v_cache) for n, x in (("v_scale", v_scale), ("v_scale_out", v_scale_out))
        )
    # A result in place is given once, as what is read and written.
    tensors: Any = (
        None if q is q_out else q,
        None if k is k_out else k,
        None if v is v_out else v,
    )
    results = q_out, k_out, v_out, k_cache, v_cache
    lead = next((x for x in (q, k, v, *results) if x is not None), None)
    if lead is None:
        raise ValueError("q, k and v are None; allowed is one of them at least")
    arguments = (*tensors, text_for(config, fields, lead), *results, slots, positions)
    weights = q_weight, k_weight, v_weight, q_scale, k_scale, v_scale
    # PyTorch takes its time over each argument, so that what is last and not given stays out.
    usual = block_table is cache_starts is q_scale_out is k_scale_out is v_scale_out is None
    usual = usual and sequence_offsets is cu_seqlens is sequence_lengths is cos is sin is None
    if not usual or position_flag is not None or position_offset is not _NO_OFFSET:
        made = q_scale_out, k_scale_out, v_scale_out
        sequences = sequence_offsets, cu_seqlens, sequence_lengths
        rest = (block_table, cache_starts, *made, *sequences, cos, sin, position_flag)
        _call(
            (*arguments, *weights, *rest, whole(position_offset)),
            (*results, *made, position_flag),
        )
    elif any(x is not None for x in weights):
        _call((*arguments, *weights), results)
    else:
        _call(arguments, results)
    return q_out


def _call(arguments: Any, results: Any) -> None:
    written = [x for x in results if x is not None]
    try:
        if is_compiling() or are_transforms_active():
            _OPERATOR(*arguments)
            return
        if torch.is_grad_enabled():
            refuse_gradients(_named(arguments))
        is_apart = not torch.is_inference_mode_enabled()
        for x in written:
            if x.is_neg() or (is_apart and x.is_inference()):
                check_may_write(_written(arguments))
        _DIRECT(*arguments)
    except (AttributeError, RuntimeError) as error:
        refuse_append(error, arguments)
    increment_version(written)
