"""Fields of a configuration: what Python may give for each, and their text for the operators."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from numbers import Real
from typing import Literal, NoReturn, TypedDict, get_args, get_origin, get_type_hints

import torch
from torch import SymInt, Tensor

Pairing = Literal["half_split", "interleaved"]
Norm = Literal["rms", "layer"]
NormScope = Literal["head", "token"]
NormWeight = Literal["weight", "one_plus_weight"]
NormRounding = Literal["once", "twice"]


class RotationFields(TypedDict, total=False):
    """What is not given keeps the library's default; dtype and device are those of the tensors."""

    layout: Literal["bshd", "bhsd", "sbhd", "thd"]
    rotary_dim: int
    rotary_offset: int
    k_head_dim: int
    k_rotary_offset: int
    pairing_in: Pairing
    pairing_out: Pairing
    direction: Literal["forward", "transpose", "inverse"]
    angle_mode: Literal["exact", "f32", "table"]
    arithmetic: Literal["fp32", "model_dtype"]
    rope_type: Literal[
        "default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional", "inv_freq"
    ]
    rope_theta: float
    factor: float
    low_freq_factor: float
    high_freq_factor: float
    beta_fast: float
    beta_slow: float
    mscale: float
    mscale_all_dim: float
    attention_factor: float
    alpha: float
    partial_rotary_factor: float
    short_mscale: float
    long_mscale: float
    xpos_scale_base: float
    xpos_center: int
    original_max_position_embeddings: int
    max_position_embeddings: int
    sequence_length: int
    short_factor: Sequence[float]
    long_factor: Sequence[float]
    inv_freq: Sequence[float]
    truncate: Literal["on", "off"]
    longrope_select: Literal["per_sequence", "static", "short", "long"]
    axes: int
    axis_layout: Literal["chunked", "interleaved", "alternating", "custom"]
    axis_frequency: Literal["shared", "restart"]
    sections: Sequence[int]
    pair_axis: Sequence[int]
    shard: Literal["none", "contiguous", "zigzag"]
    shard_rank: int
    shard_size: int
    table_width: Literal["half", "full"]
    out_of_range: Literal["error", "identity", "clamp"]
    launch: Literal["serial", "programmatic"]
    kernel: str


class Fields(RotationFields, total=False):
    """Those of `apply`."""

    head_dim: int


class ModuleFields(RotationFields, total=False):
    """Those of `RoPEAttention`, which takes head_dim apart; `append` reads rotation and ring."""

    rotation: Literal["on", "off"]
    ring: int
    rotate: Literal["qk", "q", "none"]
    scale: float
    softcap: float
    window: int
    window_right: int
    chunk: int


class AttentionFields(ModuleFields, Fields, total=False):
    """Those of `attention`."""


class LayerFields(AttentionFields, total=False):
    """Those of `append` too: norms, factors and the type of a layer.

    norm_ is of q and k; q_norm_, k_norm_ and v_norm_ go before it.
    """

    norm_type: Norm
    norm_scope: NormScope
    norm_offset: int
    norm_dim: int
    norm_weight: NormWeight
    norm_rounding: NormRounding
    norm_eps: float
    q_norm_type: Norm
    q_norm_scope: NormScope
    q_norm_offset: int
    q_norm_dim: int
    q_norm_weight: NormWeight
    q_norm_rounding: NormRounding
    q_norm_eps: float
    q_factor: float
    k_norm_type: Norm
    k_norm_scope: NormScope
    k_norm_offset: int
    k_norm_dim: int
    k_norm_weight: NormWeight
    k_norm_rounding: NormRounding
    k_norm_eps: float
    k_factor: float
    v_norm_type: Norm
    v_norm_scope: NormScope
    v_norm_offset: int
    v_norm_dim: int
    v_norm_weight: NormWeight
    v_norm_rounding: NormRounding
    v_norm_eps: float
    v_factor: float
    dtype: torch.dtype


