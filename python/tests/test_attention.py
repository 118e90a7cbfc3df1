"""attention beside PyTorch's, and beside itself: rotated, packed, padded or in parts."""

from __future__ import annotations

from typing import Any

import pytest
import ropekit
import torch
import truth
from attention_truth import assert_within, attend, pinned, visible
from torch.nn.functional import pad

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
THETA = 5e5
MASKS: dict[str, dict[str, Any]] = {
    "causal": {},
    "full": {"causal": False},
    "causal window=3": {"window": 3},
    "full window=4 right=2": {"causal": False, "window": 4, "window_right": 2},
    "full right=1": {"causal": False, "window_right": 1},
    "full right=0": {"causal": False, "window_right": 0},
    "full window=4 right=0": {"causal": False, "window": 4, "window_right": 0},
    "causal right=0": {"causal": True, "window_right": 0},
    "causal chunk=4": {"causal": True, "chunk": 4},
    "full window=3 chunk=4": {"causal": False, "chunk": 4, "window": 3},
}


def tensors_of(
    m: int,
    n: int,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    *,
    heads: tuple[int, int] = (4, 2),
    dims: tuple[int, int] = (64, 64),
) -> list[torch.Tensor]:
    """q, k and v of two batch rows."""
    shapes = (m, heads[0], dims[0]), (n, heads[1], dims[0]), (n, heads[1], dims[1])
    return [torch.randn(2, *shape, device=device).to(dtype) for shape in shapes]


