"""attention_merge: partial results of attention as one, torch.ops.ropekit.attention_merge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

from ropekit._attention_errors import check_attention, check_no_grad, explain_attention
from ropekit._errors import refuse
from ropekit._operators import define, empty_like, implement, is_derived

_NAMES = ("out", "lse")


def _fake(out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    check_attention({"out": out, "lse": lse})
    if out.dim() not in (4, 5) or out.shape[:-1] != lse.shape:
        raise ValueError(
            f"lse has the shape {list(lse.shape)}; allowed is that of out, {list(out.shape)}, "
            "without the last dimension"
        )
    return empty_like(out[0]), empty_like(lse[0])


for _name in ("attention_merge", "attention_merge_no_grad"):
    define(_name, "(Tensor out, Tensor lse) -> (Tensor, Tensor)", _fake)


def _checked(keyset: Any, *arguments: Any) -> Any:
    check_no_grad(dict(zip(_NAMES, arguments, strict=True)), "attention_merge")
    return _OPERATOR.redispatch(keyset & torch._C._after_ADInplaceOrView_keyset, *arguments)


implement("attention_merge", _checked, "ADInplaceOrView", with_keyset=True)
_OPERATOR = torch.ops.ropekit.attention_merge.default
_DIRECT: Any = torch.ops.ropekit.attention_merge_no_grad.default._op


def _stacked(name: str, x: Tensor | Sequence[Tensor]) -> Tensor:
    if isinstance(x, Tensor):
        return x
    if not isinstance(x, Sequence) or not x or not all(isinstance(part, Tensor) for part in x):
        raise TypeError(f"{name} is {type(x).__name__}; allowed is a tensor or a list of tensors")
    return torch.stack(tuple(x))


def attention_merge(
    out: Tensor | Sequence[Tensor], lse: Tensor | Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Joins results that `attention` gave the same queries over parts of the keys.

    Args:
        out: [part, ...], each part as `attention` returned it, or a list of them, which is copied.
        lse: [part, ...], float32, likewise. A part whose lse is -inf counts for nothing.

    Returns:
        out and lse over all keys; at most one part may have had the sinks.

    Raises:
        TypeError, ValueError, RuntimeError: as `attention` does.
    """
    arguments = _stacked("out", out), _stacked("lse", lse)
    try:
        if is_compiling() or is_derived():
            found: tuple[Tensor, Tensor] = _OPERATOR(*arguments)
            return found
        check_no_grad(dict(zip(_NAMES, arguments, strict=True)), "attention_merge")
        found = _DIRECT(*arguments)
    except (AttributeError, RuntimeError) as error:
        given = dict(zip(_NAMES, arguments, strict=True))
        refuse(error, given, 0, check_attention, explain_attention)
    return found
