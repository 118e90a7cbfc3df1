"""Values of apply, apply_ and rope against float64."""

from __future__ import annotations

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


def test_result_keeps_dense_strides(device: str) -> None:
    x = torch.randn(2, 4, 5, 16, device=device).transpose(1, 2)
    assert ropekit.apply(x).stride() == x.stride()
    assert ropekit.apply(x[..., :8]).is_contiguous()


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
