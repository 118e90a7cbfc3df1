"""RoPEAttention: beside Transformers' layers and beside its steps, with and without its caches."""

from __future__ import annotations

import copy
import pickle
import warnings
from typing import Any

import pytest
import ropekit
import torch
import torch.utils.checkpoint
from ropekit import Config, RoPEAttention

transformers = pytest.importorskip("transformers")
SMALL = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_hidden_layers": 1,
}
SIZES = (2, 6), (3, 9)  # of a trace, and of a call of it


def layer_of(name: str, device: str) -> tuple[Any, Any, Any]:
    """Attention of Transformers with random weights, its rotary embedding and its configuration."""
    config = getattr(transformers, f"{name}Config")(**SMALL, attn_implementation="eager")
    model = getattr(transformers, f"{name}Model")(config).to(device)
    layer = model.layers[0].self_attn
    with torch.no_grad():
        for weight in layer.parameters():
            weight.copy_(torch.randn_like(weight) * (0.2 if weight.dim() > 1 else 1.0))
    return layer, model.rotary_emb, config


@pytest.mark.parametrize("name", ["Llama", "Qwen3"])
def test_weights_of_transformers_load(name: str, device: str) -> None:
    theirs, rotary, config = layer_of(name, device)
    ours = RoPEAttention(64, 4, 2, 32, config=config, device=device)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 7, 64, device=device, requires_grad=True)
    ids = torch.arange(7, device=device)[None]
    mask = torch.full((7, 7), float("-inf"), device=device).triu(1)[None, None]
    wanted = theirs(x, position_embeddings=rotary(x, ids), attention_mask=mask)[0]
    torch.testing.assert_close(ours(x), wanted, rtol=1e-4, atol=1e-5)
    weights = (
        [*ours.parameters()],
        [dict(theirs.named_parameters())[n] for n, _ in ours.named_parameters()],
    )
    found, expected = (
        torch.autograd.grad(y.square().sum(), [x, *own])
        for y, own in zip((ours(x), wanted), weights, strict=True)
    )
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("page_size", [None, 4])
@pytest.mark.parametrize("qk_norm", [False, True])
def test_a_cache_gives_what_the_whole_gives(
    qk_norm: bool, page_size: int | None, dtype: torch.dtype, device: str
) -> None:
    options = {"qk_norm": qk_norm, "window": 5, "rope_theta": 5e5}
    layer = RoPEAttention(64, 4, 2, 32, dtype=dtype, device=device, **options)
    x = torch.randn(3, 11, 64, device=device).to(dtype)
    cache = layer.make_cache(3, 11, page_size)
    with torch.no_grad():
        wanted = layer(x)
        parts = [layer(part, cache=cache) for part in x.split([6, 1, 1, 3], 1)]
        bound = 1e-5 if dtype == torch.float32 else 2e-2
        torch.testing.assert_close(torch.cat(parts, 1), wanted, rtol=bound, atol=bound)
        with pytest.raises(
            ValueError, match="x has 1 tokens and the cache 11 of 11; allowed is at"
        ):
            layer(x[:, :1], cache=cache)
        assert cache.tokens == 11
        cache.reset()
        again = layer(x[:, :6], cache=cache)
    assert torch.equal(again, parts[0])
    assert f"KeyValueCache(6 of 11 tokens, batch 3{', pages of 4' if page_size else ''}, 2" in repr(
        cache
    )


@pytest.mark.parametrize("page_size", [None, 3])
@pytest.mark.parametrize(
    "fields, parts",
    [
        ({"window": 4}, [3, *(1,) * 10]),
        ({"window": 4, "ring": 6}, [2, 4, 3, 3, 1]),  # 3 at once where the ring is full
        ({"chunk": 4, "ring": 6}, [6, 3, 1, 3]),
        ({"window": 6}, [4, *(1,) * 9]),  # the ring is a window too
    ],
)
def test_a_ring_gives_what_a_cache_of_all_tokens_gives(
    fields: dict[str, int], parts: list[int], page_size: int | None, device: str
) -> None:
    ring = fields.get("ring", 4)
    own = fields | {"window": min(fields.get("window", ring), ring)}
    layer = RoPEAttention(64, 4, 2, 16, device=device, **fields | {"ring": ring})
    plain = RoPEAttention(64, 4, 2, 16, device=device, **own | {"ring": None})
    plain.load_state_dict(layer.state_dict())
    x, cache, whole = (
        torch.randn(2, 13, 64, device=device),
        layer.make_cache(2, ring, page_size),
        plain.make_cache(2, 13, page_size),
    )
    with torch.no_grad():
        for part in x.split(parts, 1):
            found, wanted = layer(part, cache=cache), plain(part, cache=whole)
            torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    assert cache.tokens == 13


