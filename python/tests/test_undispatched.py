"""Calls past PyTorch's dispatcher: what the operator would give, or left to it."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import ropekit
import torch
from ropekit import _functions, _undispatched
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

few = torch.ops.ropekit.rotate_pair_no_grad.few
few_ = torch.ops.ropekit.rotate_pair_no_grad_.few
one = torch.ops.ropekit.rotate_no_grad.few
one_ = torch.ops.ropekit.rotate_no_grad_.few
Pair = tuple[torch.Tensor, torch.Tensor]


def pair(device: str = "cpu", dtype: torch.dtype = torch.float32, tokens: int = 5) -> Pair:
    return (
        torch.randn(2, tokens, 4, 16, device=device).to(dtype),
        torch.randn(2, tokens, 2, 16, device=device).to(dtype),
    )


def same(found: Any, expected: Any) -> bool:
    return all(
        torch.equal(x, y)
        and (x.dtype, x.device, x.stride()) == (y.dtype, y.device, y.stride())
        and (x.requires_grad, x.is_leaf) == (y.requires_grad, y.is_leaf)
        and (x.is_inference(), type(x)) == (y.is_inference(), type(y))
        and (x.is_inference() or x._version == y._version)
        for x, y in zip(found, expected, strict=True)
    )


SHAPES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "a part": lambda x: torch.cat((x, x), -1)[..., 3:19],
    "repeated": lambda x: x[:1, :1, :1, :1].expand_as(x),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_bits_are_those_of_the_operator(shape: str, dtype: torch.dtype, device: str) -> None:
    q, k = (SHAPES[shape](x) for x in pair(device, dtype))
    for ids in (None, torch.arange(5, device=device), torch.ones(2, 5, device=device).int()):
        for text, offset in (("", 0), ("pairing_in=interleaved rope_theta=500.0", 7)):
            arguments = (q, k, text, ids, offset)
            found = _undispatched.rotate_plain(*arguments)
            assert type(found) is tuple
            assert same(found, few(*arguments))
            alone = _undispatched.rotate_plain(q, None, *arguments[2:])
            assert same((alone,), (one(q, *arguments[2:]),))
            with torch.inference_mode():
                assert same(_undispatched.rotate_plain(*arguments), few(*arguments))
            if shape == "repeated":
                continue
            ours, theirs = [(q.clone(), k.clone()) for _ in range(2)]
            assert _undispatched.rotate_plain_(*ours, text, ids, offset) == ()
            few_(*theirs, text, ids, offset)
            assert _undispatched.rotate_plain_(ours[0], None, text, ids, offset) == ()
            one_(theirs[0], text, ids, offset)
            assert all(torch.equal(x, y) for x, y in zip(ours, theirs, strict=True))


class Counted:
    """An undispatched call that tells how often it was asked for and how often it did the work."""

    def __init__(self, call: Any) -> None:
        self.call, self.asked, self.done = call, 0, 0

    def __call__(self, *arguments: Any) -> Any:
        found = self.call(*arguments)
        self.asked, self.done = self.asked + 1, self.done + (found is not None)
        return found


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    call = Counted(_undispatched.rotate_plain)
    monkeypatch.setattr(_functions, "rotate_plain", call)
    return call


@pytest.mark.parametrize("options", [{}, {"position_offset": 3}, {"config": ropekit.Config()}])
def test_plain_calls_are_undispatched(
    options: dict[str, Any], device: str, counted: Counted
) -> None:
    q, k = pair(device)
    found = ropekit.apply(q, k, rotary_dim=8, **options)
    with torch.no_grad():
        ropekit.apply(q.requires_grad_(), k, positions=torch.arange(5, device=device))
    alone = ropekit.apply(q.detach(), rotary_dim=8, **options)
    assert counted.done == 3
    assert same((alone,), found[:1])
    text, offset = "rotary_dim=8", options.get("position_offset", 0)
    assert same(found, few(q.detach(), k, text, None, offset))


def test_in_place_is_not_dispatched_but_counted(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = Counted(_undispatched.rotate_plain_)
    monkeypatch.setattr(_functions, "rotate_plain_", call)
    (q, k), weight = pair(device), torch.randn(2, 5, 4, 16, device=device, requires_grad=True)
    expected = few(q, k, "", None, 0)
    loss = (weight * q).sum()
    ropekit.apply_(q, k)
    assert call.done == 1
    assert q._version == k._version == 1
    assert torch.equal(q, expected[0])
    assert torch.equal(k, expected[1])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    ropekit.apply_(q)
    assert call.done == 2
    assert (q._version, k._version) == (2, 1)


class Functions(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Dispatches(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


MODES: dict[str, Callable[[], Any]] = {
    "torch function mode": Functions,
    "torch dispatch mode": Dispatches,
    "default device": lambda: torch.device("cpu"),
    "profiler": torch.profiler.profile,
    "profiler of all threads": lambda: torch.autograd.profiler.profile(use_kineto=True),
    "record of calls": torch.autograd.profiler.emit_itt,
}


@pytest.mark.parametrize("name", MODES)
def test_modes_see_the_operator(name: str, counted: Counted) -> None:
    q, k = pair()
    expected = ropekit.apply(q, k)
    assert counted.done == 1
    with ExitStack() as stack:
        if name == "record of calls" and not torch.profiler.itt.is_available():
            pytest.skip("PyTorch without ITT")
        stack.enter_context(MODES[name]())
        found = ropekit.apply(q, k)
        assert _undispatched.rotate_plain_(q.clone(), k.clone(), "", None, 0) is None
    assert same(found, expected)
    assert (counted.asked, counted.done) == (2, 1)


def test_an_observer_of_the_whole_process_sees_the_operator(
    tmp_path: Path, counted: Counted
) -> None:
    observer = torch.profiler.ExecutionTraceObserver()
    observer.register_callback(str(tmp_path / "trace.json"))
    observer.start()
    ropekit.apply(*pair())
    observer.stop()
    observer.unregister_callback()
    assert (counted.asked, counted.done) == (1, 0)
    ropekit.apply(*pair())
    assert (counted.asked, counted.done) == (2, 1)


@pytest.mark.filterwarnings("ignore:There is a performance drop", "ignore:.*torch.jit")
def test_transforms_and_tracers_see_the_operator(counted: Counted) -> None:
    q, k = pair()
    expected = ropekit.apply(q, k)
    stacked = torch.stack((q, q)), torch.stack((k, k))
    found = torch.func.vmap(ropekit.apply)(*stacked)
    assert all(torch.equal(x[1], y) for x, y in zip(found, expected, strict=True))
    torch.jit.trace(lambda q: ropekit.apply(q, k), q, check_trace=False)
    assert counted.asked > 2
    assert counted.done == 1


def neg(x: torch.Tensor) -> torch.Tensor:
    return torch._neg_view(x)


def left_over(transform: Any, x: torch.Tensor) -> torch.Tensor:
    kept: list[torch.Tensor] = []
    transform(lambda y: (kept.append(y), y.sum())[1])(x)
    return kept[0]


class Subclass(torch.Tensor):
    pass


UNUSUAL: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "negative bit": neg,
    "imaginary part of a conjugate": lambda x: torch.complex(x, -x).conj().imag,
    "zero tensor": lambda x: torch._efficientzerotensor(x.shape),
    "no elements": lambda x: x[:0],
    "sparse": lambda x: x.to_sparse(),
    "of MKL-DNN": lambda x: x.to_mkldnn(),
    "nested": lambda x: torch.nested.nested_tensor(list(x)),
    "meta": lambda x: x.to("meta"),
    "functional": torch._to_functional_tensor,
    "requires a gradient": lambda x: x.clone().requires_grad_(),
    "subclass": lambda x: x.as_subclass(Subclass),
    "parameter": lambda x: torch.nn.Parameter(x, requires_grad=False),
    "left over by grad": lambda x: left_over(torch.func.grad, x),
    "left over by vmap": lambda x: left_over(torch.func.vmap, x[None]),
    "no tensor": lambda x: x.tolist(),  # type: ignore[return-value]
}
if hasattr(torch.Tensor, "rename"):
    UNUSUAL["named"] = lambda x: x.rename("batch", "token", "head", "element")


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested", "ignore:Named tensors")
@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("kind", UNUSUAL)
def test_unusual_tensors_are_left_to_the_operator(kind: str, place: int) -> None:
    tensors: list[Any] = list(pair())
    tensors[place] = UNUSUAL[kind](tensors[place])
    other = tensors[1 - place]
    before = other.clone()
    assert _undispatched.rotate_plain(*tensors, "", None, 0) is None
    assert _undispatched.rotate_plain_(*tensors, "", None, 0) is None
    assert torch.equal(other, before)


@pytest.mark.parametrize("place", [0, 1])
def test_inference_tensors_are_written_in_inference_mode_alone(place: int) -> None:
    tensors = list(pair())
    with torch.inference_mode():
        tensors[place] = tensors[place].clone()
        assert _undispatched.rotate_plain_(*tensors, "", None, 0) == ()
    before = [x.clone() for x in tensors]
    assert _undispatched.rotate_plain(*tensors, "", None, 0) is not None
    assert _undispatched.rotate_plain_(*tensors, "", None, 0) is None
    assert all(map(torch.equal, tensors, before))


def test_the_negative_bit_is_resolved() -> None:
    q, k = pair()
    assert same(ropekit.apply(neg(q), k), ropekit.apply(-q, k))
    ids = torch.arange(5)
    found = ropekit.apply(neg(q), neg(k), positions=neg(-ids))
    assert same(found, ropekit.apply(-q, -k, positions=ids))


@pytest.mark.parametrize(
    "ids, offset",
    [
        (neg(torch.arange(5)), 0),
        (torch.arange(5).as_subclass(Subclass), 0),
        (torch.arange(5).double(), 0),
        (torch.arange(6), 0),
        ([0, 1, 2, 3, 4], 0),
        (None, 0.0),
        (None, True),
        (None, None),
        (None, 2**70),
    ],
)
def test_unusual_positions_are_left_to_the_operator(ids: Any, offset: Any) -> None:
    q, k = pair()
    assert _undispatched.rotate_plain(q, k, "", ids, offset) is None
    assert _undispatched.rotate_plain_(q, k, "", ids, offset) is None
    assert q._version == 0


def test_no_elements_are_rotated_as_by_the_operator() -> None:
    q, k = (x[:, :0] for x in pair())
    found = ropekit.apply(q, k)
    assert same(found, few(q, k, "", None, 0))


@pytest.mark.parametrize("text", ["rope_theta=-1.0", "unknown=1", "head_dim=8", b"", None])
def test_unusual_texts_are_left_to_the_operator(text: Any) -> None:
    q, k = pair()
    assert _undispatched.rotate_plain(q, k, text, None, 0) is None


def test_other_counts_of_arguments_are_left_to_the_operator() -> None:
    q, k = pair()
    assert _undispatched.rotate_plain() is None
    assert _undispatched.rotate_plain(None, k, "", None, 0) is None
    assert _undispatched.rotate_plain(q, k, "", None) is None
    assert _undispatched.rotate_plain(q, k, "", None, 0, 0) is None


WRONG: dict[str, Callable[[], dict[str, Any]]] = {
    "type": lambda: {"q": pair()[0].int()},
    "types that differ": lambda: {"k": pair()[1].double()},
    "dimensions": lambda: {"q": pair()[0][0]},
    "type of one": lambda: {"q": pair()[0].int(), "k": None},
    "tokens": lambda: {"k": pair()[1][:, 1:]},
    "positions": lambda: {"positions": torch.arange(6)},
    "type of positions": lambda: {"positions": torch.arange(5.0)},
    "field": lambda: {"rotary_dim": 3},
    "unknown field": lambda: {"unknown": 3},
    "offset": lambda: {"position_offset": 0.5},
    "q": lambda: {"q": [1.0]},
    "q and a field": lambda: {"q": [1.0], "rope_theta": "a b"},
}


@pytest.mark.parametrize("function", [ropekit.apply, ropekit.apply_])
@pytest.mark.parametrize("name", WRONG)
def test_errors_are_those_of_the_operator(
    name: str, function: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    q, k = pair()
    arguments = {"q": q, "k": k} | WRONG[name]()
    before = [q.clone(), k.clone()]
    with pytest.raises((RuntimeError, TypeError)) as undispatched:
        function(**arguments)
    monkeypatch.setattr(_functions, "rotate_plain", _undispatched._never)
    monkeypatch.setattr(_functions, "rotate_plain_", _undispatched._never)
    with pytest.raises((RuntimeError, TypeError)) as dispatched:
        function(**arguments)
    assert type(undispatched.value) is type(dispatched.value)
    assert str(undispatched.value) == str(dispatched.value)
    assert torch.equal(q, before[0])
    assert torch.equal(k, before[1])
    assert q._version == k._version == 0


@pytest.mark.parametrize("missing", ["_is_tracing", "_len_torch_dispatch_stack"])
def test_without_what_it_needs_of_pytorch_there_is_none(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _undispatched.rotate_plain is not _undispatched._never, (
        "this PyTorch is unknown to undispatched.c"
    )
    monkeypatch.setattr(
        _undispatched,
        "_MODES",
        tuple(None if getattr(f, "__name__", "") == missing else f for f in _undispatched._MODES),
    )
    assert _undispatched._find() == (_undispatched._never, _undispatched._never)


def memory() -> int:
    """Bytes that the process has in memory."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096


