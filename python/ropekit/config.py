"""A kind of layer: the fields of rope_desc (include/ropekit/rope.h) under their own names."""

from __future__ import annotations

import ctypes
import json
import operator
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from numbers import Real
from pathlib import Path
from typing import Any, Literal, TypedDict, cast

import torch
from torch import SymInt, Tensor
from typing_extensions import Unpack

from ropekit._library import check, library

Pairing = Literal["half_split", "interleaved"]


class Fields(TypedDict, total=False):
    """What is not given keeps the library's default; dtype and device are those of the tensors."""

    layout: Literal["bshd", "bhsd", "sbhd", "thd"]
    head_dim: int
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


def _number(value: object) -> str:
    """As Python writes it. One that a graph leaves open is settled: the text is that of one."""
    if isinstance(value, bool):
        return repr(value)
    if isinstance(value, (int, SymInt)):
        return repr(operator.index(value))
    if isinstance(value, float):
        return repr(value.__float__())
    # A tensor is refused: a text that is kept for it would outlive what it holds.
    if hasattr(value, "__index__") and not isinstance(value, Tensor):
        with suppress(TypeError):  # as of an array that holds no single whole number
            return repr(operator.index(value))
    return repr(float(value) if isinstance(value, Real) else value)


def _write(name: str, value: object) -> str:
    if isinstance(value, str):
        text = value
    elif isinstance(value, Sequence):
        text = ",".join(_number(entry) for entry in value)
    else:
        text = _number(value)
    if not text or " " in text:
        if name not in Fields.__annotations__:
            raise RuntimeError(f'there is no field "{name}"; allowed are those of ropekit.Fields')
        raise RuntimeError(f'{name} is "{text}"; allowed is a number, a name or a list of numbers')
    return f"{name}={text}"


def merge(text: str, fields: Mapping[str, object]) -> str:
    """The text of a configuration with some fields replaced; None takes a field away."""
    kept = [part for part in text.split() if part.partition("=")[0] not in fields]
    given = [_write(name, value) for name, value in fields.items() if value is not None]
    return " ".join(kept + given)


