"""apply, apply_ and rope."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, overload

from torch import Tensor, is_grad_enabled, no_grad
from torch.autograd import forward_ad
from torch.compiler import is_compiling, is_dynamo_compiling
from typing_extensions import Unpack

from ropekit._errors import refuse_call, whole
from ropekit._fields import refuse_fields
from ropekit._operators import (
    DIRECT,
    DIRECT_IN_PLACE,
    FEW,
    FEW_IN_PLACE,
    GRAD,
    IDS,
    IDS_IN_PLACE,
    IN_PLACE,
    NO_GRAD,
    are_transforms_active,
    check_recorded,
    check_tables,
    check_trace,
    check_written,
    constants,
    increment_version,
    is_derived,
    is_tracing,
    record_in_place,
    recorded,
)
from ropekit.config import Config, Fields, merge, text_of


@lru_cache(maxsize=1024, typed=True)  # typed: 8 is not 8.0, nor 1 True
def _merge_cached(text: str, /, **fields: object) -> str:
    return merge(text, fields)


def text_for(config: object, fields: Any, x: Tensor, role: str | None = None) -> str:
    """The text of a configuration and of fields that go before it."""
    if isinstance(config, Config):
        text = config.text
    elif config is None:
        text = ""
    elif is_dynamo_compiling():
        raise RuntimeError(
            "config is read in a compiled function; allowed there is a ropekit.Config made outside"
        )
    else:
        text = text_of(config, x)
    if role:
        fields["role"] = role
    if not fields:
        return text
    if is_dynamo_compiling():
        return merge(text, fields)
    # Numbers inside a tuple would be told apart by value alone; a list has no hash.
    for value in fields.values():
        if isinstance(value, tuple):
            return merge(text, fields)
    try:
        kept = _merge_cached(text, **fields)
    except TypeError:  # of what has no hash, or is refused below
        kept = None
    return merge(text, fields) if kept is None else kept


_NO_OFFSET = 0  # by identity: no 0.0, which is refused


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


_KEYWORDS = frozenset(Options.__annotations__)


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

    Example:
        >>> q, k = torch.randn(1, 64, 32, 128), torch.randn(1, 64, 8, 128)
        >>> rotated_q, rotated_k = ropekit.apply(q, k, rope_theta=500000.0)
        >>> rotated_q.shape
        torch.Size([1, 64, 32, 128])

    Tensors:
        q, k: [batch, tokens, heads, head_dim], or in the order of `layout`: "bhsd", "sbhd", or
            "thd" of packed sequences. float32, float16, bfloat16 or float64, of any strides. k may
            have other heads than q.

    Rotation:
        config: a Config, a Transformers configuration, a dict or the path of a config.json, which
            is read again when the file has changed. Without it, rope_theta, inv_freq and tables
            the rotation is of base 10000 over the whole head.
        fields: any field of a Config, as rope_theta or pairing_in; it goes before that of `config`.
            rope_type="dynamic" scales by sequence_length. Where that is not given, the longest
            position of the call counts, as in Transformers' modules. Index tensors on a GPU are
            not read: give sequence_length beside them.
        cos, sin: tables [rows, entries] or [batch, rows, entries] that positions index. No gradient
            flows into them, and asking for one is an error.

    Positions, int32 or int64:
        positions: a position for each token: [tokens], [batch, tokens] or, with several axes,
            [axes, batch, tokens]. None counts from 0.
        position_offset: a number that is added to every position.
        sequence_offsets: [sequences], added to the positions of each sequence.
        cu_seqlens: [sequences + 1], the boundaries of packed sequences.
        sequence_lengths: [sequences], the total length of each, by which longrope chooses its
            factors.

    Choice of kernel:
        kernel: the name of one of the backend's kernels, as "avx2". None: the first that accepts.

    Returns:
        q and k rotated, or the one that was given. They have the strides of the input where these
        fill its memory, and are contiguous elsewhere. Derivatives are the transpose, of any order;
        direction="inverse" has none.

    Raises:
        TypeError: what is no tensor, no number, no field or of another element type.
        ValueError: a value, a shape or a device that does not fit.
        RuntimeError: what the device or PyTorch refuses; from a compiled function, all of these.
    """
    few = sequence_offsets is cu_seqlens is sequence_lengths is cos is sin is None
    result: Tensor | tuple[Tensor, Tensor]
    try:
        tensors, text = _read(q, k, config, fields)
        # What is called most often goes the fewest steps: a host waits for each.
        if few and not (needs_grad(*tensors) or is_dynamo_compiling() or is_tracing()):
            if positions is not None and position_offset is _NO_OFFSET:
                result = IDS[len(tensors)](*tensors, text, positions)
            else:
                result = FEW[len(tensors)](*tensors, text, positions, whole(position_offset))
            return result
        rest = () if few else (sequence_offsets, cu_seqlens, sequence_lengths, cos, sin)
        result = rotate(len(tensors), *tensors, text, positions, whole(position_offset), *rest)
    except (AttributeError, RuntimeError) as error:
        others = sequence_offsets, cu_seqlens, sequence_lengths, cos, sin
        refuse_call(error, q, k, positions, position_offset, *others)
    return result


