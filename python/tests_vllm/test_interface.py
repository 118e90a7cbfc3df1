"""What vLLM hands over and asks for, without an engine: also what it does on GPUs alone."""

from __future__ import annotations

from types import SimpleNamespace

import engines
import pytest
import ropekit
import torch
import vllm
from ropekit import check
from ropekit.vllm import _attention, register
from vllm.config import (
    CacheConfig,
    CUDAGraphMode,
    ModelConfig,
    VllmConfig,
    set_current_vllm_config,
)
from vllm.forward_context import set_forward_context
from vllm.model_executor.layers.attention.attention import (
    unified_attention_with_output,
    unified_kv_cache_update,
)
from vllm.model_executor.layers.attention.chunked_local_attention import (
    create_chunked_local_attention_backend,
)
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackendImpl
from vllm.v1.attention.backends.registry import AttentionBackendEnum

_HEADS, _KV_HEADS, _DIM, _PAGE = 4, 2, 32, 16


@pytest.fixture
def within(saved):
    model = ModelConfig(saved("llama"), skip_tokenizer_init=True, dtype="float32")
    config = VllmConfig(model_config=model, cache_config=CacheConfig())
    with set_current_vllm_config(config):
        yield config


class _Layer:
    _k_scale = torch.tensor(0.5)
    _v_scale = torch.tensor(2.0)


def _pages(dtype: torch.dtype, by_head: bool) -> torch.Tensor:
    """8 pages as vLLM shows them, [page, head, slot, element], in one of its orders of memory."""
    if by_head:
        return torch.zeros(8, _KV_HEADS, _PAGE, 2 * _DIM, dtype=dtype)
    return torch.zeros(8, _PAGE, _KV_HEADS, 2 * _DIM, dtype=dtype).transpose(1, 2)


def _attention_of(**options):
    fields = {"alibi_slopes": None, "sliding_window": None, "kv_cache_dtype": "auto"}
    return _attention.Attention(_HEADS, _DIM, _DIM**-0.5, _KV_HEADS, **fields | options)


