"""Errors in the words of Python: what the library says of its fields, said of keywords and tensors.

TypeError: what is no tensor, no number, or of another element type; ValueError: a value that does
not fit; RuntimeError: the device and its backend, and what PyTorch forbids of a gradient.
"""

from __future__ import annotations

import ctypes
import operator
import re
from collections.abc import Callable, Mapping
from typing import NoReturn, cast

import torch
from torch import SymInt, Tensor
from torch.compiler import is_dynamo_compiling

from ropekit._fields import NAMES, LayerFields, listed, told
from ropekit._library import library

_ROTATED = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
_WHOLE = (torch.int32, torch.int64)
ARGUMENTS = (
    *("q", "k", "positions", "position_offset", "sequence_offsets", "cu_seqlens"),
    *("sequence_lengths", "cos", "sin", "position_flag"),
)
INDICES = ("positions", "sequence_offsets", "cu_seqlens", "sequence_lengths")
# rope_status of what no other argument mends: memory, no kernel, no backend, no device, the device.
_NOT_OF_ARGUMENTS = {7, 8, 9, 10, 12}


def check_tensors(
    tensors: Mapping[str, Tensor], allowed_of: Callable[[str], tuple[torch.dtype, ...]]
) -> None:
    """Refuses tensors of a call, by the names of its keywords, for what none can be."""
    leader, first = next(iter(tensors.items()))
    for name, x in tensors.items():
        allowed = allowed_of(name)
        if x.dtype not in allowed:
            names = listed([str(dtype) for dtype in dict.fromkeys(allowed)])
            like = f", the type of {leader}" if name in ("k", "v") and name != leader else ""
            if x.dtype == torch.uint8 and torch.float8_e4m3fn in allowed:
                like = ", as in .view(torch.float8_e4m3fn) of bytes that are fp8"
            raise TypeError(f"{name} is {x.dtype}; allowed is {names}{like}")
        if x.is_nested:
            raise TypeError(
                f"{name} is a nested tensor; allowed is its values, with its offsets as cu_seqlens"
            )
        if x.layout != torch.strided:
            raise TypeError(f"{name} is {x.layout}; allowed is torch.strided")
        if x.device != first.device:
            raise ValueError(
                f"{name} is on {x.device} and {leader} on {first.device}; allowed is one device"
            )


def check_rotated(tensors: Mapping[str, Tensor]) -> None:
    """check_tensors for `apply`."""
    rotated = tensors.get("q", next(iter(tensors.values()))).dtype

    def allowed(name: str) -> tuple[torch.dtype, ...]:
        if name in INDICES:
            return _WHOLE
        if name == "position_flag":
            return (torch.int32,)
        if name in ("k", "cos", "sin") and rotated in _ROTATED:
            return (rotated,) if name == "k" else (torch.float32, rotated)
        return _ROTATED

    check_tensors(tensors, allowed)


_ENUMS = "|".join(NAMES)
# Numbers for which 0 stands for none; 0 is one of the others.
_NUMBERS = "|".join(
    LayerFields.__annotations__.keys()
    - NAMES.keys()
    - {"rotary_offset", "k_rotary_offset", "shard_rank", "xpos_center", "sequence_length"}
    - {"kernel", "window_right"}
)


def _name(found: re.Match[str]) -> str:
    number = int(found[2])
    return f"{found[1]} is {repr(NAMES[found[1]][number - 1]) if number else 'not given'}"


def _quoted(found: re.Match[str]) -> str:
    return f"{found[1]}{found[2]}{found[3]!r}" if found[3] in NAMES[found[1]] else found[0]


def _allowed(found: re.Match[str]) -> str:
    names = "|".join(NAMES[found[1]])
    return found[0].replace(found[2], re.sub(rf"(?<!')\b({names})\b", r"'\1'", found[2]))