@pytest.mark.parametrize(
    "fields, before, tokens, words",
    [
        ({"ring": 4}, 0, 5, "the cache 0, of which a ring keeps 4; allowed is at most 4$"),
        ({"ring": 4}, 3, 2, r"allowed is at most 1 \(ring 4 - 4 that a token sees \+ 1\)"),
        ({"ring": 4, "window": 3}, 4, 3, r"allowed is at most 2 \(ring 4 - 3 that"),
        ({"ring": 5}, 0, 1, "ring is 5; allowed is at most the cache's capacity, 4"),
    ],
)
def test_a_ring_refuses_tokens_whose_keys_it_would_lose(
    fields: dict[str, int], before: int, tokens: int, words: str, device: str
) -> None:
    layer = RoPEAttention(64, 4, 2, 16, device=device, **fields)
    cache, x = layer.make_cache(2, 4), torch.randn(2, 5, 64, device=device)
    with torch.no_grad():
        if before:
            layer(x[:, :before], cache=cache)
        kept = cache.k.clone(), cache.lengths.clone()
        with pytest.raises(ValueError, match=words):
            layer(x[:, :tokens], cache=cache)
    assert torch.equal(cache.k, kept[0]) and torch.equal(cache.lengths, kept[1])
    with pytest.raises(ValueError, match="allowed is None without a cache"):
        layer(x)


@pytest.mark.parametrize(
    "fields", [{"rotate": "none"}, {"rotate": "q"}, {"rotation": "off"}, {"kernel": "library"}]
)
def test_fields_mean_the_same_with_a_cache(fields: dict[str, Any], device: str) -> None:
    layer = RoPEAttention(64, 4, 2, 32, rope_theta=5e5, device=device, **fields)
    x, cache = torch.randn(2, 7, 64, device=device), layer.make_cache(2, 7)
    places = torch.stack((2 * torch.arange(7), torch.arange(7) + 3)).to(device)
    with torch.no_grad():
        for ids in (None, places):
            cache.reset()
            if ids is not None and fields in ({"rotate": "none"}, {"rotation": "off"}):
                for own in (None, cache):
                    with pytest.raises(ValueError, match="positions is given; allowed is None wh"):
                        layer(x, cache=own, positions=ids)
                continue
            parts = [slice(0, 4), slice(4, 5), slice(5, 7)]
            found = [
                layer(x[:, own], cache=cache, positions=None if ids is None else ids[:, own])
                for own in parts
            ]
            wanted = layer(x, positions=ids)
            torch.testing.assert_close(torch.cat(found, 1), wanted, rtol=1e-5, atol=1e-5)


def test_a_cache_is_what_it_was_where_its_attention_is_refused(device: str) -> None:
    layer = RoPEAttention(64, 4, 2, 32, kernel="sdpa", device=device)
    cache = layer.make_cache(2, 7)
    with (
        torch.no_grad(),
        pytest.raises(ValueError, match="kernel is 'sdpa'; allowed with a cache and backend"),
    ):
        layer(torch.randn(2, 3, 64, device=device), cache=cache)
    assert cache.tokens == 0 and not cache.lengths.any()


