"""KeyValueCache under speculative decoding, beams and prompts of several lengths: the bits of plain
runs."""

from __future__ import annotations

from typing import Any

import pytest
import ropekit
import torch
from ropekit import RoPEAttention

BATCH, DIM, TOKENS = 3, 16, 24
LONGROPE: dict[str, Any] = {
    "rope_type": "longrope",
    "short_factor": [1.0 + 0.1 * i for i in range(DIM // 2)],
    "long_factor": [2.0 + 0.5 * i for i in range(DIM // 2)],
    "original_max_position_embeddings": 6,
    "max_position_embeddings": 64,
}
DYNAMIC: dict[str, Any] = {"rope_type": "dynamic", "factor": 2.0, "max_position_embeddings": 64}
FP8 = torch.float8_e4m3fn
# Fields of the layer, then page_size, capacity and dtype of its cache.
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "contiguous": ({}, {}),
    "pages": ({"qk_norm": True, "window": 9}, {"page_size": 5}),
    "ring": ({"window": 4, "ring": 8}, {"capacity": 8}),
    "ring in pages": ({"window": 4, "ring": 8}, {"capacity": 8, "page_size": 3}),
    "fp8": ({}, {"dtype": FP8}),
    "fp8 in pages": ({"rotate": "q"}, {"page_size": 5, "dtype": FP8}),
    "int8 ring": ({"window": 4, "ring": 8}, {"capacity": 8, "dtype": torch.int8}),
    "longrope": (LONGROPE, {"page_size": 5}),
    "dynamic": (DYNAMIC, {}),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> tuple[dict[str, Any], dict[str, Any]]:
    return KINDS[request.param]


@pytest.fixture(autouse=True)
def _no_grad() -> Any:
    with torch.no_grad():
        yield


class Run:
    """A layer with tokens to come, and caches of it."""

    def __init__(self, kind: tuple[dict[str, Any], dict[str, Any]], device: str) -> None:
        self.layer = RoPEAttention(64, 4, 2, DIM, device=device, **kind[0])
        self.options = {"capacity": TOKENS} | kind[1]
        self.all = [torch.randn(BATCH, TOKENS, heads, DIM, device=device) for heads in (4, 2, 2)]

    def cache(self, batch: int = BATCH) -> ropekit.KeyValueCache:
        return self.layer.make_cache(batch, **self.options)

    def step(self, cache: Any, first: int, last: int, rows: Any = slice(None)) -> torch.Tensor:
        return self.layer.attend(*(x[rows, first:last] for x in self.all), cache=cache)


def test_speculative_decoding_is_a_plain_decode(kind: Any, device: str) -> None:
    run = Run(kind, device)
    plain, cache = run.cache(), run.cache()
    steps = [(0, 6), *((n, n + 1) for n in range(6, TOKENS))]
    wanted = torch.cat([run.step(plain, *step) for step in steps], 1)
    found, n = [run.step(cache, 0, 6)], 6
    for accepted in (0, 1, 3, 2, 0, 3, 1, 2, 3, 3):
        rest = min(accepted + 1, TOKENS - n)
        own = [x.clone() for x in run.all]
        for x in run.all:  # a draft that is rejected from there on
            x[:, n + rest :] = torch.randn_like(x[:, n + rest :])
        found.append(run.step(cache, n, min(n + 4, TOKENS))[:, :rest])
        run.all = own
        n += rest
        cache.crop(n)
        assert cache.tokens == n and cache.lengths.tolist() == [n] * BATCH
    assert n == TOKENS and torch.equal(torch.cat(found, 1), wanted)


def test_rows_are_cropped_each_by_itself(kind: Any, device: str) -> None:
    run = Run(kind, device)
    lengths = [9, 7, 10]
    for given in (lengths, torch.tensor(lengths, device=device)):
        cache = run.cache()
        run.step(cache, 0, 6)
        run.step(cache, 6, 10)
        cache.crop(given)
        assert cache.lengths.tolist() == cache.counts() == lengths and cache.tokens == 10
    assert "7 to 10 of" in repr(cache)
    rows = [torch.stack([x[i, n : n + 2] for i, n in enumerate(lengths)]) for x in run.all]
    found = run.layer.attend(*rows, cache=cache)
    for i, n in enumerate(lengths):
        alone = run.cache(1)
        run.step(alone, 0, 6, slice(i, i + 1))
        run.step(alone, 6, n, slice(i, i + 1))
        assert torch.equal(found[i], run.step(alone, n, n + 2, slice(i, i + 1))[0])


@pytest.mark.parametrize("index", [[1, 1, 0], [2, 0, 2], [0, 1, 2]])
def test_beams_are_fresh_runs(index: list[int], kind: Any, device: str) -> None:
    run = Run(kind, device)
    for given in (index, torch.tensor(index, device=device)):
        cache, fresh = run.cache(), run.cache()
        for first, last in ((0, 6), (6, 7), (7, 9)):
            run.step(cache, first, last)
            run.step(fresh, first, last, index)
        cache.reorder(given)
        for n in range(9, 12):
            assert torch.equal(run.step(cache, n, n + 1), run.step(fresh, n, n + 1))
    cache.crop([10, 12, 11])
    cache.reorder(index)
    assert cache.lengths.tolist() == cache.counts() == [[10, 12, 11][i] for i in index]


def test_ragged_prompts_are_separate_calls(kind: Any, device: str) -> None:
    run = Run(kind, device)
    cache, first = run.cache(), [0] * BATCH
    alone = [run.cache(1) for _ in range(BATCH)]
    for new in ([6, 2, 4], [0, 1, 3], [1, 1, 1], [5, 3, 0], [3, 5, 2]):
        tokens = max(new) + 1
        rows = [torch.full((BATCH, tokens, *x.shape[2:]), float("nan")) for x in run.all]
        rows = [x.to(device) for x in rows]
        for x, own in zip(rows, run.all, strict=True):
            for i, n in enumerate(new):
                x[i, :n] = own[i, first[i] : first[i] + n]
        given: Any = new if sum(new) % 2 else torch.tensor(new, device=device)
        found = run.layer.attend(*rows, lengths=given, cache=cache)
        for i, n in enumerate(new):
            wanted = run.step(alone[i], first[i], first[i] + n, slice(i, i + 1))
            assert torch.equal(found[i, :n], wanted[0])
            assert not found[i, n:].any()
            first[i] += n
    assert cache.counts() == cache.lengths.tolist() == first
    whole = [x[:, :1] for x in run.all]  # all rows have a token again
    run.layer.attend(*whole, cache=cache)
    assert cache.counts() == [n + 1 for n in first]
    cache.reset()
    assert cache.is_even() and cache.tokens == 0


@pytest.mark.parametrize("fields", [{}, LONGROPE, DYNAMIC | {"max_position_embeddings": 4}])
@pytest.mark.parametrize("has_ids", [False, True])
def test_ragged_rows_without_a_cache(has_ids: bool, fields: dict[str, Any], device: str) -> None:
    layer, lengths = RoPEAttention(64, 4, 2, DIM, device=device, **fields), [7, 20, 3]
    x = torch.randn(BATCH, 20, 64, device=device)
    ids = torch.arange(20, device=device).expand(BATCH, -1) + (5 if has_ids else 0)
    longest = 20 + (5 if has_ids else 0)
    own = {"sequence_length": longest} if fields.get("rope_type") == "dynamic" else {}
    single = RoPEAttention(64, 4, 2, DIM, device=device, **fields, **own)
    single.load_state_dict(layer.state_dict())
    ids = ids.clone()
    for i, n in enumerate(lengths):
        ids[i, n:] = 10**6  # of padding
    cache = layer.make_cache(BATCH, 20)
    if device != "cpu" and own and has_ids:
        return  # a device's positions are not read
    for kept in (None, cache):
        found = layer(x, positions=ids if has_ids else None, lengths=lengths, cache=kept)
        for i, n in enumerate(lengths):
            part = x[i : i + 1, :n]
            wanted = single(part, positions=ids[i : i + 1, :n] if has_ids else None)
            torch.testing.assert_close(found[i : i + 1, :n], wanted, rtol=1e-5, atol=1e-5)


def test_what_a_cache_cannot_be_is_refused(device: str) -> None:
    run = Run(KINDS["ring"], device)
    cache = run.cache()
    run.step(cache, 0, 6)
    for n in range(6, 11):
        run.step(cache, n, n + 1)
    kept = cache.k.clone(), cache.lengths.clone()
    for lengths, text in (
        (12, r"lengths is 12; allowed is 0\.\.11"),
        (-1, r"lengths is -1; allowed is 0\.\.11"),
        (5, r"lengths\[0\] is 5; allowed is 0 or 6\.\.11, as a ring has lost earlier keys"),
        ([11, 12, 9], r"lengths\[1\] is 12; allowed is 0 or 6\.\.11, as a"),
        ([11, 9], "lengths has 2 entries; allowed is 3, one a sequence"),
        (torch.ones(1, 3, dtype=torch.int64), "lengths has 2 dimensions; allowed is 1"),
    ):
        with pytest.raises(ValueError, match=text):
            cache.crop(lengths)
    for index, text in (
        ([0, 1], "index has 2 entries; allowed is 3, one a sequence"),
        ([0, 1, 3], r"index\[2\] is 3; allowed is 0\.\.2"),
        ([0, -1, 1], r"index\[1\] is -1; allowed is 0\.\.2"),
    ):
        with pytest.raises(ValueError, match=text):
            cache.reorder(index)
    for wrong in ("two", [0.5, 1, 1], torch.ones(3)):
        with pytest.raises(TypeError, match=r"lengths(\[0\])? is .*; allowed is"):
            cache.crop(wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="index is int; allowed is a list or a tensor"):
        cache.reorder(1)  # type: ignore[arg-type]
    x = [y[:, :2] for y in run.all]
    for own, words in (
        ([1, 3, 0], r"lengths\[1\] is 3; allowed is 0\.\.2, the tokens of x"),
        ([1, 2], "lengths has 2 entries; allowed is 3"),
    ):
        for where in (None, cache):
            with pytest.raises(ValueError, match=words):
                run.layer.attend(*x, lengths=own, cache=where)
    cache.crop([6, 11, 0])
    assert cache.counts() == [6, 11, 0]
    cache.crop([6, 11, 0])
    with pytest.raises(ValueError, match=r"lengths\[0\] is 5; allowed is 0 or 6\.\.6"):
        cache.crop([5, 11, 0])
    with pytest.raises(
        ValueError, match=r"x has 6 tokens of sequence 0 and the cache 6, of which a"
    ):
        run.step(cache, 0, 6)
    assert torch.equal(cache.k, kept[0]) and cache.lengths.tolist() == [6, 11, 0]


def test_a_cache_of_8_bits_is_read_with_its_scales(device: str) -> None:
    run = Run(KINDS["fp8 in pages"], device)
    layer = RoPEAttention(64, 4, 2, DIM, device=device)
    cache = layer.make_cache(BATCH, **run.options)
    wanted = layer.attend(*run.all, cache=cache)
    assert torch.equal(ropekit.attention(run.all[0], cache=cache), wanted)
    assert "float8_e4m3fn" in repr(cache)
    with pytest.raises(
        ValueError, match=r"cache is given; allowed with k_cache, .* v_scale is None"
    ):
        ropekit.attention(run.all[0], cache=cache, v_scale=cache.v_scale)
    exact = layer.attend(*run.all)
    assert 1e-3 < (wanted - exact).abs().max() < 0.2
