"""apply, apply_ and rope."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, overload

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.graph import increment_version
from typing_extensions import Unpack

from ropekit._operators import check_written, is_derived, recorded
from ropekit.config import Config, Fields, merge

_ops = torch.ops.ropekit
_rotate, _rotate_pair = _ops.rotate.default, _ops.rotate_pair.default
_rotate_no_grad = _ops.rotate_no_grad.default
_rotate_pair_no_grad = _ops.rotate_pair_no_grad.default
_rotate_, _rotate_pair_ = _ops.rotate_.default, _ops.rotate_pair_.default
_rotate_no_grad_ = _ops.rotate_no_grad_.default
_rotate_pair_no_grad_ = _ops.rotate_pair_no_grad_.default


@lru_cache(maxsize=1024, typed=True)  # typed: 8 is not 8.0, nor 1 True
def _merge_cached(text: str, /, **fields: object) -> str:
    return merge(text, fields)


def _text(config: object, fields: Any, role: str | None) -> str:
    if isinstance(config, Config):
        text = config.text
    elif config is None:
        text = ""
    elif torch.compiler.is_compiling():
        raise RuntimeError(
            "config is read in a compiled function; allowed there is a ropekit.Config made outside"
        )
    else:
        text = Config.from_transformers(config).text
    if role:
        fields["role"] = role
    if not fields:
        return text
    # Numbers inside a tuple would be told apart by value alone; a list has no hash.
    if torch.compiler.is_compiling() or any(isinstance(v, tuple) for v in fields.values()):
        return merge(text, fields)
    try:
        return _merge_cached(text, **fields)
    except TypeError:
        return merge(text, fields)


class Options(Fields, total=False):
    """Keywords of `apply`."""

    positions: Tensor | None
    config: object
    position_offset: int
    sequence_offsets: Tensor | None
    cu_seqlens: Tensor | None
    sequence_lengths: Tensor | None
    cos: Tensor | None
    sin: Tensor | None


@overload
def apply(q: Tensor, k: Tensor, **options: Unpack[Options]) -> tuple[Tensor, Tensor]: ...


@overload
def apply(q: Tensor, k: None = None, **options: Unpack[Options]) -> Tensor: ...


@overload
def apply(q: None, k: Tensor, **options: Unpack[Options]) -> Tensor: ...


def apply(
    q: Tensor | None,
    k: Tensor | None = None,
    *,
    positions: Tensor | None = None,
    config: object = None,
    position_offset: int = 0,
    sequence_offsets: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    sequence_lengths: Tensor | None = None,
    cos: Tensor | None = None,
    sin: Tensor | None = None,
    **fields: Unpack[Fields],
) -> Tensor | tuple[Tensor, Tensor]:
    """Rotates q and k, or the one that is given, into new tensors.

    Args:
        q, k: tensors in the order of `layout` ("bshd" unless given: batch, sequence, head, element;
            "thd" is packed), of any strides. k may have other heads than q.
        positions: position ids, int32 or int64: [tokens], [batch, tokens] or, with several axes,
            [axes, batch, tokens]. None counts from 0.
        config: a Config, a Transformers configuration, a dict or the path of a config.json.
        position_offset: added to every position.
        sequence_offsets: one offset a sequence.
        cu_seqlens: boundaries of packed sequences, one more than there are sequences.
        sequence_lengths: longrope per sequence: total length of each.
        cos, sin: tables [rows, entries] or [batch, rows, entries] that positions index; no gradient
            flows into them.
        fields: any field of a Config; it goes before that of `config`.

    Returns:
        q and k rotated, or the one that was given.
    """
    rest = (position_offset, sequence_offsets, cu_seqlens, sequence_lengths, cos, sin)
    try:
        if q is not None and k is not None:
            return rotate_pair(q, k, _text(config, fields, None), positions, *rest)
        one, text = _lone(q, k, config, fields)
        return rotate(one, text, positions, *rest)
    except (AttributeError, RuntimeError):
        _check_kinds(q, k, positions, rest)
        raise


def _check_kinds(q: object, k: object, positions: object, rest: tuple[object, ...]) -> None:
    """Says what is no tensor, after a call has failed, which spares every other call the time."""
    names = "q k positions sequence_offsets cu_seqlens sequence_lengths cos sin position_flag"
    for name, x in zip(names.split(), (q, k, positions, *rest[1:]), strict=False):
        if x is not None and not isinstance(x, Tensor):
            raise TypeError(f"{name} is {type(x).__name__}; allowed is a tensor")
    if not hasattr(rest[0], "__index__"):
        raise TypeError(f"position_offset is {rest[0]}; allowed is a whole number")


def rotate(x: Tensor, text: str, positions: Tensor | None, *rest: Any) -> Tensor:
    """The operator for one tensor; without a gradient's bookkeeping where none is asked for."""
    result: Tensor
    if not _needs_grad(rest, x):
        result = _rotate_no_grad(x, text, positions, *rest)
    elif _is_traced():
        result = _rotate(x, text, positions, *rest)
    else:  # what the operator does, without PyTorch's way from its dispatcher to Python
        result = recorded(1, x, text, positions, *rest)
    return result


