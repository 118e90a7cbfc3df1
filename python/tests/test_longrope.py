"""longrope, whose factors follow the longest position, over caches that grow past the original."""

from __future__ import annotations

from typing import Any

import pytest
import ropekit
import torch
from ropekit import Config, RoPEAttention

ORIGINAL, DIM = 16, 16
FIELDS: dict[str, Any] = {
    "rope_type": "longrope",
    "short_factor": [1.0 + 0.1 * i for i in range(DIM // 2)],
    "long_factor": [2.0 + 0.5 * i for i in range(DIM // 2)],
    "original_max_position_embeddings": ORIGINAL,
    "max_position_embeddings": 64,
}
MSCALES: dict[str, Any] = {"short_mscale": 1.1, "long_mscale": 1.3}


def close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


IDS = {
    "indices": None,
    "one row": torch.arange(24) * 3,
    "rows": torch.stack((torch.arange(24), torch.arange(24) // 2)),
}


@torch.no_grad()
@pytest.mark.parametrize("ids", IDS)
@pytest.mark.parametrize("page_size", [None, 5])
@pytest.mark.parametrize("fields", [{}, MSCALES, {"rotate": "q"}, {"qk_norm": True}])
def test_a_decode_past_the_original_length_is_a_whole_call(
    fields: dict[str, Any], page_size: int | None, ids: str, device: str
) -> None:
    layer = RoPEAttention(64, 4, 2, DIM, device=device, **FIELDS, **fields)
    x, positions = torch.randn(2, 24, 64, device=device), IDS[ids]
    positions = None if positions is None else positions.to(device)
    cache, first = layer.make_cache(2, 24, page_size), 0
    for part in x.split([ORIGINAL - 3, *(1,) * 7, 4], 1):
        last = first + part.shape[1]
        seen = None if positions is None else positions[..., :last]
        found = layer(part, cache=cache, positions=None if seen is None else seen[..., first:])
        close(found, layer(x[:, :last], positions=seen)[:, first:])
        first = last
    if ids == "indices":  # a cache that is read without its layer
        q, k, v = (torch.randn(2, 24, heads, DIM, device=device) for heads in (4, 2, 2))
        cache.reset()
        wanted = layer.attend(q, k, v, cache=cache)
        own: dict[str, Any] = {"config": layer.config, "cache": cache}
        if "qk_norm" not in fields:
            close(ropekit.attention(q, **own), wanted)
        if not fields:
            assert ropekit.explain(q, **own).config.endswith(" rotate=qk")


@torch.no_grad()
def test_positions_begin_and_end_between_calls(device: str) -> None:
    """Tokens of a call without positions have their index."""
    layer = RoPEAttention(64, 4, 2, DIM, device=device, **FIELDS)
    x = torch.randn(2, 20, 64, device=device)
    ids = torch.cat((torch.arange(6), torch.arange(40, 46), torch.arange(12, 20))).to(device)
    cache = layer.make_cache(2, 20)
    for first, last, given in ((0, 6, False), (6, 12, True), (12, 20, False)):
        own = ids[first:last] if given else None
        found = layer(x[:, first:last], cache=cache, positions=own)
        close(found, layer(x[:, :last], positions=ids[:last])[:, first:])


@torch.no_grad()
def test_a_cropped_cache_is_short_again(device: str) -> None:
    layer = RoPEAttention(64, 4, 2, DIM, device=device, **FIELDS)
    x, cache = torch.randn(2, 24, 64, device=device), layer.make_cache(2, 24)
    layer(x[:, :14], cache=cache)
    layer(x[:, 14:20], cache=cache)
    cache.crop(14)
    for n in range(14, 20):
        close(layer(x[:, n : n + 1], cache=cache), layer(x[:, : n + 1])[:, n:])


@torch.no_grad()
def test_a_window_in_a_ring(device: str) -> None:
    fields = {"window": 4, **FIELDS}
    layer = RoPEAttention(64, 4, 2, DIM, ring=6, device=device, **fields)
    plain = RoPEAttention(64, 4, 2, DIM, device=device, **fields)
    plain.load_state_dict(layer.state_dict())
    x, cache = torch.randn(2, 24, 64, device=device), layer.make_cache(2, 6)
    for last in range(1, 25):
        found = layer(x[:, last - 1 : last], cache=cache)
        close(found, plain(x[:, :last])[:, -1:])
    kept = cache.lengths.clone()
    with pytest.raises(ValueError, match="positions is given; allowed with a ring and longrope is"):
        layer(x[:, :1], cache=cache, positions=torch.arange(1, device=device))
    assert torch.equal(cache.lengths, kept)


@torch.no_grad()
@pytest.mark.parametrize("select", ["long", "short", "static"])
def test_a_choice_rotates_keys_ahead(select: Any, device: str) -> None:
    layer = RoPEAttention(64, 4, 2, DIM, device=device, longrope_select=select, **FIELDS)
    x, cache = torch.randn(2, 24, 64, device=device), layer.make_cache(2, 24)
    found = [layer(part, cache=cache) for part in x.split([10, 1, 13], 1)]
    close(torch.cat(found, 1), layer(x))
    assert cache.rotated


def test_positions_without_a_cache_have_gradients(device: str) -> None:
    layer = RoPEAttention(64, 4, 2, DIM, device=device, **FIELDS)
    x = torch.randn(2, 24, 64, device=device, requires_grad=True)
    ids = torch.arange(24, device=device)
    for given in (ids, ids[None], ids.int().expand(2, -1)):
        grads = [
            torch.autograd.grad(layer(x, positions=own).square().sum(), x)[0]
            for own in (given, None)
        ]
        close(*grads)
    with pytest.raises(ValueError, match=r"positions has the shape \[23\]; allowed is \[tokens\]"):
        layer(x, positions=ids[1:])
    with (
        torch.no_grad(),
        pytest.raises(ValueError, match=r"positions has the shape \[23\]; allowed is \[24\] or"),
    ):
        layer(x, positions=ids[1:], cache=layer.make_cache(2, 24))


@pytest.mark.parametrize("way", ["offset", "offsets", "packed"])
def test_append_refuses_two_sets_in_a_cache(way: str, device: str) -> None:
    """Where it can be seen: at the call that crosses the original length."""
    config, first, tokens = Config(**FIELDS), ORIGINAL - 2, 4
    k, v = (torch.randn(1, tokens, 2, DIM, device=device) for _ in range(2))
    caches = {name: torch.zeros(1, 24, 2, DIM, device=device) for name in ("k_cache", "v_cache")}
    offsets: dict[str, Any] = {"sequence_offsets": torch.tensor([first], device=device)}
    if way == "offset":
        offsets = {"position_offset": first}
    elif way == "packed":
        offsets["cu_seqlens"] = torch.tensor([0, tokens], device=device)
        k, v = k[0], v[0]
    if device == "cpu" or way == "offset":
        with pytest.raises(
            ValueError,
            match="sequence_lengths is not given; allowed where keys from 14 to 17 of a sequence "
            "are cached behind others across original_max_position_embeddings, 16, is",
        ):
            ropekit.append(None, k, v, config=config, **caches, **offsets)
        assert not any(x.any() for x in caches.values())
    length = torch.tensor([24], device=device)
    ropekit.append(None, k, v, config=config, sequence_lengths=length, **caches, **offsets)
    long = config.replace(longrope_select="long")
    wanted = ropekit.apply(None, k.view(1, 4, 2, DIM), config=long, position_offset=first)
    assert torch.equal(caches["k_cache"][:, first : first + tokens], wanted)


@pytest.mark.parametrize("first, tokens", [(0, 20), (3, 13), (17, 3)])
def test_append_of_one_set_is_taken(first: int, tokens: int, device: str) -> None:
    k, v = (torch.randn(1, tokens, 2, DIM, device=device) for _ in range(2))
    caches = {name: torch.zeros(1, 24, 2, DIM, device=device) for name in ("k_cache", "v_cache")}
    ropekit.append(None, k, v, position_offset=first, **FIELDS, **caches)


@torch.no_grad()
def test_append_and_attention_by_hand(device: str) -> None:
    """Keys that are cached as they come and rotate when they are read give a whole call."""
    q, k, v = (torch.randn(1, 24, heads, DIM, device=device) for heads in (4, 2, 2))
    caches = {name: torch.zeros(1, 24, 2, DIM, device=device) for name in ("k_cache", "v_cache")}
    config = Config(**FIELDS)
    for first, last in ((0, 14), (14, 18), (18, 24)):
        own = slice(first, last)
        ropekit.append(
            None, k[:, own], v[:, own], rotation="off", config=config,
            cache_starts=torch.tensor([first], device=device), **caches
        )  # fmt: skip
        count = torch.tensor([last], device=device)
        found = ropekit.attention(q[:, own], k_lengths=count, rotate="qk", config=config, **caches)
        whole = ropekit.attention(q[:, :last], k[:, :last], v[:, :last], config=config)
        close(found, whole[:, own])
