"""Norms of q and k inside attention: beside `append`, beside float64, and gradients."""

from __future__ import annotations

from typing import Any

import pytest
import ropekit
import torch
from attention_truth import attend, pinned, visible
from torch import Tensor

ops = torch.ops.ropekit
TOKENS, HEADS, KV, DIM = 37, 4, 2, 64
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
QWEN3 = {"norm_type": "rms", "norm_rounding": "twice", "norm_eps": 1e-6}
GEMMA = {"norm_type": "rms", "norm_weight": "one_plus_weight", "norm_eps": 1e-6}
LAYER = {"norm_type": "layer", "norm_eps": 1e-5, "norm_offset": 8, "norm_dim": 48}
TOKEN = {"norm_type": "rms", "norm_scope": "token", "norm_eps": 1e-5}


def tensors_of(device: str, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    shapes = (HEADS, DIM), (KV, DIM), (KV, DIM)
    return [torch.randn(2, TOKENS, *shape, device=device).to(dtype) for shape in shapes]


def weights_of(
    norm: dict[str, Any], device: str, dtype: torch.dtype = torch.float32
) -> dict[str, Tensor]:
    dim = norm.get("norm_dim", DIM)
    whole = norm.get("norm_scope") == "token"
    return {
        f"{name}_weight": (0.2 * torch.randn(heads * dim if whole else dim, device=device) + 1).to(
            dtype
        )
        for name, heads in (("q", HEADS), ("k", KV))
    }


def normalised(x: Tensor, weight: Tensor, norm: dict[str, Any]) -> Tensor:
    """In the type of x, without a rounding of its own."""
    first, dim = norm.get("norm_offset", 0), norm.get("norm_dim", x.shape[-1])
    part, over = x[..., first : first + dim], (-1,)
    if norm.get("norm_scope") == "token":
        over = (-2, -1)
        weight = weight.view(x.shape[-2], dim)
    if norm["norm_type"] == "layer":
        part = part - part.mean(over, keepdim=True)
    part = part * (part.square().mean(over, keepdim=True) + norm["norm_eps"]).rsqrt()
    one = 1 if norm.get("norm_weight") == "one_plus_weight" else 0
    return torch.cat((x[..., :first], part * (weight + one), x[..., first + dim :]), -1)


@pytest.mark.parametrize("norm", [QWEN3, GEMMA, LAYER, TOKEN])
@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_are_those_of_append(norm: dict[str, Any], dtype: torch.dtype, device: str) -> None:
    q, k, v = tensors_of(device, dtype)
    weights = weights_of(norm, device, dtype)
    found = ropekit.attention(q, k, v, rope_theta=5e5, **norm, **weights, **pinned(q))
    turned_k = torch.empty_like(k)
    turned = ropekit.append(q, k, k_out=turned_k, rope_theta=5e5, **norm, **weights)
    assert turned is not None
    assert torch.equal(found, ropekit.attention(turned, turned_k, v, rotate="none", **pinned(q)))


@pytest.mark.parametrize("layout", ["bhsd", "thd", "cache"])
def test_layouts(layout: str, device: str) -> None:
    q, k, v = tensors_of(device)
    weights = weights_of(QWEN3, device)
    wanted = ropekit.attention(q, k, v, **QWEN3, **weights)
    if layout == "bhsd":
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        found = ropekit.attention(q, k, v, layout="bhsd", **QWEN3, **weights).transpose(1, 2)
    elif layout == "thd":
        bounds = torch.tensor([0, TOKENS, 2 * TOKENS], device=device)
        packed = [x.flatten(0, 1) for x in (q, k, v)]
        found = ropekit.attention(*packed, cu_seqlens=bounds, **QWEN3, **weights).view_as(q)
    else:
        turned = torch.empty_like(k)
        ropekit.append(None, k, k_out=turned, **QWEN3, k_weight=weights["k_weight"])
        lengths = torch.tensor([TOKENS] * 2, device=device)
        caches = {"k_cache": turned, "v_cache": v, "k_lengths": lengths}
        found = ropekit.attention(q, **caches, **QWEN3, q_weight=weights["q_weight"])
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("norm", [QWEN3, GEMMA, LAYER, TOKEN])
@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_beside_float64(norm: dict[str, Any], dtype: torch.dtype, device: str) -> None:
    tensors = [x.requires_grad_() for x in tensors_of(device, dtype)]
    weights = {n: x.requires_grad_() for n, x in weights_of(norm, device, dtype).items()}
    leaves = [*tensors, *weights.values()]
    out = ropekit.attention(*tensors, **norm, **weights)
    dout = torch.randn_like(out)
    found = torch.autograd.grad(out, leaves, dout)
    wide = [x.detach().double().requires_grad_() for x in leaves]
    q, k, v, *own = wide
    q, k = (normalised(x, w, norm) for x, w in zip((q, k), own, strict=True))
    truth = attend(*ropekit.apply(q, k), v, visible(TOKENS, TOKENS, "causal").to(device)).out
    for a, b in zip(found, torch.autograd.grad(truth, wide, dout.double()), strict=True):
        off = (a.double() - b).norm() / b.norm()
        assert off <= 16 * torch.finfo(dtype).eps, f"off by {off:.3g} of its norm"
        assert a.dtype == dtype


def test_one_norm_alone(device: str) -> None:
    q, k, v = (x.requires_grad_() for x in tensors_of(device))
    weight = weights_of(QWEN3, device)["k_weight"].requires_grad_()
    out = ropekit.attention(q, k, v, k_weight=weight, **QWEN3)
    found = torch.autograd.grad(out.square().sum(), (q, k, v, weight))
    turned = normalised(k, weight, QWEN3)
    wanted = ropekit.attention(q, turned, v)
    torch.testing.assert_close(out, wanted)
    for a, b in zip(
        found, torch.autograd.grad(wanted.square().sum(), (q, k, v, weight)), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_padding_has_no_gradient(device: str) -> None:
    """Of rows beyond lengths nothing is read, and weights have the others' gradients."""
    lengths = torch.tensor([TOKENS, 9], device=device)
    tensors = tensors_of(device)
    weights = weights_of(QWEN3, device)

    def gradients(filler: float) -> tuple[Tensor, ...]:
        leaves = []
        for x in tensors:
            leaves.append(x.clone())
            leaves[-1][1, 9:] = filler
            leaves[-1].requires_grad_()
        own = {n: x.clone().requires_grad_() for n, x in weights.items()}
        padded = {"q_lengths": lengths, "k_lengths": lengths}
        out = ropekit.attention(*leaves, **QWEN3, **own, **padded)
        return torch.autograd.grad(out.square().sum(), (*leaves, *own.values()))

    for a, b in zip(gradients(0.0), gradients(7.0), strict=True):
        assert torch.equal(a, b)


def test_differences() -> None:
    """float64 takes PyTorch's kernel, and a norm ahead of it."""
    q, k, v = (torch.randn(1, 5, 2, 8, dtype=torch.float64).requires_grad_() for _ in range(3))
    weights = [torch.randn(8, dtype=torch.float64).requires_grad_() for _ in range(2)]

    def run(*x: Tensor) -> Tensor:
        named = {"q_weight": x[3], "k_weight": x[4]}
        return ropekit.attention(*x[:3], **QWEN3 | {"norm_rounding": "once"}, **named)

    torch.autograd.gradcheck(run, (q, k, v, *weights))


def test_kernel_of_pytorch(device: str) -> None:
    q, k, v = tensors_of(device)
    for norm in (QWEN3, GEMMA, LAYER, TOKEN):
        weights = weights_of(norm, device)
        for layout in ("bshd", "bhsd"):
            given = [x.transpose(1, 2) if layout == "bhsd" else x for x in (q, k, v)]
            options = {"layout": layout, **norm, **weights}
            found = ropekit.attention(*given, kernel="sdpa", **options)
            torch.testing.assert_close(found, ropekit.attention(*given, **options))


def test_opcheck(device: str) -> None:
    q, k, v = tensors_of(device)
    more = weights_of(QWEN3, device)
    text = "norm_type=rms norm_eps=1e-6"
    for name in ("attention", "attention_lse", "attention_no_grad"):
        torch.library.opcheck(getattr(ops, name).default, (q, k, v, text), more)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    own = {name: x.requires_grad_() for name, x in more.items()}
    torch.library.opcheck(ops.attention.default, (*leaves, text), own)


@pytest.mark.compiles
def test_compiled(device: str) -> None:
    leaves = [x.requires_grad_() for x in tensors_of(device)]
    own = {name: x.requires_grad_() for name, x in weights_of(QWEN3, device).items()}

    def run(*x: Tensor, **weights: Tensor) -> Tensor:
        return ropekit.attention(*x, **QWEN3, **weights)

    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    wanted, found = run(*leaves, **own), compiled(*leaves, **own)
    assert torch.equal(found, wanted)
    inputs = (*leaves, *own.values())
    dout = torch.randn_like(wanted)
    for a, b in zip(
        torch.autograd.grad(found, inputs, dout),
        torch.autograd.grad(wanted, inputs, dout),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


def test_config_alone_is_no_norm(device: str) -> None:
    """Of a model whose modules normalise."""
    q, k, v = tensors_of(device)
    assert torch.equal(ropekit.attention(q, k, v, config=QWEN3), ropekit.attention(q, k, v))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"q_weight": torch.ones(DIM)}, "q_weight is given; allowed is None without norm_type"),
        ({"q_weight": torch.ones(7), **QWEN3}, "q_weight has the shape \\[7\\]; allowed is"),
        ({"q_weight": torch.ones(DIM).half(), **QWEN3}, "q_weight is torch.float16; allowed"),
        (
            {"k_weight": torch.ones(DIM), **QWEN3, "rotate": "q"},
            "k_norm_type is 'rms'; allowed is None where",
        ),
        ({"k_weight": torch.ones(DIM), **QWEN3, "norm_eps": -1.0}, "norm_eps"),
    ],
)
def test_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises((TypeError, ValueError), match=text):
        ropekit.attention(*tensors_of("cpu"), **options)


def test_refused_with_a_cache() -> None:
    q, k, v = tensors_of("cpu")
    lengths = torch.tensor([TOKENS] * 2)
    with pytest.raises((TypeError, ValueError), match="k_weight is given; allowed with k_cache"):
        ropekit.attention(
            q, k_cache=k, v_cache=v, k_lengths=lengths, k_weight=torch.ones(DIM), **QWEN3
        )