def misaligned(x: torch.Tensor) -> torch.Tensor:
    """Which is refused after results were made."""
    memory = torch.zeros(4 * x.numel() + 4, dtype=torch.uint8).numpy()
    return torch.frombuffer(memory[1:-3], dtype=torch.float32).view(x.shape)


CALLS: dict[str, tuple[bool, Callable[[torch.Tensor, torch.Tensor], object]]] = {
    "new": (True, lambda q, k: _undispatched.rotate_plain(q, k, "", None, 0)),
    "in place": (True, lambda q, k: _undispatched.rotate_plain_(q, k, "", None, 0)),
    "exception": (False, lambda q, k: _undispatched.rotate_plain(q, k, "", None, 2**70)),
    "unusual": (False, lambda q, k: _undispatched.rotate_plain(q, k.tolist, "", None, 0)),
    "refused": (False, lambda q, k: _undispatched.rotate_plain(misaligned(q), k, "", None, 0)),
}


@pytest.mark.parametrize("tokens, count", [(1, 50000), (2048, 300)])  # handles, and results
@pytest.mark.parametrize("name", CALLS)
def test_nothing_leaks(name: str, tokens: int, count: int) -> None:
    q, k = pair(tokens=tokens)
    done, call = CALLS[name]
    kept = [q, k, None, torch.Tensor, "", 0]

    def repeat(times: int) -> None:
        for _ in range(times):
            assert (call(q, k) is not None) == done

    def measure() -> list[int]:
        return [*(sys.getrefcount(x) for x in kept), sys.getallocatedblocks(), memory()]

    repeat(count // 10)
    grown = []
    for _ in range(3):  # what other threads do to None, say, is not done in every round
        before = measure()
        repeat(count // 3)
        grown.append([abs(y - x) for x, y in zip(before, measure(), strict=True)])
    *objects, size = map(min, zip(*grown, strict=True))
    assert max(objects) < 100
    assert size < (1 << 20 if tokens == 1 else 50 << 20)


def test_other_threads_run_meanwhile() -> None:
    q, k = pair(tokens=1 << 16)
    stamps: list[float] = []
    kept: list[Any] = []  # as PyTorch lets other threads run where it frees memory

    def rotate() -> None:
        for _ in range(3):
            stamps.append(time.perf_counter())
            kept.append(_undispatched.rotate_plain(q, k, "", None, 0))
            stamps.append(time.perf_counter())

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000.0)  # a thread goes on until it gives way itself
    try:
        thread = threading.Thread(target=rotate)
        seen = []
        thread.start()
        while thread.is_alive():
            seen.append(time.perf_counter())
            time.sleep(0)
    finally:
        sys.setswitchinterval(interval)
    assert None not in kept
    spans = zip(stamps[::2], stamps[1::2], strict=True)
    assert any(begin < moment < end for begin, end in spans for moment in seen)


needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@needs_cuda
def test_undispatched_calls_are_captured() -> None:
    q, k = pair("cuda", torch.bfloat16)
    ids = torch.arange(5, device="cuda")
    assert (
        _undispatched.rotate_plain(q, k, "", ids, 0) is not None
    )  # plans are made outside a capture
    given, graph = (q.clone(), k.clone()), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = _undispatched.rotate_plain(q, k, "", ids, 0)
        assert _undispatched.rotate_plain_(*given, "", ids, 0) == ()
    assert found is not None
    for start in (0, 7, 100000):
        ids.copy_(torch.arange(start, start + 5))
        given[0].copy_(q)
        given[1].copy_(k)
        graph.replay()
        expected = few(q, k, "", None, start)
        for x, y, z in zip(found, given, expected, strict=True):
            assert torch.equal(x, z)
            assert torch.equal(y, z)


@needs_cuda
def test_undispatched_calls_go_to_the_current_stream() -> None:
    q, k = pair("cuda", tokens=512)
    expected = few(torch.ones_like(q), torch.ones_like(k), "", None, 0)
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(100_000_000)
        q.fill_(1.0)
        k.fill_(1.0)
        found = _undispatched.rotate_plain(q, k, "", None, 0)
    torch.cuda.synchronize()
    assert all(torch.equal(x, y) for x, y in zip(found, expected, strict=True))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two CUDA devices")
def test_undispatched_calls_go_to_the_tensors_device() -> None:
    q, k = pair("cuda:1")
    found = _undispatched.rotate_plain(q, k, "", None, 0)
    assert same(found, few(q, k, "", None, 0))
    assert _undispatched.rotate_plain(q, k.to("cuda:0"), "", None, 0) is None


def test_other_versions_are_left_to_the_operator() -> None:
    versions = ("2.10.1", "2.11.0+cu130", "2.13.2", "2.14.0a0+git1", "3.0")
    assert [_undispatched._was_tried(v) for v in versions] == [False, True, True, False, False]