def test_float64_keeps_its_digits() -> None:
    layer = RoPEAttention(16, 2, qk_norm=True, dtype=torch.float64)
    x = torch.randn(1, 3, 16, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(layer, (x,))


@torch.no_grad()
def test_a_cache_is_what_it_was_where_a_call_is_interrupted(
    monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    layer, x = RoPEAttention(64, 4, device=device), torch.randn(1, 4, 64, device=device)
    whole, cache = layer(x), layer.make_cache(1, 8)
    layer(x[:, :2], cache=cache)

    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("ropekit._module.decode", stop)
        layer(x[:, 2:3], cache=cache)
    assert (cache.lengths.tolist(), cache.tokens) == ([2], 2)
    torch.testing.assert_close(layer(x[:, 2:3], cache=cache), whole[:, 2:3])


@torch.no_grad()
@pytest.mark.parametrize("kernel", ["sdpa", "tiles"])
def test_a_kernel_is_refused_ahead_of_what_a_cache_is_given(kernel: str) -> None:
    layer = RoPEAttention(64, 4, kernel=kernel)
    cache = layer.make_cache(1, 8)
    with pytest.raises(ValueError, match=f"kernel is '{kernel}'; allowed with"):
        layer(torch.randn(1, 4, 64), cache=cache)
    assert not cache.k.any() and cache.tokens == 0


@pytest.mark.parametrize("page_size", [None, 4])
def test_attention_of_a_filled_cache(page_size: int | None, device: str) -> None:
    layer = RoPEAttention(64, 4, 2, 32, rope_theta=5e5, device=device)
    cache = layer.make_cache(3, 11, page_size)
    q, k, v = (torch.randn(3, 7, n, 32, device=device) for n in (4, 2, 2))
    wanted = layer.attend(q, k, v, cache=cache)
    found = ropekit.attention(q, cache=cache, rope_theta=5e5)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    told = ropekit.explain(q, cache=cache, rope_theta=5e5)
    assert told.backward_candidates.startswith("k_cache is given")
    for call in (ropekit.attention, ropekit.explain):
        with pytest.raises(ValueError, match="cache is given; allowed with k_cache, v_cache, bl"):
            call(q, cache=cache, k_lengths=cache.lengths)
        with pytest.raises(TypeError, match="cache is tuple; allowed is a ropekit"):
            call(q, cache=(k, v))


def test_heads_in_and_out(device: str) -> None:
    q, k, v = (torch.randn(2, 7, n, 32, device=device) for n in (4, 2, 2))
    sides = {"causal": False, "window": 3, "window_right": 2}
    found = RoPEAttention(64, 4, 2, 32, device=device, **sides).attend(q, k, v)
    assert torch.equal(found, ropekit.attention(q, k, v, **sides))
    layer = RoPEAttention(64, 4, 2, 32, causal=False, softcap=5.0, device=device)
    found = layer.attend(q, k, v)
    assert torch.equal(found, ropekit.attention(q, k, v, causal=False, softcap=5.0))
    ids = torch.arange(7, device=device) * 2
    found = layer.attend(q, k, v, positions=ids)
    wanted = ropekit.attention(q, k, v, positions=ids, causal=False, softcap=5.0)
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("qk_norm", [False, True])
def test_autocast(qk_norm: bool, device: str) -> None:
    layer = RoPEAttention(64, 4, 2, 32, qk_norm=qk_norm, device=device)
    x = torch.randn(3, 6, 64, device=device)
    with torch.autocast(device, torch.bfloat16):
        out = layer(x)
        with torch.no_grad():
            cached = layer(x, cache=layer.make_cache(3, 6))
    assert out.dtype == cached.dtype == torch.bfloat16
    out.float().sum().backward()
    torch.testing.assert_close(out.float(), layer(x), rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(cached.float(), layer(x), rtol=2e-2, atol=2e-2)


def test_it_is_a_module() -> None:
    layer = RoPEAttention(64, 4, rope_theta=5e5, qk_norm=True)
    text = "64, heads=4, kv_heads=4, head_dim=16, causal=True, config=Config(rope_theta=500000.0)"
    assert layer.extra_repr() == text and text in repr(layer)
    x = torch.randn(1, 3, 64)
    for copied in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(copied(x), layer(x))
    names = ["q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm"]
    assert list(layer.state_dict()) == [f"{name}.weight" for name in names]


@pytest.mark.compiles
def test_it_compiles_and_is_exported_and_checkpointed(device: str) -> None:
    torch._dynamo.reset()
    layer = RoPEAttention(64, 4, 2, 32, qk_norm=True, device=device)
    x = torch.randn(2, 7, 64, device=device)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), layer(x))
    torch.testing.assert_close(torch.export.export(layer, (x,)).module()(x), layer(x))
    again = torch.utils.checkpoint.checkpoint(layer, x.requires_grad_(), use_reentrant=False)
    found, wanted = (torch.autograd.grad(y.square().sum(), x)[0] for y in (again, layer(x)))
    torch.testing.assert_close(found, wanted)


@pytest.mark.filterwarnings("ignore:.*torch.jit")
@pytest.mark.parametrize("is_derived", [True, False])
@pytest.mark.parametrize(
    "fields",
    [{}, {"qk_norm": True}, {"window": 4}, {"softcap": 5.0, "causal": False}],
)
def test_it_is_traced(fields: dict[str, Any], is_derived: bool, tmp_path: Any, device: str) -> None:
    """As a module of Linear and SDPA: its trace is checked, warns of nothing and takes any size."""
    layer = RoPEAttention(64, heads=4, kv_heads=2, rope_theta=5000.0, device=device, **fields)
    x, other = (torch.randn(*n, 64, device=device, requires_grad=is_derived) for n in SIZES)
    with torch.set_grad_enabled(is_derived), warnings.catch_warnings():
        # On CUDA float32 is PyTorch's kernel, of which a trace keeps whether q and k are as long.
        action: Any = "error" if device == "cpu" else "ignore"
        warnings.simplefilter(action, torch.jit.TracerWarning)
        torch.jit.save(torch.jit.trace(layer, x), tmp_path / "layer.pt")
        traced = torch.jit.load(tmp_path / "layer.pt")
        for given in (x, other):
            expected, found = layer(given), traced(given)
            assert torch.equal(found, expected)
            if is_derived:
                pairs = zip((layer, traced), (expected, found), strict=True)
                grads = [
                    torch.autograd.grad(y.square().sum(), (given, *module.parameters()))
                    for module, y in pairs
                ]
                for wanted, grad in zip(*grads, strict=True):
                    torch.testing.assert_close(grad, wanted)


@pytest.mark.filterwarnings("ignore:.*torch.jit", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("is_derived", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_is_traced_with_the_kernel_of_pytorch(is_derived: bool, dtype: torch.dtype) -> None:
    kernel = "sdpa" if dtype == torch.float32 else None
    layer = RoPEAttention(64, heads=4, kv_heads=2, kernel=kernel, dtype=dtype)
    x, other = (torch.randn(*n, 64, dtype=dtype, requires_grad=is_derived) for n in SIZES)
    with torch.set_grad_enabled(is_derived):
        traced = torch.jit.trace(layer, x)
        assert torch.equal(traced(other), layer(other))
        if is_derived:
            grads = [torch.autograd.grad(y(other).sum(), other)[0] for y in (traced, layer)]
            assert torch.equal(*grads)


def test_what_does_not_fit_is_refused() -> None:
    for arguments, options, text in (
        ((64, 5), {}, "hidden_size is 64; allowed without head_dim is a multiple of heads, 5"),
        ((64, 4, 3), {}, "kv_heads is 3; allowed is a divisor of heads, 4"),
        ((64, 0), {}, "heads is 0; allowed is > 0"),
        ((64, 4, -2), {}, "kv_heads is -2; allowed is > 0"),
        ((64, 4, 2, 7), {}, "head_dim is 7; allowed without rotary_dim is an even one"),
        ((64, 4), {"softcap": -2.0}, r"softcap is -2; allowed is 2\^-60..2\^60; None, 0"),
        ((64, 4), {"qk_norm": True, "norm_eps": -1.0}, "norm_eps is -1.0; allowed is >= 0"),
        (
            (64, 4),
            {"config": Config(norm_type="layer")},
            "config states a norm of tokens or layers",
        ),
        (
            (64, 4, 2, 32),
            {"config": Config(head_dim=64)},
            "head_dim is 32; allowed is what config states, 64",
        ),
        ((64, 4), {"layout": "bhsd"}, "layout is 'bhsd'; allowed in RoPEAttention is 'bshd'"),
        ((64, 4), {"angle_mode": "table"}, "allowed in RoPEAttention is 'exact' or 'f32'"),
    ):
        with pytest.raises(ValueError, match=text):
            RoPEAttention(*arguments, **options)
    with pytest.raises(TypeError, match="k_norm_type is given"):
        RoPEAttention(64, 4, k_norm_type="rms")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"heads is 1\.5; allowed is a whole number"):
        RoPEAttention(64, 1.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="causal is 'no'; allowed is True or False"):
        RoPEAttention(64, 4, causal="no")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="norm_eps is '1'; allowed is a number"):
        RoPEAttention(64, 4, norm_eps="1")  # type: ignore[arg-type]
    assert RoPEAttention(64, 4, config=Config(head_dim=32)).head_dim == 32
    layer = RoPEAttention(64, 4)
    with pytest.raises(
        ValueError, match=r"x has the shape \[5, 64\]; allowed is \[batch, tokens, 64"
    ):
        layer(torch.randn(5, 64))
    with pytest.raises(TypeError, match="x is list; allowed is a tensor"):
        layer([1.0])
    for sizes, text in (((1, 8, 0), "page_size is 0"), ((0, 8), "batch is 0")):
        with pytest.raises(ValueError, match=f"{text}; allowed is > 0"):
            layer.make_cache(*sizes)
    with pytest.raises(ValueError, match="kv_heads is 0; allowed is > 0"):
        ropekit.KeyValueCache(1, 2, 0, 8)
    with pytest.raises(TypeError, match=r"dtype is torch\.float64; allowed is torch\.float32"):
        ropekit.KeyValueCache(1, 2, 1, 8, dtype=torch.float64)
    with torch.no_grad():
        with pytest.raises(TypeError, match="cache is int; allowed is a "):
            layer(torch.randn(1, 2, 64), cache=5)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="x has the batch 2; allowed is the cache's, 1"):
            layer(torch.randn(2, 2, 64), cache=layer.make_cache(1, 8))
    with pytest.raises(RuntimeError, match="requires a gradient"):
        RoPEAttention(64, 4)(torch.randn(1, 2, 64), cache=RoPEAttention(64, 4).make_cache(1, 8))
