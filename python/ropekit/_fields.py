"""Fields of a configuration: what Python may give for each, and their text for the operators."""

from __future__ import annotations

import operator
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from importlib import import_module
from inspect import signature
from numbers import Real
from typing import Literal, NoReturn, TypedDict, get_args, get_origin, get_type_hints

import torch
from torch import SymInt, Tensor

from ropekit._hints import HINTS

Pairing = Literal["half_split", "interleaved"]
Norm = Literal["rms", "layer"]
NormScope = Literal["head", "token"]
NormWeight = Literal["weight", "one_plus_weight"]
NormRounding = Literal["once", "twice"]


class RotationFields(TypedDict, total=False):
    """What is not given, or None, keeps the library's default; dtype and device are those of the
    tensors."""

    layout: Literal["bshd", "bhsd", "sbhd", "thd"] | None
    rotary_dim: int | None
    rotary_offset: int | None
    k_head_dim: int | None
    k_rotary_offset: int | None
    pairing_in: Pairing | None
    pairing_out: Pairing | None
    direction: Literal["forward", "transpose", "inverse"] | None
    angle_mode: Literal["exact", "f32", "table"] | None
    arithmetic: Literal["fp32", "model_dtype"] | None
    rope_type: (
        Literal[
            "default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional", "inv_freq"
        ]
        | None
    )
    rope_theta: float | None
    factor: float | None
    low_freq_factor: float | None
    high_freq_factor: float | None
    beta_fast: float | None
    beta_slow: float | None
    mscale: float | None
    mscale_all_dim: float | None
    attention_factor: float | None
    alpha: float | None
    partial_rotary_factor: float | None
    short_mscale: float | None
    long_mscale: float | None
    xpos_scale_base: float | None
    xpos_center: int | None
    original_max_position_embeddings: int | None
    max_position_embeddings: int | None
    sequence_length: int | None
    short_factor: Sequence[float] | None
    long_factor: Sequence[float] | None
    inv_freq: Sequence[float] | None
    truncate: Literal["on", "off"] | None
    longrope_select: Literal["per_sequence", "static", "short", "long"] | None
    axes: int | None
    axis_layout: Literal["chunked", "interleaved", "alternating", "custom"] | None
    axis_frequency: Literal["shared", "restart"] | None
    sections: Sequence[int] | None
    pair_axis: Sequence[int] | None
    shard: Literal["none", "contiguous", "zigzag"] | None
    shard_rank: int | None
    shard_size: int | None
    table_width: Literal["half", "full"] | None
    out_of_range: Literal["error", "identity", "clamp"] | None
    launch: Literal["serial", "programmatic"] | None
    kernel: str | None


class Fields(RotationFields, total=False):
    """Those of `apply`."""

    head_dim: int | None


class CacheFields(TypedDict, total=False):
    """Those of `append` and `attention` alike."""

    rotation: Literal["on", "off"] | None
    ring: int | None


class ModuleFields(RotationFields, CacheFields, total=False):
    """Those of `RoPEAttention`, which takes head_dim apart."""

    rotate: Literal["qk", "q", "none"] | None
    scale: float | None
    softcap: float | None
    window: int | None
    window_right: int | None
    chunk: int | None


class NormFields(TypedDict, total=False):
    """Those of norms: norm_ is of q and k; q_norm_ and k_norm_ go before it."""

    norm_type: Norm | None
    norm_scope: NormScope | None
    norm_offset: int | None
    norm_dim: int | None
    norm_weight: NormWeight | None
    norm_rounding: NormRounding | None
    norm_eps: float | None
    q_norm_type: Norm | None
    q_norm_scope: NormScope | None
    q_norm_offset: int | None
    q_norm_dim: int | None
    q_norm_weight: NormWeight | None
    q_norm_rounding: NormRounding | None
    q_norm_eps: float | None
    k_norm_type: Norm | None
    k_norm_scope: NormScope | None
    k_norm_offset: int | None
    k_norm_dim: int | None
    k_norm_weight: NormWeight | None
    k_norm_rounding: NormRounding | None
    k_norm_eps: float | None


class AttentionFields(ModuleFields, Fields, NormFields, total=False):
    """Those of `attention`."""


