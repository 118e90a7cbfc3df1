"""Rotation in float64, written from the definition: nothing of ropekit is used."""

from __future__ import annotations

import torch
from torch import Tensor

# Layout: the permutation to [batch, token, head, element].
ORDERS = {"bshd": (0, 1, 2, 3), "bhsd": (0, 2, 1, 3), "sbhd": (1, 0, 2, 3)}


def angles(positions: Tensor, rotary_dim: int, theta: float = 10000.0) -> Tensor:
    """Position times frequency, [..., rotary_dim / 2]."""
    exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float64, device=positions.device)
    return positions.double()[..., None] * theta ** (-exponents / rotary_dim)


def rotate(x: Tensor, angle: Tensor, layout: str = "bshd", interleaved: bool = False) -> Tensor:
    """x with pairs turned by angle [batch or 1, token, pairs]; elements past the pairs stay."""
    order = ORDERS[layout]
    y = x.double().permute(order).clone()
    pairs = angle.shape[-1]
    first = torch.arange(pairs) * 2 if interleaved else torch.arange(pairs)
    second = first + 1 if interleaved else first + pairs
    a, b = y[..., first].clone(), y[..., second].clone()
    cos, sin = angle.cos()[..., None, :], angle.sin()[..., None, :]
    y[..., first] = a * cos - b * sin
    y[..., second] = b * cos + a * sin
    return y.permute([order.index(d) for d in range(4)])


def bound(x: Tensor, expected: Tensor) -> Tensor:
    """Of one rounding to x's type, and of cos and sin within 8e-8 (4e-16 in float64)."""
    angle = 4e-16 if x.dtype == torch.float64 else 8e-8
    reach = x.double().abs().amax() * 2
    return torch.finfo(x.dtype).eps * 0.51 * expected.abs() + reach * (
        angle + 1.3e-7 * (angle > 1e-9)
    )


def assert_close(found: Tensor, x: Tensor, expected: Tensor) -> None:
    """found is what rotating x may give."""
    assert found.shape == x.shape
    assert found.dtype == x.dtype
    excess = (found.double() - expected).abs() - bound(x, expected)
    assert excess.max() <= 1e-15, f"past the bound by {excess.max():.3g}"
