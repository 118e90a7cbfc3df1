"""Gradients of attention: beside float64, beside the steps, and what PyTorch asks of them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import ropekit
import torch
from attention_truth import attend, pinned, visible
from functorch.compile import make_boxed_func
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode

ops = torch.ops.ropekit
TOKENS, HEADS, KV, DIM = 37, 4, 2, 64
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def leaves(
    device: str, dtype: torch.dtype = torch.float32, v_dim: int = DIM, batch: int = 2
) -> list[Tensor]:
    shapes = (HEADS, DIM), (KV, DIM), (KV, v_dim)
    made = [torch.randn(batch, TOKENS, *shape, device=device).to(dtype) for shape in shapes]
    return [x.requires_grad_() for x in made]


def gradients(out: Tensor, of: list[Tensor], seed: int = 3) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    dout = torch.randn(out.shape, generator=generator).to(out)
    return torch.autograd.grad(out, of, dout)


def assert_near(found: Any, wanted: Any, dtype: torch.dtype) -> None:
    for a, b in zip(found, wanted, strict=True):
        off = (a.double() - b.double()).norm() / b.double().norm()
        assert off <= 8 * torch.finfo(dtype).eps, f"off by {off:.3g} of its norm"


# ---- values ----


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("mask", "options"),
    [
        ("causal", {}),
        ("full", {"causal": False, "pairing_in": "interleaved"}),
        ("causal window=5", {"window": 5, "scale": 0.3}),
        ("causal chunk=8", {"chunk": 8, "softcap": 3.0}),
        ("full window=9 right=4", {"causal": False, "window": 9, "window_right": 4}),
    ],
)
def test_beside_float64(
    mask: str, options: dict[str, Any], dtype: torch.dtype, device: str
) -> None:
    q, k, v = leaves(device, dtype, v_dim=96)
    sinks = torch.randn(HEADS, device=device).requires_grad_()
    out = ropekit.attention(q, k, v, sinks=sinks, rope_theta=5e5, **options)
    found = gradients(out, [q, k, v, sinks])
    rotation = {"rope_theta": 5e5, "pairing_in": options.get("pairing_in", "half_split")}
    turned = [x.detach().requires_grad_() for x in ropekit.apply(q, k, **rotation)]
    seen = visible(TOKENS, TOKENS, mask).to(device)
    named = {name: options[name] for name in ("scale", "softcap") if name in options}
    truth = attend(*turned, v, seen, sinks=sinks, **named).out
    dq, dk, *rest = gradients(truth, [*turned, v, sinks])
    # as autograd gives them in their own type, ahead of the transpose
    back = ropekit.apply(dq.to(dtype), dk.to(dtype), direction="transpose", **rotation)
    assert_near(found, [*back, *rest], dtype)


def test_beside_scaled_dot_product_attention(device: str) -> None:
    q, k, v = leaves(device)
    found = gradients(ropekit.attention(q, k, v), [q, k, v])
    a, b = ropekit.apply(q, k)
    heads = (x.transpose(1, 2) for x in (a, b, v))
    own = scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True).transpose(1, 2)
    assert_near(found, gradients(own, [q, k, v]), torch.float32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["rows", "bhsd", "packed", "lengths", "positions", "tables"])
@pytest.mark.parametrize("rotate", ["qk", "q"])
def test_the_bits_are_those_of_the_steps(
    kind: str, rotate: str, dtype: torch.dtype, device: str
) -> None:
    q, k, v = leaves(device, dtype)
    options = pinned(q)
    turn: dict[str, Any] = {"pairing_in": "interleaved", "pairing_out": "half_split"}
    if kind == "bhsd":
        q, k, v = (x.detach().transpose(1, 2).requires_grad_() for x in (q, k, v))
        turn["layout"] = options["layout"] = "bhsd"
    elif kind == "packed":
        q, k, v = (x.detach().flatten(0, 1).requires_grad_() for x in (q, k, v))
        turn["cu_seqlens"] = options["cu_seqlens"] = torch.tensor([0, 9, 9, 50], device=device)
        turn["layout"] = "thd"
    elif kind == "lengths":
        lengths = torch.tensor([20, TOKENS], device=device)
        options |= {"q_lengths": lengths, "k_lengths": lengths}
    elif kind == "positions":
        turn["positions"] = torch.randint(0, 5000, (2, TOKENS), device=device, dtype=torch.int32)
    elif kind == "tables":
        table = torch.rand(TOKENS, DIM // 2, device=device)
        turn |= {"cos": table, "sin": 1 - table}
    whole = {**turn, **options, "rotate": rotate}
    found = gradients(ropekit.attention(q, k, v, **whole), [q, k, v])
    a, b = ropekit.apply(q, k, **turn) if rotate == "qk" else (ropekit.apply(q, **turn), k)
    steps = gradients(ropekit.attention(a, b, v, rotate="none", **options), [q, k, v])
    for x, y in zip(found, steps, strict=True):
        assert torch.equal(x, y)


def test_no_token_of_no_sequence_has_a_gradient(device: str) -> None:
    q, k, v = leaves(device)
    lengths = torch.tensor([20, 0], device=device)
    out = ropekit.attention(q, k, v, q_lengths=lengths, k_lengths=lengths)
    found = gradients(out, [q, k, v])
    for x in found:
        assert x[0, :20].any() and not x[0, 20:].any() and not x[1].any()
    packed = [x.detach().flatten(0, 1).requires_grad_() for x in (q, k, v)]
    bounds = torch.tensor([0, TOKENS, 2 * TOKENS], device=device)
    out = ropekit.attention(*packed, cu_seqlens=bounds, q_lengths=lengths, k_lengths=lengths)
    for x, y in zip(gradients(out, packed), found, strict=True):
        assert torch.equal(x.view_as(y), y)


def test_keys_without_queries_have_gradients_of_0(device: str) -> None:
    q, k, v = (x.detach().requires_grad_() for x in leaves(device))
    out = ropekit.attention(q[:, :0], k, v)
    for x in torch.autograd.grad(out.sum(), [q, k, v]):
        assert not x.any()


@pytest.mark.usefixtures("deterministic")
def test_the_same_call_has_the_same_bits(device: str) -> None:
    q, k, v = leaves(device, batch=3)
    found = gradients(ropekit.attention(q, k, v), [q, k, v])
    threads = torch.get_num_threads()
    for count in (threads, 1):
        torch.set_num_threads(count)
        for a, b in zip(found, gradients(ropekit.attention(q, k, v), [q, k, v]), strict=True):
            assert torch.equal(a, b)
    torch.set_num_threads(threads)


def test_what_is_asked_for_alone(device: str) -> None:
    q, k, v = leaves(device)
    sinks = torch.randn(HEADS, device=device, dtype=torch.float32).requires_grad_()
    tensors = {"q": q, "k": k, "v": v, "sinks": sinks}
    everything = gradients(ropekit.attention(**tensors), [*tensors.values()])
    for (name, x), wanted in zip(tensors.items(), everything, strict=True):
        others = {other: y.detach() for other, y in tensors.items()}
        (found,) = gradients(ropekit.attention(**others | {name: x}), [x])
        assert torch.equal(found, wanted)
    own = sinks.detach().to(torch.bfloat16).requires_grad_()
    q, k, v = leaves(device, torch.bfloat16)
    (found,) = gradients(ropekit.attention(q, k, v, sinks=own), [own])
    assert found.dtype == torch.bfloat16


def test_an_expanded_gradient_and_lse(device: str) -> None:
    q, k, v = leaves(device)
    out, lse = ropekit.attention(q, k, v, return_lse=True)
    assert out.requires_grad and not lse.requires_grad
    found = torch.autograd.grad(out.sum(), [q, k, v])
    wanted = torch.autograd.grad(ropekit.attention(q, k, v), [q, k, v], torch.ones_like(out))
    for a, b in zip(found, wanted, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("rotate", ["qk", "q", "none", "off"])
def test_rotated_tensors_are_saved_in_place_of_q_and_k(rotate: str, device: str) -> None:
    q, k, v = leaves(device)
    kept: list[Tensor] = []

    def keep(x: Tensor) -> Tensor:
        kept.append(x)
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        options: Any = {"rotation": "off"} if rotate == "off" else {"rotate": rotate}
        gradients(ropekit.attention(q, k, v, **options), [q, k, v])
    pointers = [x.data_ptr() for x in kept]
    assert len(kept) == 5  # with out and lse
    assert (q.data_ptr() in pointers) == (rotate in ("none", "off"))
    assert (k.data_ptr() in pointers) == (rotate != "qk") and v.data_ptr() in pointers


def test_no_queries(device: str) -> None:
    q, k, v = leaves(device)
    out = ropekit.attention(q[:, :0], k, v, k_lengths=torch.tensor([3, 4], device=device))
    dq, dk, dv = torch.autograd.grad(out.sum(), [q, k, v])
    assert not dq.any() and not dk.any() and not dv.any()


# ---- what PyTorch asks ----


def test_opcheck(device: str) -> None:
    q, k, v = leaves(device, v_dim=32)
    sinks = torch.randn(HEADS, device=device).requires_grad_()
    for name in ("attention", "attention_lse"):
        operator = getattr(ops, name).default
        torch.library.opcheck(operator, (q, k, v, "window=3"), {"sinks": sinks})
        moved = [x.detach().transpose(1, 2).requires_grad_() for x in (q, k, v)]
        torch.library.opcheck(operator, (*moved, "layout=bhsd rotate=q"))
    given = [x.detach() for x in (q, k, v)]
    for config in ("", "rotate=none", "rotation=off", "layout=bhsd"):
        tensors = [x.transpose(1, 2).contiguous() for x in given] if "bhsd" in config else given
        torch.library.opcheck(ops.attention_rotated.default, (*tensors, config))
        out, lse, *_ = ops.attention_rotated(*tensors, config, sinks=sinks.detach())
        arguments = torch.randn_like(out), out, lse, *tensors, config
        more = {"sinks": sinks.detach()}
        torch.library.opcheck(ops.attention_backward.default, arguments, more)


@pytest.mark.compiles
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiles_without_a_break(backend: str, device: str) -> None:
    torch._dynamo.reset()
    counter = CompileCounterWithBackend(backend)

    def layer(x: Tensor, sinks: Tensor) -> Tensor:
        q, k, v = (2 * x).split([HEADS, KV, KV], 2)
        out, _ = ropekit.attention(q, k, v, sinks=sinks, window=9, return_lse=True)
        return (out + ropekit.attention(q, k, v, rotate="q")).square().sum()

    compiled = torch.compile(layer, fullgraph=True, backend=counter, dynamic=True)
    for tokens in (TOKENS, TOKENS + 4):
        x = torch.randn(2, tokens, HEADS + 2 * KV, DIM, device=device).requires_grad_()
        sinks = torch.randn(HEADS, device=device).requires_grad_()
        found = torch.autograd.grad(compiled(x, sinks), [x, sinks])
        wanted = torch.autograd.grad(layer(x, sinks), [x, sinks])
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    assert counter.frame_count == 1


# ---- the order of sums ----


class Configs(TorchDispatchMode):
    """Of the backwards that run below it."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is ops.attention_backward.default:
            self.found.append(args[6])
        return func(*args, **(kwargs or {}))