def rotate_pair(
    q: Tensor, k: Tensor, text: str, positions: Tensor | None, *rest: Any
) -> tuple[Tensor, Tensor]:
    """The operator for q and k, likewise."""
    pair: tuple[Tensor, Tensor]
    if not _needs_grad(rest, q, k):
        pair = _rotate_pair_no_grad(q, k, text, positions, *rest)
    elif _is_traced():
        pair = _rotate_pair(q, k, text, positions, *rest)
    else:
        pair = recorded(2, q, k, text, positions, *rest)
    return pair


def _is_traced() -> bool:
    """Where an operator must stand for itself: in a graph, or under a transform of torch.func."""
    return torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()


def _needs_grad(rest: tuple[Any, ...], *tensors: Tensor) -> bool:
    if not torch.is_grad_enabled():
        return False
    for table in rest[-2:]:
        if table is not None and table.requires_grad:
            raise RuntimeError("cos or sin requires a gradient; allowed are tables without one")
    for x in tensors:
        if x.requires_grad:
            return True
    return is_derived()


def apply_(
    q: Tensor | None,
    k: Tensor | None = None,
    *,
    positions: Tensor | None = None,
    config: object = None,
    position_offset: int = 0,
    sequence_offsets: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    sequence_lengths: Tensor | None = None,
    cos: Tensor | None = None,
    sin: Tensor | None = None,
    position_flag: Tensor | None = None,
    **fields: Unpack[Fields],
) -> None:
    """Rotates q and k, or the one that is given, in place. Arguments as of `apply`.

    position_flag is one int32 on the tensors' device: a GPU sets it to 1 when it left out a token
    whose position lies outside the caller's table. Tensors that require a gradient are refused.
    """
    if forward_ad._current_level >= 0:
        raise RuntimeError("a forward-mode derivative is being taken; allowed is apply")
    rest = (position_offset, sequence_offsets, cu_seqlens, sequence_lengths, cos, sin)
    traced = _is_traced()
    try:
        check_written(q, k)
        if q is not None and k is not None:
            text = _text(config, fields, None)
            pair_operator = _rotate_pair_ if traced else _rotate_pair_no_grad_
            pair_operator(q, k, text, positions, *rest, position_flag)
        else:
            one, text = _lone(q, k, config, fields)
            operator = _rotate_ if traced else _rotate_no_grad_
            operator(one, text, positions, *rest, position_flag)
    except (AttributeError, RuntimeError):
        _check_kinds(q, k, positions, (*rest, position_flag))
        raise
    if traced:
        return
    if q is not None and k is not None and position_flag is None:
        increment_version((q, k))  # without the time that a list takes to build
    else:
        increment_version([x for x in (q, k, position_flag) if x is not None])


def _lone(q: Tensor | None, k: Tensor | None, config: object, fields: Any) -> tuple[Tensor, str]:
    one = k if q is None else q
    if one is None:
        raise RuntimeError("q and k are None; allowed is one of them")
    return one, _text(config, fields, "k" if q is None else None)


def rope(q: Tensor, k: Tensor, seq_len: int, theta: float = 10000.0) -> tuple[Tensor, Tensor]:
    """Rotates interleaved pairs of q and k, (batch, seq, heads, head_dim), from position 0 on.

    seq_len is the longest sequence; the tensors may be shorter.
    """
    if seq_len < q.shape[1]:
        raise RuntimeError(
            f"seq_len is {seq_len}; allowed is {q.shape[1]}, the tokens of q, or more"
        )
    return apply(q, k, pairing_in="interleaved", rope_theta=theta)