def _metadata(
    lengths: list[int], new: list[int], padding: int = 0, none: int | None = None
) -> CommonAttentionMetadata:
    """A step of some sequences, each with pages of its own; padding as of a captured graph: tokens
    without a slot, and as many sequences without a query, or `none`."""
    none = padding if none is None else none
    starts = torch.tensor([0, *new] + [0] * none).cumsum(0).to(torch.int32)
    table = torch.arange(8, dtype=torch.int32).view(4, 2)[: len(new)]
    slots = [
        int(table[i][p // _PAGE]) * _PAGE + p % _PAGE
        for i, (length, own) in enumerate(zip(lengths, new, strict=True))
        for p in range(length - own, length)
    ]
    return CommonAttentionMetadata(
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        seq_lens=torch.tensor(lengths + [0] * none, dtype=torch.int32),
        num_reqs=len(new) + none,
        num_actual_tokens=len(slots) + padding,
        max_query_len=max(new),
        max_seq_len=max(lengths),
        block_table_tensor=torch.cat((table, torch.zeros(none, 2, dtype=torch.int32))),
        slot_mapping=torch.tensor(slots + [-1] * padding),
    )


def _built(common: CommonAttentionMetadata) -> _attention.Metadata:
    builder = object.__new__(_attention.Builder)
    builder._is_ours = True
    return builder.build(0, common)


@pytest.mark.parametrize("by_head", [True, False])
@pytest.mark.parametrize("stored", ["auto", "fp8", "fp8_e5m2"])
@pytest.mark.parametrize("padding", [0, 3])
def test_step(within, by_head, stored, padding):
    """Some tokens of each of three sequences are cached, then attend: as each alone."""
    impl = _attention_of(kv_cache_dtype=stored, sliding_window=20)
    cache = _pages(torch.float32 if stored == "auto" else torch.uint8, by_head)
    lengths, new = [30, 7, 21], [30, 7, 21]
    torch.manual_seed(0)
    q = torch.randn(sum(new) + padding, _HEADS, _DIM)
    k, v = torch.randn(2, sum(new) + padding, _KV_HEADS, _DIM)
    step = _built(_metadata(lengths, new, padding))
    out = torch.full((q.shape[0] + 2, _HEADS, _DIM), 9.0)
    impl.do_kv_cache_update(_Layer, k, v, cache, step.slot_mapping)
    assert impl.forward(_Layer, q, k, v, cache, step, out) is out
    assert (out[q.shape[0] :] == 9).all()
    first = 0
    for n in new:
        rows = slice(first, first + n)
        kept = [k[rows], v[rows]]
        if stored != "auto":
            dtype = _attention._STORED[stored]
            scales = _Layer._k_scale, _Layer._v_scale
            kept = [(x / s).to(dtype).float() * s for x, s in zip(kept, scales, strict=True)]
        known = ropekit.attention(q[rows][None], *(x[None] for x in kept), rotate="none", window=20)
        assert torch.equal(out[rows], known[0])
        first += n


@pytest.fixture
def calls(monkeypatch):
    """How often vLLM's attention has called each function of ropekit."""
    return engines.count_calls(monkeypatch)


def _in_two_calls(q, k, v, pages, step, **options):
    """The same step by an append and attention, and in what pages."""
    k_cache, v_cache = pages.transpose(1, 2).split(_DIM, -1)
    caches = {"k_cache": k_cache, "v_cache": v_cache}
    if pages.dtype != torch.float32:
        caches |= {"k_scale": _Layer._k_scale, "v_scale": _Layer._v_scale}
    ropekit.append(None, k, v, slots=step.slot_mapping, rotation="off", **caches)
    return ropekit.attention(
        q,
        cu_seqlens=step.query_start_loc,
        k_lengths=step.seq_lens,
        block_table=step.block_table,
        rotate="none",
        **caches,
        **options,
    )


@pytest.mark.parametrize("new", [[1, 1, 1], [4, 4, 4], [1, 8, 3], [1, 9, 1]], ids=str)
@pytest.mark.parametrize("stored", ["auto", "fp8", "fp8_e5m2"])
@pytest.mark.parametrize("graph", [(0, "NONE"), (2, "FULL"), (2, "PIECEWISE")], ids=str)
def test_few_tokens_take_one_call(within, calls, new, stored, graph):
    """By vLLM's own operators, which write the cache ahead of attention: up to 8 tokens of a
    sequence take one `decode`, more, and pieces of a graph, an append and attention, with the bits
    of these."""
    padding, mode = graph
    lengths, masks = [30, 9, 21], {"window": 20, "softcap": 30.0, "sinks": torch.randn(_HEADS)}
    impl = _attention_of(
        kv_cache_dtype=stored, sliding_window=20, logits_soft_cap=30.0, sinks=masks["sinks"]
    )
    torch.manual_seed(0)
    pages = torch.randn(8, _KV_HEADS, _PAGE, 2 * _DIM)
    if stored != "auto":
        pages = pages.to(_attention._STORED[stored])
    own = pages.clone()
    q = torch.randn(sum(new) + padding, _HEADS, _DIM)
    k, v = torch.randn(2, sum(new) + padding, _KV_HEADS, _DIM)
    none = padding and sum(new) + padding - len(new)  # of a mixed batch: a sequence a token
    step, out = _built(_metadata(lengths, new, padding, none)), torch.empty_like(q)
    layer = SimpleNamespace(
        layer_name="0",
        impl=impl,
        kv_cache=own if stored == "auto" else own.view(torch.uint8),
        _k_scale=_Layer._k_scale,
        _v_scale=_Layer._v_scale,
    )
    within.compilation_config.static_forward_context["0"] = layer
    context = {"cudagraph_runtime_mode": CUDAGraphMode[mode]}
    context["slot_mapping"] = {"0": step.slot_mapping}
    with set_forward_context({"0": step}, within, **context):
        unified_kv_cache_update(k, v, "0")
        unified_attention_with_output(q, k, v, out, "0")
    known = _in_two_calls(q, k, v, pages, step, **masks)
    assert torch.equal(out[: sum(new)], known[: sum(new)])
    assert torch.equal(own.view(torch.uint8), pages.view(torch.uint8))
    is_one = max(new) <= 8 and mode != "PIECEWISE"
    assert calls == ({"decode": 1} if is_one else {"append": 1, "attention": 1})


def test_shared_keys_are_read_alone(within, calls):
    """A layer that attends to keys of another one writes none."""
    owner = SimpleNamespace(impl=_attention_of())
    within.compilation_config.static_forward_context["0"] = owner
    impl = _attention_of(kv_sharing_target_layer_name="0")
    step, pages = _built(_metadata([30, 9], [1, 1])), torch.randn(8, _KV_HEADS, _PAGE, 2 * _DIM)
    q, out = torch.randn(2, 2, _HEADS, _DIM)
    known = pages.clone()
    impl.forward(_Layer, q, None, None, pages, step, out)
    assert calls == {"attention": 1}
    assert torch.equal(pages, known)


def test_another_cache_is_another(within):
    impl = _attention_of()
    for cache in (_pages(torch.float32, True), _pages(torch.float32, True)):
        for _ in range(2):
            k_cache, v_cache = impl._caches(cache)
            assert k_cache.data_ptr() == cache.data_ptr()
            assert v_cache.data_ptr() == cache.data_ptr() + _DIM * cache.element_size()


def test_chunks(within):
    """A chunk of keys, of which vLLM makes a sequence, has the bits of the field `chunk`."""
    impl, cache = _attention_of(), _pages(torch.float32, True)
    lengths, new = [30, 7, 32, 17], [20, 7, 1, 1]
    torch.manual_seed(0)
    q, k, v = (torch.randn(sum(lengths), heads, _DIM) for heads in (_HEADS, _KV_HEADS, _KV_HEADS))
    impl.do_kv_cache_update(_Layer, k, v, cache, _built(_metadata(lengths, lengths)).slot_mapping)
    local = create_chunked_local_attention_backend(_attention.Backend, _PAGE)
    builder = object.__new__(local.get_builder_cls())
    builder._is_ours, builder.kv_cache_spec = True, SimpleNamespace(block_size=_PAGE)
    step = builder.build(0, _metadata(lengths, new))
    assert step.seq_lens.tolist() == [16, 14, 7, 16, 1]
    parts = [x.split(lengths) for x in (q, k, v)]
    q = torch.cat([x[-n:] for x, n in zip(parts[0], new, strict=True)])
    out = impl.forward(_Layer, q, k, v, cache, step, torch.empty_like(q))
    for found, n, own_q, own_k, own_v in zip(out.split(new), new, *parts, strict=True):
        known = ropekit.attention(
            own_q[None, -n:], own_k[None], own_v[None], rotate="none", chunk=_PAGE
        )
        assert torch.equal(found, known[0])


def _tables() -> torch.Tensor:
    angles = torch.arange(64)[:, None] * 10000.0 ** (-torch.arange(0, _DIM, 2) / _DIM)
    return torch.cat((angles.cos(), angles.sin()), -1)


@pytest.mark.parametrize("is_neox", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("norm", [False, True])
def test_fused_updates(within, is_neox, dtype, norm):
    """Norm, rotation and the cache's write in one call have the bits of the steps one by one."""
    impl = _attention_of()
    step = _built(_metadata([30, 7], [30, 7]))
    torch.manual_seed(0)
    tokens, widths = 37, [_HEADS * _DIM, _KV_HEADS * _DIM, _KV_HEADS * _DIM]
    qkv = torch.randn(tokens, sum(widths)).to(dtype)
    positions = torch.cat((torch.arange(30), torch.arange(7)))
    tables = _tables().to(dtype)
    weights = [(1 + torch.randn(_DIM) / 8).to(dtype) for _ in range(2)]
    q, k, v = (x.reshape(tokens, -1, _DIM) for x in qkv.split(widths, -1))
    if norm:
        fields = {"norm_type": "rms", "norm_eps": 1e-6, "norm_rounding": "twice", "rotation": "off"}
        q = ropekit.append(q, q_weight=weights[0], **fields)
        k = ropekit.append(k, q_weight=weights[1], **fields)
    pairing = "half_split" if is_neox else "interleaved"
    cos, sin = tables.chunk(2, -1)
    fields = {"angle_mode": "table", "table_width": "half", "pairing_in": pairing}
    q, k = (
        x[0]
        for x in ropekit.apply(
            q[None], k[None], positions=positions[None], cos=cos, sin=sin, **fields
        )
    )
    expected, cache = _pages(dtype, True), _pages(dtype, True)
    impl.do_kv_cache_update(_Layer, k, v, expected, step.slot_mapping)
    last = (tables, is_neox, cache, step.slot_mapping)
    if norm:
        q_out, k_out = torch.empty(tokens, widths[0], dtype=dtype), torch.empty_like(k)
        impl.do_qk_norm_rope_kvcache_update(
            _Layer, qkv, q_out, k_out, positions, *weights, 1e-6, *last
        )
    else:
        q_out, k_out, own_v = qkv.split(widths, -1)
        impl.do_rope_and_kv_cache_update(_Layer, q_out, k_out, own_v, positions, *last)
    assert torch.equal(q_out.reshape(q.shape), q)
    assert torch.equal(k_out.reshape(k.shape), k)
    assert torch.equal(cache, expected)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"alibi_slopes": [1.0] * _HEADS}, "alibi_slopes"),
        ({"attn_type": "encoder_only"}, "encoder_only"),
        ({"kv_cache_dtype": "int8_per_token_head"}, "int8_per_token_head"),
    ],
)
def test_what_is_left_to_vllm(within, options, reason, caplog_vllm):
    impl = _attention_of(**options)
    assert isinstance(impl, CPUAttentionBackendImpl)
    assert reason in caplog_vllm.text
    assert "ropekit leaves a layer to CPU_ATTN" in caplog_vllm.text


