"""Errors of attention beside those of the kernel that PyTorch takes, on the same inputs."""

from __future__ import annotations

from typing import Any

import pytest
import ropekit
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

# tokens, keys, heads of q and of k, head_dim, whether causal, window, size of q and k
CASES = (
    *((64, 64, 4, 2, 64, True, None, 1), (33, 65, 4, 4, 32, True, None, 1)),
    *((128, 128, 8, 2, 128, True, None, 2), (17, 200, 4, 1, 64, False, None, 3)),
    *((256, 256, 2, 2, 64, True, None, 0.3), (1, 300, 8, 2, 64, True, None, 1)),
    *((5, 100, 4, 4, 128, True, None, 4), (192, 192, 4, 2, 96, False, None, 1)),
    *((64, 96, 4, 2, 64, True, None, 12), (160, 160, 4, 2, 64, True, 37, 1)),
)


def by_pytorch(q: Tensor, k: Tensor, v: Tensor, causal: bool, window: int | None) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    tokens, keys = q.size(2), k.size(2)
    square = causal and not window and tokens == keys
    mask = None
    if causal and not square:
        mask = torch.ones(tokens, keys, dtype=torch.bool, device=q.device).tril(keys - tokens)
    if window and mask is not None:
        mask = mask.triu(keys - tokens - window + 1)
    out = scaled_dot_product_attention(q, k, v, mask, is_causal=square, enable_gqa=True)
    return out.transpose(1, 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_errors_are_no_larger_than_pytorchs(dtype: torch.dtype, device: str) -> None:
    squares, largest = torch.zeros(2), torch.zeros(2)  # of ropekit and of PyTorch, relative
    for tokens, keys, heads, k_heads, dim, causal, window, size in CASES:
        shapes = ((2, tokens, heads, dim), (2, keys, k_heads, dim), (2, keys, k_heads, dim))
        drawn = (torch.randn(shape) * s for shape, s in zip(shapes, (size, size, 1), strict=True))
        q, k, v = (x.to(device, dtype) for x in drawn)
        exact = by_pytorch(q.double(), k.double(), v.double(), causal, window)
        ours = ropekit.attention(
            q, k, v, rotate="none", causal=causal, window=window, kernel="library"
        )
        for i, found in enumerate((ours, by_pytorch(q, k, v, causal, window))):
            error = found.double() - exact
            squares[i] += float(error.square().mean() / exact.square().mean())
            largest[i] = max(float(largest[i]), float(error.abs().max() / exact.abs().max()))
    assert squares[0].sqrt() <= 1.05 * squares[1].sqrt()
    assert largest[0] <= 1.25 * largest[1]


def eager(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """As Transformers' modules attend without a kernel."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    scores = q @ k.transpose(2, 3) * q.shape[-1] ** -0.5
    later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    weights = torch.softmax(scores.masked_fill(later, -torch.inf).float(), -1)
    return (weights.to(q.dtype) @ v).transpose(1, 2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [8.0, 9.0, 10.0, 11.0])
def test_gradients_of_rows_that_see_one_key_almost_alone(
    size: float, dtype: torch.dtype, device: str
) -> None:
    """Where the rounding of out is as large as the gradients of scores."""
    if device != "cpu":
        pytest.skip("kernels of GPUs take the product of out and its gradient as it is")
    drawn = [torch.randn(2, 96, 4, 64) for _ in range(4)]
    drawn[0][..., 0] = size
    drawn[1][..., 0] = 0
    drawn[1][:, 0] = 0
    drawn[1][:, 0, :, 0] = size

    def gradients(attend: Any, dtype: torch.dtype) -> tuple[Tensor, ...]:
        q, k, v = (x.to(dtype).requires_grad_() for x in rounded[:3])
        return torch.autograd.grad(attend(q, k, v), (q, k, v), rounded[3].to(dtype))

    def ours(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return ropekit.attention(q, k, v, rotate="none", kernel="library")

    def theirs(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return by_pytorch(q, k, v, causal=True, window=None)

    rounded = [x.to(dtype) for x in drawn]
    exact = gradients(theirs, torch.float64)
    found = [gradients(attend, dtype) for attend in (ours, theirs, eager)]
    for n in range(3):
        errors = [float((list_[n].double() - exact[n]).square().mean().sqrt()) for list_ in found]
        assert errors[0] <= 1.05 * min(errors[1:]), ("q", "k", "v")[n]


@pytest.mark.parametrize("dim", [64, 128])
def test_errors_of_gradients_are_no_larger_than_pytorchs(dim: int, device: str) -> None:
    """In float32, whose weights follow from scores that must round as the forward's did."""
    squares = torch.zeros(2)  # of ropekit and of PyTorch, relative
    for size in (1, 3, 3):
        drawn = [torch.randn(2, 96, 4, dim) * s for s in (size, size, 1, 1)]
        *leaves, weights = (x.to(device) for x in drawn)

        def gradients(attend: Any, dtype: torch.dtype) -> tuple[Tensor, ...]:
            q, k, v = (x.to(dtype).requires_grad_() for x in leaves)  # noqa: B023
            return torch.autograd.grad(attend(q, k, v), (q, k, v), weights.to(dtype))  # noqa: B023

        def ours(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return ropekit.attention(q, k, v, rotate="none", kernel="library")

        def theirs(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return by_pytorch(q, k, v, causal=True, window=None)

        exact = gradients(theirs, torch.float64)
        for i, attend in enumerate((ours, theirs)):
            for found, true in zip(gradients(attend, torch.float32), exact, strict=True):
                error = found.double() - true
                squares[i] += float(error.square().mean() / true.square().mean())
    assert squares[0].sqrt() <= 1.05 * squares[1].sqrt()