@pytest.mark.usefixtures("deterministic")
def test_the_backward_follows_pytorchs_switch() -> None:
    q, k, v = leaves("cpu")  # where a backward runs in the caller's thread
    for config, text in (({}, ""), ({"window": 9}, "window=9 ")):
        out = ropekit.attention(q, k, v, **config)
        for in_order in (False, True, False):
            torch.use_deterministic_algorithms(in_order)
            with Configs() as configs:
                torch.autograd.grad(out.sum(), [q, k, v], retain_graph=True)
            more = "" if in_order else "nondeterministic=1"
            assert configs.found == [(text + more).rstrip()]
    with pytest.raises(TypeError, match="there is no field 'nondeterministic'"):
        ropekit.attention(q, k, v, nondeterministic=1)  # type: ignore[call-arg]


@pytest.mark.compiles
@pytest.mark.usefixtures("deterministic")
def test_a_compiled_backward_follows_it_too() -> None:
    torch._dynamo.reset()
    found: list[str] = []

    def keep(graph: torch.fx.GraphModule, _: Any) -> Any:
        nodes = graph.graph.find_nodes(op="call_function", target=ops.attention_backward.default)
        found.extend(node.args[6] for node in nodes)
        return make_boxed_func(graph.forward)

    backend = aot_autograd(fw_compiler=keep, bw_compiler=keep)
    compiled = torch.compile(ropekit.attention, fullgraph=True, backend=backend)
    q, k, v = leaves("cpu")
    wanted = gradients(ropekit.attention(q, k, v), [q, k, v])
    for in_order in (False, True, False):
        torch.use_deterministic_algorithms(in_order)
        for a, b in zip(gradients(compiled(q, k, v), [q, k, v]), wanted, strict=True):
            assert torch.equal(a, b)
    assert found == ["nondeterministic=1", ""]