class Config:
    """An immutable set of fields. `text` is what the operators take."""

    __slots__ = ("text",)
    text: str

    def __init__(self, **fields: Unpack[Fields]) -> None:
        object.__setattr__(self, "text", merge("", fields))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Config cannot change; use replace({name}=...)")

    def replace(self, **fields: Unpack[Fields]) -> Config:
        """The same configuration with other values; None gives back the default."""
        return Config.from_text(merge(self.text, fields))

    @classmethod
    def from_text(cls, text: str) -> Config:
        """The configuration whose `text` this is."""
        config = cls()
        object.__setattr__(config, "text", text)
        return config

    @classmethod
    def from_transformers(
        cls,
        config: object,
        layer_type: str | None = None,
        *,
        allow_unread: bool = False,
        **fields: Unpack[Fields],
    ) -> Config:
        """What a Transformers configuration, a dict or a config.json says.

        layer_type names the kind of layer where a model has several, as in "sliding_attention".
        A configuration with a field that speaks of rope, rotary or theta and that nothing reads is
        an error, with allow_unread a warning.
        """
        return cls.from_text(merge(_describe(_as_dict(config), layer_type, allow_unread), fields))

    def frequencies(self, rotary_dim: int, long: bool = False) -> tuple[list[float], float]:
        """Radians a position of each pair, and the attention factor; longrope has two sets."""
        inv_freq = (ctypes.c_double * (rotary_dim // 2))()
        attention_factor = ctypes.c_double()
        error = library.ropekit_frequencies(
            self.text.encode(), long, inv_freq, len(inv_freq), ctypes.byref(attention_factor)
        )
        if error:
            raise RuntimeError(error.decode())
        return list(inv_freq), attention_factor.value

    def __reduce__(self) -> tuple[Any, ...]:
        return Config.from_text, (self.text,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Config) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"Config({self.text})"


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _as_dict(config: object) -> dict[str, Any]:
    if isinstance(config, (str, Path)):
        try:
            text = Path(config).read_text(encoding="utf-8")
            config = json.loads(text, parse_constant=_refuse_constant)
        except (OSError, ValueError) as error:
            raise RuntimeError(
                f'config is "{config}", which cannot be read ({error}); allowed is the path of a '
                "config.json"
            ) from error
    elif hasattr(config, "to_dict"):
        config = config.to_dict()
    if not isinstance(config, dict):
        raise RuntimeError(
            f"config is {type(config).__name__}; allowed is a Config, a Transformers "
            "configuration, a dict or the path of a config.json"
        )
    return cast("dict[str, Any]", config)


def _parameters(*levels: Mapping[str, Any]) -> Mapping[str, Any]:
    """rope_scaling, or else rope_parameters, as in Transformers, of the first that has any."""
    for level in levels:
        for name in ("rope_scaling", "rope_parameters"):
            found = level.get(name)
            if found is None or found == {}:
                continue
            if not isinstance(found, dict):
                raise RuntimeError(f"{name} is {found!r}; allowed is a dict or None")
            return found
    return {}


def _is_by_layer(parameters: Mapping[str, Any]) -> bool:
    values = parameters.values()
    return any(isinstance(value, dict) for value in values) and all(
        value is None or isinstance(value, dict) for value in values
    )


def _rope_fields(
    root: Mapping[str, Any], layer_type: str | None
) -> Iterator[tuple[str, str, object]]:
    """Every field as (scope, name, value): the model's, then those of rope_parameters."""
    text = root.get("text_config")
    model = text if isinstance(text, dict) else root
    parameters = _parameters(model, root)
    for level in (root, model):
        yield from (("", str(name), value) for name, value in level.items())
    if _is_by_layer(parameters):
        name = layer_type or "full_attention"
        if not parameters.get(name):
            raise RuntimeError(f'layer_type is "{name}"; allowed is {", ".join(parameters)}')
        parameters = parameters[name]
    elif layer_type:
        yield ("", "layer_type", layer_type)
    yield from (("rope", str(name), value) for name, value in parameters.items())


def _set(handle: ctypes.c_void_p, scope: str, name: str, value: object) -> bool:
    """As bench/config_parse.c sets a field: what holds no numbers is an empty list where RoPE has a
    field of that name."""
    where = (handle, scope.encode(), name.encode())
    status = 0
    if isinstance(value, torch.dtype):
        value = str(value).removeprefix("torch.")
    if isinstance(value, str):
        status = library.rope_config_set_string(*where, value.encode())
    elif isinstance(value, Real):
        status = library.rope_config_set_number(*where, value)
    elif isinstance(value, (list, tuple)) and all(isinstance(v, Real) for v in value):
        numbers = (ctypes.c_double * len(value))(*value)
        status = library.rope_config_set_list(*where, numbers, len(value))
    elif scope and value is not None:
        raise RuntimeError(
            f"{name} is {value!r}; allowed is a number, a string or a list of numbers"
        )
    elif value is not None and name not in ("rope_parameters", "rope_scaling"):
        status = library.rope_config_set_list(*where, None, 0)
    return status == 0


def _describe(root: Mapping[str, Any], layer_type: str | None, allow_unread: bool) -> str:
    handle = ctypes.c_void_p()
    check(library.rope_config_create(ctypes.byref(handle)) == 0)
    try:
        for scope, name, value in _rope_fields(root, layer_type):
            check(_set(handle, scope, name, value))
        size = library.ropekit_describe_config(handle, None, 0)
        check(size > 0)
        if library.rope_config_check(handle) != 0:
            check(allow_unread)
            warnings.warn(library.rope_last_error().decode(), stacklevel=3)
        text = ctypes.create_string_buffer(size + 1)
        library.ropekit_describe_config(handle, text, size + 1)
        return text.value.decode()
    finally:
        library.rope_config_destroy(handle)
