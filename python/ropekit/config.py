"""A kind of layer: the fields of rope_desc (include/ropekit/rope.h) under their own names."""

from __future__ import annotations

import ctypes
import json
import math
import operator
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from numbers import Real
from os import getcwd, stat
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

from torch import Tensor
from torch.compiler import is_dynamo_compiling
from typing_extensions import Unpack

from ropekit._errors import explain
from ropekit._fields import AppendFields, AttentionFields, Fields, LayerFields, merge, shown
from ropekit._library import library

__all__ = [
    "AppendFields",
    "AttentionFields",
    "Config",
    "Fields",
    "LayerFields",
    "LayerKind",
    "layer_kinds",
    "merge",
    "text_of",
]


@lru_cache(maxsize=1024)
def _checked(text: str) -> str:
    """A text in which nothing is wrong, whatever the tensors."""
    error = library.ropekit_check_text(text.encode())
    if error:
        words = explain(error.decode())
        if " head_dim=" not in f" {text}":  # of which the library was told any
            words = re.sub(r" \(head_dim [^)]*\)", "", words)
        raise ValueError(words)
    return text


class Config:
    """An immutable set of fields. `text` is what the operators take.

    Fields are those of rope_desc (include/ropekit/rope.h); enumerations are lower-case strings. A
    Config costs a call nothing. A dict is read at every call, a file once and again where it has
    changed, at which a call looks every 0.1 s; in a compiled function only a Config made outside
    works. Fields of attention, as window, may be in it: `apply` and `append` pass over them.
    rope_type "dynamic" scales by sequence_length, or without it, as of a config.json, by the
    longest position of each call.
    """

    __slots__ = ("text",)
    text: str

    def __init__(self, **fields: Unpack[LayerFields]) -> None:
        object.__setattr__(self, "text", Config.from_text(merge("", fields)).text)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Config cannot change; use replace({name}=...)")

    def replace(self, **fields: Unpack[LayerFields]) -> Config:
        """The same configuration with other values; None gives back the default."""
        return Config.from_text(merge(self.text, fields))

    @classmethod
    def from_text(cls, text: str) -> Config:
        """The configuration whose `text` this is."""
        config = cls.__new__(cls)
        object.__setattr__(config, "text", text if is_dynamo_compiling() else _checked(text))
        return config

    @classmethod
    def from_transformers(
        cls,
        config: object,
        layer_type: str | None = None,
        *,
        allow_unread: bool = False,
        **fields: Unpack[LayerFields],
    ) -> Config:
        """What a Transformers configuration, a dict or a config.json says.

        layer_type is an entry of the configuration's layer_types, as in "sliding_attention"; None
        takes "full_attention", or the first kind that rotates where full layers do not. What the
        configuration leaves out is what Transformers takes for its model_type. Norms of q
        and k are read; caps of attention are not, and windows are what layer_kinds tells. A
        model_type that was not compared with Transformers gives a warning that says how its fields
        were read (python/tests/model_types.tsv lists all).
        A configuration with a field that speaks of rope, rotary or theta and that nothing reads is
        an error, with allow_unread a warning. Where it tells no width of a head, the field head_dim
        does.
        """
        merge("", fields)  # refuses what is no field
        width = operator.index(fields.get("head_dim") or 0)
        text = _describe(config, width, layer_type, allow_unread)
        return cls.from_text(merge(text, fields))

    def frequencies(self, rotary_dim: int, long: bool = False) -> tuple[list[float], float]:
        """Radians a position of each pair, and the attention factor; longrope has two sets."""
        inv_freq = (ctypes.c_double * (rotary_dim // 2))()
        attention_factor = ctypes.c_double()
        error = library.ropekit_frequencies(
            self.text.encode(), long, inv_freq, len(inv_freq), ctypes.byref(attention_factor)
        )
        if error:
            raise ValueError(explain(error.decode()))
        return list(inv_freq), attention_factor.value

    def __reduce__(self) -> tuple[Any, ...]:
        return Config.from_text, (self.text,)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Config) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"Config({shown(self.text)})"


def text_of(config: object, x: Tensor) -> str:
    """The text of what `apply` takes as config, for the heads of x where it tells no width.

    A file is read once for each of its states: which it is, its size and when it was written.
    """
    if not isinstance(config, (str, Path)):
        return _checked(_describe(config, _width(x)))
    state = _state(config)
    return _of_file(config, state) or _of_file(config, state, _width(x))


SECONDS = 0.1  # for which a file is taken to be as it was: a stat costs 1 to 2 us
_states: dict[
    tuple[str, str], tuple[float, tuple[int, ...]]
] = {}  # when to look again, and what was


def _state(path: str | Path) -> tuple[int, ...]:
    name = str(path)
    key = name, "" if name.startswith("/") else getcwd()
    known = _states.get(key)
    now = monotonic()
    if known and now < known[0]:
        return known[1]
    try:
        found = stat(path)
    except OSError as error:
        raise _unreadable(error, path) from None
    if len(_states) >= 64:
        _states.clear()
    state = (found.st_mtime_ns, found.st_size, found.st_ino, found.st_dev)
    _states[key] = now + SECONDS, state
    return state


@lru_cache(maxsize=64)
def _of_file(path: str | Path, _state: tuple[int, ...], head_dim: int = 0) -> str:
    """Empty where it cannot be read without a width of heads."""
    try:
        return _checked(_describe(path, head_dim))
    except ValueError:
        if head_dim:
            raise
        return ""


def _width(x: Tensor) -> int:
    """What is out of range the operator refuses."""
    return min(max(int(x.shape[-1]), 2), 65536) if x.dim() else 2


def _unreadable(error: OSError, path: str | Path) -> OSError:
    text = f"config cannot be read ({error.strerror}); allowed is the path of a config.json"
    if isinstance(error, FileNotFoundError) and not str(path).endswith(".json"):
        text += ", a dict, or what transformers' AutoConfig.from_pretrained(...) returns"
    return type(error)(error.errno, text, str(path))


def _plain(value: object) -> object:
    """The same in the types of JSON; of what has none its name, which stands for no number."""
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, Real) and math.isfinite(value):
        return float(value)
    return str(value).removeprefix("torch.")


