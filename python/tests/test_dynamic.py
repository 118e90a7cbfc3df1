"""Dynamic scaling by the longest position of a call, beside Transformers' modules."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import ropekit
import torch
from ropekit import Config, RoPEAttention

transformers = pytest.importorskip("transformers")
import ropekit.transformers  # noqa: E402
from transformers.models.llama import modeling_llama  # noqa: E402

LIMIT, DIM = 32, 16
CONFIG = Config(
    rope_type="dynamic", factor=2.0, rope_theta=1e4, max_position_embeddings=LIMIT, head_dim=DIM
)


def theirs() -> Any:
    """Transformers' configuration of the same scaling."""
    return transformers.LlamaConfig(
        hidden_size=64,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_hidden_layers=1,
        max_position_embeddings=LIMIT,
        rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0},
        attn_implementation="eager",
    )


def rotated(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """[batch, tokens, heads, DIM] by a module of Transformers that has seen no other call."""
    cos, sin = modeling_llama.LlamaRotaryEmbedding(theirs()).to(x.device)(x, positions)
    heads = x.transpose(1, 2)
    return modeling_llama.apply_rotary_pos_emb(heads, heads, cos, sin)[0].transpose(1, 2)


def close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=2e-5)


def tensors(tokens: int, device: str, batch: int = 1) -> list[torch.Tensor]:
    return [torch.randn(batch, tokens, heads, DIM, device=device) for heads in (4, 2, 2)]


def test_twice_the_tokens_as_transformers(device: str) -> None:
    q, k, v = tensors(2 * LIMIT, device)
    ids = torch.arange(2 * LIMIT, device=device)[None]
    wanted = rotated(q, ids), rotated(k, ids)
    assert (wanted[0] - ropekit.apply(q, config=CONFIG, sequence_length=LIMIT)).abs().max() > 1
    k_out = torch.empty_like(k)
    found = ropekit.apply(q, k, config=CONFIG)
    appended = ropekit.append(q, k, k_out=k_out, config=CONFIG)
    ropekit.apply_(again := q.clone(), config=CONFIG)
    for x in (found[0], appended, again):
        close(x, wanted[0])
    for x in (found[1], k_out):
        close(x, wanted[1])
    whole = ropekit.attention(*wanted, v, rotate="none")
    for kernel in ("library", "sdpa"):
        close(ropekit.attention(q, k, v, config=CONFIG, kernel=kernel), whole)
    q.requires_grad_()
    for function in (
        lambda **n: ropekit.apply(q, config=CONFIG, **n),
        lambda **n: ropekit.attention(q, k, v, config=CONFIG, kernel="library", **n),
    ):
        grads = [
            torch.autograd.grad(function(**n).square().sum(), q)[0]
            for n in ({}, {"sequence_length": 2 * LIMIT})
        ]
        assert torch.equal(*grads)


def test_a_length_below_the_limit_scales_nothing(device: str) -> None:
    q = tensors(LIMIT, device)[0]
    assert torch.equal(ropekit.apply(q, config=CONFIG), ropekit.apply(q, rope_theta=1e4))


THD = {"layout": "thd"}
ROWS = [[*range(60)], [*range(59), 90]]
WAYS: dict[str, tuple[dict[str, Any], int]] = {  # options of 60 tokens, and the longest length
    "offset": ({"position_offset": 7}, 67),
    "offsets": ({"sequence_offsets": [3, 11]}, 71),
    "ids": ({"positions": [*range(59), 90]}, 91),
    "rows of ids": ({"positions": ROWS}, 91),
    "ids and offsets": ({"positions": ROWS[::-1], "sequence_offsets": [0, 31]}, 91),
    "packed": ({"cu_seqlens": [0, 5, 53, 60], **THD}, 48),
    "packed ids": ({"cu_seqlens": [5, 60], "positions": [99] * 5 + ROWS[0][:55]} | THD, 55),
    "shard": ({"shard": "contiguous", "shard_rank": 1, "shard_size": 2}, 120),
}  # fmt: skip
INDICES = ("sequence_offsets", "positions", "cu_seqlens")


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("way", WAYS)
def test_the_longest_position(way: str, dtype: torch.dtype, device: str) -> None:
    options, length = WAYS[way]
    given = {
        name: torch.tensor(x, device=device, dtype=dtype) if name in INDICES else x
        for name, x in options.items()
    }
    q = tensors(60, device, 2)[0]
    q = q[0] if "layout" in given else q
    wanted = ropekit.apply(q, config=CONFIG, sequence_length=length, **given)
    if device == "cpu" or not any(name in INDICES for name in given):
        assert torch.equal(ropekit.apply(q, config=CONFIG, **given), wanted)
        return
    name = next(name for name in ("positions", *INDICES) if name in given)
    with pytest.raises(
        ValueError,
        match=f"sequence_length is not given; allowed with rope_type 'dynamic' and {name} on a dev",
    ):
        ropekit.apply(q, config=CONFIG, **given)


