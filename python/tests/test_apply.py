"""Values of apply, apply_ and rope against float64."""

from __future__ import annotations

import ctypes
import mmap
import resource
from collections.abc import Iterator
from typing import Any

import pytest
import ropekit
import torch
import truth

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]


def make(layout: str, heads: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    """A tensor of 2 sequences of 5 tokens, heads of 16."""
    sizes = (2, 5, heads, 16)
    order = truth.ORDERS[layout]
    return torch.randn([sizes[order.index(d)] for d in range(4)], device=device).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", truth.ORDERS)
def test_layouts_and_types(layout: str, dtype: torch.dtype, device: str) -> None:
    q, k = make(layout, 4, dtype, device), make(layout, 2, dtype, device)
    angle = truth.angles(torch.arange(5, device=device), 16)
    for x, y in zip((q, k), ropekit.apply(q, k, layout=layout), strict=True):
        truth.assert_close(y, x, truth.rotate(x, angle, layout))


@pytest.mark.parametrize("pairing", ["half_split", "interleaved"])
def test_in_place_and_one_tensor_give_the_same_bits(pairing: str, device: str) -> None:
    q, k = make("bshd", 4, torch.bfloat16, device), make("bshd", 2, torch.bfloat16, device)
    options = {"pairing_in": pairing, "rotary_dim": 8, "position_offset": 3}
    q_out, k_out = ropekit.apply(q, k, **options)
    assert torch.equal(ropekit.apply(q, **options), q_out)
    assert torch.equal(ropekit.apply(None, k, **options), k_out)
    ropekit.apply_(q, k, **options)
    assert torch.equal(q, q_out)
    assert torch.equal(k, k_out)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x[..., 8:24],
        lambda x: x[:, :, ::2],
        lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
        lambda x: x[:1].expand(3, -1, -1, -1),
        lambda x: x[:0],
        lambda x: x[:, :1],
        lambda x: x.flatten()[:1].expand(2, 5, 4, 32),
    ],
)
def test_strides(view: object, device: str) -> None:
    x = view(torch.randn(2, 5, 4, 32, device=device))  # type: ignore[operator]
    kept = x.clone()
    y = ropekit.apply(x)
    angle = truth.angles(torch.arange(x.shape[1], device=device), x.shape[-1])
    if x.numel():
        truth.assert_close(y, x, truth.rotate(x, angle))
    assert torch.equal(x, kept)


def faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def has_huge_pages(size: int) -> bool:
    """Whether the system gives them now."""
    before = faults()
    with mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)
        for page in range(0, size, mmap.PAGESIZE):
            memory[page] = 1
    return faults() - before < size // mmap.PAGESIZE // 4


@pytest.fixture
def _small_pages() -> Iterator[None]:
    disable = 41  # PR_SET_THP_DISABLE
    if ctypes.CDLL(None).prctl(disable, 1, 0, 0, 0):
        pytest.skip("this system cannot refuse huge pages")
    yield
    ctypes.CDLL(None).prctl(disable, 0, 0, 0, 0)