def _json(config: object) -> bytes:
    if isinstance(config, (str, Path)):
        try:
            return Path(config).read_bytes()
        except OSError as error:
            raise _unreadable(error, config) from None
    if hasattr(config, "to_dict"):
        config = config.to_dict()
    if not isinstance(config, dict):
        raise TypeError(
            f"config is {type(config).__name__}; allowed is a Config, a Transformers "
            "configuration, a dict or the path of a config.json"
        )
    try:
        return json.dumps(_plain(config)).encode()
    except RecursionError:
        raise ValueError("config holds itself; allowed is a dict that JSON can hold") from None


def _warn(text: str) -> None:
    """A warning of the line outside this package that led here."""
    frame, level = sys._getframe(), 1
    while frame.f_back and frame.f_globals.get("__package__") == __package__:
        frame, level = frame.f_back, level + 1
    warnings.warn(text, stacklevel=level)


def _last_error(config: object) -> ValueError:
    where = f"config is {str(config)!r}: " if isinstance(config, (str, Path)) else ""
    text: bytes = library.rope_last_error()
    return ValueError(where + text.decode(errors="replace"))


@contextmanager
def _parsed(config: object, layer_type: str | None = None) -> Iterator[ctypes.c_void_p]:
    """What the library read of a configuration."""
    given = _json(config)
    handle = ctypes.c_void_p()
    layer = layer_type.encode() if layer_type else None
    if library.rope_config_parse(ctypes.byref(handle), given, len(given), layer) != 0:
        raise _last_error(config)
    try:
        yield handle
    finally:
        library.rope_config_destroy(handle)


def _describe(
    config: object, head_dim: int, layer_type: str | None = None, allow_unread: bool = False
) -> str:
    """The text of a configuration, which leaves out a head_dim that it does not state."""
    with _parsed(config, layer_type) as handle:
        size = library.ropekit_describe_config(handle, head_dim, None, 0)
        if size == 0:
            raise _last_error(config)
        note = library.rope_config_note(handle)
        if note:
            _warn(note.decode(errors="replace"))
        if library.rope_config_check(handle) != 0:
            unread = str(_last_error(config))
            if not allow_unread:
                raise ValueError(f"{unread} (Config.from_transformers, allow_unread=True)")
            _warn(unread)
        found = ctypes.create_string_buffer(size + 1)
        library.ropekit_describe_config(handle, head_dim, found, size + 1)
        return found.value.decode()


class _Kind(ctypes.Structure):
    """rope_layer_kind."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("name", ctypes.c_char_p),
        ("rotates", ctypes.c_int32),
        ("layers", ctypes.c_int32),
        ("unrotated", ctypes.c_int32),
        ("window", ctypes.c_int64),
        ("chunk", ctypes.c_int64),
    )


class LayerKind(NamedTuple):
    """A kind of layer of a configuration, which Config.from_transformers reads by its name."""

    name: str
    """As layer_types has it; empty where all layers are alike."""
    rotates: bool
    layers: int
    """Entries of layer_types; 0 where the configuration has no such list."""
    unrotated: int
    """Of them, those that do not rotate, by no_rope_layers."""
    window: int | None
    """Keys that a causal query sees, its own included; of a model that looks both ways the
    farthest that it sees."""
    chunk: int | None
    """Tokens of the chunks in which attention stays."""


def layer_kinds(config: object) -> list[LayerKind]:
    """The kinds of layers of what Config.from_transformers takes."""
    kinds = []
    with _parsed(config) as handle:
        for i in range(library.rope_config_kind_count(handle)):
            kind = _Kind(struct_size=ctypes.sizeof(_Kind))
            if library.rope_config_kind_get(handle, i, ctypes.byref(kind)) != 0:
                raise _last_error(config)
            name, counts = kind.name.decode(), (kind.layers, kind.unrotated)
            limits = (kind.window or None, kind.chunk or None)
            kinds.append(LayerKind(name, bool(kind.rotates), *counts, *limits))
    return kinds
