"""Norms of q and k by PyTorch, ahead of a kernel that has none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ropekit import _sdpa
from ropekit._attention_arguments import Arguments
from ropekit._operators import fields_of


def has_norm(call: Arguments) -> bool:
    return not call.q_weight is call.k_weight is None


def apart(call: Arguments) -> Arguments:
    """The same of tensors that are normalised already."""
    fields = fields_of(call.config)
    layout = _sdpa.settings_of(call.config).layout or ("thd" if call.q.dim() == 3 else "bshd")
    heads = -3 if layout == "bhsd" else -2
    call = replace(call)
    if call.q_weight is not None:
        call.q = _normalised(call.q, call.q_weight, _norm_of(fields, "q"), heads)
    if call.k_weight is not None and call.k is not None:
        call.k = _normalised(call.k, call.k_weight, _norm_of(fields, "k"), heads)
    call.q_weight = call.k_weight = None
    return call


def _norm_of(fields: dict[str, str], part: str) -> dict[str, str]:
    """Of a part, by names without what is ahead of them."""
    own, both = f"{part}_norm_", "norm_"
    found = {name[len(both) :]: x for name, x in fields.items() if name.startswith(both)}
    found |= {name[len(own) :]: x for name, x in fields.items() if name.startswith(own)}
    if "type" not in found:
        raise ValueError(f"{part}_weight is given; allowed is None without norm_type")
    return found


def _normalised(x: Tensor, weight: Tensor, norm: dict[str, str], heads: int) -> Tensor:
    first = int(norm.get("offset", 0))
    dim = int(norm.get("dim", 0)) or x.shape[-1] - first
    part = x[..., first : first + dim]
    wide = part if x.dtype == torch.float64 else part.float()
    over = (heads, -1) if norm.get("scope") == "token" else (-1,)
    if norm["type"] == "layer":
        wide = wide - wide.mean(over, keepdim=True)
    mean = wide.square().mean(over, keepdim=True)
    wide = wide * torch.rsqrt(mean + float(norm.get("eps", 0)))
    own: Tensor = _of_heads(weight, x.shape[heads], dim, heads)
    if norm.get("rounding") == "twice":
        found = (own * wide.to(x.dtype)).to(x.dtype)
    else:
        own = own.to(wide.dtype)
        found = (wide * (1 + own if norm.get("weight") == "one_plus_weight" else own)).to(x.dtype)
    if found.shape == x.shape:
        return found
    return torch.cat((x[..., :first], found, x[..., first + dim :]), -1)


def _of_heads(weight: Tensor, heads: int, dim: int, axis: int) -> Any:
    if weight.shape[-1] == dim and weight.dim() == 1:
        return weight
    weight = weight.reshape(heads, dim)
    return weight.unsqueeze(1) if axis == -3 else weight