class AppendFields(Fields, CacheFields, NormFields, total=False):
    """Those of `append`: norms, of v too, factors and the type of a layer."""

    q_factor: float | None
    k_factor: float | None
    v_norm_type: Norm | None
    v_norm_scope: NormScope | None
    v_norm_offset: int | None
    v_norm_dim: int | None
    v_norm_weight: NormWeight | None
    v_norm_rounding: NormRounding | None
    v_norm_eps: float | None
    v_factor: float | None
    dtype: torch.dtype | None


class LayerFields(AttentionFields, AppendFields, total=False):
    """Those of a Config: of each function."""


_KINDS = {name: get_args(kind)[0] for name, kind in get_type_hints(LayerFields).items()}  # or None
_ATTENTION_ONLY = frozenset(
    LayerFields.__annotations__.keys() - AppendFields.__annotations__.keys()
)
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# Enumerations by their fields; `apply` sets "role", that of a lone tensor, and `attention` "mask".
NAMES: dict[str, tuple[str, ...]] = {"role": ("q", "k"), "mask": ("causal", "full")} | {
    name: get_args(kind) for name, kind in _KINDS.items() if get_origin(kind) is Literal
}
# Functions and what each takes as fields.
_TAKERS = {
    "apply": Fields,
    "append": AppendFields,
    "attention": AttentionFields,
    "RoPEAttention": ModuleFields,
}
# What is none of a number that may be left out: -1, and where C has it too 0.
_NONE = {
    *("window=0", "window=-1", "window_right=-1", "chunk=0", "chunk=-1"),
    *("softcap=0", "softcap=0.0", "softcap=-0.0", "softcap=-1", "softcap=-1.0"),
}
_LISTS = {name: get_args(kind)[0] for name, kind in _KINDS.items() if get_origin(kind) is Sequence}


def listed(values: Sequence[str]) -> str:
    """a, b or c."""
    return " or ".join(filter(None, (", ".join(values[:-1]), values[-1])))


def refuse_fields(fields: Mapping[str, object], keywords: frozenset[str], kind: str) -> None:
    """Refuses what is none of a function's keywords; its fields are those of ropekit.`kind`."""
    for name in fields:
        if name in keywords:
            continue
        if name not in _KINDS:
            _refuse_name(name, keywords, kind)
        other = "attention" if name in _ATTENTION_ONLY else "append"
        raise TypeError(f"{name} is given; allowed is that in a Config and for ropekit.{other}")


def told(value: object) -> str:
    """A value in one line."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."


def _refuse(name: str, value: object, allowed: str, kind: type | None = None) -> NoReturn:
    error = ValueError if kind and isinstance(value, kind) else TypeError
    raise error(f"{name} is {told(value)}; allowed is {allowed}")


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


def _takers(name: str) -> str:
    """The functions that take a keyword."""
    package = import_module("ropekit")
    found = [
        f"ropekit.{taker}"
        for taker, fields in _TAKERS.items()
        if name in fields.__annotations__ or name in signature(getattr(package, taker)).parameters
    ]
    return listed(found) if found else ""


_takers._dynamo_marked_constant = True  # type: ignore[attr-defined]  # as of _sdpa's check


def _refuse_name(
    name: str,
    keywords: Collection[str] = _KINDS.keys(),
    kind: str = "LayerFields",
) -> NoReturn:
    if hint := HINTS.get(name):
        own = re.split(r"\W", hint)[0]
        takers = "" if own in (*keywords, "q", "k", "v") else _takers(own)
        raise TypeError(
            f"there is no field {name!r}; allowed is {hint}{takers and f', for {takers}'}"
        )
    if takers := _takers(name):
        raise TypeError(f"{name} is given; allowed is that for {takers}")
    known = get_close_matches(name, sorted(keywords), 1)
    meant = f": {known[0]}?" if known else ""
    raise TypeError(f"there is no field {name!r}; allowed are those of ropekit.{kind}{meant}")


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
    """The text of a configuration with some fields replaced; what is none takes a field away."""
    kept = [part for part in text.split() if part.partition("=")[0] not in fields]
    for name in fields:
        if name not in _KINDS and name not in NAMES:
            _refuse_name(name)
    given = [_write(name, value) for name, value in fields.items() if value is not None]
    return " ".join(kept + [part for part in given if part not in _NONE])