@pytest.mark.parametrize("rotate", ["q", "qk"])
def test_attention_of_a_cache(rotate: str, device: str) -> None:
    q, k, v = tensors(2 * LIMIT, device, 2)
    options: dict[str, Any] = {
        "k_cache": k,
        "v_cache": v,
        "k_lengths": torch.tensor([40, 64], device=device),
        "config": CONFIG,
        "rotate": rotate,
    }
    q = q[:, -3:]
    wanted = ropekit.attention(q, sequence_length=64, **options)
    if device == "cpu":
        assert torch.equal(ropekit.attention(q, **options), wanted)
    else:
        with pytest.raises(
            ValueError, match=r"sequence_length is not given; .* k_lengths on a dev"
        ):
            ropekit.attention(q, **options)


def test_attention_by_positions_of_queries_and_keys() -> None:
    q, k, v = tensors(8, "cpu")
    ids = torch.tensor([60, 61, 62]), torch.arange(70, 78)
    options: dict[str, Any] = {"positions": ids[0], "k_positions": ids[1], "config": CONFIG}
    for kernel in ("library", "sdpa"):
        options["kernel"] = kernel
        wanted = ropekit.attention(q[:, :3], k, v, sequence_length=78, **options)
        if kernel == "library":
            assert torch.equal(ropekit.attention(q[:, :3], k, v, **options), wanted)
            continue
        with pytest.raises(
            ValueError, match="sequence_length is not given; allowed with rope_type"
        ):
            ropekit.attention(q[:, :3], k, v, **options)


@pytest.mark.parametrize("page_size", [None, 8])
def test_a_cached_decode_is_that_of_transformers(page_size: int | None, device: str) -> None:
    """A key keeps the base with which it was cached."""
    config = theirs()
    layer = modeling_llama.LlamaAttention(config, 0).to(device)
    rotary = modeling_llama.LlamaRotaryEmbedding(config).to(device)
    ours = RoPEAttention(64, 4, 2, DIM, config=config, device=device)
    ours.load_state_dict(layer.state_dict())
    x, kept = torch.randn(2, 50, 64, device=device), transformers.DynamicCache()
    cache, first = ours.make_cache(2, 50, page_size), 0
    with torch.no_grad():
        for part in x.split([20, 8, *(1,) * 10, 4, 8], 1):
            tokens = part.shape[1]
            ids = torch.arange(first, first + tokens, device=device)
            seen = torch.arange(first + tokens, device=device) <= ids[:, None]
            mask = torch.zeros(seen.shape, device=device).masked_fill(~seen, float("-inf"))
            wanted = layer(
                part,
                position_embeddings=rotary(part, ids[None]),
                attention_mask=mask[None, None],
                past_key_values=kept,
            )[0]
            close(ours(part, cache=cache), wanted)
            first += tokens
        close(ours(x), layer(x, rotary(x, torch.arange(50, device=device)[None]), mask_of(x))[0])


def mask_of(x: torch.Tensor) -> torch.Tensor:
    size = x.shape[1]
    return torch.full((1, 1, size, size), float("-inf"), device=x.device).triu(1)


@pytest.mark.parametrize("angle_mode", ["table", "exact"])
def test_a_patched_model_keeps_its_own_scaling(angle_mode: Any, device: str) -> None:
    """Its module remembers the longest call, which the kernels cannot see."""
    config = theirs()
    config.vocab_size, config.intermediate_size = 99, 64
    model = transformers.LlamaForCausalLM(config).to(device)
    with torch.no_grad():
        for tokens in (50, 40, 20):
            ids = torch.arange(tokens, device=device)[None] % 99
            other = copy.deepcopy(model)
            wanted = model(ids).logits
            with ropekit.transformers.patch(other, angle_mode) as patch:
                assert torch.equal(other(ids).logits, wanted)
            assert angle_mode == "table" or "rope_type is dynamic" in str(patch)


def test_keys_that_move_need_the_length(device: str) -> None:
    cache, ids = torch.randn(1, 8, 2, DIM, device=device), torch.full((1, 8), -2, device=device)
    before = cache.clone()
    with pytest.raises(ValueError, match=r"sequence_length is not given; .* where keys move is"):
        ropekit.append(k_cache=cache, positions=ids, config=CONFIG)
    assert torch.equal(cache, before)


@pytest.mark.compiles
def test_a_compiled_call_follows_its_positions() -> None:
    torch._dynamo.reset()
    q = tensors(40, "cpu")[0]

    def step(q: torch.Tensor, ids: torch.Tensor) -> Any:
        return ropekit.apply(q, positions=ids, config=CONFIG)

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    for first in (0, 10, 100):
        ids = torch.arange(first, first + 40)
        assert torch.equal(compiled(q, ids), step(q, ids))


def test_threads_of_many_lengths() -> None:
    """More lengths than are kept."""
    q, places = tensors(1, "cpu")[0], range(40, 100)
    wanted = {
        n: ropekit.apply(q, position_offset=n, config=CONFIG, sequence_length=n + 1) for n in places
    }

    def run(_: int) -> bool:
        found = ((n, ropekit.apply(q, position_offset=n, config=CONFIG)) for n in places)
        return all(torch.equal(x, wanted[n]) for n, x in found)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(run, range(8)))
