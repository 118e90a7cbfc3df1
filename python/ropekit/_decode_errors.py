"""What is wrong with the arguments of decode, in the words of Python."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NoReturn

import torch
from torch import Tensor

from ropekit._append_errors import FIXED, FLOATS, WORDS, check_caches
from ropekit._attention_arguments import DTYPES
from ropekit._attention_errors import explain_attention
from ropekit._errors import check_tensors, refuse

# Of the operator less config, which comes fourth, and the numbers, the last.
ARGUMENTS = (
    *("q", "k", "v", "k_cache", "v_cache", "k_lengths", "block_table", "positions"),
    *("q_weight", "k_weight", "sinks", "k_scale", "v_scale", "k_scale_out", "v_scale_out"),
    *("slots", "cu_seqlens", "cache_starts", "sequence_offsets", "sequence_lengths", "v_weight"),
    *("tree_mask", "k_positions", "cos", "sin", "position_flag"),
)
NUMBERS = ("position_offset", "tree_keys", "max_seqlen_k", "max_seqlen_q")
ALWAYS = ("q", "k", "k_cache", "v_cache", "k_lengths")  # tensors that a call has
WRITTEN = ("k_cache", "v_cache", "k_scale_out", "v_scale_out", "position_flag")
_FIXED = FIXED | DTYPES


def check_decode(tensors: Mapping[str, Tensor]) -> None:
    """Refuses tensors of a call, by the names of its keywords, for what none can be."""
    own = next(iter(tensors.values())).dtype

    def allowed(name: str) -> tuple[torch.dtype, ...]:
        if name in _FIXED:
            return _FIXED[name]
        if name == "q" or own not in FLOATS:
            return FLOATS
        return (own,) if name in ("k", "v") else (torch.float32, own)

    check_tensors(tensors, allowed)
    check_caches(tensors)


def given_of(arguments: Any) -> dict[str, Any]:
    """Those that are not None, by their names."""
    named = zip(ARGUMENTS, (*arguments[:3], *arguments[4:]), strict=False)
    return {name: x for name, x in named if x is not None}


def _words(text: str) -> str:
    for pattern, replacement in WORDS:
        text = re.sub(pattern, replacement, text)
    text = text.replace("most_tokens", "max_seqlen_q").replace("out.data", "out")
    text = explain_attention(text)
    text = text.replace("where v.heads is 0 and v_cache is k_cache", "without v")
    named = r"None or any of (sdpa, )?library, "
    return re.sub(named, "None, composed, library or any of ", text)


def refuse_decode(error: Exception, arguments: Any) -> NoReturn:
    """Raises `error`, with which a call ended, as what it says of the call's arguments."""
    numbers = arguments[len(ARGUMENTS) + 1 :]
    refuse(error, given_of(arguments), numbers[0] if numbers else 0, check_decode, _words)
