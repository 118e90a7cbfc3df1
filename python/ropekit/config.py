"""A kind of layer: the fields of rope_desc (include/ropekit/rope.h) under their own names."""

from __future__ import annotations

import ctypes
import json
import math
import re
import warnings
from collections.abc import Iterator, Mapping
from functools import lru_cache
from numbers import Real
from os import stat
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling
from typing_extensions import Unpack

from ropekit._errors import explain
from ropekit._fields import Fields, merge
from ropekit._library import check, library

__all__ = ["Config", "Fields", "merge", "text_of"]


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
    """An immutable set of fields. `text` is what the operators take."""

    __slots__ = ("text",)
    text: str

    def __init__(self, **fields: Unpack[Fields]) -> None:
        object.__setattr__(self, "text", Config.from_text(merge("", fields)).text)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Config cannot change; use replace({name}=...)")

    def replace(self, **fields: Unpack[Fields]) -> Config:
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
        **fields: Unpack[Fields],
    ) -> Config:
        """What a Transformers configuration, a dict or a config.json says.

        layer_type names the kind of layer where a model has several, as in "sliding_attention".
        A configuration with a field that speaks of rope, rotary or theta and that nothing reads is
        an error, with allow_unread a warning. Where it tells no width of a head, the field head_dim
        does.
        """
        text = _text(_as_dict(config), layer_type, fields.get("head_dim"), allow_unread)
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
        return f"Config({self.text})"


def text_of(config: object, x: Tensor) -> str:
    """The text of what `apply` takes as config, for the heads of x where it tells no width.

    A file is read once for each of its states: which it is, its size and when it was written.
    """
    if not isinstance(config, (str, Path)):
        return _of_dict(_as_dict(config), _width(x))
    try:
        found = stat(config)
    except OSError as error:
        raise _unreadable(error, config) from None
    state = (found.st_mtime_ns, found.st_size, found.st_ino, found.st_dev)
    return _of_file(config, state) or _of_file(config, state, _width(x))


@lru_cache(maxsize=64)
def _of_file(path: str | Path, _state: tuple[int, ...], head_dim: int | None = None) -> str:
    """Empty where a width of heads is needed."""
    root = _as_dict(path)
    return _of_dict(root, head_dim) if head_dim is not None or _tells_width(root) else ""


def _width(x: Tensor) -> int:
    """What is out of range the operator refuses."""
    return min(max(int(x.shape[-1]), 2), 65536) if x.dim() else 2


def _of_dict(root: Mapping[str, Any], head_dim: int | None = None) -> str:
    return Config.from_text(_text(root, None, head_dim)).text


def _tells_width(root: Mapping[str, Any]) -> bool:
    levels = (root, root.get("text_config"))
    return any(
        level.get(name) is not None
        for level in levels
        if isinstance(level, dict)
        for name in ("head_dim", "hidden_size", "n_embd", "qk_rope_head_dim")
    )


def _text(
    root: Mapping[str, Any],
    layer_type: str | None,
    head_dim: int | None,
    allow_unread: bool = False,
) -> str:
    supposed = head_dim is not None and not _tells_width(root)
    told = {**root, "head_dim": head_dim} if supposed else root
    try:
        text = _describe(told, layer_type, allow_unread)
    except RuntimeError as error:
        raise ValueError(str(error)) from None
    return merge(text, {"head_dim": None}) if supposed else text


def _unreadable(error: OSError, path: str | Path) -> OSError:
    text = f"config cannot be read ({error.strerror}); allowed is the path of a config.json"
    return type(error)(error.errno, text, str(path))


_ESCAPED_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _parsed(text: str) -> object:
    found = json.loads(text, parse_constant=_refuse_constant, parse_int=float)
    json.dumps(found, ensure_ascii=False).encode()  # half of a UTF-16 pair is an error
    if _ESCAPED_NUL.search(text):
        raise ValueError("\\u0000 in a string")
    return found


def _as_dict(config: object) -> dict[str, Any]:
    if isinstance(config, (str, Path)):
        try:
            found = _parsed(Path(config).read_text(encoding="utf-8"))
        except OSError as error:
            raise _unreadable(error, config) from None
        except (ValueError, RecursionError) as error:
            raise ValueError(f"config is {str(config)!r}, which holds no JSON ({error})") from None
        if not isinstance(found, dict):
            raise ValueError(f"config is {str(config)!r}, which holds no JSON object")
        return found
    if hasattr(config, "to_dict"):
        config = config.to_dict()
    if not isinstance(config, dict):
        raise TypeError(
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
    """Whether there is a dict for each layer type, None for layers without RoPE."""
    return any(isinstance(value, dict) for value in parameters.values()) and all(
        name not in ("rope_type", "type") and (value is None or isinstance(value, dict))
        for name, value in parameters.items()
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
        yield ("rope", "layer_type", name)
    elif layer_type:
        yield ("", "layer_type", layer_type)
    yield from (("rope", str(name), value) for name, value in parameters.items())


def _bytes(text: str) -> bytes:
    """As the library takes a text, which ends at a NUL."""
    try:
        coded = text.encode()
    except UnicodeEncodeError:
        coded = b"\0"
    if b"\0" in coded:
        raise ValueError(f"{text!r} is in the config; allowed is Unicode text without a NUL")
    return coded


def _double(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:  # of an int
        return math.inf if value > 0 else -math.inf


def _set(handle: ctypes.c_void_p, scope: str, name: str, value: object) -> bool:
    """As bench/config_parse.c sets a field: what holds no numbers is an empty list where RoPE has a
    field of that name."""
    where = (handle, scope.encode(), _bytes(name))
    status = 0
    if isinstance(value, torch.dtype):
        value = str(value).removeprefix("torch.")
    if isinstance(value, str):
        status = library.rope_config_set_string(*where, _bytes(value))
    elif isinstance(value, Real):
        status = library.rope_config_set_number(*where, _double(value))
    elif isinstance(value, (list, tuple)) and all(
        isinstance(v, Real) and not isinstance(v, bool) for v in value
    ):
        numbers = (ctypes.c_double * len(value))(*map(_double, value))
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
        note = library.rope_config_note(handle)
        if note:
            warnings.warn(note.decode(), stacklevel=3)
        if library.rope_config_check(handle) != 0:
            check(allow_unread)
            warnings.warn(library.rope_last_error().decode(), stacklevel=3)
        text = ctypes.create_string_buffer(size + 1)
        library.ropekit_describe_config(handle, text, size + 1)
        return text.value.decode()
    finally:
        library.rope_config_destroy(handle)
