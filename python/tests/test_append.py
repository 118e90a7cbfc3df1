"""append beside separate steps, and beside plain PyTorch and Transformers' own modules."""

from __future__ import annotations

import itertools
from contextlib import nullcontext
from typing import Any, get_type_hints

import pytest
import ropekit
import torch
from ropekit._append import _LOSES_OFFSETS, Options
from torch._dynamo.testing import CompileCounterWithBackend
from transformers import LlamaConfig, Qwen3Config, StaticCache
from transformers.models.cohere.modeling_cohere import CohereLayerNorm
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3RMSNorm
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.gemma4.modeling_gemma4 import Gemma4RMSNorm
from transformers.models.llama.modeling_llama import LlamaForCausalLM, LlamaRMSNorm
from transformers.models.olmo2.modeling_olmo2 import Olmo2RMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3ForCausalLM, Qwen3RMSNorm
from transformers.models.stablelm.modeling_stablelm import StableLmLayerNormPerHead

op = torch.ops.ropekit.append
TOKENS, HEADS, KV, DIM, PAGES, SIZE = 7, 4, 2, 64, 5, 4
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
EIGHT = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.int8)
QWEN: dict[str, Any] = {"norm_type": "rms", "norm_eps": 1e-6, "norm_rounding": "twice"}
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def tokens_of(device: str, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """q, k and v, views of one projection."""
    qkv = torch.randn(TOKENS, HEADS + 2 * KV, DIM, device=device).to(dtype)
    return list(qkv.split([HEADS, KV, KV], 1))


def caches_of(k: torch.Tensor, dtype: torch.dtype | None = None) -> list[torch.Tensor]:
    """Pages that hold something, which no call may change but where a token goes."""
    shape = PAGES, SIZE, *k.shape[1:]
    return [torch.full(shape, 3, device=k.device).to(dtype or k.dtype) for _ in range(2)]


def slots_of(device: str, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    slots = torch.randperm(PAGES * SIZE)[:TOKENS]
    slots[2] = -1
    return slots.to(device, dtype)


def stored(x: torch.Tensor, dtype: torch.dtype, scale: torch.Tensor | None = None) -> torch.Tensor:
    """x in a cache's type: a division in fp32, to nearest even, no larger than the largest. On the
    CPU: on CUDA PyTorch multiplies by the reciprocal."""
    device, x = x.device, x.cpu()
    if dtype.itemsize > 1:
        return x.to(dtype).to(device)
    y = x.float() if scale is None else x.float() / scale.cpu()
    if dtype == torch.int8:
        return y.nan_to_num(0.0, 127.0, -128.0).round().clamp(-128, 127).to(dtype).to(device)
    largest = torch.finfo(dtype).max
    return y.clamp(-largest, largest).to(dtype).to(device)


def scatter(cache: torch.Tensor, x: torch.Tensor, slots: torch.Tensor) -> None:
    """x[t] to its slot of [page, slot, head, element]; through bytes, as index_put_ has no fp8."""
    kept = slots >= 0
    at = slots[kept].long()
    view = cache.view(torch.uint8) if cache.itemsize == 1 else cache
    rows = x[kept].view(view.dtype) if cache.itemsize == 1 else x[kept]
    view[at // cache.shape[1], at % cache.shape[1]] = rows


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal bits; a NaN of two or four bytes is any NaN (docs/numerics.md)."""
    kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[a.itemsize]
    x, y = (
        (t if t.itemsize == 1 else t.masked_fill(t.isnan(), float("nan"))).contiguous().view(kind)
        for t in (a.cpu(), b.cpu())
    )
    return a.dtype == b.dtype and torch.equal(x, y)


# ---- separate steps ----


@pytest.mark.parametrize("slot_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("kept", [None, torch.bfloat16, torch.float32, *EIGHT])
@pytest.mark.parametrize("dtype", FLOATS)
def test_equals_separate_steps(
    dtype: torch.dtype, kept: torch.dtype | None, slot_dtype: torch.dtype, device: str
) -> None:
    q, k, v = tokens_of(device, dtype)
    v[1, 0, 0], v[1, 0, 1], v[1, 0, 2] = float("nan"), float("inf"), -1e4
    k_cache, v_cache = caches_of(k, kept)
    wanted = k_cache.clone(), v_cache.clone()
    weights = torch.randn(2, DIM, device=device).to(dtype)
    slots, ids = slots_of(device, slot_dtype), torch.randint(0, 1000, (TOKENS,), device=device)
    scales: dict[str, torch.Tensor] = {}
    if kept in EIGHT:
        scales["k_scale"] = torch.tensor(0.031, device=device)
        scales["v_scale"] = torch.rand(KV, device=device) + 0.01
    found = ropekit.append(
        *(q, k, v),
        **{"k_cache": k_cache, "v_cache": v_cache, "slots": slots, "positions": ids},
        **{"q_weight": weights[0], "k_weight": weights[1], "q_factor": 0.125, "rope_theta": 5e5},
        **scales,
        **QWEN,
    )
    assert found is not None
    for i, x in enumerate((q, k)):
        normed = ropekit.append(x, q_weight=weights[i], rotation="off", **QWEN)
        turned = ropekit.apply(normed, layout="thd", positions=ids, rope_theta=5e5)
        if i == 0:
            assert same(found, (turned.float() * 0.125).to(dtype))
        else:
            scatter(wanted[0], stored(turned, k_cache.dtype, scales.get("k_scale")), slots)
    v_scale = scales["v_scale"][:, None] if scales else None
    scatter(wanted[1], stored(v, v_cache.dtype, v_scale), slots)
    assert same(k_cache, wanted[0])
    assert same(v_cache, wanted[1])


def test_parts_may_be_absent(device: str) -> None:
    q, k, v = tokens_of(device)
    k_cache, v_cache = caches_of(k)
    slots = slots_of(device)
    both = k_cache.clone(), v_cache.clone()
    whole = ropekit.append(q, k, v, k_cache=both[0], v_cache=both[1], slots=slots)
    assert torch.equal(ropekit.append(q), whole)
    assert ropekit.append(None, k, k_cache=k_cache, slots=slots) is None
    assert ropekit.append(v=v, v_cache=v_cache, slots=slots) is None
    assert torch.equal(k_cache, both[0])
    assert torch.equal(v_cache, both[1])


def test_results_go_where_they_are_told(device: str) -> None:
    q, k, v = tokens_of(device)
    turned = ropekit.apply(q, k, layout="thd")
    k_out, v_out = torch.empty_like(k), torch.empty_like(v)
    ropekit.append(None, k, v, k_out=k_out, v_out=v_out, v_factor=2.0)
    assert torch.equal(k_out, turned[1])
    assert torch.equal(v_out, 2 * v)
    eight = torch.empty(q.shape, dtype=torch.float8_e4m3fn, device=device)
    scale = torch.rand(TOKENS, HEADS, device=device) + 0.1
    assert ropekit.append(q, q_out=eight, q_scale=scale) is eight
    assert same(eight, stored(turned[0], eight.dtype, scale[..., None]))
    k_cache, _ = caches_of(k)
    slots = slots_of(device)
    assert ropekit.append(q, k, q_out=q, k_out=k, k_cache=k_cache, slots=slots) is q
    wanted, _ = caches_of(k)
    scatter(wanted, turned[1], slots)
    assert torch.equal(k_cache, wanted)
    assert torch.equal(q, turned[0])
    assert torch.equal(k, turned[1])


@pytest.mark.parametrize("layout", ["bshd", "bhsd", "sbhd"])
def test_layouts_of_tokens(layout: str, device: str) -> None:
    order = {"bshd": (0, 1, 2, 3), "bhsd": (0, 2, 1, 3), "sbhd": (1, 0, 2, 3)}[layout]
    x = torch.randn(2, TOKENS, 2 * KV + HEADS, DIM, device=device)
    q, k, v = x.split([HEADS, KV, KV], 2)
    slots = torch.randperm(PAGES * SIZE, device=device)[: 2 * TOKENS]
    found = caches_of(k[0])
    q_out = ropekit.append(
        *(t.permute(order) for t in (q, k, v)),
        **{"layout": layout, "k_cache": found[0], "v_cache": found[1]},
        **{"slots": slots if layout == "bhsd" else slots.view(2, TOKENS), "position_offset": 3},
    )
    flat = caches_of(k[0])
    ids = torch.arange(3, 3 + TOKENS, device=device).repeat(2)
    wanted = ropekit.append(
        *(t.flatten(0, 1) for t in (q, k, v)),
        **{"k_cache": flat[0], "v_cache": flat[1], "slots": slots, "positions": ids},
    )
    assert q_out is not None
    assert wanted is not None
    assert torch.equal(q_out, wanted.view(q.shape).permute(order))
    assert torch.equal(found[0], flat[0])
    assert torch.equal(found[1], flat[1])


def test_a_layer_without_rotation(device: str) -> None:
    """Of a model whose other layers rotate, as its configuration says; Gemma 4 normalises v."""
    _, k, v = tokens_of(device)
    config = ropekit.Config(**QWEN, rope_type="linear", factor=4.0, rope_theta=5e5)
    k_cache, v_cache = caches_of(k)
    places = {"k_cache": k_cache, "v_cache": v_cache, "slots": slots_of(device)}
    ropekit.append(None, k, v, rotation="off", v_norm_type="rms", config=config, **places)
    wanted = caches_of(k)
    for cache, x, eps in zip(wanted, (k, v), (1e-6, 0.0), strict=True):
        scatter(cache, x * (x.square().mean(-1, keepdim=True) + eps).rsqrt(), places["slots"])
    torch.testing.assert_close([k_cache, v_cache], wanted)


def test_scales_in_the_order_of_the_cache(device: str) -> None:
    _, k, _ = tokens_of(device)
    cache, slots = caches_of(k, torch.int8)[0], slots_of(device)
    scales = torch.rand(PAGES, SIZE, KV, device=device) + 0.1
    hnd, places = cache.transpose(1, 2).contiguous(), {"slots": slots, "rotation": "off"}
    ropekit.append(None, k, k_cache=cache, k_scale=scales, **places)
    turned = scales.transpose(1, 2).contiguous()
    ropekit.append(None, k, k_cache=hnd, k_scale=turned, cache_layout="hnd", **places)
    assert torch.equal(hnd.transpose(1, 2), cache)
    written = torch.ones_like(turned)
    ropekit.append(None, k, k_cache=hnd, k_scale_out=written, cache_layout="hnd", **places)
    ropekit.append(None, k, k_cache=cache, k_scale_out=scales.fill_(1), **places)
    assert torch.equal(written.transpose(1, 2), scales)
    assert torch.equal(hnd.transpose(1, 2), cache)


@pytest.mark.parametrize("kept", EIGHT)
def test_scales_of_tokens_are_computed(kept: torch.dtype, device: str) -> None:
    _, k, v = tokens_of(device, torch.bfloat16)
    v[0, 1] = 0
    k_cache, v_cache = caches_of(k, kept)
    scales = torch.full((2, PAGES, SIZE, KV), -7.0, device=device)
    slots = slots_of(device)
    ropekit.append(
        *(None, k, v),
        **{"k_cache": k_cache, "v_cache": v_cache, "slots": slots, "rotation": "off"},
        **{"k_scale_out": scales[0], "v_scale_out": scales[1]},
    )
    largest = 127.0 if kept == torch.int8 else torch.finfo(kept).max
    for x, cache, found in ((k, k_cache, scales[0]), (v, v_cache, scales[1])):
        own = (x.cpu().float().abs().amax(-1) / largest).to(device)  # CUDA would multiply
        own[own == 0] = 1
        wanted = torch.full_like(found, -7.0)
        scatter(wanted.unsqueeze(-1), own.unsqueeze(-1), slots)
        assert torch.equal(found, wanted)
        again = caches_of(x, kept)[0]
        given = "k" if x is k else "v"  # which reads back what it was
        ropekit.append(
            **{given: x, f"{given}_cache": again, f"{given}_scale": found.clone().abs()},
            **{"slots": slots, "rotation": "off"},
        )
        assert same(again, cache)


# ---- layouts of caches ----


def fill_vllm_blocks(
    key: torch.Tensor, value: torch.Tensor, k: torch.Tensor, v: torch.Tensor, slots: list[int]
) -> None:
    """key [pages, heads, element / x, page, x] and value [pages, heads, element, page]."""
    size, x = key.shape[3], key.shape[4]
    for token, slot in enumerate(slots):
        if slot >= 0:
            for head, d in itertools.product(range(KV), range(DIM)):
                key[slot // size, head, d // x, slot % size, d % x] = k[token, head, d]
                value[slot // size, head, d, slot % size] = v[token, head, d]


def test_blocks_of_vllm(device: str) -> None:
    q, k, v = tokens_of(device, torch.bfloat16)
    x = 8
    key, value = (
        torch.zeros(shape, dtype=k.dtype, device=device)
        for shape in ((PAGES, KV, DIM // x, SIZE, x), (PAGES, KV, DIM, SIZE))
    )
    wanted = key.clone(), value.clone()
    slots = slots_of(device)
    ropekit.append(q, k, v, k_cache=key, v_cache=value, slots=slots, cache_layout="vllm")
    fill_vllm_blocks(*wanted, ropekit.apply(None, k, layout="thd"), v, slots.tolist())
    assert torch.equal(key, wanted[0])
    assert torch.equal(value, wanted[1])


@pytest.mark.parametrize("name", ["vllm", "flashinfer nhd", "flashinfer hnd", "hnd apart"])
def test_pages_of_engines(name: str, device: str) -> None:
    q, k, v = tokens_of(device, torch.float16)
    slots = slots_of(device)
    hnd = name.endswith(("hnd", "apart"))
    page = (KV, SIZE, DIM) if hnd else (SIZE, KV, DIM)
    joint = 1 if name.startswith("flashinfer") else 0
    kv = torch.zeros(*((PAGES, 2) if joint else (2, PAGES)), *page, dtype=k.dtype, device=device)
    wanted = kv.clone()
    k_cache, v_cache = kv.unbind(joint)
    layout: Any = "hnd" if hnd else "nhd"
    ropekit.append(q, k, v, k_cache=k_cache, v_cache=v_cache, slots=slots, cache_layout=layout)
    turned = ropekit.apply(None, k, layout="thd")
    for token, slot in enumerate(slots.tolist()):
        for which, x in enumerate((turned, v)):
            pages = wanted[:, which] if joint else wanted[which]
            if slot >= 0 and hnd:
                pages[slot // SIZE, :, slot % SIZE] = x[token]
            elif slot >= 0:
                pages[slot // SIZE, slot % SIZE] = x[token]
    assert torch.equal(kv, wanted)


@pytest.mark.parametrize("table_dtype", [torch.int32, torch.int64])
def test_block_table_of_packed_sequences(table_dtype: torch.dtype, device: str) -> None:
    q, k, v = tokens_of(device)
    bounds = torch.tensor([0, 5, 7], device=device)
    starts = torch.tensor([1, 6], device=device)  # tokens that each sequence has already
    table = torch.tensor([[3, 0], [1, 4]], device=device, dtype=table_dtype)
    found, wanted = caches_of(k), caches_of(k)
    places = {"block_table": table, "cu_seqlens": bounds}
    q_out = ropekit.append(
        *(q, k, v),
        **{"k_cache": found[0], "v_cache": found[1], "sequence_offsets": starts, **places},
    )
    ids = torch.tensor([1, 2, 3, 4, 5, 6, 7], device=device)
    rows = torch.tensor([0, 0, 0, 0, 0, 1, 1], device=device)
    slots = table.long()[rows, ids // SIZE] * SIZE + ids % SIZE
    by_slots = ropekit.append(
        q, k, v, k_cache=wanted[0], v_cache=wanted[1], slots=slots, positions=ids
    )
    assert torch.equal(q_out, by_slots)
    assert torch.equal(found[0], wanted[0])
    by_starts = caches_of(k)
    ropekit.append(
        *(q, k, v),
        **{"k_cache": by_starts[0], "v_cache": by_starts[1], "positions": ids},
        **{"cache_starts": starts, **places},
    )
    assert torch.equal(by_starts[0], wanted[0])
    assert torch.equal(by_starts[1], found[1])


def test_ring_of_a_window(device: str) -> None:
    _, k, _ = tokens_of(device)
    ring = torch.zeros(1, 4, KV, DIM, device=device)
    ropekit.append(None, k[None], k_cache=ring, ring=4, position_offset=2)
    turned = ropekit.apply(None, k[None], position_offset=2)[0]
    for n in range(5, 9):  # the last four of indices 2 to 8
        assert torch.equal(ring[0, n % 4], turned[n - 2])


def test_one_row_of_the_latent_and_the_rotated_part(device: str) -> None:
    """DeepSeek's cache: 512 elements normalised, 64 rotated."""
    row = torch.randn(TOKENS, 1, 576, device=device).bfloat16()
    q = torch.randn(TOKENS, HEADS, 192, device=device).bfloat16()
    weight = torch.randn(512, device=device).bfloat16()
    cache = torch.zeros(PAGES, SIZE, 576, device=device).bfloat16()
    slots = slots_of(device)
    config = ropekit.Config(
        **{"rotary_dim": 64, "rotary_offset": 128, "k_head_dim": 576, "k_rotary_offset": 512},
        **{"pairing_in": "interleaved", "k_norm_type": "rms", "k_norm_dim": 512},
        **{"k_norm_eps": 1e-6, "k_norm_rounding": "twice"},
    )
    found = ropekit.append(q, row, k_cache=cache, k_weight=weight, slots=slots, config=config)
    turned = [
        ropekit.apply(x, layout="thd", pairing_in="interleaved")
        for x in (q[..., 128:], row[..., 512:])
    ]
    assert found is not None
    assert torch.equal(found, torch.cat((q[..., :128], turned[0]), -1))
    latent = ropekit.append(row[..., :512], rotation="off", q_weight=weight, **QWEN)
    wanted = torch.zeros_like(cache)
    scatter(wanted, torch.cat((latent, turned[1]), -1)[:, 0], slots)
    assert torch.equal(cache, wanted)


@pytest.mark.parametrize("places", ["slots", "table"])
@pytest.mark.parametrize("kept", [torch.float32, torch.bfloat16, torch.float8_e4m3fn])
def test_keys_move_in_their_cache(kept: torch.dtype, places: str, device: str) -> None:
    _, k, _ = tokens_of(device)
    cache, scale = caches_of(k, kept)[0], torch.tensor(0.05, device=device)
    options: dict[str, Any] = {"k_scale": scale} if kept.itemsize == 1 else {}
    slots = slots_of(device)
    slots[2] = 5 if 5 not in slots else slots[0]
    if places == "table":
        slots = torch.arange(TOKENS, device=device) + 2 * SIZE
        where: dict[str, Any] = {"block_table": torch.tensor([[2, 3]], device=device)}
    else:
        slots = slots.unique()
        where = {"slots": slots}
    tokens = len(slots)
    x = torch.randn(tokens, KV, DIM, device=device)
    scatter(cache, stored(x, kept, scale if options else None), slots)
    before = cache.float() * scale if options else cache.float()
    wanted = cache.clone()
    dtype = kept if kept.itemsize > 1 else torch.bfloat16
    rows = before.flatten(0, 1)[slots].to(dtype)
    delta = torch.tensor(-3, device=device).expand(tokens)
    turned = ropekit.apply(None, rows, layout="thd", positions=delta.clone())
    scatter(wanted, stored(turned, kept, scale if options else None), slots)
    if options:
        options["dtype"] = torch.bfloat16
    assert ropekit.append(k_cache=cache, positions=delta, **where, **options) is None
    assert same(cache, wanted)


# ---- Transformers ----


class StableLmNorm(StableLmLayerNormPerHead):
    """Of heads ahead of elements."""

    @property
    def weight(self) -> torch.Tensor:
        return torch.stack([norm.weight for norm in self.norms])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.unsqueeze(2)).squeeze(2)


NORMS: dict[str, tuple[Any, tuple[int, ...], dict[str, Any]]] = {
    "Qwen3": (Qwen3RMSNorm(DIM), (3, HEADS, DIM), QWEN),
    "Llama": (LlamaRMSNorm(DIM), (3, HEADS, DIM), QWEN),
    "Gemma 3": (
        Gemma3RMSNorm(DIM),
        (3, HEADS, DIM),
        {"norm_type": "rms", "norm_eps": 1e-6, "norm_weight": "one_plus_weight"},
    ),
    "OLMo 2": (
        Olmo2RMSNorm(HEADS * DIM),
        (3, HEADS, DIM),
        {"norm_type": "rms", "norm_eps": 1e-6, "norm_scope": "token"},
    ),
    "Cohere": (
        CohereLayerNorm((HEADS, DIM)),
        (3, HEADS, DIM),
        {"norm_type": "layer", "norm_eps": 1e-5},
    ),
    "StableLM": (
        StableLmNorm(DIM, HEADS),
        (3, HEADS, DIM),
        {"norm_type": "layer", "norm_eps": 1e-5},
    ),
    "Gemma 4": (
        Gemma4RMSNorm(DIM),
        (3, HEADS, DIM),
        {"norm_type": "rms", "norm_eps": 1e-6},
    ),
    "Gemma 4, v": (
        Gemma4RMSNorm(DIM, with_scale=False),
        (3, HEADS, DIM),
        {"norm_type": "rms", "norm_eps": 1e-6},
    ),
    "DeepSeek-V3": (DeepseekV3RMSNorm(512), (3, 1, 512), QWEN),
}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", NORMS)
def test_norms_of_transformers(name: str, dtype: torch.dtype, device: str) -> None:
    module, shape, fields = NORMS[name]
    module = module.to(device, dtype)
    with torch.no_grad():
        for weight in module.parameters():
            weight.normal_(0 if name == "Gemma 3" else 1, 0.3)

    def both(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            own = module(x.flatten(-2) if name == "OLMo 2" else x).view(x.shape)
            weight = getattr(module, "weight", None)
            found = ropekit.append(x, q_weight=weight, rotation="off", **fields)
        assert found is not None
        assert own.dtype == found.dtype
        return own, found

    own, found = both(torch.randn(shape, device=device).to(dtype))
    # A mean is taken off.
    least = own.float().abs().amax() if name in ("Cohere", "StableLM") else 0
    torch.testing.assert_close(
        found, own, rtol=4 * torch.finfo(dtype).eps, atol=torch.finfo(dtype).eps * least
    )
    # Sums that fp32 holds: whatever their order, and so bit for bit; nn.LayerNorm is
    # one kernel that multiplies in another order.
    if device == "cpu" and name != "StableLM":
        own, found = both(torch.randint(-8, 9, shape).to(dtype))
        assert torch.equal(found, own)


MODELS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "llama": (LlamaForCausalLM, LlamaConfig, {}),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, {"head_dim": 32}),
}


def watch(model: Any) -> dict[int, tuple[Any, Any]]:
    """What each attention was last given: hidden states, and cos and sin."""
    inputs = {}

    def keep(module: Any, args: Any, kwargs: Any) -> None:
        inputs[module.layer_idx] = kwargs["hidden_states"], kwargs["position_embeddings"]

    for layer in model.model.layers:
        layer.self_attn.register_forward_pre_hook(keep, with_kwargs=True)
    return inputs


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", MODELS)
def test_a_static_cache_is_filled_as_by_the_model(
    name: str, dtype: torch.dtype, device: str
) -> None:
    kind, config_kind, more = MODELS[name]
    settings = config_kind(
        **{"hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2},
        **{"intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 50, **more},
    )
    model = kind(settings).to(device, dtype).eval()
    cache, inputs = StaticCache(config=settings, max_cache_len=16), watch(model)
    # The norm that it tells; cos and sin are the model's own, in eager PyTorch's roundings.
    config = ropekit.Config.from_transformers(settings)
    config = config.replace(rope_type=None, rope_theta=None, arithmetic="model_dtype")
    found: dict[int, list[torch.Tensor]] = {}

    def step(own: Any, begin: int) -> None:
        hidden, (cos, sin) = inputs[own.layer_idx]
        projections = own.q_proj, own.k_proj, own.v_proj
        q, k, v = (p(hidden).unflatten(-1, (-1, own.head_dim)) for p in projections)
        if name == "qwen3":
            weights = {"q_weight": own.q_norm.weight, "k_weight": own.k_norm.weight}
        else:
            weights = {}
        keys, values = found[own.layer_idx]
        ropekit.append(
            *(q, k, v),
            **{"k_cache": keys, "v_cache": values, "cache_layout": "hnd", "config": config},
            **{"cos": cos, "sin": sin, "cache_starts": torch.full((2,), begin, device=device)},
            **weights,
        )

    with torch.no_grad():
        for begin, count in ((0, 5), (5, 1), (6, 1)):
            model(torch.randint(0, 50, (2, count), device=device), past_key_values=cache)
            for index, layer in enumerate(cache.layers):
                found.setdefault(index, [torch.zeros_like(layer.keys) for _ in range(2)])
                step(model.model.layers[index].self_attn, begin)
    for index, layer in enumerate(cache.layers):
        keys, values = found[index]
        assert torch.equal(values, layer.values)
        if name == "llama":
            assert torch.equal(keys, layer.keys)
        else:  # PyTorch's order of a norm's sum is another
            eps = torch.finfo(dtype).eps
            largest = float(keys.float().abs().amax())
            torch.testing.assert_close(keys, layer.keys, rtol=4 * eps, atol=eps * largest)


# ---- what PyTorch asks of an operator ----


def test_mutation_is_declared() -> None:
    for name in ("append", "append_no_grad"):
        arguments = getattr(torch.ops.ropekit, name).default._schema.arguments
        written = {a.name for a in arguments if a.alias_info and a.alias_info.is_write}
        results = {f"{part}_out" for part in "qkv"} | {f"{part}_scale_out" for part in "qkv"}
        assert written == results | {"k_cache", "v_cache", "position_flag"}


@pytest.mark.parametrize("kept", [torch.float32, torch.int8])
def test_opcheck(kept: torch.dtype, device: str) -> None:
    q, k, v = tokens_of(device)
    k_cache, v_cache = caches_of(k, kept)
    options: dict[str, Any] = {
        **{"q_out": torch.empty_like(q), "k_cache": k_cache, "v_cache": v_cache},
        **{"slots": slots_of(device), "positions": torch.arange(TOKENS, device=device)},
        **{"q_weight": torch.randn(DIM, device=device)},
    }
    if kept == torch.int8:
        options["k_scale"] = torch.ones(1, device=device)
        options["v_scale_out"] = torch.ones(PAGES, SIZE, KV, device=device)
    torch.library.opcheck(op, (q, k, v, "q_norm_type=rms q_norm_eps=1e-6"), options)
    del options["q_out"], options["q_weight"]
    torch.library.opcheck(op, (None, k, v, ""), options)
    torch.library.opcheck(op, (None, None, None, ""), {"q_out": q})


@pytest.mark.compiles
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiles_without_a_break(backend: str, dynamic: bool, device: str) -> None:
    torch._dynamo.reset()
    counter = CompileCounterWithBackend(backend)
    config = ropekit.Config(**QWEN, rope_theta=5e5)
    weight = torch.randn(DIM, device=device)

    def step(x: torch.Tensor, kv: Any, slots: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        q, k, v = (2 * x).split([HEADS, KV, KV], 1)
        places: dict[str, Any] = {"k_cache": kv[0], "v_cache": kv[1], "slots": slots}
        weights = {"q_weight": weight, "k_weight": weight}
        found = ropekit.append(q, k, v, positions=ids, config=config, **places, **weights)
        other = q.clone()
        ropekit.append(other, q_out=other, config=config, q_weight=weight)
        return found + other + kv[0][0, 0, 0, 0]

    compiled = torch.compile(step, fullgraph=True, backend=counter, dynamic=dynamic)
    for tokens in (6, 7):
        x = torch.randn(tokens, HEADS + 2 * KV, DIM, device=device)
        slots, ids = slots_of(device)[:tokens], torch.arange(tokens, device=device)
        kv: Any = [torch.zeros(PAGES, SIZE, KV, DIM, device=device) for _ in range(2)]
        wanted: Any = [x.clone() for x in kv]
        assert torch.equal(compiled(x, kv, slots, ids), step(x, wanted, slots, ids))
        assert torch.equal(torch.stack(kv), torch.stack(wanted))
    assert counter.frame_count == (1 if dynamic else 2)


@pytest.mark.compiles
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("inside", [False, True])
def test_compiles_for_views_of_several_sizes(
    inside: bool, dynamic: bool | None, device: str
) -> None:
    """Both caches are views of one tensor, which Inductor mixes up where sizes are symbols."""
    torch._dynamo.reset()

    def step(k: torch.Tensor, v: torch.Tensor, kv: Any, slots: torch.Tensor) -> None:
        ropekit.append(None, k, v, k_cache=kv[0], v_cache=kv[1], slots=slots)

    compiled = torch.compile(step, fullgraph=True, backend="inductor", dynamic=dynamic)
    (_, k, v), slots = tokens_of(device), slots_of(device)
    if _LOSES_OFFSETS:
        found = torch.zeros(2, PAGES, SIZE, KV, DIM, device=device)
        with pytest.raises(RuntimeError, match=r"v_cache.storage_offset\(\) is \d+; allowed in a"):
            compiled(k, v, found if inside else tuple(found), slots)
        assert not found.any()
        return
    for pages, count in ((PAGES, 5), (PAGES + 1, 5), (PAGES + 2, 6), (PAGES + 2, 7)):
        found = torch.zeros(2, pages, SIZE, KV, DIM, device=device)
        wanted, rest = found.clone(), (k[:count], v[:count])
        compiled(*rest, found if inside else tuple(found), slots[:count])
        step(*rest, wanted, slots[:count])
        assert torch.equal(found, wanted) and wanted[0].any() and wanted[1].any()


def test_what_is_written_is_counted(device: str) -> None:
    q, k, v = tokens_of(device)
    k_cache, v_cache = caches_of(k, torch.int8)
    flag = torch.zeros(1, dtype=torch.int32, device=device)
    scale = torch.ones(PAGES, SIZE, KV, device=device)
    places = {"k_cache": k_cache, "v_cache": v_cache, "slots": slots_of(device)}
    out = torch.empty_like(q)
    written = (out, k_cache, v_cache, flag, scale)
    options = {"q_out": out, "k_scale_out": scale, "position_flag": flag, **places}
    for call in (lambda: ropekit.append(q, k, v, **options), lambda: op(q, k, v, "", **options)):
        before = [x._version for x in written]
        call()
        assert [x._version - y for x, y in zip(written, before, strict=True)] == [1] * 5
    with pytest.raises(RuntimeError, match=r"k requires a gradient; allowed is a call within"):
        ropekit.append(q, k.clone().requires_grad_(), v, **options)
    with torch.no_grad():
        ropekit.append(q, k.clone().requires_grad_(), v, **options)


@pytest.mark.parametrize("name", ["indices", "outputs"])
def test_empty_calls(name: str, device: str) -> None:
    q, k, v = (x[:0] if name == "indices" else x[:, :0] for x in tokens_of(device))
    k_cache, v_cache = caches_of(k)
    slots = slots_of(device)[: len(q)]
    ids = torch.arange(len(q), device=device).int()
    bounds = torch.tensor([0, len(q)], device=device)  # of another type than ids
    found = ropekit.append(
        *(q, k, v),
        **{"k_cache": k_cache, "v_cache": v_cache, "slots": slots, "positions": ids},
        **{"cu_seqlens": bounds},
    )
    assert found is not None
    assert found.shape == q.shape


@pytest.mark.parametrize("name", ["appends", "two index types", "refused"])
def test_no_handle_leaks(name: str) -> None:
    q, k, v = tokens_of("cpu")
    k_cache, v_cache = caches_of(k)
    options: dict[str, Any] = {"k_cache": k_cache, "v_cache": v_cache, "slots": slots_of("cpu")}
    if name == "two index types":
        options |= {"positions": torch.arange(TOKENS).int(), "cu_seqlens": torch.tensor([0, 7])}
    elif name == "refused":
        options["slots"] = torch.full((TOKENS,), PAGES * SIZE)
    tensors = q, k, v, *(x for x in options.values())
    before = [x._use_count() for x in tensors]
    for _ in range(100):
        with pytest.raises(ValueError, match="page") if name == "refused" else nullcontext():
            ropekit.append(q, k, v, **options)
    assert [x._use_count() for x in tensors] == before


# ---- errors ----

Q, K = torch.zeros(3, 4, 64), torch.zeros(3, 2, 64)
CACHE, SLOTS = torch.zeros(2, 4, 2, 64), torch.zeros(3, dtype=torch.int64)
PLACED: dict[str, Any] = {"k": K, "k_cache": CACHE, "slots": SLOTS}
BYTES = torch.zeros(2, 4, 2, 64, dtype=torch.int8)
ERRORS: list[tuple[type[Exception], str, dict[str, Any]]] = [
    (ValueError, "q, k and v are None; allowed is one of them at least", {}),
    (TypeError, "q is list; allowed is a tensor", {"q": [1], **PLACED}),
    (TypeError, "k is list; allowed is a tensor", {"k": [1]}),
    (TypeError, "v is int; allowed is a tensor", {"q": Q, "v": 1}),
    (ValueError, "k_cache has 2 dimensions; allowed is 3 to 5", {**PLACED, "k_cache": CACHE[0, 0]}),
    (ValueError, "k_cache has 0 pages of 4 slots; allowed is > 0 of each", {
        **PLACED, "k_cache": CACHE[:0]}),
    (ValueError, r"q_out has the strides \[0, 0, 64, 1\] and may give two elements one address", {
        "q": Q, "q_out": Q[:1].expand(3, 4, 64)}),
    (ValueError, r"k_scale has the shape \[2, 4, 2\]; allowed is \[2, 2, 4\], one a tok", {
        **PLACED, "k_cache": BYTES.transpose(1, 2).contiguous(), "k_scale": torch.ones(2, 4, 2),
        "cache_layout": "hnd"}),
    (ValueError, "k_cache and k_out are None; allowed is one of them at least", {"k": K}),
    (ValueError, "k_cache is given; allowed is None without k", {"q": Q, "k_cache": CACHE}),
    (ValueError, "slots is given; allowed is None without k_cache or v_cache", {
        "q": Q, "slots": SLOTS}),
    (TypeError, r"there is no field 'slot'; allowed are those of ropekit.AppendFields: slots\?", {
        **PLACED, "slot": SLOTS}),
    *((ValueError, rf"{name} has head_dim 0; allowed is 1\.\.4096", {
        "q": Q, **PLACED, "v": K, "v_cache": CACHE.clone(), name: K[..., :0]}) for name in "qkv"),
    (TypeError, "there is no field 'slot_mapping'; allowed is slots$", {"slot_mapping": SLOTS}),
    (TypeError, "causal is given; allowed is that for ropekit.attention or", {"causal": True}),
    (TypeError, "window is given; allowed is that in a Config and for ropekit.attention", {
        **PLACED, "window": 3}),
    (ValueError, r"slots has the shape \[2\]; allowed is \[1, 3\] or \[3\], batch and tokens", {
        **PLACED, "slots": SLOTS[:2]}),
    (ValueError, "slots repeats one element; allowed is a tensor with a stride", {
        **PLACED, "slots": SLOTS[:1].expand(3)}),
    (TypeError, "slots is torch.float32; allowed is torch.int32 or torch.int64", {
        **PLACED, "slots": SLOTS.float()}),
    (ValueError, r"slots\[0, 1\] is 8; allowed is below 0, or 0\.\.7 \(pages 2 \* page_size 4", {
        **PLACED, "slots": torch.tensor([0, 8, 1])}),
    (ValueError, "k_cache has 2 heads; allowed is 4", {**PLACED, "k": Q}),
    (ValueError, "k_cache has head_dim 64; allowed is 32", {**PLACED, "k": K[..., :32]}),
    (TypeError, r"k_cache is torch.uint8; allowed is .*, as in \.view\(torch.float8_e4m3fn\) of", {
        **PLACED, "k_cache": BYTES.byte()}),
    (ValueError, "v_cache has 1 pages of 4 slots; allowed is those of k_cache, 2 of 4", {
        **PLACED, "v": K, "v_cache": CACHE[:1].clone()}),
    (ValueError, "position_offset is 3 and sequence_offsets is not given; allowed is 0 and None", {
        **PLACED, "rotation": "off", "position_offset": 3}),
    (ValueError, "cache_starts is given; allowed is None unless k_cache or v_cache is given, w", {
        **PLACED, "cache_starts": SLOTS[:1]}),
    (ValueError, "slots and block_table are given; allowed is one of them", {
        **PLACED, "block_table": SLOTS[None]}),
    (ValueError, "block_table has 3 rows; allowed is 1, one a sequence", {
        **PLACED, "slots": None, "block_table": SLOTS[:, None].contiguous()}),
    (ValueError, r"q_weight has the shape \[32\]; allowed is \[64\] or \[4, 64\]", {
        "q": Q, "q_norm_type": "rms", "q_weight": torch.ones(32)}),
    (ValueError, "q_weight or q_norm_weight is given; allowed is None without q_norm_type", {
        "q": Q, "q_weight": torch.ones(64)}),
    (ValueError, "q_weight is not given; allowed is a tensor, as config or a field states a nor", {
        "q": Q, "norm_type": "rms", "norm_weight": "weight"}),
    (ValueError, "q_norm_eps is -1; allowed is >= 0 and finite in fp32", {
        "q": Q, "q_norm_type": "rms", "q_norm_eps": -1.0}),
    (ValueError, "q_norm_dim is 65; allowed is .*64", {
        "q": Q, "q_norm_type": "rms", "q_norm_dim": 65}),
    (ValueError, "norm_type is 'max'; allowed is 'rms' or 'layer'", {"q": Q, "norm_type": "max"}),
    (ValueError, "k_scale is given; allowed is None without k_cache", {
        "q": Q, "k_scale": torch.ones(1)}),
    (ValueError, "k_scale and k_scale_out are given; allowed is one of them", {
        **PLACED, "k_scale": torch.ones(1), "k_scale_out": torch.ones(2, 4, 2)}),
    (ValueError, r"k_scale has the shape \[3\]; allowed is one number, one a head or \[2, 4, 2\]", {
        **PLACED, "k_cache": BYTES, "k_scale": torch.ones(3)}),
    (ValueError, "k_scale.* is 0.*; allowed is > 0 and finite", {
        **PLACED, "k_cache": BYTES, "k_scale": torch.zeros(1)}),
    (ValueError, "k_scale is .*; allowed is None unless k_cache has 8 bits", {
        **PLACED, "k_scale": torch.ones(1)}),
    (TypeError, "k is torch.float16; allowed is torch.float32, the type of q", {
        "q": Q, **PLACED, "k": K.half()}),
    (TypeError, "q is torch.float64; allowed is torch.float32, torch.float16 or torch.bfloat16", {
        "q": Q.double()}),
    (ValueError, "dtype is not given; allowed with a cache of 8 bits is", {
        "k_cache": BYTES, "slots": SLOTS[:1]}),
    (ValueError, "cache_layout is 'nhdx'; allowed is 'nhd', 'hnd' or 'vllm'", {
        **PLACED, "cache_layout": "nhdx"}),
    (ValueError, "k_cache has 3 dimensions; allowed is 4, for cache_layout 'hnd'", {
        **PLACED, "k_cache": CACHE[0], "cache_layout": "hnd"}),
    (ValueError, "q_out has the shape .*; allowed is that of q", {"q": Q, "q_out": Q[:2].clone()}),
    (ValueError, "ring is 4; allowed is None where slots are given", {**PLACED, "ring": 4}),
    (ValueError, r"ring is 30; allowed without block_table is 1\.\.4 \(tokens of a page\), or N", {
        "k": K[None], "k_cache": CACHE[:1], "ring": 30}),
    (ValueError, "ring is 0; allowed is > 0, or None$", {**PLACED, "ring": 0}),
    (ValueError, "ring is -1; allowed is > 0, or None$", {**PLACED, "ring": -1}),
    (ValueError, "positions is given; allowed is None where rotation is 'off'", {
        "q": Q, "rotation": "off", "positions": SLOTS}),
    (ValueError, "k_norm_type is 'rms'; allowed is None where keys in k_cache move", {
        "k_cache": CACHE, "slots": SLOTS[:1], "positions": SLOTS[:1], "k_norm_type": "rms"}),
    (ValueError, "positions is not given; allowed without q, k and v is a tensor", {
        "k_cache": CACHE, "slots": SLOTS[:1], "position_offset": -256}),
    (ValueError, "k and k_cache overlap; allowed is tensors that do not", {
        **PLACED, "k": CACHE[0, :3]}),
    (ValueError, "q and q_out overlap; allowed is tensors that do not", {
        "q": CACHE[0, :3], "q_out": CACHE[0, 1:]}),
    (ValueError, "k_cache and k_out overlap; allowed is tensors that do not", {
        **PLACED, "k_out": CACHE[0, :3]}),
    (ValueError, r"k_cache has the strides \[64, 64, 64, 0, 1\] and may give two elements one", {
        **PLACED, "k_cache": CACHE.as_strided((2, 3, 2, 64), (64, 64, 64, 1))}),
]  # fmt: skip


@pytest.mark.parametrize("kind, words, options", ERRORS)
def test_errors(kind: type[Exception], words: str, options: dict[str, Any]) -> None:
    before = {name: x.clone() for name, x in options.items() if isinstance(x, torch.Tensor)}
    with pytest.raises(kind, match=words):
        ropekit.append(**options)
    assert all(torch.equal(x, options[name]) for name, x in before.items())


def test_hints_name_what_append_reads() -> None:
    others = {"rotate", "scale", "softcap", "window", "window_right", "chunk"}
    fields = get_type_hints(ropekit.AppendFields).keys()
    assert fields == get_type_hints(ropekit.LayerFields).keys() - others
    options = get_type_hints(Options).keys()
    assert fields < options and others.isdisjoint(options)


def test_what_append_alone_reads_is_refused_by_apply() -> None:
    with pytest.raises(TypeError, match=r"norm_type is given; allowed is that in a Config and for"):
        ropekit.apply(Q, norm_type="rms")  # type: ignore[call-overload]
    config = ropekit.Config(norm_type="rms", rope_theta=5e5)
    assert torch.equal(
        ropekit.apply(Q[None], config=config), ropekit.apply(Q[None], rope_theta=5e5)
    )


# ---- GPUs ----


@needs_cuda
def test_cuda_graph_follows_its_slots() -> None:
    q, k, v = tokens_of("cuda", torch.bfloat16)
    found = caches_of(k, torch.float8_e4m3fn)
    slots, ids = slots_of("cuda"), torch.arange(TOKENS, device="cuda")
    scale = torch.tensor(0.05, device="cuda")
    options: dict[str, Any] = {"slots": slots, "positions": ids, "k_scale": scale, "v_scale": scale}
    ropekit.append(q, k, v, k_cache=found[0], v_cache=found[1], **options)  # makes the plan
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        q_out = ropekit.append(q, k, v, k_cache=found[0], v_cache=found[1], **options)
    for start in (3, 1000):
        slots.copy_(slots_of("cuda"))
        ids.copy_(torch.arange(start, start + TOKENS))
        wanted = [x.clone() for x in found]
        graph.replay()
        again = ropekit.append(q, k, v, k_cache=wanted[0], v_cache=wanted[1], **options)
        assert torch.equal(q_out, again)
        assert same(found[0], wanted[0])
        assert same(found[1], wanted[1])


@needs_cuda
@pytest.mark.parametrize("kept", [None, *EIGHT])
def test_devices_give_the_same_bits(kept: torch.dtype | None) -> None:
    q, k, v = tokens_of("cpu", torch.bfloat16)
    here = caches_of(k, kept)
    there = [x.cuda() for x in here]
    slots, weight = slots_of("cpu"), torch.randn(DIM).bfloat16()
    results = [
        ropekit.append(
            *(x.to(device) for x in (q, k, v)),
            **{"k_cache": caches[0], "v_cache": caches[1], "slots": slots.to(device)},
            **{"q_weight": weight.to(device), "k_weight": weight.to(device)},
            **QWEN,
        )
        for device, caches in (("cpu", here), ("cuda", there))
    ]
    assert torch.equal(results[0], results[1].cpu())
    assert all(same(a, b) for a, b in zip(here, there, strict=True))


@needs_cuda
def test_a_token_without_a_place_raises_the_flag() -> None:
    _, k, _ = tokens_of("cuda")
    cache, flag = caches_of(k)[0], torch.zeros(1, dtype=torch.int32, device="cuda")
    slots = slots_of("cuda")
    slots[0] = PAGES * SIZE
    ropekit.append(None, k, k_cache=cache, slots=slots, position_flag=flag)
    assert flag.item() == 1
