"""What is wrong with the arguments of append, in the words of Python."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NoReturn

import torch
from torch import Tensor

from ropekit._errors import INDICES, check_tensors, refuse

_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_STORED = (
    *_FLOATS,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.int8,
)
# Of the operator less config, which comes fourth, and position_offset, the last.
ARGUMENTS = (
    *("q", "k", "v", "q_out", "k_out", "v_out", "k_cache", "v_cache", "slots", "positions"),
    *("q_weight", "k_weight", "v_weight", "q_scale", "k_scale", "v_scale"),
    *("block_table", "cache_starts", "q_scale_out", "k_scale_out", "v_scale_out"),
    *("sequence_offsets", "cu_seqlens", "sequence_lengths", "cos", "sin", "position_flag"),
)
WRITTEN = (
    *("q_out", "k_out", "v_out", "k_cache", "v_cache"),
    *("q_scale_out", "k_scale_out", "v_scale_out", "position_flag"),
)

_FIXED = (
    dict.fromkeys((*INDICES, "slots", "block_table", "cache_starts"), (torch.int32, torch.int64))
    | {name: (torch.float32,) for name in ARGUMENTS if "scale" in name}
    | {"position_flag": (torch.int32,)}
)


def check_append(tensors: Mapping[str, Tensor]) -> None:
    """Refuses tensors of a call, by the names of its keywords, for what none can be."""
    if not tensors:
        return
    leader = next(iter(tensors))
    own = tensors[leader].dtype

    def allowed(name: str) -> tuple[torch.dtype, ...]:
        if name in _FIXED:
            return _FIXED[name]
        if name in ("k_cache", "v_cache") or (name == "q_out" and name != leader):
            return _STORED
        if name == leader or own not in _FLOATS:
            return _FLOATS
        weighs = "weight" in name or name in ("cos", "sin")
        return (torch.float32, own) if weighs else (own,)

    check_tensors(tensors, allowed)


# What the library says of append, and what that is in Python.
_WORDS = (
    (
        r"\b([qkv])\.norm\.weight is .*; allowed is 0 without norm\.type",
        r"\1_weight or \1_norm_weight is given; allowed is None without \1_norm_type",
    ),
    (r"\b([qkv])_weight\.data is NULL", r"\1_weight is not given"),
    (r"\b([qkv])\.(norm\.)?(\w+)(?= is)", lambda m: f"{m[1]}_{'norm_' if m[2] else ''}{m[3]}"),
    (r"\b([kv]_cache)\.scale", lambda m: f"{m[1][0]}_scale"),
    (r"\bnorm\.(\w+)", r"norm_\1"),
    (r"\b(\w+_(?:cache|scale|weight))\.(?:data|stride) is", r"\1 is"),
)


def refuse_append(error: Exception, arguments: Any) -> NoReturn:
    """Raises `error`, with which a call ended, as what it says of the call's arguments."""
    given = dict(zip(ARGUMENTS, (*arguments[:3], *arguments[4:-1]), strict=False))
    given = {name: x for name, x in given.items() if x is not None}
    # A result in place stands for its tensor.
    for name in "qkv":
        if name not in given and f"{name}_out" in given:
            given = {name: given.pop(f"{name}_out"), **given}

    def words(text: str) -> str:
        for pattern, replacement in _WORDS:
            text = re.sub(pattern, replacement, text)
        return text

    refuse(error, given, arguments[-1], check_append, words)