def test_torch_func(device: str) -> None:
    q, k, v = (x.detach() for x in leaves(device))

    def squared(*tensors: Tensor) -> Tensor:
        return ropekit.attention(*tensors).square().sum()

    found = torch.func.grad(squared, argnums=(0, 1, 2))(q, k, v)
    tensors = [x.clone().requires_grad_() for x in (q, k, v)]
    for a, b in zip(found, torch.autograd.grad(squared(*tensors), tensors), strict=True):
        assert torch.equal(a, b)
    parts = [x.unsqueeze(1) for x in (q, k, v)]
    each = torch.func.vmap(torch.func.grad(squared, argnums=(0, 1, 2)))(*parts)
    assert all(torch.equal(x.flatten(0, 1), y) for x, y in zip(each, found, strict=True))
    with pytest.raises(RuntimeError, match="attention has no second derivative"):
        torch.func.grad(lambda x: torch.func.grad(squared)(x, k, v).sum())(q)


@pytest.mark.usefixtures("deterministic")
def test_checkpoint_and_autocast(device: str) -> None:
    q, k, v = leaves(device, torch.bfloat16)
    wanted = gradients(ropekit.attention(q, k, v), [q, k, v])
    with torch.autocast(device, torch.bfloat16):
        out = torch.utils.checkpoint.checkpoint(ropekit.attention, q, k, v, use_reentrant=False)
    for a, b in zip(gradients(out, [q, k, v]), wanted, strict=True):
        assert torch.equal(a, b)


