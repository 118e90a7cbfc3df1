"""What is wrong with the arguments of attention, in the words of Python."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NoReturn

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ropekit._append_errors import FLOATS, check_caches
from ropekit._attention_arguments import DTYPES, TENSORS, Arguments
from ropekit._errors import check_tensors, explain, refuse

# What `kernel` may name that is no kernel of the library: PyTorch's, and the library's choice.
KERNELS = ("sdpa", "library")


def check_attention(
    tensors: Mapping[str, Tensor], floats: tuple[torch.dtype, ...] = FLOATS
) -> None:
    """Refuses tensors of a call, by the names of its keywords, for what none can be."""
    own = next(iter(tensors.values())).dtype

    def allowed(name: str) -> tuple[torch.dtype, ...]:
        if name in DTYPES:
            return DTYPES[name]
        if name in ("q", "out") or own not in floats:
            return floats
        if name == "lse":
            return (torch.float32,)
        either = ("sinks", "cos", "sin", "q_weight", "k_weight")
        return (torch.float32, own) if name in either else (own,)

    check_tensors(tensors, allowed)


NO_SECOND = "attention has no second derivative; allowed is its gradient"
NO_FORWARD = "attention has no derivative forward; allowed is its gradient"
_DERIVED = ("q", "k", "v", "sinks", "q_weight", "k_weight")
_UNDERIVED = ("k_cache", "v_cache", "tree_mask", "position_flag")


def check_differentiable(given: Mapping[str, object]) -> None:
    """Refuses arguments with which attention has no gradient."""
    for name, x in given.items():
        if name in _UNDERIVED and isinstance(x, Tensor):
            raise RuntimeError(f"{name} is given; allowed with a gradient is None")


def wants_gradient(given: Mapping[str, object]) -> bool:
    """Whether a gradient of attention is asked for; refuses one that there is none of."""
    check_no_tangent(given, "attention")
    asked = [name for name, x in given.items() if isinstance(x, Tensor) and x.requires_grad]
    if not asked or not torch.is_grad_enabled():
        return False
    for name in asked:
        if name not in _DERIVED:
            raise RuntimeError(
                f"{name} requires a gradient; allowed in attention is one of q, k, v, sinks and "
                "weights of norms"
            )
    check_differentiable(given)
    return True


def check_no_grad(given: Mapping[str, object], what: str) -> None:
    """Refuses tensors that a derivative is asked of: there is none."""
    for name, x in given.items():
        if isinstance(x, Tensor) and x.requires_grad and torch.is_grad_enabled():
            raise RuntimeError(
                f"{name} requires a gradient and {what} has no backward pass; allowed is a call "
                "within torch.no_grad(), or tensors that do not"
            )
    check_no_tangent(given, what)


def check_no_tangent(given: Mapping[str, object], what: str) -> None:
    """Refuses tensors that carry a forward-mode derivative."""
    if forward_ad._current_level < 0:
        return
    for name, x in given.items():
        if isinstance(x, Tensor) and forward_ad.unpack_dual(x).tangent is not None:
            raise RuntimeError(
                f"{name} has a tangent and {what} has no derivative forward; allowed is a tensor "
                "without one"
            )


# What the library says of attention, and what that is in Python.
_WORDS = (
    (r"^soft_cap (is .*; allowed is) 0, or (.*)", r"softcap \1 \2; None, 0 and -1 are none"),
    (r"\bsoft_cap\b", "softcap"),
    (r"\btree_bits\b", "tree_mask"),
    (r"\bk_position_ids\b", "k_positions"),
    (r"\bk_tokens\b", "max_seqlen_k"),
    (
        r"^(window_right|window|chunk|softcap|scale|ring) is (.*); allowed is 0\b(?!\.\.)",
        r"\1 is \2; allowed is None",
    ),
    (
        r"^(window_right is .* allowed is) None unless mask is .*",
        r"\1 None or 0 unless causal is False",
    ),
    (r"where mask is ROPE_MASK_TREE", "with tree_mask"),
    (r"\b([kv])_cache\.scale\b", r"\1_scale"),
    (r"\b([kv])\.scale is \d \(\w+\)", r"\1_scale is given"),
    (r"\b([kv])\.dtype\b", r"\1_cache"),
    (
        r"shard is \d \(\w+\); allowed is 0 or ROPE_SHARD_NONE",
        "shard is given; allowed is None or 'none' in attention",
    ),
    (
        r"\b([qk])_norm\.weight is .*; allowed is 0 without norm\.type",
        r"\1_weight is given; allowed is None without norm_type",
    ),
    (r"\b([qk])_norm\.(\w+)", r"\1_norm_\2"),
    (r"\bnorm\.(\w+)", r"norm_\1"),
    (r" \(ROPE_NORM_\w+\)", ""),
    (r"\b([qkv])\.in\b", r"\1"),
)


def explain_attention(text: str) -> str:
    """An error of the library in the words of Python."""
    for pattern, replacement in _WORDS:
        text = re.sub(pattern, replacement, text)
    text = explain(text)
    if text.startswith("kernel is 'sdpa'"):  # which alone gets there with a cache
        text = text.replace("allowed with", "allowed with a cache and")
        return text.replace(" any of ", f" any of {KERNELS[1]}, ")
    if text.startswith("kernel is "):
        text = text.replace(" any of ", f" any of {', '.join(KERNELS)}, ")
    return text


def refuse_attention(
    error: Exception, call: Arguments, floats: tuple[torch.dtype, ...] = FLOATS
) -> NoReturn:
    """Raises `error`, with which a call ended, as what it says of the call's arguments."""

    def check(tensors: Mapping[str, Tensor]) -> None:
        check_attention(tensors, floats)
        check_caches(tensors)

    refuse(error, TENSORS.given(call), call.position_offset, check, explain_attention)
