"""What PyTorch asks of an operator: schema, fake kernels, gradients, compilation, graphs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
import ropekit
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode

ops = torch.ops.ropekit
TEXT = "rope_theta=5000.0"
YARN: dict[str, Any] = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


def pair(device: str, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    return (
        torch.randn(2, 5, 4, 16, device=device).to(dtype),
        torch.randn(2, 5, 2, 16, device=device).to(dtype),
    )


@pytest.mark.parametrize(
    "name, overload, grad",
    [
        ("rotate", "default", False),
        ("rotate", "default", True),
        ("rotate_", "default", False),
        ("rotate_no_grad", "default", False),
        ("rotate_no_grad", "few", False),
        ("rotate_no_grad_", "default", False),
        ("rotate_no_grad_", "few", False),
        ("rotate_no_grad", "ids", False),
        ("rotate_no_grad_", "ids", False),
    ],
)
def test_opcheck(name: str, overload: str, grad: bool, device: str) -> None:
    q, k = pair(device)
    positions = torch.arange(5, device=device).expand(2, 5)
    offset = () if overload == "ids" else (3,)
    for x in (q, q.transpose(1, 2), q[..., :8]):
        leaf = x.detach().clone(memory_format=torch.preserve_format).requires_grad_(grad)
        layout = "bhsd" if x.shape[1] == 4 else "bshd"
        ids = positions if layout == "bshd" or overload == "ids" else None
        arguments = (leaf, f"{TEXT} layout={layout}", ids, *offset)
        torch.library.opcheck(getattr(getattr(ops, name), overload), arguments)
    several = getattr(ops, name.replace("rotate", "rotate_pair"))
    q, k = q.requires_grad_(grad), k.requires_grad_(grad)
    torch.library.opcheck(getattr(several, overload), (q, k, TEXT, positions, *offset))


WAYS: dict[str, dict[str, Any]] = {
    "ids": {"positions": torch.arange(3, 8)},
    "offset": {"position_offset": 3},
    "both": {"positions": torch.arange(2, 7), "position_offset": 1},
    "all": {"positions": torch.arange(5), "sequence_offsets": torch.tensor([3, 3])},
}


class Seen(TorchFunctionMode):
    """What is called of PyTorch, by its namespace."""

    def __init__(self) -> None:
        super().__init__()
        self.namespaces: list[str | None] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.namespaces.append(getattr(func, "namespace", None))
        return func(*args, **(kwargs or {}))


class Subclass(torch.Tensor):
    pass


def way_of(way: str, single: bool) -> Any:
    def call(q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (ropekit.apply(q, **WAYS[way]),) if single else ropekit.apply(q, k, **WAYS[way])

    return call


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_every_way_leads_past_who_watches(way: str, single: bool) -> None:
    call, (q, k) = way_of(way, single), pair("cpu")
    with Seen() as seen:
        call(q, k)
    assert seen.namespaces.count("ropekit") == 1
    assert all(type(y) is Subclass for y in call(q.as_subclass(Subclass), k.as_subclass(Subclass)))
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert all(isinstance(y, FakeTensor) for y in call(mode.from_tensor(q), k))
    with torch.profiler.profile() as profile:
        call(q, k)
    assert sum(event.name.startswith("ropekit::rotate") for event in profile.events()) == 1


@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_every_way_is_traced(way: str, single: bool) -> None:
    call, (q, k) = way_of(way, single), pair("cpu")
    graph = make_fx(call)(q, q)
    assert sum("ropekit" in str(node.target) for node in graph.graph.nodes) == 1
    for traced in (graph, torch.jit.trace(call, (q, q))):
        for found, expected in zip(traced(k, k), call(k, k), strict=True):
            assert torch.equal(found, expected)


def test_mutation_is_declared() -> None:
    for name in ("rotate_", "rotate_pair_", "rotate_no_grad_", "rotate_pair_no_grad_"):
        mutated = {"q", "k"} if "pair" in name else {"q"}
        packet = getattr(ops, name)
        for overload in packet.overloads():
            arguments = getattr(packet, overload)._schema.arguments
            written = {a.name for a in arguments if a.alias_info and a.alias_info.is_write}
            assert written == mutated | ({"position_flag"} if overload == "default" else set())


@pytest.mark.parametrize(
    "fields",
    [{}, YARN, {"pairing_in": "interleaved", "pairing_out": "half_split"}, {"rotary_dim": 2}],
)
def test_gradient_and_its_gradient(fields: dict[str, Any], device: str) -> None:
    q = torch.randn(1, 3, 2, 4, device=device, dtype=torch.float64, requires_grad=True)
    k = torch.randn(1, 3, 1, 4, device=device, dtype=torch.float64, requires_grad=True)
    positions = torch.tensor([5, 1, 9], device=device)

    def rotated(q: torch.Tensor, k: torch.Tensor) -> Any:
        return ropekit.apply(q, k, positions=positions, **fields)

    assert torch.autograd.gradcheck(rotated, (q, k))
    assert torch.autograd.gradgradcheck(rotated, (q, k))
    assert torch.autograd.gradcheck(lambda q: ropekit.apply(q, **fields), (q,))


@pytest.mark.parametrize(
    "options",
    [
        {"position_offset": 7},
        {"sequence_offsets": torch.tensor([3, 11])},
        {"sequence_offsets": torch.tensor([3, 11]), "position_offset": 7},
    ],
)
def test_gradient_at_offsets(options: dict[str, Any], device: str) -> None:
    options = {n: x.to(device) if isinstance(x, torch.Tensor) else x for n, x in options.items()}
    q = torch.randn(2, 3, 2, 4, device=device, dtype=torch.float64, requires_grad=True)
    k = torch.randn(2, 3, 1, 4, device=device, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda q, k: ropekit.apply(q, k, **options), (q, k))
    assert torch.autograd.gradgradcheck(lambda q: ropekit.apply(q, **options), (q,))


def test_gradient_of_packed_sequences(device: str) -> None:
    q = torch.randn(5, 2, 4, device=device, dtype=torch.float64, requires_grad=True)
    bounds = torch.tensor([0, 2, 5], device=device)

    def rotated(q: torch.Tensor) -> torch.Tensor:
        return ropekit.apply(q, cu_seqlens=bounds, layout="thd")

    assert torch.autograd.gradcheck(rotated, (q,))
    assert torch.autograd.gradgradcheck(rotated, (q,))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradient_of_tables_is_eager_pytorch(dtype: torch.dtype, device: str) -> None:
    q = torch.randn(2, 5, 4, 16, device=device).to(dtype).requires_grad_()
    angle = torch.randn(5, 8, device=device)
    cos, sin = (torch.cat((t, t), -1).to(dtype) for t in (angle.cos(), angle.sin()))
    grad = torch.randn(2, 5, 4, 16, device=device).to(dtype)
    turned = torch.cat((-q[..., 8:], q[..., :8]), -1)
    (expected,) = torch.autograd.grad(q * cos[:, None] + turned * sin[:, None], q, grad)
    y = ropekit.apply(q, cos=cos, sin=sin, arithmetic="model_dtype")
    assert torch.equal(torch.autograd.grad(y, q, grad)[0], expected)


def test_gradient_of_a_broadcast_one(device: str) -> None:
    q, _ = pair(device)
    q.requires_grad_()
    ropekit.apply(q, **YARN).sum().backward()
    expected = ropekit.apply(torch.ones_like(q), direction="transpose", **YARN)
    assert torch.equal(q.grad, expected)


@pytest.mark.compiles
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiles_without_a_break(backend: str, dynamic: bool, device: str) -> None:
    torch._dynamo.reset()
    config = ropekit.Config(**YARN)

    def step(q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor) -> Any:
        q, k = ropekit.apply(q * 1, k, positions=positions, config=config, rope_theta=5000.0)
        z = ropekit.apply(q, pairing_in="interleaved")
        q = q.clone()
        ropekit.apply_(q, position_offset=2)
        return q, k, z

    compiled = torch.compile(step, fullgraph=True, backend=backend, dynamic=dynamic)
    for tokens in (5, 7, 9):
        q = torch.randn(2, tokens, 4, 16, device=device)
        k = torch.randn(2, tokens, 2, 16, device=device)
        positions = torch.arange(tokens, device=device)
        for found, expected in zip(compiled(q, k, positions), step(q, k, positions), strict=True):
            assert torch.equal(found, expected)


@pytest.mark.parametrize("sizes", [(0, 5, 4), (2, 0, 4), (2, 5, 0)])
def test_compiles_for_empty_tensors_and_two_index_types(
    sizes: tuple[int, int, int], device: str
) -> None:
    torch._dynamo.reset()
    config = ropekit.Config()

    def step(q: torch.Tensor, ids: torch.Tensor, offsets: torch.Tensor) -> Any:
        y = ropekit.apply(q, positions=ids, sequence_offsets=offsets, config=config)
        x = q.clone()
        ropekit.apply_(x, positions=ids, config=config)
        return x, y

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    for batch, tokens, heads in (sizes, (2, 5, 4)):
        q = torch.randn(batch, tokens, heads, 16, device=device)
        arguments = (torch.arange(tokens, device=device), torch.arange(batch, device=device).int())
        for found, expected in zip(compiled(q, *arguments), step(q, *arguments), strict=True):
            assert torch.equal(found, expected)
            assert found.stride() == expected.stride()
        torch.library.opcheck(ops.rotate, (q, "", arguments[0], 0, arguments[1]))
        torch.library.opcheck(ops.rotate_, (q, "", arguments[0], 0, arguments[1]))


@pytest.mark.compiles
def test_compiled_gradient(device: str) -> None:
    torch._dynamo.reset()
    grads = []
    for function in (ropekit.apply, torch.compile(ropekit.apply, fullgraph=True)):
        torch.manual_seed(0)
        q, k = (x.requires_grad_() for x in pair(device))
        a, b = function(q, k, **YARN)
        (a.square().sum() + b.sum()).backward()
        grads.append((q.grad, k.grad))
    for eager, compiled in zip(*grads, strict=True):
        torch.testing.assert_close(compiled, eager, rtol=0, atol=1e-6)


def test_offset_of_each_step_compiles_once_more(device: str) -> None:
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    config = ropekit.Config()

    def step(q: torch.Tensor, offset: int) -> torch.Tensor:
        return ropekit.apply(q, config=config, position_offset=offset)

    compiled = torch.compile(step, fullgraph=True, backend=counter)
    q, _ = pair(device)
    for offset in (3, 5, 7, 9):
        assert torch.equal(compiled(q, offset), step(q, offset))
    assert counter.frame_count == 2  # the first, and one whose offset is a symbol


@pytest.mark.parametrize(
    "field, values",
    [
        ("rope_theta", (1e4, 5e4, 7.5e5)),
        ("rotary_dim", (4, 8, 16)),
        ("sections", ((2, 3, 3), (4, 2, 2), (3, 3, 2))),
    ],
)
def test_a_field_that_varies_compiles_without_a_break(field: str, values: Any) -> None:
    torch._dynamo.reset()
    axes = {"axes": 3, "axis_layout": "chunked"} if field == "sections" else {}
    ids = torch.arange(15).view(3, 1, 5) if axes else torch.arange(5)

    def step(q: torch.Tensor, value: Any) -> torch.Tensor:
        return ropekit.apply(q, positions=ids, **{field: value}, **axes)

    compiled, (q, _) = torch.compile(step, fullgraph=True, backend="aot_eager"), pair("cpu")
    for value in values:
        assert torch.equal(compiled(q, value), step(q, value))


def test_a_field_of_the_shape_compiles_without_a_break() -> None:
    torch._dynamo.reset()
    fields = {"rope_type": "dynamic", "factor": 2.0, "max_position_embeddings": 4}

    def step(q: torch.Tensor) -> torch.Tensor:
        return ropekit.apply(q, sequence_length=q.shape[1], **fields)

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager", dynamic=True)
    for tokens in (5, 7, 9):
        q = torch.randn(2, tokens, 4, 16)
        assert torch.equal(compiled(q), step(q))


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_traced_gradient_is_saved_and_loaded(tmp_path: Any) -> None:
    class Layer(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return ropekit.apply(super().forward(x), rope_theta=5000.0)

    layer, (x, _) = Layer(16, 16), pair("cpu")
    torch.jit.save(torch.jit.trace(layer, x), tmp_path / "layer.pt")
    loaded = torch.jit.load(tmp_path / "layer.pt")
    grads = []
    for module in (layer, loaded):
        y = module(x)
        grads.append(torch.autograd.grad(y.square().sum(), list(module.parameters())))
        assert torch.equal(y, layer(x))
    for found, expected in zip(*grads, strict=True):
        torch.testing.assert_close(found, expected)


def test_graph_is_saved_and_loaded(tmp_path: Any) -> None:
    class Layer(torch.nn.Module):
        def forward(self, q: torch.Tensor) -> torch.Tensor:
            return ropekit.apply(q, rope_theta=5000.0)

    q, _ = pair("cpu")
    torch.export.save(torch.export.export(Layer(), (q,)), tmp_path / "layer.pt2")
    loaded = torch.export.load(tmp_path / "layer.pt2").module()
    assert torch.equal(loaded(q), Layer()(q))


def test_autocast_leaves_the_type(device: str) -> None:
    q, _ = pair(device)
    with torch.autocast(device, dtype=torch.bfloat16):
        assert torch.equal(ropekit.apply(q), ropekit.apply(q))
        assert ropekit.apply(q).dtype == torch.float32
        assert ropekit.apply(q.bfloat16()).dtype == torch.bfloat16


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("compiled", [False, True])
def test_vmap(compiled: bool, device: str) -> None:
    def mapped(q: torch.Tensor) -> torch.Tensor:
        return torch.func.vmap(lambda x: ropekit.apply(x, **YARN))(q)

    torch._dynamo.reset()
    if compiled:
        mapped = torch.compile(mapped, fullgraph=True, backend="aot_eager")
    q = torch.randn(3, 2, 5, 4, 16, device=device, requires_grad=True)
    weight = torch.randn_like(q)
    expected = torch.stack([ropekit.apply(x, **YARN) for x in q])
    found = mapped(q)
    assert torch.equal(found, expected)
    grads = [torch.autograd.grad(y, q, weight)[0] for y in (found, expected)]
    assert torch.equal(*grads)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested")
def test_the_parts_of_a_nested_tensor_are_packed_sequences(device: str) -> None:
    parts = [torch.randn(tokens, 4, 16, device=device) for tokens in (3, 5)]
    for kind in (torch.strided, torch.jagged):
        nested = torch.nested.nested_tensor(parts, layout=kind)
        for call in (ropekit.apply, lambda x: ropekit.attention(x, x, x)):
            with pytest.raises(TypeError, match="q is a nested tensor; allowed is its values, wit"):
                call(nested)
    found = ropekit.apply(nested.values(), layout="thd", cu_seqlens=nested.offsets())
    assert torch.equal(found, torch.cat([ropekit.apply(x[None])[0] for x in parts]))


IN_PLACE: dict[str, Any] = {
    "apply_": lambda y, flag: ropekit.apply_(y, position_flag=flag),
    "apply_ to k": lambda y, flag: ropekit.apply_(torch.ones_like(y), y, position_flag=flag),
    "rotate_": lambda y, flag: ops.rotate_(y, "", position_flag=flag),
    "rotate_pair_": lambda y, flag: ops.rotate_pair_(y.clone(), y, "", position_flag=flag),
}


@pytest.mark.parametrize("name", [*IN_PLACE, "compiled eager", "compiled aot_eager"])
def test_what_is_written_is_counted(name: str, device: str) -> None:
    torch._dynamo.reset()
    call = IN_PLACE.get(name) or torch.compile(IN_PLACE["apply_"], backend=name.split()[1])
    flag = torch.zeros(1, dtype=torch.int32, device=device)
    weight, y = torch.randn(2, 5, 4, 16, device=device, requires_grad=True), pair(device)[0]
    loss = (weight * y).sum()
    call(y, flag)
    assert flag._version >= 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place_in_inference_mode(name: str, device: str) -> None:
    flag = torch.zeros(1, dtype=torch.int32, device=device)
    y, _ = pair(device)
    with torch.inference_mode():
        x = y.clone()
        IN_PLACE[name](x, flag)
        assert torch.equal(x, ropekit.apply(y))
        IN_PLACE[name](y, flag)
    assert y._version == 1


def test_gradient_of_what_a_transform_left_over(device: str) -> None:
    q = pair(device)[0].requires_grad_()
    kept = []

    def keep(x: torch.Tensor) -> torch.Tensor:
        kept.append(x)
        return x.sin()

    torch.func.vjp(keep, q)
    weight = torch.randn_like(q)
    expected = torch.autograd.grad(ropekit.apply(q), q, weight)[0]
    assert torch.equal(torch.autograd.grad(ropekit.apply(kept[0]), q, weight)[0], expected)


def test_a_gradient_past_autograd_is_warned_of(device: str) -> None:
    q, ids = pair(device)[0].requires_grad_(), torch.arange(5, device=device)
    for y in (ops.rotate_no_grad(q, ""), ops.rotate_no_grad.ids(q, "", ids)):
        with pytest.warns(UserWarning, match="an autograd kernel was not registered"):
            (y.sum() + q.sum()).backward()


def test_the_negative_bit_is_resolved() -> None:
    (q, k), ids = pair("cpu"), torch.arange(5)
    found = ropekit.apply(torch._neg_view(q), k, positions=torch._neg_view(-ids))
    for x, y in zip(found, ropekit.apply(-q, k, positions=ids), strict=True):
        assert torch.equal(x, y)


def memory() -> int:
    """Bytes that the process has in memory."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096