def rotated(q: torch.Tensor, k: torch.Tensor, **fields: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """As the call rotates: queries are the last of the keys."""
    start = k.shape[1] - q.shape[1]
    return (
        ropekit.apply(q, position_offset=start, **fields),
        ropekit.apply(k, **fields),
    )


# ---- values ----


@pytest.mark.parametrize("m, n", [(9, 9), (1, 11), (5, 12)])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_masks(dtype: torch.dtype, mask: str, m: int, n: int, device: str) -> None:
    q, k, v = tensors_of(m, n, dtype, device)
    out, lse = ropekit.attention(q, k, v, return_lse=True, rope_theta=THETA, **MASKS[mask])
    turned = rotated(q, k, rope_theta=THETA)
    assert_within(out, lse, attend(*turned, v, visible(m, n, mask).to(device)))


NONE: list[dict[str, Any]] = [
    {"window": 0, "chunk": 0, "softcap": 0},
    {"window": -1, "window_right": -1, "chunk": -1, "softcap": -1},
    {"softcap": 0.0},
    {"softcap": -1.0},
]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("options", NONE)
def test_numbers_that_are_none(options: dict[str, Any], causal: bool) -> None:
    assert ropekit.Config(**options) == ropekit.Config()
    limited = ropekit.Config(window=2, chunk=2, softcap=2.0, rope_theta=THETA)
    free = limited.replace(**dict.fromkeys(options))
    assert limited.replace(**options) == free
    q, k, v = tensors_of(5, 7)
    wanted = ropekit.attention(q, k, v, config=free, causal=causal)
    found = ropekit.attention(q, k, v, config=limited, causal=causal, **options)
    assert torch.equal(found, wanted)
    told = ropekit.explain(q, k, v, config=limited, causal=causal, **options)
    assert told.config == f"{free.text} mask={'causal' if causal else 'full'}"
    layer = ropekit.RoPEAttention(64, 1, config=limited, causal=causal, **options)
    assert layer.config == free


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("left, right", [(-1, -1), (-1, 0), (0, -1), (0, 0), (3, 0), (2, 1)])
def test_windows_of_flash_attention(left: int, right: int, causal: bool, device: str) -> None:
    """docs/python.md maps window_size=(left, right), of which -1 is no limit."""
    q, k, v = tensors_of(5, 8, device=device)
    own, key = (torch.arange(5) + 3)[:, None], torch.arange(8)
    seen = (left < 0) | (key >= own - left)
    beyond = 0 if causal else right  # as flash-attention has it
    seen = seen & ((beyond < 0) | (key <= own + beyond))
    options = {"causal": causal, "window": left + 1, "window_right": beyond}
    out, lse = ropekit.attention(q, k, v, rotate="none", return_lse=True, **options)
    assert_within(out, lse, attend(q, k, v, seen.to(device)))


@pytest.mark.parametrize("heads", [(4, 4), (4, 1), (6, 3)])
@pytest.mark.parametrize("dims", [(16, 16), (192, 128), (80, 96), (576, 512)])
def test_heads_and_widths(heads: tuple[int, int], dims: tuple[int, int], device: str) -> None:
    q, k, v = tensors_of(6, 8, torch.bfloat16, device, heads=heads, dims=dims)
    out, lse = ropekit.attention(q, k, v, return_lse=True)
    assert_within(out, lse, attend(*rotated(q, k), v, visible(6, 8, "causal").to(device)))


@pytest.mark.parametrize("sink_dtype", [None, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("options", [{}, {"scale": 0.3}, {"softcap": 2.0}])
def test_scores(options: dict[str, Any], sink_dtype: torch.dtype | None, device: str) -> None:
    q, k, v = tensors_of(5, 7, torch.bfloat16, device)
    sinks = None if sink_dtype is None else torch.randn(4, device=device).to(sink_dtype)
    out, lse = ropekit.attention(q, k, v, sinks=sinks, return_lse=True, **options)
    seen = visible(5, 7, "causal").to(device)
    assert_within(out, lse, attend(*rotated(q, k), v, seen, sinks=sinks, **options))


def test_the_rotation_is_that_of_the_definition(device: str) -> None:
    """From unrotated q and k in float64, nothing of ropekit on the way."""
    q, k, v = tensors_of(5, 7, device=device)
    angle = truth.angles(torch.arange(7)[None], 64, THETA).to(device)
    expected = attend(
        *(truth.rotate(q, angle[:, 2:]), truth.rotate(k, angle), v.double()),
        visible(5, 7, "causal").to(device),
    )
    found = ropekit.attention(q, k, v, rope_theta=THETA)
    torch.testing.assert_close(found.double(), expected.out, rtol=0, atol=3e-6)


@pytest.mark.parametrize("keys", [5, 32, 40])
@pytest.mark.parametrize("batched", [False, True])
def test_trees(keys: int, batched: bool, device: str) -> None:
    q, k, v = tensors_of(6, 45, device=device)
    shape = (2, 6, keys) if batched else (6, keys)
    tree = torch.rand(shape, device=device) < 0.5
    tree[..., 0, :] = False
    seen = torch.cat((torch.ones(*shape[:-1], 45 - keys, device=device).bool(), tree), -1)
    out, lse = ropekit.attention(q, k, v, tree_mask=tree, return_lse=True)
    assert_within(out, lse, attend(*rotated(q, k), v, seen))
    words = torch.zeros(*shape[:-1], (keys + 31) // 32, dtype=torch.int32)
    for *row, key in tree.nonzero().tolist():
        at = (*row, key // 32)
        words[at] |= -(2**31) if key % 32 == 31 else 1 << key % 32
    given = ropekit.attention(q, k, v, tree_mask=words.to(device), tree_keys=keys)
    assert torch.equal(given, out)


@pytest.mark.parametrize("options", [{"window": 3}, {"window": 7}, {"chunk": 4}])
@pytest.mark.parametrize("ids", [False, True])
def test_trees_with_a_window(options: dict[str, int], ids: bool, device: str) -> None:
    """Drafts of a sliding layer over a cache: siblings have one position. Two nodes have two
    children each; a node sees its ancestors."""
    parents, depths, before = [0, 0, 0, 1, 1, 2, 2], [0, 1, 1, 2, 2, 2, 2], 38
    tree = torch.eye(7).bool()
    for node, parent in enumerate(parents[1:], 1):
        tree[node] |= tree[parent]
    at = before + (torch.tensor(depths) if ids else torch.arange(7))
    of_keys = torch.cat((torch.arange(before), at))
    seen = torch.cat((torch.ones(7, before).bool(), tree), 1)
    if "window" in options:
        seen &= at[:, None] - of_keys < options["window"]
    else:
        seen &= at[:, None] // options["chunk"] == of_keys // options["chunk"]
    tree, seen, at, of_keys = (x.to(device) for x in (tree, seen, at, of_keys))
    q, k, v = tensors_of(7, 45, device=device)
    turned = ropekit.apply(q, positions=at), ropekit.apply(None, k, positions=of_keys)
    wanted = attend(*turned, v, seen)
    explicit = torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(1, 2) for x in (*turned, v)), attn_mask=seen, enable_gqa=True
    )
    torch.testing.assert_close(wanted.out.float(), explicit.transpose(1, 2), rtol=0, atol=1e-5)
    lengths = torch.full((2,), 45, dtype=torch.int32, device=device)
    given = {"tree_mask": tree, "return_lse": True, **options}
    positions = {"positions": at} if ids else {}
    both = {"positions": at, "k_positions": of_keys} if ids else {}
    cached = {"k_cache": turned[1], "v_cache": v, "k_lengths": lengths, **given}
    for out, lse in (
        ropekit.attention(q, **cached, positions=at)
        if ids
        else ropekit.attention(turned[0], **cached, rotate="none"),
        ropekit.attention(turned[0], turned[1], v, rotate="none", **given, **positions),
        ropekit.attention(turned[0], **cached, rotate="none", **positions),
        ropekit.attention(q, k, v, **given, **both),
    ):
        assert_within(out, lse, wanted)


@pytest.mark.parametrize("layout", ["bshd", "bhsd", "thd"])
def test_keys_of_no_tokens(layout: str, device: str) -> None:
    """As sequences whose lengths are 0: out is 0, and lse of the sink alone."""
    q = torch.randn(2, 3, 4, 64, device=device, requires_grad=True)
    k, v = (torch.zeros(2, 0, 2, n, device=device, requires_grad=True) for n in (64, 32))
    sinks = torch.randn(4, device=device)
    options: dict[str, Any] = {"layout": layout, "sinks": sinks, "return_lse": True}
    given = [x.transpose(1, 2) if layout == "bhsd" else x for x in (q, k, v)]
    if layout == "thd":
        given = [x.flatten(0, 1) for x in given]
        bounds = torch.tensor([0, 2, 6], device=device)
        options |= {"cu_seqlens": bounds, "k_cu_seqlens": bounds * 0}
    out, lse = ropekit.attention(*given, **options)
    assert out.shape == (*given[0].shape[:-1], 32) and not out.any()
    wide = sinks[:, None] if layout == "bhsd" else sinks
    torch.testing.assert_close(lse, wide.expand(lse.shape))
    for found, x in zip(torch.autograd.grad(out.sum(), given), given, strict=True):
        assert found.shape == x.shape and not found.any()
    with torch.no_grad():
        del options["sinks"], options["return_lse"]
        assert not ropekit.attention(*given, **options).any()
        assert not ropekit.attention(*given, causal=False, rotate="none", **options).any()
    assert ropekit.explain(*given, **options).kernel != "sdpa"
    compiled = torch.compile(ropekit.attention, fullgraph=True, backend="eager")
    found = compiled(*given, **options)
    assert found.shape == out.shape and not found.any()


def test_a_row_that_sees_no_key(device: str) -> None:
    q, k, v = tensors_of(3, 3, device=device)
    tree = torch.zeros(3, 3, device=device).bool()
    k[:, 1] = float("nan")
    v[:, 2] = float("inf")
    out, lse = ropekit.attention(q, k, v, tree_mask=tree, return_lse=True)
    assert out.count_nonzero() == 0
    assert torch.equal(lse, torch.full_like(lse, float("-inf")))
    sinks = torch.randn(4, device=device)
    out, lse = ropekit.attention(q, k, v, tree_mask=tree, sinks=sinks, return_lse=True)
    assert out.count_nonzero() == 0
    torch.testing.assert_close(lse, sinks.expand_as(lse), rtol=1e-6, atol=1e-6)


# ---- the same bits ----

ROTATIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "a part": {"rotary_dim": 32, "rotary_offset": 16, "pairing_in": "interleaved"},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    "f32": {"angle_mode": "f32", "rope_theta": THETA},
}


@pytest.mark.parametrize("m, n", [(8, 8), (1, 70), (6, 70)])
@pytest.mark.parametrize("name", ROTATIONS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_fused_equals_rotated_first(
    dtype: torch.dtype, name: str, m: int, n: int, device: str
) -> None:
    q, k, v = tensors_of(m, n, dtype, device)
    config = ropekit.Config(**ROTATIONS[name])
    turned_q, turned_k = rotated(q, k, config=config)
    found = ropekit.attention(q, k, v, config=config, return_lse=True)
    for options in (
        {"q": turned_q, "k": turned_k, "rotate": "none"},
        {"q": turned_q, "k": turned_k, "rotation": "off"},
        {"q": q, "k": turned_k, "rotate": "q", "config": config},
    ):
        other = ropekit.attention(v=v, return_lse=True, **options)
        assert all(torch.equal(a, b) for a, b in zip(found, other, strict=True))


@pytest.mark.parametrize("ids", [torch.int32, torch.int64])
def test_positions(ids: torch.dtype, device: str) -> None:
    q, k, v = tensors_of(4, 6, torch.bfloat16, device)
    q_ids = torch.randint(0, 1000, (2, 4), device=device).to(ids)
    k_ids = torch.randint(0, 1000, (6,), device=device).to(ids)
    found = ropekit.attention(q, k, v, positions=q_ids, k_positions=k_ids)
    turned = ropekit.apply(q, positions=q_ids), ropekit.apply(None, k, positions=k_ids)
    assert torch.equal(found, ropekit.attention(*turned, v, rotate="none"))
    # One list serves both where they are the same tokens; offsets move both.
    own = k_ids.expand(2, 6)
    turned = ropekit.apply(k, k, positions=own)
    found = ropekit.attention(k, k, v, positions=own)
    assert torch.equal(found, ropekit.attention(*turned, v, rotate="none"))
    offsets = torch.tensor([3, 900], device=device)
    moved: dict[str, Any] = {"position_offset": 7, "sequence_offsets": offsets}
    found = ropekit.attention(k, k, v, **moved)
    turned = ropekit.apply(k, k, **moved)
    assert torch.equal(found, ropekit.attention(*turned, v, rotate="none"))


def test_tables_and_axes(device: str) -> None:
    q, k, v = tensors_of(5, 5, device=device)
    angle = torch.rand(40, 32, device=device)
    tables: dict[str, Any] = {"cos": angle.cos(), "sin": angle.sin()}
    ids = torch.randint(0, 40, (2, 5), device=device)
    found = ropekit.attention(q, k, v, positions=ids, **tables)
    turned = ropekit.apply(q, k, positions=ids, **tables)
    assert torch.equal(found, ropekit.attention(*turned, v, rotate="none"))
    config = ropekit.Config(axes=3, axis_layout="chunked", sections=[16, 8, 8])
    ids = torch.randint(0, 40, (3, 2, 5), device=device)
    found = ropekit.attention(q, k, v, positions=ids, config=config)
    turned = ropekit.apply(q, k, positions=ids, config=config)
    assert torch.equal(found, ropekit.attention(*turned, v, rotate="none"))


@pytest.mark.parametrize("layout", ["bhsd", "sbhd"])
def test_layouts(layout: str, device: str) -> None:
    order = {"bhsd": (0, 2, 1, 3), "sbhd": (1, 0, 2, 3)}[layout]
    q, k, v = tensors_of(5, 7, torch.bfloat16, device, dims=(64, 32))
    out, lse = ropekit.attention(q, k, v, return_lse=True)
    moved = [x.permute(order).contiguous() for x in (q, k, v)]
    found, found_lse = ropekit.attention(*moved, layout=layout, return_lse=True)
    assert torch.equal(found, out.permute(order))
    assert torch.equal(found_lse, lse.permute(order[:3]))
    if layout == "bhsd":  # the next product reads it by token
        assert found.transpose(1, 2).is_contiguous()
    views = torch.cat((q, k[:, -5:], k[:, :5]), 2).split([4, 2, 2], 2)
    wanted = ropekit.attention(*(x.contiguous() for x in views))
    assert torch.equal(ropekit.attention(*views), wanted)


@pytest.mark.parametrize("mask", MASKS)
def test_packed_equals_one_by_one(mask: str, device: str) -> None:
    counts = [(3, 3), (1, 9), (0, 2), (4, 6)]
    parts = [[x[0] for x in tensors_of(m, n, torch.bfloat16, device)] for m, n in counts]
    q, k, v = (torch.cat(x) for x in zip(*parts, strict=True))
    bounds = torch.tensor([[0, *x] for x in zip(*counts, strict=True)], device=device).cumsum(1)
    options = {**MASKS[mask], **pinned(q)}
    found = ropekit.attention(
        *(q, k, v),
        cu_seqlens=bounds[0],
        k_cu_seqlens=bounds[1].int(),
        return_lse=True,
        **options,
    )
    alone = [
        ropekit.attention(*(x[None] for x in part), return_lse=True, **options)
        for part in parts
        if len(part[0])
    ]
    for x, own in zip(found, zip(*alone, strict=True), strict=True):
        assert torch.equal(x, torch.cat([row[0] for row in own]))


def test_lengths_beside_boundaries(device: str) -> None:
    """flash-attention's seqused_q and seqused_k: of its part a sequence uses the first rows."""
    used = [(3, 3), (1, 6), (0, 2), (4, 5)]
    parts = [[x[0] for x in tensors_of(m, n, torch.bfloat16, device)] for m, n in used]
    tight = [torch.cat(x) for x in zip(*parts, strict=True)]
    loose = [
        torch.cat([pad(x, (0, 0, 0, 0, 0, 2), value=torch.nan) for x in row])
        for row in zip(*parts, strict=True)
    ]
    lengths = torch.tensor(used, device=device).T.contiguous()
    bounds, wide = (pad((lengths + more).cumsum(1), (1, 0)) for more in (0, 2))
    rows = torch.cat([torch.arange(m) + wide[0, s].cpu() for s, (m, _) in enumerate(used)])
    options = {"return_lse": True, "rope_theta": 500.0, **pinned(tight[0])}
    wanted = ropekit.attention(*tight, cu_seqlens=bounds[0], k_cu_seqlens=bounds[1], **options)
    found = ropekit.attention(
        *loose,
        cu_seqlens=wide[0],
        k_cu_seqlens=wide[1],
        q_lengths=lengths[0],
        k_lengths=lengths[1].int(),
        **options,
    )
    for x, y, empty in zip(found, wanted, (0, float("-inf")), strict=True):
        assert torch.equal(x[rows], y)
        x[rows] = empty
        assert torch.equal(x, torch.full_like(x, empty))


def test_packed_keys_have_the_boundaries_of_queries(device: str) -> None:
    _, k, v = (x[0] for x in tensors_of(7, 7, device=device))
    q, bounds = torch.randn(7, 4, 64, device=device), torch.tensor([0, 3, 7], device=device)
    found = ropekit.attention(q, k, v, cu_seqlens=bounds)
    assert torch.equal(found, ropekit.attention(q, k, v, cu_seqlens=bounds, k_cu_seqlens=bounds))
    # Tokens past the end belong to no sequence.
    shorter = torch.tensor([0, 3, 5], device=device, dtype=torch.int32)
    out, lse = ropekit.attention(q, k, v, cu_seqlens=shorter, return_lse=True)
    assert torch.equal(out[:3], found[:3])
    assert out[5:].count_nonzero() == 0
    assert torch.equal(lse[5:], torch.full_like(lse[5:], float("-inf")))


def test_padded_equals_one_by_one(device: str) -> None:
    q, k, v = tensors_of(6, 9, torch.bfloat16, device)
    m, n = [4, 6], [5, 9]
    out, lse = ropekit.attention(
        *(q, k, v),
        q_lengths=torch.tensor(m, device=device),
        k_lengths=torch.tensor(n, device=device, dtype=torch.int32),
        return_lse=True,
        **pinned(q),
    )
    for i in range(2):
        own = [x[i : i + 1, :count] for x, count in ((q, m[i]), (k, n[i]), (v, n[i]))]
        alone = ropekit.attention(*own, return_lse=True, **pinned(q))
        assert torch.equal(out[i, : m[i]], alone[0][0])
        assert torch.equal(lse[i, : m[i]], alone[1][0])
    assert out[0, 4:].count_nonzero() == 0
    assert torch.equal(lse[0, 4:], torch.full_like(lse[0, 4:], float("-inf")))


@pytest.mark.parametrize("layout", ["bshd", "bhsd", "thd"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_parts_are_merged(dtype: torch.dtype, layout: str, device: str) -> None:
    q, k, v = tensors_of(5, 12, dtype, device)
    turned = rotated(q, k)
    q, k, v = (x[0] if layout == "thd" else x for x in (*turned, v))
    token = 0 if layout == "thd" else 1
    options: dict[str, Any] = {"rotate": "none", "causal": False, "return_lse": True}
    pieces = [ropekit.attention(q, *x, **options) for x in zip(
        k.split([3, 8, 1], token), v.split([3, 8, 1], token), strict=True
    )]  # fmt: skip
    if layout == "bhsd":
        pieces = [(out.transpose(1, 2), lse.transpose(1, 2)) for out, lse in pieces]
    out, lse = ropekit.attention_merge(*(list(x) for x in zip(*pieces, strict=True)))
    stacked = ropekit.attention_merge(*(torch.stack(x) for x in zip(*pieces, strict=True)))
    assert torch.equal(stacked[0], out)
    if layout == "bhsd":
        out, lse = out.transpose(1, 2), lse.transpose(1, 2)
    wanted = attend(q, k, v, visible(5, 12, "full").to(device))
    unit = torch.finfo(dtype).eps
    wanted.bound = 2 * wanted.bound + unit * v.abs().amax()  # of parts, each rounded
    wanted.lse_bound = 2 * wanted.lse_bound
    assert_within(out, lse, wanted)


def test_a_part_without_keys_counts_for_nothing(device: str) -> None:
    out = torch.randn(2, 1, 3, 4, 64, device=device)
    lse = torch.randn(2, 1, 3, 4, device=device)
    out[1], lse[1] = float("nan"), float("-inf")
    found = ropekit.attention_merge(out, lse)
    torch.testing.assert_close(found, (out[0], lse[0]), rtol=1e-6, atol=1e-6)
    lse[0] = float("-inf")
    found = ropekit.attention_merge(out, lse)
    assert found[0].count_nonzero() == 0
    assert torch.equal(found[1], lse[0])