LARGE = 64 << 20  # past malloc's largest threshold for memory that it keeps


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_large_result_comes_in_huge_pages(dtype: torch.dtype) -> None:
    if not has_huge_pages(LARGE):
        pytest.skip("the system gives no huge pages")
    q = torch.randn(1, LARGE // (1024 * dtype.itemsize), 8, 128).to(dtype)
    before = faults()
    y = ropekit.apply(q)
    assert faults() - before < LARGE // mmap.PAGESIZE // 4
    ropekit.apply_(q)
    assert torch.equal(y, q)


@pytest.mark.usefixtures("_small_pages")
def test_a_large_result_in_small_pages_is_copied_first() -> None:
    q = torch.randn(1, LARGE // 4096, 8, 128)
    k = torch.randn(1, 8, LARGE // 4096, 128).transpose(1, 2)
    with torch.profiler.profile() as profile:
        y, z = ropekit.apply(q, k)
    assert sum(event.name == "aten::copy_" for event in profile.events()) == 2
    ropekit.apply_(q, k)
    assert torch.equal(y, q)
    assert torch.equal(z, k)


def test_result_keeps_dense_strides(device: str) -> None:
    x = torch.randn(2, 4, 5, 16, device=device).transpose(1, 2)
    assert ropekit.apply(x).stride() == x.stride()
    assert ropekit.apply(x[..., :8]).is_contiguous()


LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0] * 8,
    "long_factor": [2.0] * 8,
    "original_max_position_embeddings": 4,
    "max_position_embeddings": 64,
}
AXES = {"axes": 3, "axis_layout": "chunked", "sections": [2, 3, 3]}
EMPTY = [(0, 5, 4), (2, 0, 4), (2, 5, 0), (0, 0, 0)]  # batch, tokens, heads


@pytest.mark.parametrize("sizes", EMPTY)
def test_nothing_is_rotated_whatever_the_positions(
    sizes: tuple[int, int, int], device: str
) -> None:
    batch, tokens, heads = sizes
    q, k = (torch.randn(batch, tokens, n, 16, device=device) for n in (heads, 2 * heads))
    ids = torch.arange(tokens, device=device)
    rows, lengths = ids.expand(batch, -1), torch.full((batch,), 7, device=device)
    bounds = torch.tensor([0, tokens], device=device)
    table = torch.ones(tokens, 8, device=device)
    ways: list[dict[str, Any]] = [
        {},
        {"positions": ids},
        {"positions": rows.contiguous()},
        {"positions": ids[None].int(), "sequence_offsets": lengths},
        {"positions": rows.expand(3, -1, -1), **AXES},
        {"positions": ids, "sequence_lengths": lengths, **LONGROPE},
        {"positions": ids, "cos": table, "sin": table},
    ]
    for way in ways:
        for x, y in zip((q, k), ropekit.apply(q, k, **way), strict=True):
            assert (y.shape, y.dtype) == (x.shape, x.dtype)
        assert ropekit.apply(None, k, **way).shape == k.shape
        ropekit.apply_(q, k, **way)
        leaf = q.clone().requires_grad_()
        ropekit.apply(leaf, **way).sum().backward()
        assert leaf.grad is not None and leaf.grad.shape == q.shape
    for way in ({}, {"positions": ids}, {"positions": ids.int()}):
        packed = torch.randn(tokens, heads, 16, device=device)
        y = ropekit.apply(packed, layout="thd", cu_seqlens=bounds, **way)
        assert y.shape == packed.shape
    none = torch.empty(0, 4, 16, device=device)
    assert ropekit.apply(none, layout="thd", cu_seqlens=bounds[:1]).shape == none.shape


def test_tokens_of_no_sequence_pass(device: str) -> None:
    q = torch.randn(5, 4, 16, device=device)
    bounds, none = torch.zeros(1, dtype=torch.int64, device=device), torch.arange(0, device=device)
    ids = torch.arange(5, device=device)
    options = {"layout": "thd", "cu_seqlens": bounds, "sequence_offsets": none, "positions": ids}
    assert torch.equal(ropekit.apply(q, **options), q)
    assert torch.equal(ropekit.apply(q, sequence_lengths=none, **options, **LONGROPE), q)


def test_a_rotation_that_nothing_describes_is_of_base_10000(device: str) -> None:
    x = torch.randn(2, 7, 3, 32, device=device)
    assert torch.equal(ropekit.apply(x), ropekit.apply(x, rope_theta=10000.0, rotary_dim=32))
    for function in (ropekit.apply, ropekit.attention, ropekit.explain):
        assert "base 10000" in (function.__doc__ or "")


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_positions(dtype: torch.dtype, device: str) -> None:
    q = make("bshd", 4, torch.float32, device)
    rows = torch.tensor([[7, 1, 100000, 2, 3], [0, 5, 9, 131071, 4]], device=device, dtype=dtype)
    for positions in (rows, rows[:1], rows[0], rows[:1].expand(2, -1), rows[:, :1].expand(2, 5)):
        y = ropekit.apply(q, positions=positions, position_offset=11)
        full = (positions if positions.dim() == 2 else positions[None]).long() + 11
        truth.assert_close(y, q, truth.rotate(q, truth.angles(full, 16)))


def test_sequence_offsets(device: str) -> None:
    q = make("bhsd", 4, torch.float32, device)
    offsets = torch.tensor([3, 1000], device=device)
    y = ropekit.apply(q, layout="bhsd", sequence_offsets=offsets)
    angle = truth.angles(offsets[:, None] + torch.arange(5, device=device), 16)
    truth.assert_close(y, q, truth.rotate(q, angle, "bhsd"))


def test_packed_is_each_sequence_alone(device: str) -> None:
    q = torch.randn(9, 4, 16, device=device)
    bounds = torch.tensor([0, 2, 2, 9], device=device, dtype=torch.int32)
    packed = ropekit.apply(q, cu_seqlens=bounds, layout="thd")
    for start, end in ((0, 2), (2, 9)):
        alone = ropekit.apply(q[None, start:end])[0]
        assert torch.equal(packed[start:end], alone)


def test_index_tensors_of_two_types(device: str) -> None:
    q, k = torch.randn(9, 4, 16, device=device), torch.randn(9, 2, 16, device=device)
    wide = {
        "positions": torch.arange(9, device=device) + 2**31 - 4,
        "cu_seqlens": torch.tensor([0, 2, 2, 9], device=device),
        "sequence_offsets": torch.tensor([0, 3, -5], device=device),
        "sequence_lengths": torch.tensor([3, 9, 2], device=device),
    }
    options = {"layout": "thd", **LONGROPE}
    expected = ropekit.apply(q, k, **wide, **options)
    for name in ("cu_seqlens", "sequence_offsets", "sequence_lengths"):
        mixed = {**wide, name: wide[name].int()}
        for found, y in zip(ropekit.apply(q, k, **mixed, **options), expected, strict=True):
            assert torch.equal(found, y)
        x = q.clone()
        ropekit.apply_(x, **mixed, **options)
        assert torch.equal(x, expected[0])
        leaf = q.clone().requires_grad_()
        weight = torch.randn_like(q)
        ropekit.apply(leaf, **mixed, **options).backward(weight)
        turned = ropekit.apply(weight, **wide, direction="transpose", **options)
        assert torch.equal(leaf.grad, turned)
    few = {"positions": torch.arange(9, device=device).int()[None].expand(1, -1), "layout": "thd"}
    few["sequence_offsets"] = torch.tensor([2], device=device)
    assert torch.equal(ropekit.apply(q, **few), ropekit.apply(q, layout="thd", position_offset=2))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_two_types_wait_for_nothing() -> None:
    q, ids = torch.randn(1, 5, 4, 16, device="cuda"), torch.arange(5, device="cuda")
    offsets = torch.tensor([3], device="cuda", dtype=torch.int32)
    ropekit.apply(q, positions=ids, sequence_offsets=offsets)
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = ropekit.apply(q, positions=ids, sequence_offsets=offsets)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(found, ropekit.apply(q, position_offset=3))


def test_boundaries_that_fall(device: str) -> None:
    q = torch.randn(9, 4, 16, device=device)
    bounds = torch.tensor([0, 6, 2, 9], device=device)
    if device == "cpu":
        with pytest.raises(ValueError, match=r"cu_seqlens\[1\] is 6 and cu_seqlens\[2\] is 2"):
            ropekit.apply(q, layout="thd", cu_seqlens=bounds)
        return
    found = ropekit.apply(q, layout="thd", cu_seqlens=bounds)
    of_first = ropekit.apply(q, layout="thd")
    of_last = ropekit.apply(q, layout="thd", position_offset=-2)
    assert torch.equal(found[:2], of_first[:2])
    assert torch.equal(found[6:], of_last[6:])
    for t in range(2, 6):
        assert any(torch.equal(found[t], y[t]) for y in (of_first, of_last))


def test_sequences_that_reach_past_the_tokens(device: str) -> None:
    q = torch.randn(5, 4, 16, device=device)
    bounds = torch.tensor([-3, 2, 99], device=device)
    found = ropekit.apply(q, layout="thd", cu_seqlens=bounds)
    assert torch.equal(found[:2], ropekit.apply(q[:2], layout="thd", position_offset=3))
    assert torch.equal(found[2:], ropekit.apply(q[2:], layout="thd"))


def test_tables_of_each_width_and_row(device: str) -> None:
    q = make("bshd", 4, torch.float32, device)
    positions = torch.tensor([4, 0, 2, 2, 1], device=device)
    angle = truth.angles(torch.arange(6, device=device), 16)
    half = (angle.cos().float(), angle.sin().float())
    full = tuple(torch.cat((t, t), -1) for t in half)
    expected = truth.rotate(q, angle[positions])
    for cos, sin in (half, full):
        truth.assert_close(ropekit.apply(q, positions=positions, cos=cos, sin=sin), q, expected)
        rows = [t[positions][None].expand(2, -1, -1) for t in (cos, sin)]
        truth.assert_close(ropekit.apply(q, cos=rows[0], sin=rows[1]), q, expected)


def test_tables_of_each_sequence(device: str) -> None:
    q = make("bshd", 4, torch.float32, device)
    cos, sin = torch.rand(2, 5, 8, device=device), torch.rand(2, 5, 8, device=device)
    rows = [ropekit.apply(q[b : b + 1], cos=cos[b], sin=sin[b]) for b in range(2)]
    assert torch.equal(ropekit.apply(q, cos=cos, sin=sin), torch.cat(rows))


def test_model_dtype_arithmetic_is_eager_pytorch(device: str) -> None:
    q = make("bshd", 4, torch.bfloat16, device)
    angle = truth.angles(torch.arange(5, device=device), 16)
    cos, sin = (torch.cat((t, t), -1).bfloat16() for t in (angle.cos(), angle.sin()))
    turned = torch.cat((-q[..., 8:], q[..., :8]), -1)
    eager = q * cos[None, :, None] + turned * sin[None, :, None]
    assert torch.equal(ropekit.apply(q, cos=cos, sin=sin, arithmetic="model_dtype"), eager)


def test_rope_is_the_interleaved_case(device: str) -> None:
    q, k = make("bshd", 4, torch.float32, device), make("bshd", 2, torch.float32, device)
    angle = truth.angles(torch.arange(5, device=device), 16, 500.0)
    for x, y in zip((q, k), ropekit.rope(q, k, 8, theta=500.0), strict=True):
        truth.assert_close(y, x, truth.rotate(x, angle, interleaved=True))


def test_directions_undo_and_scale(device: str) -> None:
    q = make("bshd", 4, torch.float64, device)
    config = ropekit.Config(
        rope_type="yarn", factor=4.0, original_max_position_embeddings=64, rope_theta=1e4
    )
    forward = ropekit.apply(q, config=config)
    factor = config.frequencies(16)[1]
    assert factor > 1
    back = ropekit.apply(forward, config=config, direction="inverse")
    torch.testing.assert_close(back, q, rtol=0, atol=1e-14)
    turned = ropekit.apply(forward, config=config, direction="transpose")
    torch.testing.assert_close(turned, q * factor**2, rtol=0, atol=1e-14)


def test_several_axes_with_equal_ids_are_one(device: str) -> None:
    q = make("bshd", 4, torch.float32, device)
    ids = torch.arange(5, device=device)
    axes = {"axes": 3, "axis_layout": "chunked", "sections": [2, 3, 3]}
    one = ropekit.apply(q, positions=ids)
    assert torch.equal(ropekit.apply(q, positions=ids.expand(3, 1, 5), **axes), one)
    other = torch.stack((ids, ids * 2, ids * 3))[:, None].expand(3, 2, 5)
    angle = torch.cat(
        [
            truth.angles(other[a], 16)[..., s]
            for a, s in enumerate((slice(0, 2), slice(2, 5), slice(5, 8)))
        ],
        -1,
    )
    truth.assert_close(ropekit.apply(q, positions=other, **axes), q, truth.rotate(q, angle))


def test_mla_slices_of_other_widths(device: str) -> None:
    q = torch.randn(2, 5, 4, 24, device=device)
    k = torch.randn(2, 5, 1, 8, device=device)
    options = {"rotary_dim": 8, "rotary_offset": 16, "k_head_dim": 8}
    q_out, k_out = ropekit.apply(q, k, **options)
    assert torch.equal(q_out[..., :16], q[..., :16])
    assert torch.equal(q_out[..., 16:], ropekit.apply(q[..., 16:].contiguous()))
    assert torch.equal(k_out, ropekit.apply(k))
    assert torch.equal(ropekit.apply(None, k, **options), k_out)


def test_position_flag_tells_of_a_token_outside_the_table() -> None:
    if not torch.cuda.is_available():
        pytest.skip("a flag is set by asynchronous devices alone")
    q = torch.randn(1, 4, 2, 16, device="cuda")
    table = torch.ones(3, 8, device="cuda")
    flag = torch.zeros(1, dtype=torch.int32, device="cuda")
    ropekit.apply_(q, cos=table, sin=table, position_flag=flag)
    assert flag.item() == 1