_KINDS = get_type_hints(LayerFields)
# What is no field of `apply`, of `append`, of `attention`.
LAYER_ONLY = frozenset(LayerFields.__annotations__.keys() - Fields.__annotations__.keys())
ATTENTION_ONLY = frozenset({"rotate", "scale", "softcap", "window", "window_right", "chunk"})
APPEND_ONLY = frozenset(LayerFields.__annotations__.keys() - AttentionFields.__annotations__.keys())
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# Enumerations by their fields; `apply` sets "role", that of a lone tensor, and `attention` "mask".
NAMES: dict[str, tuple[str, ...]] = {"role": ("q", "k"), "mask": ("causal", "full")} | {
    name: get_args(kind) for name, kind in _KINDS.items() if get_origin(kind) is Literal
}
_ARGUMENTS = ("causal", "positions", "position_offset", "cu_seqlens", "k_cache", "v_cache")
_LISTS = {name: get_args(kind)[0] for name, kind in _KINDS.items() if get_origin(kind) is Sequence}


def listed(values: Sequence[str]) -> str:
    """a, b or c."""
    return " or ".join(filter(None, (", ".join(values[:-1]), values[-1])))


def refuse_fields(fields: Mapping[str, object], others: frozenset[str], function: str) -> None:
    """Refuses keywords that another function reads."""
    if not others.isdisjoint(fields):
        name = next(name for name in fields if name in others)
        raise TypeError(f"{name} is given; allowed is that in a Config and for ropekit.{function}")


def _refuse(name: str, value: object, allowed: str, kind: type | None = None) -> NoReturn:
    error = ValueError if kind and isinstance(value, kind) else TypeError
    raise error(f"{name} is {value!r}; allowed is {allowed}")


def _number(name: str, value: object, whole: bool) -> str:
    """As Python writes it. One that a graph leaves open is settled: the text is that of one."""
    if not isinstance(value, bool):
        if isinstance(value, (int, SymInt)):
            return repr(operator.index(value))
        if not whole and isinstance(value, float):
            return repr(value.__float__())
        # A tensor is refused: a text that is kept for it would outlive what it holds.
        if hasattr(value, "__index__") and not isinstance(value, Tensor):
            with suppress(TypeError):  # as of an array that holds no single whole number
                return repr(operator.index(value))
        if not whole and isinstance(value, Real):
            return repr(float(value))
    _refuse(name, value, "a whole number" if whole else "a number")


def _write(name: str, value: object) -> str:
    if name in NAMES:
        if not isinstance(value, str) or value not in NAMES[name]:
            _refuse(name, value, listed([repr(known) for known in NAMES[name]]), str)
        text = value
    elif name in _LISTS:
        if not isinstance(value, Sequence) or isinstance(value, str) or not value:
            _refuse(name, value, "a list of numbers", list)
        whole = _LISTS[name] is int
        text = ",".join(_number(f"{name}[{i}]", x, whole) for i, x in enumerate(value))
    elif name == "kernel":
        if not isinstance(value, str) or not value or " " in value:
            _refuse(name, value, "the name of a kernel", str)
        text = value
    elif name == "dtype":
        if value not in _DTYPES:
            allowed = listed([str(dtype) for dtype in _DTYPES])
            _refuse(name, value, allowed, torch.dtype)
        text = str(value).removeprefix("torch.")
    elif name in _KINDS:
        text = _number(name, value, _KINDS[name] is int)
    else:
        _refuse_name(name)
    return f"{name}={text}"


def _refuse_name(name: str) -> NoReturn:
    known = get_close_matches(name, (*_KINDS, *_ARGUMENTS), 1)
    meant = f": {known[0]}?" if known else ""
    raise TypeError(f"there is no field {name!r}; allowed are those of ropekit.Fields{meant}")


def _shown(part: str) -> str:
    name, _, value = part.partition("=")
    if name in NAMES or name == "kernel":
        return f"{name}={value!r}"
    if name == "dtype":
        return f"{name}=torch.{value}"
    numbers = [x if x.lstrip("-").isdigit() else repr(float(x)) for x in value.split(",")]
    return f"{name}=[{', '.join(numbers)}]" if name in _LISTS else f"{name}={numbers[0]}"


def shown(text: str) -> str:
    """The fields of a text as Python writes them."""
    return ", ".join(map(_shown, text.split()))


def merge(text: str, fields: Mapping[str, object]) -> str:
    """The text of a configuration with some fields replaced; None takes a field away."""
    kept = [part for part in text.split() if part.partition("=")[0] not in fields]
    for name in fields:
        if name not in _KINDS and name not in NAMES:
            _refuse_name(name)
    given = [_write(name, value) for name, value in fields.items() if value is not None]
    return " ".join(kept + given)