# What the library says, and what that is in Python.
_WORDS = (
    (r"\bposition_ids\b", "positions"),
    (
        r"factor_count is .* > 0 with rope_type inv_freq",
        "inv_freq is not given; allowed is a list of numbers",
    ),
    (
        r"factor_count is .* > 0 with rope_type longrope",
        "short_factor and long_factor are not given; allowed with rope_type longrope is both",
    ),
    (
        r"factor_count is (\d+); allowed is (.*) = (\d+) with rope_type inv_freq",
        r"inv_freq has \1 entries; allowed is \3 (\2)",
    ),
    (
        r"factor_count is (\d+); allowed is (.*) = (\d+) with rope_type longrope",
        r"short_factor and long_factor have \1 entries; allowed is \3 (\2)",
    ),
    (
        r"q\.out is \S+ and k\.out is \S+: they overlap; .*",
        "q and k overlap; allowed is tensors that do not",
    ),
    (
        r"\b([qk])\.out_stride is (\[.*?\])",
        r"\1 has the strides \2 over batch, token, head and element",
    ),
    (r"the descriptor has", "the config has"),
    (r"(?<!allowed )\bis NULL\b(?! or)", "is not given"),
    (r"\bNULL\b", "None"),
    (r"allowed is 0(?= (with|without|unless|while|where)\b)", "allowed is None"),
    (rf"^({_NUMBERS})( .* allowed is) 0 or", r"\1\2 None or"),
    (
        r"ring is (\d+); allowed is 0\.\.(\d+) \(page_size\) where cache is ROPE_CACHE_SEQUENCE",
        r"ring is \1; allowed without block_table is 1..\2 (tokens of a page), or None",
    ),
    (r"^(window_right is -\d+; allowed is >= 0)$", r"\1; None and -1 are none"),
    (r"^((?:window|chunk) is -\d+; allowed is) >= 0$", r"\1 > 0; None, 0 and -1 are none"),
    (r"^(ring is -\d+; allowed is) >= 0$", r"\1 > 0, or None"),
    (r"^((?:ring|scale) is .*; allowed is) .* other than 0$", r"\1 > 0, or None"),
    (r" other than 0$", " other than 0, or None"),
    (r" \(1\.\.4\)", ""),
    (r">= 0 and finite(?! in fp32)", "> 0 and finite"),
    (rf"\b({_ENUMS}) is (\d+)\b( \(ROPE_\w+\))?", _name),
    (rf"\b({_NUMBERS}) is 0(?![.\de])", r"\1 is not given"),
    (rf"\b({_NUMBERS}) is \"(.*?)\"", r"\1 is \2"),
    (rf"\b({_ENUMS})( is | )(\w+)", _quoted),
    (rf"^({_ENUMS}) is .*; allowed is ((?:(?! unless| with| where).)*)", _allowed),
    (r'"([^"]*)"', r"'\1'"),
)


def explain(text: str) -> str:
    """An error of the library in the words of Python."""
    for pattern, words in _WORDS:
        text = re.sub(pattern, words, text)
    return text


def refuse_call(error: Exception, *arguments: object) -> NoReturn:
    """`refuse` for `apply` and `apply_`."""
    given = {name: x for name, x in zip(ARGUMENTS, arguments, strict=False) if x is not None}
    offset = cast("int", given.pop("position_offset", 0))

    def words(text: str) -> str:
        return explain(text) if "q" in given else re.sub(r"^q\b", "k", explain(text))

    refuse(error, given, offset, check_rotated, words)


def refuse(
    error: Exception,
    given: Mapping[str, object],
    offset: int,
    check: Callable[[Mapping[str, Tensor]], None],
    words: Callable[[str], str],
) -> NoReturn:
    """Raises `error`, with which a call ended, as what it says of the call's arguments.

    They are looked at here, after the call has failed, which spares every other call the time.
    """
    if is_dynamo_compiling():
        raise error
    offset = whole(offset)
    try:
        for name, x in given.items():
            if not isinstance(x, Tensor):
                raise TypeError(f"{name} is {type(x).__name__}; allowed is a tensor")
        if not -(2**63) <= offset < 2**63:
            raise ValueError(f"position_offset is {offset}; allowed is a whole number of 64 bits")
        if given:
            check(cast("dict[str, Tensor]", given))
    except (TypeError, ValueError) as found:
        raise found from None
    status = ctypes.c_int32()
    text = (library.ropekit_last_error(ctypes.byref(status)) or b"").decode()
    if not text or not str(error).startswith(text):
        raise error
    kind = RuntimeError if status.value in _NOT_OF_ARGUMENTS else ValueError
    raise kind(words(text)) from None


def whole(offset: int, name: str = "position_offset") -> int:
    """A number from whatever has an index; PyTorch would cut off a fraction of NumPy's."""
    if isinstance(offset, (int, SymInt)):
        return offset
    try:
        return operator.index(offset)
    except TypeError:
        raise TypeError(f"{name} is {told(offset)}; allowed is a whole number") from None


def count(name: str, value: int) -> int:
    """A number of things, of which there is one."""
    found = whole(value, name)
    if found < 1:
        raise ValueError(f"{name} is {found}; allowed is > 0")
    return found
