"""torch.func, forward-mode derivatives, and gradients through apply_."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import ropekit
import torch
from torch import Tensor
from torch.autograd import forward_ad

LAYOUTS = {"bshd": (2, 5, 4, 16), "bhsd": (2, 4, 5, 16), "sbhd": (5, 2, 4, 16), "thd": (5, 4, 16)}


def equal(found: Any, expected: Any) -> bool:
    if isinstance(found, Tensor):
        return torch.equal(found, expected)
    return all(equal(x, y) for x, y in zip(found, expected, strict=True))


def test_grad_and_jvp(device: str) -> None:
    q, k, v, w = torch.randn(4, 2, 5, 4, 16, device=device)
    leaf = q.clone().requires_grad_()
    expected = torch.autograd.grad(ropekit.apply(leaf, k)[0], leaf, w)[0]
    assert equal(torch.func.grad(lambda x: (ropekit.apply(x, k)[0] * w).sum())(q), expected)
    rotated = ropekit.apply(q, k), ropekit.apply(v, w)
    assert equal(torch.func.jvp(ropekit.apply, (q, k), (v, w)), rotated)
    for x, t in ((q, v), (k, w)):  # the other tensor stands still
        _, found = torch.func.jvp(lambda y, x=x: ropekit.apply(y, y if x is k else k), (x,), (t,))
        assert equal(found[0], ropekit.apply(t))
    once = q[:1, :2, :1]
    jacobians = [f(ropekit.apply)(once) for f in (torch.func.jacrev, torch.func.jacfwd)]
    assert equal(*jacobians)


def test_no_derivative_flows_into_tables() -> None:
    q, t = torch.randn(2, 2, 5, 4, 16)
    c, u = torch.randn(2, 5, 8)

    def rotate(q: Tensor, c: Tensor) -> Tensor:
        return ropekit.apply(q, cos=c, sin=c + 1)

    def of_tables(c: Tensor) -> Tensor:
        return rotate(q, c)

    def written(c: Tensor) -> Tensor:
        y = q.clone()
        ropekit.apply_(y, cos=c, sin=c)
        return y

    def inner_jvp(c: Tensor) -> Tensor:
        return torch.func.jvp(lambda q: rotate(q, c), (q,), (t,))[1]

    def inner_grad(c: Tensor) -> Tensor:
        return torch.func.grad(lambda q: rotate(q, c).square().sum())(q)

    for function in (of_tables, written, inner_jvp):
        with pytest.raises(RuntimeError, match="cos or sin has a tangent; allowed are tables"):
            torch.func.jvp(function, (c,), (u,))
        with pytest.raises(RuntimeError, match="cos or sin requires a gradient; allowed are"):
            torch.func.grad(lambda c, f=function: f(c).sum())(c)
    with pytest.raises(RuntimeError, match="cos or sin requires a gradient; allowed are tables"):
        torch.func.grad(lambda c: inner_grad(c).sum())(c)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(c, u)
        for function in (
            of_tables,
            lambda c: torch.ops.ropekit.rotate(q, "", None, 0, None, None, None, c, c),
        ):
            with pytest.raises(RuntimeError, match="cos or sin has a tangent; allowed are tables"):
                function(dual)
    # Of q, with tables that stand still, every derivative is there.
    assert equal(inner_jvp(c), rotate(t, c))
    assert equal(torch.func.vmap(inner_jvp)(torch.stack([c, u]))[1], rotate(t, u))


def test_inverse_has_derivatives_forward_alone() -> None:
    q, t = torch.randn(2, 1, 3, 2, 8)

    def inverse(x: Tensor) -> Any:
        return ropekit.apply(x, direction="inverse")

    assert equal(torch.func.jvp(inverse, (q,), (t,)), (inverse(q), inverse(t)))
    with pytest.raises(RuntimeError, match="direction is 'inverse'; allowed with a gradient"):
        torch.func.grad(lambda x: inverse(x).sum())(q)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("place", [0, 1, -1])
def test_vmap_over_tensors_is_one_call(layout: str, place: int, device: str) -> None:
    shape = LAYOUTS[layout]
    many, k = torch.randn(3, *shape, device=device), torch.randn(shape, device=device)
    q = many.movedim(0, place)
    ids = torch.randint(0, 99, (5,), device=device)

    def rotate(x: Tensor) -> Any:
        return ropekit.apply(x, k, layout=layout, positions=ids)

    expected = [torch.stack(y) for y in zip(*map(rotate, many), strict=True)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # as of PyTorch's loop for what has no rule
        assert equal(torch.func.vmap(rotate, in_dims=place)(q), expected)


def test_vmap_over_positions_and_gradients(device: str) -> None:
    q, w = torch.randn(2, 3, 2, 5, 4, 16, device=device)
    ids = torch.randint(0, 99, (3, 5), device=device)

    def squared(x: Tensor, positions: Tensor) -> Tensor:
        y = ropekit.apply(x, x, positions=positions)
        return (y[0] ** 2 * y[1] * w[0]).sum()

    gradient = torch.func.grad(squared)
    expected = torch.stack([gradient(x, i) for x, i in zip(q, ids, strict=True)])
    assert equal(torch.func.vmap(gradient)(q, ids), expected)


def test_forward_mode(device: str) -> None:
    q, t, u = torch.randn(3, 2, 5, 4, 16, device=device)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(q, t)
        for context in (torch.enable_grad, torch.no_grad):
            with context():
                found = forward_ad.unpack_dual(ropekit.apply(dual))
            assert equal((found.primal, found.tangent), (ropekit.apply(q), ropekit.apply(t)))
        written = forward_ad.make_dual(q.clone(), t.clone())
        ropekit.apply_(written)
        found = forward_ad.unpack_dual(written)
        assert equal((found.primal, found.tangent), (ropekit.apply(q), ropekit.apply(t)))
        leaf = q.clone().requires_grad_()
        over = torch.autograd.grad(ropekit.apply(leaf), leaf, forward_ad.make_dual(t, u))[0]
        expected = torch.autograd.grad(ropekit.apply(leaf), leaf, u)[0]
        assert equal(forward_ad.unpack_dual(over).tangent, expected)


@pytest.mark.parametrize("in_place", [False, True])
def test_numerical_derivatives(in_place: bool, device: str) -> None:
    shapes, options = ((1, 3, 2, 8), (1, 3, 1, 8)), {"dtype": torch.float64, "device": device}
    q, k = (torch.randn(shape, requires_grad=True, **options) for shape in shapes)

    def rotate(q: Tensor, k: Tensor) -> Any:
        if not in_place:
            return ropekit.apply(q, k, rope_theta=50.0)
        q, k = q.clone(), k.clone()
        ropekit.apply_(q, k, rope_theta=50.0)
        return q, k

    assert torch.autograd.gradcheck(
        rotate,
        (q, k),
        check_forward_ad=True,
        check_batched_grad=True,
        check_batched_forward_grad=True,
    )
    assert torch.autograd.gradgradcheck(lambda q, k: [x**2 for x in rotate(q, k)], (q, k))


def attention(weight: Tensor, x: Tensor, rotate: Callable[[Tensor], Any]) -> Tensor:
    """A loss of packed queries, keys and values."""
    q, k, v = rotate((x @ weight).view(2, 5, 3, 4, 16))
    scores = torch.einsum("bshd,bthd->bhst", q, k).softmax(-1)
    return torch.einsum("bhst,bthd->bshd", scores, v).square().sum()


def written(qkv: Tensor) -> Any:
    ropekit.apply_(qkv[:, :, 0], qkv[:, :, 1], rope_theta=500.0)
    return qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2]


def made(qkv: Tensor) -> Any:
    return *ropekit.apply(qkv[:, :, 0], qkv[:, :, 1], rope_theta=500.0), qkv[:, :, 2]


def test_packed_tensors_are_trained_in_place(device: str) -> None:
    x = torch.randn(2, 5, 64, device=device)
    weight = torch.randn(64, 192, device=device, requires_grad=True)
    losses = [attention(weight, x, rotate) for rotate in (written, made)]
    assert equal(*losses)
    assert equal(*(torch.autograd.grad(loss, weight)[0] for loss in losses))
    functional = torch.func.grad(lambda w: attention(w, x, written))(weight.detach())
    assert equal(functional, torch.autograd.grad(attention(weight, x, made), weight)[0])


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_packed_tensors_are_trained_in_place_compiled(backend: str, device: str) -> None:
    torch._dynamo.reset()
    x = torch.randn(2, 5, 64, device=device)
    weight = torch.randn(64, 192, device=device, requires_grad=True)
    loss = torch.compile(attention, fullgraph=True, backend=backend)(weight, x, written)
    expected = attention(weight, x, written)
    assert equal(loss, expected)
    assert equal(torch.autograd.grad(loss, weight), torch.autograd.grad(expected, weight))


def test_one_of_two_tensors_has_a_gradient(device: str) -> None:
    q, k, w = torch.randn(3, 2, 5, 4, 16, device=device)
    leaf = k.clone().requires_grad_()
    kept, given = q.clone(), leaf * 1
    ropekit.apply_(kept, given, positions=torch.arange(3, 8, device=device))
    assert kept._version == given._version == 1
    expected = ropekit.apply(q, leaf, positions=torch.arange(3, 8, device=device))
    assert equal((kept, given), expected)
    assert equal(*(torch.autograd.grad(y, leaf, w)[0] for y in (given, expected[1])))


def test_what_was_saved_is_not_written_over_in_silence() -> None:
    leaf = torch.randn(1, 3, 2, 8, requires_grad=True)
    y = leaf.exp()  # whose gradient takes the result
    ropekit.apply_(y)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_vmap_in_place(device: str) -> None:
    q = torch.randn(3, 2, 5, 4, 16, device=device)
    found = q.clone()
    torch.func.vmap(ropekit.apply_, out_dims=None)(found)
    assert equal(found, torch.stack([ropekit.apply(x) for x in q]))
    flag = torch.zeros(1, dtype=torch.int32, device=device)
    with pytest.raises(RuntimeError, match="position_flag is given; allowed"):
        torch.func.vmap(lambda x: ropekit.apply_(x, position_flag=flag), out_dims=None)(found)
