"""The candidate of PyTorch's kernel: which call takes it, what it gives, what `explain` tells."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import ropekit
import torch
from attention_truth import attend, visible
from ropekit import _sdpa
from ropekit._library import library
from torch import Tensor

HEADS, KV, DIM = 4, 2, 16


def tensors_of(
    device: str,
    dtype: torch.dtype = torch.float32,
    tokens: int = 9,
    keys: int = 9,
    v_dim: int = DIM,
) -> list[Tensor]:
    shapes = (tokens, HEADS, DIM), (keys, KV, DIM), (keys, KV, v_dim)
    return [torch.randn(2, *shape, device=device).to(dtype) for shape in shapes]


def candidate_of(found: ropekit.Explanation) -> str:
    """What `kernel` takes where the kernel that runs is one of a family."""
    told = [line.split()[0] for line in found.candidates.splitlines() if " accepted" in line]
    return found.kernel if found.kernel in told else told[0]


CASES: list[tuple[str, int, dict[str, Any]]] = [
    ("causal", 9, {}),
    ("causal", 1, {"rope_theta": 5e5}),
    ("causal", 4, {"scale": 0.3}),
    ("full", 4, {"causal": False, "pairing_in": "interleaved"}),
    ("causal window=3", 9, {"window": 3}),
    ("full window=4 right=2", 9, {"causal": False, "window": 4, "window_right": 2}),
    ("full right=0", 4, {"causal": False, "window_right": 0}),
    ("causal chunk=4", 6, {"chunk": 4}),
]


@pytest.mark.parametrize(("mask", "tokens", "options"), CASES)
@pytest.mark.parametrize("layout", ["bshd", "bhsd", "sbhd"])
def test_values(mask: str, tokens: int, options: dict[str, Any], layout: str, device: str) -> None:
    order = {"bshd": (0, 1, 2, 3), "bhsd": (0, 2, 1, 3), "sbhd": (1, 0, 2, 3)}[layout]
    given = tensors_of(device, torch.float64, tokens)
    wanted = ropekit.attention(*(x.float() for x in given), kernel="library", **options)
    moved = [x.permute(order) for x in given]
    back = [order.index(i) for i in range(4)]
    found = ropekit.attention(*moved, kernel="sdpa", layout=layout, **options).permute(back)
    torch.testing.assert_close(found.float(), wanted, rtol=1e-5, atol=1e-5)
    turned = [x.clone() for x in given]
    rotation = {n: x for n, x in options.items() if n in ("rope_theta", "pairing_in")}
    turned[0] = ropekit.apply(given[0], position_offset=9 - tokens, **rotation)
    turned[1] = ropekit.apply(None, given[1], **rotation)
    seen = visible(tokens, 9, mask).to(device)
    truth = attend(*turned, seen, scale=options.get("scale")).out
    torch.testing.assert_close(found, truth, rtol=1e-10, atol=1e-10)


def test_packed_dimensions_and_positions(device: str) -> None:
    q, k, v = (x[0] for x in tensors_of(device))
    ids = torch.arange(9, device=device) * 3
    for more in (
        {},
        {"positions": ids},
        {"positions": ids, "k_positions": ids},
        {"position_offset": 7},
    ):
        found = ropekit.attention(q, k, v, kernel="sdpa", **more)
        torch.testing.assert_close(found, ropekit.attention(q, k, v, kernel="library", **more))


def test_gradients_in_float64(device: str) -> None:
    q, k, v = (x.requires_grad_() for x in tensors_of(device, torch.float64, 3, 3, 8))

    def call(*tensors: Tensor) -> Any:
        return ropekit.attention(*tensors, window=2)

    assert torch.autograd.gradcheck(call, (q, k, v))


def test_a_cpu_takes_the_library() -> None:
    def kernel(dtype: torch.dtype, tokens: int, **options: Any) -> str:
        q = torch.empty(1, tokens, 2, 16, dtype=dtype)
        return ropekit.explain(q, q, q, **options).kernel

    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for causal in (True, False):
            assert kernel(dtype, 8192, causal=causal).startswith("cpu:")
    assert kernel(torch.float32, 5, kernel="sdpa") == "sdpa"
    assert kernel(torch.float64, 5) == "sdpa"


FASTER = [  # kernel, backward, tokens, keys, elements of q and of k, head_dim, v_head_dim, derives
    (1, "cuda:decode", None, 1, 4096, 1 << 12, 1 << 22, 128, 128, False),
    (1, "cuda:splits+prompt", None, 64, 64, 1 << 18, 1 << 16, 64, 64, False),
    (0, "cuda:generic", None, 1, 4096, 1 << 12, 1 << 22, 128, 128, False),
    (0, "cuda:prompt", None, 64, 64, 1 << 18, 1 << 16, 64, 256, False),
    (0, "cuda:prompt", "cuda:tiles", 64, 64, 1 << 18, 1 << 16, 64, 64, True),
    (1, "cuda:prompt", None, 1 << 10, 1 << 10, 1 << 20, 1 << 23, 64, 64, False),
    (0, "cuda:prompt", None, 1 << 10, 1 << 10, (1 << 20) + 1, 1 << 23, 64, 64, False),
    (0, "cuda:prompt", None, 1 << 10, 1 << 10, 1 << 20, (1 << 23) + 1, 64, 64, False),
    (1, "cudnn:sdpa", None, 127, 128, 1 << 18, 1 << 16, 64, 64, False),
    (0, "cudnn:sdpa", None, 127, 127, 1 << 18, 1 << 16, 64, 64, False),
    (2, "cudnn:sdpa", None, 128, 128, 1 << 18, 1 << 16, 64, 64, False),
    (2, "cudnn:sdpa", None, 128, 128, 1 << 18, 1 << 16, 96, 96, False),
    (2, "cudnn:sdpa", "cudnn:sdpa", 128, 128, 1 << 18, 1 << 16, 64, 64, True),
    (0, "cudnn:sdpa", "cudnn:sdpa", 128, 128, 1 << 18, 1 << 16, 96, 96, True),
    (0, "cudnn:sdpa", "cudnn:sdpa", 128, 256, 1 << 18, 1 << 16, 64, 64, True),
    (0, "cudnn:sdpa", "cuda:tiles", 128, 128, 1 << 18, 1 << 16, 64, 64, True),
    (2, "cuda:sm90", None, 4096, 4096, 1 << 24, 1 << 22, 128, 128, False),
    (1, "cuda:sm90", None, 511, 511, 1 << 21, 1 << 19, 128, 128, False),
    (2, "cuda:sm90", None, 512, 512, 1 << 21, 1 << 19, 128, 128, False),
    (2, "cuda:sm90", None, 128, 128, 1 << 24, 1 << 22, 128, 128, False),
    (2, "cuda:sm90", None, 1024, 1024, 1 << 25, 1 << 24, 64, 64, False),
    (0, "cuda:sm90", None, 1024, 1024, 1 << 25, (1 << 24) + 1, 64, 64, False),
    (0, "cuda:sm90", None, 1023, 1023, 1 << 25, 1 << 23, 64, 64, False),
    (2, "cuda:sm90", None, 4096, 4096, 1 << 25, 1 << 25, 64, 64, False),
    (2, "cuda:sm90", None, 1024, 1024, 1 << 27, 1 << 27, 256, 256, False),
    (0, "cuda:sm90", None, 512, 512, 1 << 26, 1 << 26, 256, 256, False),
    (2, "cuda:sm90", None, 2048, 2048, 1 << 26, 1 << 26, 192, 128, False),
    (2, "cuda:sm90", None, 1024, 1024, 1 << 25, 1 << 25, 96, 96, False),
    (0, "cuda:sm90", None, 4096, 4096, 1 << 26, 1 << 26, 192, 192, False),
    (0, "cuda:prompt", None, 4096, 4096, 1 << 24, 1 << 22, 128, 128, False),
    (2, "cuda:sm90", "cudnn:sdpa", 4096, 4096, 1 << 24, 1 << 22, 128, 128, True),
    (2, "cuda:sm90", "cuda:sm90", 4096, 4096, 1 << 24, 1 << 22, 128, 128, True),
    (2, "cuda:sm90", "cuda:sm90", 1024, 1024, 1 << 22, 1 << 20, 128, 128, True),
    (2, "cuda:sm90", "cuda:sm90", 1024, 1024, 1 << 22, 1 << 20, 96, 96, True),
    (0, "cuda:sm90", "cuda:sm90", 512, 512, 1 << 21, 1 << 19, 128, 128, True),
    (0, "cuda:sm90", "cuda:tiles", 4096, 4096, 1 << 24, 1 << 22, 128, 128, True),
    (0, "hip:decode", None, 1, 4096, 1 << 12, 1 << 22, 128, 128, False),
    (0, None, None, 64, 64, 1 << 40, 1 << 40, 64, 64, False),
    (2, None, None, 64, 64, 1 << 18, 1 << 16, 64, 64, False),
]


@pytest.mark.parametrize(
    ("expected", "kernel", "backward", "sizes"), [(*x[:3], x[3:]) for x in FASTER]
)
def test_the_faster_one_follows_from_kernels_and_sizes(
    expected: int, kernel: str | None, backward: str | None, sizes: tuple[int, ...]
) -> None:
    names = (None if x is None else x.encode() for x in (kernel, backward))
    assert library.ropekit_faster(*names, *sizes) == expected


def test_the_library_is_taken_where_it_is_faster(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    q, k, v = tensors_of(device, torch.bfloat16)
    kernel = ropekit.explain(q, k, v, kernel="library").kernel.encode()
    apart = torch.empty(*k.shape, 2, dtype=k.dtype, device=device)[..., 0]
    asked: list[tuple[Any, ...]] = []

    def taken(k: Tensor = k, derives: bool = False) -> bool:
        return _sdpa._is_of_library((q, k, v), "", (9, 9), derives)

    for faster in _sdpa.FASTER:

        def ask(*call: Any, faster: int = faster) -> int:
            asked.append(call)
            return faster

        asked.clear()
        _sdpa._faster.clear()
        monkeypatch.setattr(library, "ropekit_faster", ask)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        for _ in range(2):  # found, then kept
            assert taken() is (faster != _sdpa.BY_PYTORCH)
            assert [x[0] for x in asked] == ([None, kernel] if faster else [None])
            assert asked[-1][2:] == (9, 9, q.numel(), k.numel(), DIM, DIM, False)
        assert not taken(k=k[..., :8])  # which is refused
        assert taken(k=apart) is (faster == _sdpa.BY_LIBRARY_UNCAPTURED)
        asked.clear()
        assert taken(derives=True) is taken() and asked[-1][-1]
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        assert taken() is (faster == _sdpa.BY_LIBRARY_IN_VECTORS)
    _sdpa._faster.clear()


def point(operation: str, tokens: int, kernel: str, **more: int) -> dict[str, Any]:
    heads = {"q_heads": HEADS, "k_heads": KV, "head_dim": 64, "bits": 16, "batch": 2}
    named = {"operation": operation, "kernel": kernel, "mask": "causal", "cache": "none"}
    return named | heads | {"tokens": tokens} | more


@pytest.mark.usefixtures("deterministic")
def test_a_table_chooses_by_sizes_and_by_the_order_of_sums(
    device: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    few, many = (
        [torch.randn(2, n, heads, 64, device=device).bfloat16() for heads in (HEADS, KV, KV)]
        for n in (3, 40)
    )
    first = ropekit.explain(*few, kernel="library")
    kernel, other = candidate_of(first), f"{device}:{'scalar' if device == 'cpu' else 'generic'}"
    gradient = first.backward
    assert other not in (kernel, gradient)
    points = [
        point("attention", 2, kernel),
        point("attention", 64, other),
        point("attention_backward", 64, gradient),
        point("attention_backward", 64, other, nondeterministic=1),
    ]
    table = tmp_path / "table.json"
    table.write_text(json.dumps({"points": points}))
    monkeypatch.setenv("ROPE_TUNING", str(table))

    def faster(kernel: bytes | None, backward: bytes | None, *sizes: int) -> int:
        is_other = kernel == other.encode() and (not sizes[-1] or backward == kernel)
        return _sdpa.BY_LIBRARY_IN_VECTORS if kernel is None or is_other else _sdpa.BY_PYTORCH

    monkeypatch.setattr(library, "ropekit_faster", faster)
    _sdpa._faster.clear()
    theta = 4321.0  # of no other test: plans are kept
    assert ropekit.explain(*few, kernel="library", rope_theta=theta).kernel == first.kernel
    for in_order in (False, True):
        torch.use_deterministic_algorithms(in_order)
        found = ropekit.explain(*many, kernel="library", rope_theta=theta)
        assert (found.kernel, found.backward) == (other, gradient if in_order else other)
        for derives in (False, True):
            tuned = _sdpa._is_of_library(tuple(many), f"rope_theta={theta}", (40, 40), derives)
            assert tuned is not (derives and in_order)
    _sdpa._faster.clear()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_takes_pytorchs_kernel_for_much_work() -> None:
    few = torch.empty(1, 9, 4, 64, dtype=torch.bfloat16, device="cuda")
    own = ropekit.explain(few, few, few, kernel="library").kernel
    expected = "sdpa" if own.startswith("cudnn:") else own
    assert ropekit.explain(few, few, few).kernel == expected
    own = ropekit.explain(few, few, few, window=4, kernel="library").kernel
    assert ropekit.explain(few, few, few, window=4).kernel == own
    many = torch.empty(1, 8192, 32, 64, dtype=torch.bfloat16, device="cuda")
    own = ropekit.explain(many, many, many, kernel="library").kernel
    assert (ropekit.explain(many, many, many).kernel == "sdpa") != own.startswith("cudnn:")


def test_a_call_runs_what_is_explained(device: str) -> None:
    q, k, v = tensors_of(device, torch.bfloat16)
    named = ropekit.attention(q, k, v, kernel="library")
    told = candidate_of(ropekit.explain(q, k, v, kernel="library"))
    assert torch.equal(ropekit.attention(q, k, v, kernel=told.rpartition(":")[2]), named)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(("tokens", "kernel"), [(1, "splits"), (2, "splits"), (64, "tiles")])
def test_a_profiler_shows_the_kernel_that_is_explained(tokens: int, kernel: str) -> None:
    for options in ({}, {"softcap": 30.0}):
        q, k, v = (torch.randn(2, n, 4, 64, device="cuda").bfloat16() for n in (tokens, 64, 64))
        told = ropekit.explain(q, k, v, kernel=kernel, **options).kernel
        with torch.profiler.profile() as profile:
            ropekit.attention(q, k, v, kernel=kernel, **options)
            torch.cuda.synchronize()
        shown = " ".join(event.name for event in profile.events())
        assert f"gpu_attention_{told.rpartition(':')[2]}<" in shown


def test_explain(device: str) -> None:
    q, k, v = tensors_of(device)
    found = ropekit.explain(q, k, v, kernel="library", rope_theta=5e5, window=4)
    assert found.kernel.startswith(("cpu:", "cuda:"))
    assert f"{candidate_of(found)} accepted" in found.candidates
    assert found.backward and found.backward in found.backward_candidates
    text = repr(found)
    assert text.startswith(f"{found.kernel}: named by kernel\nconfig: ")
    assert "rope_theta=500000.0" in text and "window=4" in text
    cache = {"k_cache": k, "v_cache": v, "k_lengths": torch.tensor([9, 4], device=device)}
    found = ropekit.explain(q[:, :1], **cache)
    assert found.kernel and not found.backward
    assert found.backward_candidates.startswith("k_cache is given; allowed with a gradient is None")
    assert found.candidates.startswith("sdpa declined: k_cache is given\n")
    for more, name in (({"softcap": 3.0}, "softcap"), ({"return_lse": True}, "return_lse")):
        found = ropekit.explain(q, k, v, **more)
        assert found.candidates.startswith(f"sdpa declined: {name} is given\n")
    tables = dict.fromkeys(("cos", "sin"), torch.ones(9, DIM // 2, device=device))
    numbers = [0.5] * (DIM // 2)
    for more, told in (
        ({}, "q and k, by base 10000, as rope_theta is not given"),
        ({"rope_theta": 5e5}, "q and k, by rope_theta 500000.0"),
        ({"rope_type": "inv_freq", "inv_freq": numbers}, "q and k, by inv_freq"),
        (tables, "q and k, by cos and sin"),
        ({"rotate": "q", "kernel": "sdpa"}, "q, by base 10000, as rope_theta is not given"),
        ({"rotate": "none"}, "none"),
    ):
        found = ropekit.explain(q, k, v, **more)
        assert found.rotation == told and f"\nrotation: {told}\n" in repr(found)
    assert ropekit.explain(q[:, :1], **cache).rotation.startswith("q, by base 10000")
    if device == "cpu":
        assert "sdpa not the faster one for such a call\n" in ropekit.explain(q, k, v).candidates
    with pytest.raises(ValueError, match="window is -2"):
        ropekit.explain(q, k, v, window=-2)
    with pytest.raises(TypeError, match="q is int; allowed is a tensor"):
        ropekit.explain(3, k, v)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [
        {"k": torch.ones(2, 9, KV, DIM // 2)},
        {"k": torch.ones(1, 9, KV, DIM), "v": torch.ones(1, 9, KV, DIM)},
        {"k": torch.ones(2, 9, 3, DIM), "v": torch.ones(2, 9, 3, DIM)},
        {"k": torch.ones(2, 9, 0, DIM), "v": torch.ones(2, 9, 0, DIM)},
        {"k": torch.ones(9, KV, DIM)},
        {"k": torch.ones(9, KV, DIM), "rotate": "none"},
        {"v": torch.ones(1, 9, KV, DIM)},
        {"v": torch.ones(2, 8, KV, DIM)},
        {"v": torch.ones(2, 9, 1, DIM)},
        {"v": torch.ones(2, 9, KV, 0)},
        {"v": torch.ones(9, KV, DIM)},
        {"q": torch.ones(2, 3, 4, DIM), "positions": torch.arange(3)},
        {"k_positions": torch.arange(9)},
        {"rotate": "q", "positions": torch.arange(9), "k_positions": torch.arange(9)},
        {"rotate": "none", "k_positions": torch.arange(9)},
        {"rotate": "none", "position_offset": 3},
        {"rotate": "none", "sequence_offsets": torch.arange(2)},
        {"rotate": "none", "cos": torch.ones(9, DIM // 2), "sin": torch.ones(9, DIM // 2)},
        {"max_seqlen_k": 9},
        {"ring": 4},
        {"block_table": torch.zeros(2, 1, dtype=torch.int64)},
        {"v_cache": torch.ones(2, 9, KV, DIM)},
        {"k_scale": torch.ones(1)},
        {"tree_keys": 3},
    ],
)
def test_both_candidates_refuse_a_call_in_the_same_words(options: dict[str, Any]) -> None:
    given: dict[str, Any] = dict(zip("qkv", tensors_of("cpu"), strict=True)) | options
    with pytest.raises(ValueError, match="; allowed ") as wanted:
        ropekit.attention(**given, kernel="library")
    with pytest.raises(ValueError, match=f"^{re.escape(str(wanted.value))}$"):
        ropekit.attention(**given, kernel="sdpa")
    if options.keys() & {"max_seqlen_k", "block_table", "v_cache", "k_scale", "tree_keys"}:
        with pytest.raises(ValueError, match=f"^{re.escape(str(wanted.value))}$"):
            ropekit.explain(**given, kernel="sdpa")


def test_what_pytorchs_kernel_has_not_is_refused(device: str) -> None:
    q, k, v = tensors_of(device)
    for options, text in (
        (
            {"sinks": torch.zeros(HEADS, device=device)},
            "sinks is given; allowed with kernel 'sdpa'",
        ),
        ({"softcap": 2.0}, "softcap is given; allowed with kernel 'sdpa' is None"),
        ({"return_lse": True}, "return_lse is given; allowed with kernel 'sdpa' is None"),
        ({"k_lengths": torch.tensor([9, 9], device=device)}, "k_lengths is given; allowed with"),
    ):
        with pytest.raises(ValueError, match=text):
            ropekit.attention(q, k, v, kernel="sdpa", **options)
    with pytest.raises(ValueError, match="sinks is given; allowed of float64, which"):
        wide = (x.double() for x in (q, k, v))
        ropekit.attention(*wide, sinks=torch.zeros(HEADS, device=device).double())
    with pytest.raises((TypeError, ValueError)):
        ropekit.attention(q, k.half(), v, kernel="sdpa")
    with pytest.raises(ValueError, match="k has head_dim 14; allowed is that of q, 16"):
        narrow = q.double(), k.double()[..., :-2], v.double()
        ropekit.attention(*narrow, rotate="none", causal=False)
    with pytest.raises(ValueError, match="any of sdpa, library, "):
        ropekit.attention(q, k, v, kernel="nothing")
    for options, text in (
        ({"window": -2}, "window is -2; allowed is > 0"),
        ({"chunk": -2}, "chunk is -2; allowed is > 0"),
        ({"scale": -1.0}, r"scale is -1; allowed is None, or 2\^-60..2\^60"),
        ({"window_right": 3}, "window_right is 3; allowed is None or 0 unless causal is False"),
    ):
        compiled = torch.compile(ropekit.attention, backend="eager")
        for call in (ropekit.attention, ropekit.explain, compiled):
            with pytest.raises(Exception, match=text):
                call(q, k, v, kernel="sdpa", **options)


@pytest.mark.parametrize("options", [{}, {"rotate": "none"}, {"window": 3}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_second_derivative_and_a_tangent_are_refused(
    dtype: torch.dtype, options: Any, device: str
) -> None:
    q, k, v = (x.requires_grad_() for x in tensors_of(device, dtype))

    def squared(*tensors: Tensor) -> Tensor:
        return ropekit.attention(*tensors, kernel="sdpa", **options).square().sum()

    words = "attention has no second derivative; allowed is its gradient"
    for leaf in (q, k, v):
        (grad,) = torch.autograd.grad(squared(q, k, v), leaf, create_graph=True)
        with pytest.raises(RuntimeError, match=words):
            grad.sum().backward()
    fixed = k.detach(), v.detach()
    with pytest.raises(RuntimeError, match=words):
        torch.func.grad(lambda x: torch.func.grad(squared)(x, *fixed).sum())(q.detach())
    with pytest.raises(RuntimeError, match="q has a tangent and attention has no derivative"):
        torch.func.jvp(lambda x: squared(x, *fixed), (q.detach(),), (q.detach(),))


@pytest.mark.compiles
@pytest.mark.parametrize("kernel", ["sdpa", "library"])
def test_autocast_casts_what_is_of_several_types(kernel: str, device: str) -> None:
    q, k, v = tensors_of(device)
    short = [x.bfloat16() for x in (q, k, v)]
    with torch.autocast(device, torch.bfloat16):
        found = ropekit.attention(q, k, v, kernel=kernel)
        wanted = ropekit.attention(*short, kernel=kernel)
        torch._dynamo.reset()
        compiled = torch.compile(ropekit.attention, fullgraph=True, backend="aot_eager")
        for call in (ropekit.attention, compiled):
            own = q.clone().requires_grad_()
            out = call(own, k, short[2], kernel=kernel)
            assert torch.equal(out, wanted) and out.dtype == torch.bfloat16
            out.float().sum().backward()
            assert own.grad is not None and own.grad.dtype == torch.float32
            with torch.no_grad():
                assert torch.equal(call(q, short[1], short[2], kernel=kernel), wanted)
        assert ropekit.explain(q, k, short[2], kernel=kernel).kernel
    assert torch.equal(found, ropekit.attention(q, k, v, kernel=kernel))
    with pytest.raises(TypeError, match=r"v is torch.bfloat16; allowed is torch.float32, the type"):
        ropekit.attention(q, k, short[2], kernel=kernel)


@pytest.mark.compiles
def test_compiles_forward_and_backward(device: str) -> None:
    torch._dynamo.reset()
    q, k, v = (x.requires_grad_() for x in tensors_of(device))
    config = ropekit.Config(kernel="sdpa", rope_theta=5e5)

    def call(*tensors: Tensor) -> Tensor:
        return ropekit.attention(*tensors, config=config)

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    wanted = torch.autograd.grad(call(q, k, v).square().sum(), (q, k, v))
    found = torch.autograd.grad(compiled(q, k, v).square().sum(), (q, k, v))
    torch.testing.assert_close(found, wanted)