def misaligned(x: torch.Tensor) -> torch.Tensor:
    """Which is refused after results were made."""
    bytes_ = torch.zeros(4 * x.numel() + 4, dtype=torch.uint8).numpy()
    return torch.frombuffer(bytes_[1:-3], dtype=torch.float32).view(x.shape)


CALLS: dict[str, Any] = {
    "new": lambda q, k: ops.rotate_pair_no_grad.few(q, k, TEXT, None, 0),
    "all": lambda q, k: ops.rotate_pair(q, k, TEXT, sequence_offsets=torch.arange(2)),
    "two index types": lambda q, k: ops.rotate_pair(
        q, k, TEXT, torch.arange(q.shape[1]).int(), sequence_offsets=torch.arange(2)
    ),
    "in place": lambda q, k: ops.rotate_pair_(q, k, TEXT),
    "refused": lambda q, k: ops.rotate_pair_no_grad.few(misaligned(q), k, TEXT, None, 0),
}


@pytest.mark.parametrize("tokens, count", [(1, 2000), (512, 100)])  # handles, and results
@pytest.mark.parametrize("name", CALLS)
def test_nothing_leaks(name: str, tokens: int, count: int) -> None:
    q, k = torch.randn(2, tokens, 4, 16), torch.randn(2, tokens, 2, 16)

    def repeat() -> None:
        for _ in range(count):
            with suppress(RuntimeError) if name == "refused" else nullcontext():
                CALLS[name](q, k)

    repeat()
    grown = []
    for _ in range(3):  # what other threads do is not done in every round
        before = q._use_count(), k._use_count(), memory()
        repeat()
        after = q._use_count(), k._use_count(), memory()
        grown.append([abs(y - x) for x, y in zip(before, after, strict=True)])
    *uses, size = map(min, zip(*grown, strict=True))
    assert uses == [0, 0]
    assert size < 1 << 18