def test_no_handle_leaks(device: str) -> None:
    q, k, v = (x.detach() for x in leaves(device))
    offsets = torch.zeros(2, dtype=torch.int64, device=device)
    lengths = torch.full((2,), TOKENS, dtype=torch.int32, device=device)  # two types of indices
    more = {"sequence_offsets": offsets, "k_lengths": lengths}
    more["sinks"] = torch.randn(HEADS, device=device)
    tensors = q, k, v, *more.values()
    before = [x._use_count() for x in tensors]
    for _ in range(50):
        out, lse, *turned = ops.attention_rotated(q, k, v, "", **more)
        found = ops.attention_backward(out, out, lse, *turned, v, "", **more)
        assert [x._use_count() for x in (out, lse, *turned, *found)] == [1] * 10
        with pytest.raises(RuntimeError, match="lse has the shape"):
            ops.attention_backward(out, out, lse[:1], *turned, v, "", **more)
    assert [x._use_count() for x in tensors] == before


def test_memory_is_given_back() -> None:
    q, k, v = leaves("cpu")

    def pages() -> int:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])

    q, k, v = (x.detach().repeat(1, 64, 1, 1).requires_grad_() for x in (q, k, v))
    gradients(ropekit.attention(q, k, v, window=1), [q, k, v])
    before = pages()
    for _ in range(30):
        gradients(ropekit.attention(q, k, v, window=1), [q, k, v])
    assert (pages() - before) * os.sysconf("SC_PAGE_SIZE") < 100 << 20


# ---- what has no gradient ----


@pytest.mark.parametrize("name", ["k_scale", "cos"])
def test_no_gradient_of_other_tensors(name: str, device: str) -> None:
    q, k, v = (x.detach() for x in leaves(device))
    table = torch.rand(TOKENS, DIM // 2, device=device)
    given: dict[str, Any] = {
        "cos": table,
        "sin": table.clone(),
        "k_scale": torch.ones(1, device=device),
    }
    given[name].requires_grad_()
    words = f"{name} requires a gradient; allowed in attention is one of q, k, v, sinks and"
    for call in (ropekit.attention, lambda *x, **more: ops.attention(*x, "", **more)):
        with pytest.raises(RuntimeError, match=words):
            call(q, k, v, **given)


def test_calls_without_a_gradient(device: str) -> None:
    q, k, v = leaves(device)
    cache = torch.zeros(2, 64, KV, DIM, device=device)
    lengths = torch.full((2,), TOKENS, device=device)
    flag = torch.zeros(1, dtype=torch.int32, device=device)
    tree = torch.ones(TOKENS, TOKENS, dtype=torch.bool, device=device)
    calls: list[tuple[str, list[Tensor], dict[str, Any]]] = [
        ("k_cache", [q], {"k_cache": cache, "v_cache": cache, "k_lengths": lengths}),
        ("tree_mask", [q, k, v], {"tree_mask": tree}),
        ("position_flag", [q, k, v], {"position_flag": flag}),
    ]
    for name, tensors, options in calls:
        with pytest.raises(RuntimeError, match=f"{name} is given; allowed with a gradient is None"):
            ropekit.attention(*tensors, **options)
        with torch.no_grad():
            ropekit.attention(*tensors, **options)
    with pytest.raises(ValueError, match=r"direction is .*inverse"):
        ropekit.attention(q, k, v, direction="inverse")
    table = torch.rand(TOKENS, DIM, device=device)
    with pytest.raises(ValueError, match="table_width"):
        ropekit.attention(q, k, v, cos=table, sin=table, pairing_out="interleaved")
    create = gradients_of_gradients(q, k, v)
    with pytest.raises(RuntimeError, match="attention has no second derivative; allowed is its"):
        create.backward()


def gradients_of_gradients(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    out = ropekit.attention(q, k, v)
    (found,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
    return found.sum()