def rotate(count: int, *arguments: Any) -> Any:
    """The operator for so many tensors, without a gradient's bookkeeping where none is asked for.

    Its arguments after position_offset may be left out.
    """
    check_tables(arguments[count + 6 :])
    if not is_dynamo_compiling() and is_tracing():
        # With a gradient or without: PyTorch checks a trace by another that has none.
        check_trace()
        return GRAD[count](*arguments)
    if not needs_grad(*arguments[:count]):
        if is_dynamo_compiling():
            return NO_GRAD[count](*arguments)
        return (FEW if len(arguments) == count + 3 else DIRECT)[count](*arguments)
    if is_compiling():
        return GRAD[count](*arguments)
    if is_derived():
        arguments = (*arguments[: count + 6], *constants(arguments[count + 6 :]))
    # What the operator does, without PyTorch's way from its dispatcher to Python.
    return recorded(count, *arguments)


def _is_traced() -> bool:
    """Where an operator must stand for itself: in a graph, or under a transform of torch.func."""
    return is_compiling() or are_transforms_active()


def needs_grad(q: Tensor, k: Tensor | None = None) -> bool:
    """Whether derivatives are taken, backward or forward."""
    if is_derived():
        return True
    return is_grad_enabled() and (q.requires_grad or (k is not None and k.requires_grad))


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
    whose position lies outside the caller's table. Gradients flow through the rotation, as they do
    through PyTorch's functions in place: into views of one tensor too, as qkv[:, :, 0], but neither
    into a leaf nor into the views that unbind, split and chunk make. Under transforms and in a
    compiled function a derivative is taken of a copy.
    """
    few = sequence_offsets is cu_seqlens is sequence_lengths is cos is sin is position_flag is None
    rest = (position_offset, sequence_offsets, cu_seqlens, sequence_lengths, cos, sin)
    traced = _is_traced()
    try:
        position_offset = whole(position_offset)
        tensors, text = _read(q, k, config, fields)
        check_written(q, k)
        check_tables((cos, sin))
        if needs_grad(*tensors) or (not traced and is_tracing() and position_flag is None):
            _write_derived(tensors, text, positions, *rest, position_flag)
            return
        if few and not traced and positions is not None and position_offset is _NO_OFFSET:
            IDS_IN_PLACE[len(tensors)](*tensors, text, positions)
        elif few and not traced:
            FEW_IN_PLACE[len(tensors)](*tensors, text, positions, position_offset)
        else:
            operators = IN_PLACE if traced else DIRECT_IN_PLACE
            operators[len(tensors)](
                *tensors, text, positions, position_offset, *rest[1:], position_flag
            )
    except (AttributeError, RuntimeError) as error:
        refuse_call(error, q, k, positions, *rest, position_flag)
    if not traced:
        increment_version(tensors if position_flag is None else (*tensors, position_flag))


def _write_derived(tensors: tuple[Tensor, ...], text: str, *rest: Any) -> None:
    """apply_ where derivatives are taken."""
    if _is_traced() or is_tracing() or forward_ad._current_level >= 0:
        if rest[-1] is not None:
            raise RuntimeError(
                "position_flag is given; allowed in a compiled function, under a transform and for "
                "a forward-mode derivative is None where a derivative is taken"
            )
        found = rotate(len(tensors), *tensors, text, *rest[:-1])
        for x, y in zip(tensors, (found,) if len(tensors) == 1 else found, strict=True):
            x.copy_(y)
        return
    check_recorded(tensors)
    with no_grad():
        DIRECT_IN_PLACE[len(tensors)](*tensors, text, *rest)
    uncounted = [x for x in tensors if not x.requires_grad]
    increment_version(uncounted if rest[-1] is None else [*uncounted, rest[-1]])
    # A function each, as autograd takes a view in place of one that has one result.
    texts = (text,) if len(tensors) == 1 else (text, _merge_cached(text, role="k"))
    for x, own in zip(tensors, texts, strict=True):
        if x.requires_grad:
            record_in_place(x, own, *rest[:-1])


def _read(
    q: Tensor | None, k: Tensor | None, config: object, fields: Any
) -> tuple[tuple[Tensor, ...], str]:
    """The tensors that are given, and the text of the configuration."""
    if q is not None and k is not None:
        if isinstance(config, Config) and not fields:
            return (q, k), config.text
        return (q, k), _rotation_text(config, fields, q)
    one = k if q is None else q
    if one is None:
        raise ValueError("q and k are None; allowed is one of them")
    return (one,), _rotation_text(config, fields, one, "k" if q is None else None)


def _rotation_text(config: object, fields: Any, x: Tensor, role: str | None = None) -> str:
    refuse_fields(fields, _KEYWORDS, "Fields")
    return text_for(config, fields, x, role)


def rope(q: Tensor, k: Tensor, seq_len: int, theta: float = 10000.0) -> tuple[Tensor, Tensor]:
    """Rotates interleaved pairs of q and k, (batch, seq, heads, head_dim), from position 0 on.

    seq_len is the longest sequence; the tensors may be shorter.
    """
    for name, x in (("q", q), ("k", k)):
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} is {type(x).__name__}; allowed is a tensor")
    seq_len = whole(seq_len, "seq_len")
    if q.dim() == 4 and seq_len < q.shape[1]:  # else apply says what q has
        raise ValueError(f"seq_len is {seq_len}; allowed is {q.shape[1]}, the tokens of q, or more")
    return apply(q, k, pairing_in="interleaved", rope_theta=theta)