def test_threads_share_plans() -> None:
    q, _ = pair("cpu")

    def run(i: int, **fields: Any) -> torch.Tensor:
        return ropekit.apply(q, rope_theta=1000.0 + i % 16, **fields)

    serial = [run(i, rotary_dim=16) for i in range(16)]  # by plans of other texts
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(run, range(256)))
    for i, result in enumerate(results):
        assert torch.equal(result, serial[i % 16])


needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@needs_cuda
def test_cuda_graph_follows_its_positions() -> None:
    q, k = pair("cuda", torch.bfloat16)
    positions = torch.arange(5, device="cuda")
    ropekit.apply(q, k, positions=positions)  # plans are made outside a capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        q_out, k_out = ropekit.apply(q, k, positions=positions)
    for start in (0, 7, 100000):
        positions.copy_(torch.arange(start, start + 5))
        graph.replay()
        for found, expected in zip(
            (q_out, k_out), ropekit.apply(q, k, position_offset=start), strict=True
        ):
            assert torch.equal(found, expected)


@needs_cuda
def test_current_stream() -> None:
    stream = torch.cuda.Stream()
    q = torch.zeros(64, 512, 8, 64, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        q.fill_(1.0)
        found = ropekit.apply(q)
    other = ropekit.apply(torch.ones_like(q))
    torch.cuda.synchronize()
    assert torch.equal(found, other)


@needs_cuda
@pytest.mark.compiles
def test_reduce_overhead_mode() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(ropekit.apply, mode="reduce-overhead", fullgraph=True)
    for _ in range(4):
        q, k = pair("cuda")
        found = [x.clone() for x in compiled(q, k)]
        for x, y in zip(found, ropekit.apply(q, k), strict=True):
            assert torch.equal(x, y)


@needs_cuda
def test_devices_give_the_same_bits() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        q, k = pair("cpu", dtype)
        there = ropekit.apply(q.cuda(), k.cuda(), position_offset=100000, **YARN)
        for x, y in zip(ropekit.apply(q, k, position_offset=100000, **YARN), there, strict=True):
            assert torch.equal(x, y.cpu())


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two CUDA devices")
def test_second_device() -> None:
    q, _ = pair("cuda:1")
    assert ropekit.apply(q).device == q.device
    assert torch.equal(ropekit.apply(q).cpu(), ropekit.apply(q.cpu()))
