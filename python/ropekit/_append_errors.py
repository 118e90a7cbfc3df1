"""What is wrong with the arguments of append, in the words of Python."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

import torch
from torch import Tensor

from ropekit._errors import INDICES, check_tensors, explain, refuse

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
STORED = (
    *FLOATS,
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
CACHES = ("k_cache", "v_cache")
WRITTEN = (
    *("q_out", "k_out", "v_out", "k_cache", "v_cache"),
    *("q_scale_out", "k_scale_out", "v_scale_out", "position_flag"),
)

FIXED = (
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
        if name in FIXED:
            return FIXED[name]
        if name in CACHES or (name == "q_out" and name != leader):
            return STORED
        if name == leader or own not in FLOATS:
            return FLOATS
        weighs = "weight" in name or name in ("cos", "sin")
        return (torch.float32, own) if weighs else (own,)

    check_tensors(tensors, allowed)
    check_caches(tensors)


def check_caches(tensors: Mapping[str, Tensor]) -> None:
    """Refuses caches of no size."""
    for name in (name for name in CACHES if name in tensors):
        shape = list(tensors[name].shape)
        if not 3 <= len(shape) <= 5:
            raise ValueError(f"{name} has {len(shape)} dimensions; allowed is 3 to 5")
        if 0 in shape[:2]:
            raise ValueError(
                f"{name} has {shape[0]} pages of {shape[1]} slots; allowed is > 0 of each"
            )


# What the library says of append, and what that is in Python.
WORDS = (
    (
        r"\b([qkv])\.norm\.weight is .*; allowed is 0 without norm\.type",
        r"\1_weight or \1_norm_weight is given; allowed is None without \1_norm_type",
    ),
    (
        r"\b([qkv])_weight\.data is NULL; allowed is any .*",
        r"\1_weight is not given; allowed is a tensor, as config or a field states a norm with one",
    ),
    (r"\b([qkv])\.scale is \d \(\w+\)", r"\1_scale is given"),
    (r"\bq\.store_dtype\b", "q_out"),
    (r"\b([kv])\.store_dtype\b", r"\1_cache"),
    (r"\b([qkv])\.norm\.(\w+)", r"\1_norm_\2"),
    (r"\b([qkv])\.factor\b", r"\1_factor"),
    (r"\bnorm\.(\w+)", r"norm_\1"),
    (
        r"(\w+)(?:\.in|\.out)? is 0x\w+ and (\w+)(?:\.in|\.out)? is 0x\w+: they overlap; .*",
        r"\1 and \2 overlap; allowed is tensors that do not",
    ),
    (r"\bis 0x\w+; allowed is NULL", "is given; allowed is None"),
    (r" \(ROPE_NORM_\w+\)", ""),
    (r"\brotation is ROPE_ROTATION_OFF", "rotation is 'off'"),
    (r"\bk_source is ROPE_SOURCE_CACHE", "keys in k_cache move"),
    (r"\bcache is ROPE_CACHE_SLOTS", "slots are given"),
    (r"\b([kv])_cache\.scale\b", r"\1_scale"),
    (r"\b(\w+_(?:cache|scale|out))\.stride is (\[.*?\])", r"\1 has the strides \2"),
    (r"\b(\w+_(?:cache|scale|weight))\.data\b", r"\1"),
    (r" and the plan's cache is ROPE_CACHE_TABLE or ROPE_CACHE_SEQUENCE", ", without slots"),
    (r"\bis 0x\w+", "is given"),
    (r"\bis \(nil\)", "is not given"),
)


def refuse_append(error: Exception, arguments: Any) -> NoReturn:
    """Raises `error`, with which a call ended, as what it says of the call's arguments."""
    named = zip(ARGUMENTS, (*arguments[:3], *arguments[4:]), strict=False)
    given = {name: x for name, x in named if x is not None}
    offset = arguments[-1] if len(arguments) > len(ARGUMENTS) + 1 else 0
    apart = [name for name in "qkv" if name in given]
    # A result in place stands for its tensor.
    for name in "qkv":
        if name not in given and f"{name}_out" in given:
            given = {name: given.pop(f"{name}_out"), **given}

    def words(text: str) -> str:
        for name in apart:
            text = text.replace(f"{name}.out is 0x", f"{name}_out is 0x")
            if f"{name}_out" in given:
                text = text.replace(f"{name}.out_stride is", f"{name}_out.stride is")
        for pattern, replacement in WORDS:
            text = re.sub(pattern, replacement, text)
        return explain(text)

    refuse(error, given, offset, check_append, words)


def refuse_gradients(given: Iterable[tuple[str, Any]]) -> None:
    """Refuses tensors that require a gradient, which what writes to a cache does not have."""
    for name, x in given:
        if isinstance(x, Tensor) and x.requires_grad:
            raise RuntimeError(
                f"{name} requires a gradient; allowed is a call within torch.no_grad(), or tensors "
                "that do not"
            )
