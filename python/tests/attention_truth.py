"""Attention in float64, and what docs/numerics.md allows beside it: nothing of ropekit is used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


def pinned(x: Tensor) -> dict[str, Any]:
    """A kernel for calls whose bits are compared: by its shape a GPU's call in 16 bits may take
    another (docs/attention.md)."""
    return {"kernel": "tiles"} if x.is_cuda and x.dtype != torch.float32 else {}


def visible(m: int, n: int, mask: str) -> Tensor:
    """Which of n keys each of m queries sees: "causal" or "full", then window, right and chunk."""
    name, *limits = mask.split()
    own, key = (torch.arange(m) + n - m)[:, None], torch.arange(n)
    seen = (key <= own) | (name == "full")
    for limit in limits:
        kind, _, size = limit.partition("=")
        if kind == "window":
            seen &= key > own - int(size)
        elif kind == "right":
            seen &= key <= own + int(size)
        else:
            seen &= key // int(size) == own // int(size)
    return seen


@dataclass
class Row:
    """What a row's result is, and by how much one may be off."""

    out: Tensor
    lse: Tensor
    bound: Tensor
    lse_bound: Tensor


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    seen: Tensor,
    *,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Row:
    """Of q [..., m, heads, dim] and k, v [..., n, heads, dim]; seen [..., m, n]."""
    dtype, groups = q.dtype, q.shape[-2] // k.shape[-2]
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    q, k, v = (x.double().transpose(-2, -3) for x in (q, k, v))
    k, v = (x.repeat_interleave(groups, -3) for x in (k, v))
    seen = seen.unsqueeze(-3)
    scores = q @ k.mT * factor
    scores = scores if softcap is None else softcap * (scores / softcap).tanh()
    scores = scores.masked_fill(~seen, float("-inf"))
    all_scores = scores
    if sinks is not None:
        sink = sinks.double()[:, None, None].expand(*scores.shape[:-1], 1)
        all_scores = torch.cat((scores, sink), -1)
    lse = all_scores.logsumexp(-1)
    weights = (scores - lse.unsqueeze(-1)).exp().nan_to_num(0.0)
    out = weights @ v
    if softcap is None and sinks is None:
        own = scaled_dot_product_attention(q, k, v, attn_mask=seen.expand_as(scores), scale=factor)
        torch.testing.assert_close(out, own, rtol=1e-12, atol=1e-12)
    u, half = 2.0**-24, dtype != torch.float32
    unit = torch.finfo(dtype).eps / 2
    largest = (q.abs() @ k.abs().mT * factor * seen).amax(-1)
    e = u * (q.shape[-1] + 16) * largest
    r = (2 * e + u * (2 * k.shape[-2] + 32)).expm1() + unit * half
    tiny = 2.0**-25 if dtype == torch.float16 else 2.0**-125
    bound = r[..., None] * (weights @ v.abs()) + tiny * v.abs().sum(-2, keepdim=True)
    bound = bound + unit * (out.abs() + bound) + tiny
    lse_bound = (e + u * (k.shape[-2] + 16)).expm1() + 4 * u * (lse.abs() + largest)
    return Row(out.transpose(-2, -3), lse.mT, bound.transpose(-2, -3), lse_bound.mT)


def assert_within(found: Tensor, lse: Tensor | None, wanted: Row) -> None:
    """found is what attention may give."""
    excess = (found.double() - wanted.out).abs() - wanted.bound
    assert excess.max() <= 0, f"past the bound by {excess.max():.3g}"
    if lse is not None:
        same = lse.double() == wanted.lse  # of -inf too
        excess = torch.where(same, -1.0, (lse.double() - wanted.lse).abs() - wanted.lse_bound)
        assert excess.max() <= 0, f"lse past the bound by {excess.max():.3g}"
