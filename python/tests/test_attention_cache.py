"""attention over caches that append filled, beside attention over tensors."""

from __future__ import annotations

from typing import Any

import pytest
import ropekit
import torch
from attention_truth import pinned
from ropekit._cache import CacheLayout

HEADS, KV, DIM, SIZE, PAGES = 4, 2, 64, 4, 9
KEYS, QUERIES = (11, 6), 5  # keys of each sequence; queries are the last of them
EIGHT = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.int8)
TABLE = [[7, 2, 5], [0, 8, 3]]


def tensors_of(device: str, dtype: torch.dtype = torch.bfloat16) -> list[torch.Tensor]:
    """q of two rows; k and v padded to the longer sequence, with NaN."""
    q = torch.randn(2, QUERIES, HEADS, DIM, device=device)
    k, v = torch.randn(2, 2, max(KEYS), KV, DIM, device=device)
    for x in (k, v):
        x[1, KEYS[1] :] = float("nan")
    return [x.to(dtype) for x in (q, k, v)]


def caches_of(
    layout: CacheLayout, device: str, dtype: torch.dtype, pages: int = PAGES, size: int = SIZE
) -> list[torch.Tensor]:
    """Pages of NaN, so that what was not written shows."""
    shapes: dict[str, list[tuple[int, ...]]] = {
        "nhd": [(pages, size, KV, DIM)] * 2,
        "hnd": [(pages, KV, size, DIM)] * 2,
        "vllm": [(pages, KV, DIM // 8, size, 8), (pages, KV, DIM, size)],
    }
    fill = 0 if dtype == torch.int8 else float("nan")
    return [torch.full(s, fill, device=device).to(dtype) for s in shapes[layout]]


def lengths(device: str, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.tensor(KEYS, device=device, dtype=dtype)


def fill(k: torch.Tensor, v: torch.Tensor, **places: Any) -> None:
    """Tokens of both sequences, one sequence after the other."""
    bounds = torch.tensor([0, *KEYS], device=k.device).cumsum(0)
    flat = [torch.cat([x[i, :n] for i, n in enumerate(KEYS)]) for x in (k, v)]
    ropekit.append(None, *flat, cu_seqlens=bounds, **places)


def over_tensors(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any) -> Any:
    options |= {"k_lengths": lengths(str(q.device)), "return_lse": True, **pinned(q)}
    return ropekit.attention(q, k, v, **options)


def same(found: Any, wanted: Any) -> bool:
    return all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


@pytest.mark.parametrize("table_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("layout", ["nhd", "hnd", "vllm"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_pages_equal_tensors(
    dtype: torch.dtype, layout: CacheLayout, table_dtype: torch.dtype, device: str
) -> None:
    q, k, v = tensors_of(device, dtype)
    cache = dict(zip(("k_cache", "v_cache"), caches_of(layout, device, dtype), strict=True))
    table = torch.tensor(TABLE, device=device, dtype=table_dtype)
    places: dict[str, Any] = {"block_table": table, "cache_layout": layout, **cache}
    fill(k, v, **places)
    places |= pinned(q)
    for options in ({}, {"window": 3}, {"causal": False}, {"chunk": 4}, {"softcap": 3.0}):
        found = ropekit.attention(
            q, k_lengths=lengths(device, torch.int32), return_lse=True, **places, **options
        )
        assert same(found, over_tensors(q, k, v, **options))
    bounds = torch.tensor([0, QUERIES, 2 * QUERIES], device=device)
    packed = ropekit.attention(
        q.flatten(0, 1), cu_seqlens=bounds, k_lengths=lengths(device), max_seqlen_k=11, **places
    )
    assert torch.equal(packed.view_as(q), over_tensors(q, k, v)[0])


def test_a_page_for_each_sequence(device: str) -> None:
    """As a StaticCache: k is rotated when it is cached, or here."""
    q, k, v = tensors_of(device)
    wanted = over_tensors(q, k, v)
    for rotate in ("q", "qk"):
        k_cache, v_cache = caches_of("hnd", device, q.dtype, 2, 16)
        places: dict[str, Any] = {"k_cache": k_cache, "v_cache": v_cache, "cache_layout": "hnd"}
        fill(k, v, rotation="on" if rotate == "q" else "off", **places)
        places |= {"k_lengths": lengths(device), **pinned(q)}
        found = ropekit.attention(q, rotate=rotate, return_lse=True, **places)
        assert same(found, wanted)


@pytest.mark.parametrize("scales", ["one", "heads", "tokens"])
@pytest.mark.parametrize("kept", EIGHT)
def test_caches_of_8_bits(kept: torch.dtype, scales: str, device: str) -> None:
    q, k, v = tensors_of(device)
    k_cache, v_cache = caches_of("nhd", device, kept)
    table = torch.tensor(TABLE, device=device)
    places: dict[str, Any] = {"k_cache": k_cache, "v_cache": v_cache, "block_table": table}
    if scales == "tokens":
        given = [torch.ones(PAGES, SIZE, KV, device=device) for _ in range(2)]
        fill(k, v, k_scale_out=given[0], v_scale_out=given[1], **places)
    else:
        shape = () if scales == "one" else (KV,)
        given = [torch.rand(shape, device=device) * 0.02 + 0.03 for _ in range(2)]
        fill(k, v, k_scale=given[0], v_scale=given[1], **places)
    factors = [x if scales == "one" else x[..., None] for x in given]
    read = [
        (cache.float() * factor).to(q.dtype)[table].flatten(1, 2)
        for cache, factor in zip((k_cache, v_cache), factors, strict=True)
    ]
    places |= {"k_lengths": lengths(device), **pinned(q)}
    found = ropekit.attention(q, k_scale=given[0], v_scale=given[1], return_lse=True, **places)
    assert same(found, over_tensors(q, *read, rotate="q"))


@pytest.mark.parametrize("kept", EIGHT)
def test_caches_of_8_bits_without_scales_are_of_scale_1(kept: torch.dtype, device: str) -> None:
    q, k, v = tensors_of(device)
    table, one = torch.tensor(TABLE, device=device), torch.ones((), device=device)
    found = []
    for scale in (None, one):
        k_cache, v_cache = caches_of("nhd", device, kept)
        places: dict[str, Any] = {"k_cache": k_cache, "v_cache": v_cache, "block_table": table}
        places |= {"k_scale": scale, "v_scale": scale}
        fill(4 * k, 4 * v, **places)
        found += [ropekit.attention(q, k_lengths=lengths(device), **places)]
        found += [x[table].view(torch.int8) for x in (k_cache, v_cache)]
    assert same(found[:3], found[3:])
    for function in (ropekit.append, ropekit.attention):
        assert "scale 1" in (function.__doc__ or "")


def test_a_ring_holds_the_last_keys(device: str) -> None:
    ring, total = 4, 7
    q, k, v = (torch.randn(1, total, heads, DIM, device=device) for heads in (HEADS, KV, KV))
    k_cache, v_cache = caches_of("nhd", device, q.dtype, 1, ring)
    places: dict[str, Any] = {"k_cache": k_cache, "v_cache": v_cache, "ring": ring}
    ropekit.append(None, k, v, **places)
    step = q[:, -1:]
    found = ropekit.attention(step, k_lengths=torch.tensor([total], device=device), **places)
    assert torch.equal(found, ropekit.attention(step, k, v, window=ring))
    ids = torch.arange(ring, device=device)[None]  # of fewer keys than there are indices
    with pytest.raises(ValueError, match="k_positions is given; allowed with a ring is None"):
        ropekit.attention(
            step,
            rotate="qk",
            positions=ids[:, :1],
            k_positions=ids,
            k_lengths=ids[0, :1] + total,
            **places,
        )


@pytest.mark.parametrize("size", [SIZE, 16])
def test_one_row_for_keys_and_values(device: str, size: int) -> None:
    """DeepSeek's cache: 512 elements that are values, 64 more that are rotated. Hopper has a kernel
    for pages of 16."""
    rows = torch.randn(1, 10, 1, 576, device=device).bfloat16()
    q = torch.randn(1, 2, HEADS, 576, device=device).bfloat16()
    config = ropekit.Config(rotary_dim=64, rotary_offset=512, pairing_in="interleaved", scale=0.07)
    cache = torch.zeros(3, size, 576, device=device).bfloat16()
    table = torch.tensor([[2, 0, 1]], device=device)
    ropekit.append(
        None, rows, k_cache=cache, block_table=table, config=config.replace(
            k_head_dim=576, k_rotary_offset=512
        )
    )  # fmt: skip
    found = ropekit.attention(
        *(q, None, None),
        **{"k_cache": cache, "v_cache": cache[..., :512], "block_table": table},
        **{"k_lengths": torch.tensor([10], device=device), "config": config},
    )
    assert found.shape == (1, 2, HEADS, 512)
    whole = ropekit.attention(q, rows, rows[..., :512], config=config)
    assert torch.equal(found, whole) or (size == 16 and device == "cuda")
    torch.testing.assert_close(found, whole, rtol=2**-7, atol=2**-7)


def test_prefill_then_decode(device: str) -> None:
    """Tokens one by one over pages have the bits of all at once."""
    q, k, v = (torch.randn(1, 10, heads, DIM, device=device) for heads in (HEADS, KV, KV))
    config = ropekit.Config(rope_theta=5e5, window=6)
    k_cache, v_cache = caches_of("nhd", device, q.dtype)
    table = torch.tensor([[4, 1, 6]], device=device)
    places: dict[str, Any] = {"k_cache": k_cache, "v_cache": v_cache, "block_table": table}
    steps = []
    for first, last in ((0, 6), (6, 7), (7, 8), (8, 10)):
        part = slice(first, last)
        ropekit.append(None, k[:, part], v[:, part], position_offset=first, config=config, **places)
        count = torch.tensor([last], device=device)
        steps.append(ropekit.attention(q[:, part], k_lengths=count, config=config, **places))
    whole = ropekit.attention(q, k, v, config=config)
    assert torch.equal(torch.cat(steps, 1), whole)
