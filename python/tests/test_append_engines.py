"""Pages that kernels of FlashInfer and vLLM fill with keys that append has rotated, and those that
append fills itself: equal to the bit, in each layout of these engines. Where one is installed."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import ropekit
import torch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
BOUNDS, BEFORE = [0, 5, 37], [13, 0]  # of two sequences, and what they have in the cache
TABLE, PAGES, SIZE = [[4, 1], [0, 5]], 6, 16
TOKENS, HEADS, KV, DIM, LATENT, ROTATED = 37, 4, 2, 128, 512, 64
MLA: dict[str, Any] = {
    **{"rotary_dim": ROTATED, "k_rotary_offset": LATENT, "k_head_dim": LATENT + ROTATED},
    **{"k_norm_type": "rms", "k_norm_dim": LATENT, "k_norm_eps": 1e-6},
}


def ints(values: Any, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype, device="cuda")


def pages(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """Pages that hold something, which no call may change but where a token goes."""
    return torch.full(shape, 3.0, device="cuda").to(dtype)


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.view(torch.uint8)


def append_heads(dtype: torch.dtype, **places: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Fills the pages; returns k as it rotated it, and v."""
    qkv = torch.randn(TOKENS, HEADS + 2 * KV, DIM, device="cuda").to(dtype)
    q, k, v = qkv.split([HEADS, KV, KV], 1)
    turned = torch.empty_like(k)
    ropekit.append(q, k, v, k_out=turned, **places)
    return turned, v


def append_rows(dtype: torch.dtype, **places: Any) -> torch.Tensor:
    """MLA: the same of rows of a latent part, normalised, and a rotated one."""
    rows = torch.randn(TOKENS, 1, LATENT + ROTATED, device="cuda").to(dtype)
    weight, turned = torch.rand(LATENT, device="cuda").to(dtype), torch.empty_like(rows)
    ropekit.append(None, rows, k_weight=weight, k_out=turned, **places, **MLA)
    return turned[:, 0]


# ---- FlashInfer: tokens by requests and positions ----


@pytest.fixture
def flashinfer() -> Any:
    return pytest.importorskip("flashinfer")


def by_table() -> dict[str, torch.Tensor]:
    return {
        **{"block_table": ints(TABLE), "cu_seqlens": ints(BOUNDS, torch.int64)},
        "sequence_offsets": ints(BEFORE, torch.int64),
    }


def of_requests(flashinfer: Any) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """What its calls take ahead of the pages and behind them."""
    bounds = ints([0, 2, 4])
    lengths = [n + b - a for n, a, b in zip(BEFORE, BOUNDS, BOUNDS[1:], strict=False)]
    last = ints([(n - 1) % SIZE + 1 for n in lengths])
    seq_lens = flashinfer.get_seq_lens(bounds, last, SIZE)
    tokens = flashinfer.get_batch_indices_positions(ints(BOUNDS), seq_lens, TOKENS)
    return list(tokens), [ints(TABLE).flatten(), bounds, last]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_pages_of_flashinfer(layout: str, dtype: torch.dtype, flashinfer: Any) -> None:
    page = (SIZE, KV, DIM) if layout == "NHD" else (KV, SIZE, DIM)
    found = pages(PAGES, 2, *page, dtype=dtype)
    wanted, (k_cache, v_cache) = found.clone(), found.unbind(1)
    k, v = append_heads(
        dtype, k_cache=k_cache, v_cache=v_cache, cache_layout=layout.lower(), **by_table()
    )
    tokens, places = of_requests(flashinfer)
    flashinfer.append_paged_kv_cache(k, v, *tokens, wanted, *places, kv_layout=layout)
    assert torch.equal(bits(found), bits(wanted))


def test_rows_of_flashinfer(flashinfer: Any) -> None:
    found = pages(PAGES, SIZE, LATENT + ROTATED, dtype=torch.bfloat16)
    wanted = found.clone()
    row = append_rows(found.dtype, k_cache=found, **by_table())
    tokens, places = of_requests(flashinfer)
    parts = [LATENT, ROTATED]
    flashinfer.append_paged_mla_kv_cache(
        *row.split(parts, -1), *tokens, *wanted.split(parts, -1), *places
    )
    assert torch.equal(bits(found), bits(wanted))


# ---- vLLM: tokens by slots; fp8 as bytes ----


@pytest.fixture
def vllm() -> Any:
    """Its operators on caches, without the package's own __init__."""
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vllm is not installed")
    return pytest.importorskip("ropekit_bench.peers.vllm").load()[1]


def by_slots() -> dict[str, torch.Tensor]:
    slots = torch.randperm(PAGES * SIZE, device="cuda")[:TOKENS]
    slots[2] = -1
    return {"slots": slots}


def kind_of(stored: torch.dtype | None) -> tuple[str, torch.Tensor, dict[str, torch.Tensor]]:
    """The name of a cache's type, and its scale, a power of two: by a product as by a division."""
    scale = torch.tensor(0.25, device="cuda")
    return ("fp8", scale.view(1), {"k_scale": scale}) if stored else ("auto", scale.view(1), {})


@pytest.mark.parametrize("stored", [None, torch.float8_e4m3fn])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("layout", ["nhd", "hnd", "vllm"])
def test_pages_of_vllm(
    layout: Any, dtype: torch.dtype, stored: torch.dtype | None, vllm: Any
) -> None:
    kind, scale, scales = kind_of(stored)
    x = 16 // (stored or dtype).itemsize
    shapes: dict[str, Any] = {
        "nhd": 2 * [(PAGES, SIZE, KV, DIM)],
        "hnd": 2 * [(PAGES, KV, SIZE, DIM)],
        "vllm": [(PAGES, KV, DIM // x, SIZE, x), (PAGES, KV, DIM, SIZE)],
    }
    found = [pages(*shape, dtype=stored or dtype) for shape in shapes[layout]]
    wanted = [cache.clone() for cache in found]
    places = by_slots()
    k, v = append_heads(
        dtype,
        **{"k_cache": found[0], "v_cache": found[1], "cache_layout": layout, **places},
        **scales,
        **{name.replace("k_", "v_"): x for name, x in scales.items()},
    )
    store = vllm.reshape_and_cache if layout == "vllm" else vllm.reshape_and_cache_flash
    caches = [bits(cache) if stored else cache for cache in wanted]
    if layout == "hnd":  # [page, slot, head, element] of these strides
        caches = [cache.transpose(1, 2) for cache in caches]
    store(k, v, *caches, places["slots"], kind, scale, scale)
    for a, b in zip(found, wanted, strict=True):
        assert torch.equal(bits(a), bits(b))


@pytest.mark.parametrize("stored", [None, torch.float8_e4m3fn])
def test_rows_of_vllm(stored: torch.dtype | None, vllm: Any) -> None:
    kind, scale, scales = kind_of(stored)
    found = pages(PAGES, SIZE, LATENT + ROTATED, dtype=stored or torch.bfloat16)
    wanted, places = found.clone(), by_slots()
    row = append_rows(torch.bfloat16, k_cache=found, **places, **scales)
    cache = bits(wanted) if stored else wanted
    latent, rest = row.split([LATENT, ROTATED], -1)
    vllm.concat_and_cache_mla(latent, rest, cache, places["slots"], kind, scale)
    assert torch.equal(bits(found), bits(wanted))