def test_another_version_is_left_alone(monkeypatch, caplog_vllm):
    AttentionBackendEnum.CPU_ATTN.clear_override()
    monkeypatch.setenv("ROPE_VLLM", "attention")
    monkeypatch.setattr(vllm, "__version__", "0.31.1")
    register()
    assert not AttentionBackendEnum.CPU_ATTN.is_overridden()
    assert "its version is 0.31.1; tested is 0.32.0" in caplog_vllm.text


def test_a_wrong_part_is_an_error(monkeypatch):
    monkeypatch.setenv("ROPE_VLLM", "attention,norm")
    with pytest.raises(ValueError, match='ROPE_VLLM is "norm"; allowed is attention and rotation'):
        register()


def test_nothing_is_taken_unasked(monkeypatch):
    AttentionBackendEnum.CPU_ATTN.clear_override()
    monkeypatch.delenv("ROPE_VLLM", raising=False)
    register()
    assert not AttentionBackendEnum.CPU_ATTN.is_overridden()


def test_batch_invariance_is_promised():
    assert _attention.Backend.supports_batch_invariance()


@pytest.mark.parametrize(
    ("on_cpu", "invariant", "plugin", "kernel"),
    [
        (True, "1", ("cuda", "x.so", ""), None),
        (False, "0", ("cuda", "x.so", ""), None),
        (False, "1", ("cuda", "x.so", ""), "tiles"),
        (False, "0", ("cudnn", "x.so", ""), "tiles"),
        (False, "0", ("cudnn", "x.so", "no libcudnn.so.9"), None),
    ],
)
@pytest.mark.usefixtures("within")
def test_bits_or_speed(monkeypatch, on_cpu, invariant, plugin, kernel):
    """On a GPU the library's choice, but for one kernel where vLLM is to be invariant."""
    monkeypatch.setattr(_attention, "_ON_CPU", on_cpu)
    monkeypatch.setattr(_attention, "backends", lambda: iter([check.Backend(*plugin)]))
    monkeypatch.setenv("VLLM_BATCH_INVARIANT", invariant)
    config = _attention_of()._config
    assert config == config.replace(kernel=kernel)
