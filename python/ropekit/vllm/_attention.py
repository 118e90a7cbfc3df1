"""vLLM's attention by `ropekit.attention`, over pages that `ropekit.append` writes.

Where a step has few tokens of each sequence, `ropekit.decode` writes and attends in one call.
A page of vLLM is [head, slot, key and value], in any order of memory. A layer that ropekit does not
take gets the implementation of vLLM's own backend, from which this one derives. Of attention in
chunks vLLM makes one sequence a chunk, in the step's metadata.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.module import register_module_module_registration_hook
from vllm import envs
from vllm.config import CUDAGraphMode, get_current_vllm_config, get_layers_from_vllm_config
from vllm.forward_context import get_forward_context, is_forward_context_available
from vllm.logger import init_logger
from vllm.model_executor.layers.attention.attention import get_attention_context
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.platforms import current_platform
from vllm.utils.import_utils import resolve_obj_by_qualname
from vllm.v1.attention.backend import (
    AttentionCGSupport,
    AttentionImpl,
    AttentionMetadata,
    AttentionMetadataBuilder,
    AttentionType,
    CommonAttentionMetadata,
    MultipleOf,
)
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

from ropekit._append import append
from ropekit._attention import attention
from ropekit._decode import decode
from ropekit.check import backends
from ropekit.config import Config

logger = init_logger("vllm.ropekit")

# vLLM takes one backend on CPUs whatever is asked for, so this one stands in its place there.
_ON_CPU = current_platform.is_cpu()
_PLACE = AttentionBackendEnum.CPU_ATTN if _ON_CPU else AttentionBackendEnum.CUSTOM
_OWN = AttentionBackendEnum.CPU_ATTN if _ON_CPU else AttentionBackendEnum.TRITON_ATTN
_Own: Any = resolve_obj_by_qualname(_OWN.value)
_STORED = {
    "fp8": torch.float8_e4m3fn,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}
_ROTATED = Config(rotation="off")  # keys come rotated to the cache
_FEW = 8  # tokens of a sequence that one launch takes


def _kernel() -> str | None:
    """On a GPU "tiles" where a row's bits are to follow from no other length; None: the library's
    choice. With its plugin that may be cuDNN's, which builds an engine for the sizes of each step.
    """
    if _ON_CPU:
        return None
    has_cudnn = any(x.name == "cudnn" and not x.reason for x in backends())
    return "tiles" if envs.VLLM_BATCH_INVARIANT or has_cudnn else None


@dataclass
class Metadata(AttentionMetadata):  # type: ignore[misc]
    """A step's batch, by the names that all of vLLM's backends give."""

    num_actual_tokens: int
    max_query_len: int
    query_start_loc: Tensor
    max_seq_len: int
    seq_lens: Tensor
    block_table: Tensor
    slot_mapping: Tensor
    causal: bool


class Builder(_Own.get_builder_cls()):  # type: ignore[misc]
    """Metadata of vLLM's own backend where a layer of the group has its implementation."""

    _cudagraph_support = AttentionCGSupport.ALWAYS

    def __init__(self, spec: Any, layer_names: list[str], config: Any, device: Any) -> None:
        layers = get_layers_from_vllm_config(config, AttentionLayerBase, layer_names)
        self._is_ours = all(isinstance(x.impl, Attention) for x in layers.values())
        if self._is_ours:
            AttentionMetadataBuilder.__init__(self, spec, layer_names, config, device)
        else:
            super().__init__(spec, layer_names, config, device)

    def build(
        self, common_prefix_len: int, common: CommonAttentionMetadata, fast_build: bool = False
    ) -> Any:
        if not self._is_ours:
            return super().build(common_prefix_len, common, fast_build)
        named: Any = {x.name: getattr(common, x.name, None) for x in fields(Metadata)}
        return Metadata(**named | {"block_table": common.block_table_tensor})


class Backend(_Own):  # type: ignore[misc]
    """In the place of CPU_ATTN on a CPU, elsewhere CUSTOM."""

    forward_includes_kv_cache_update = False

    @staticmethod
    def get_name() -> str:
        return str(_PLACE.name)

    @staticmethod
    def get_impl_cls() -> Any:
        return Attention

    @staticmethod
    def get_builder_cls() -> Any:
        return Builder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[Any]:
        return [MultipleOf(1)]

    @classmethod
    def get_supported_head_sizes(cls) -> list[int]:
        return []

    @classmethod
    def supports_sink(cls) -> bool:
        return True

    @classmethod
    def supports_batch_invariance(cls) -> bool:
        return True


class Attention(AttentionImpl):  # type: ignore[misc]
    """A layer's attention; of a layer that ropekit does not take, vLLM's own in its place."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        reason = next(_reasons(_given(args, kwargs)), None)
        if reason:
            logger.warning_once("ropekit leaves a layer to %s: %s", _OWN.name, reason)
            return _Own.get_impl_cls()(*args, **kwargs)
        logger.info_once("Layers attend by ropekit.")
        return super().__new__(cls)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        given = _given(args, kwargs)
        self.num_heads, self.head_size = given["num_heads"], given["head_size"]
        self.num_kv_heads = given["num_kv_heads"] or self.num_heads
        self.scale = float(given["scale"])
        self.kv_cache_dtype = given["kv_cache_dtype"]
        self.sliding_window, self.sinks = given["sliding_window"], given.get("sinks")
        self.attn_type = given["attn_type"]
        self.kv_sharing_target_layer_name = given["kv_sharing_target_layer_name"]
        self._pages: Tensor | None = None
        options: Any = {
            "scale": self.scale,
            "window": self.sliding_window,
            "softcap": given["logits_soft_cap"],
            "kernel": _kernel(),
        }
        self._config = Config(rotate="none", **options)
        self._decoding = Config(rotation="off", **options)

    def forward(
        self,
        layer: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: Metadata | None,
        output: Tensor,
        output_scale: Tensor | None = None,
        output_block_scale: Tensor | None = None,
    ) -> Tensor:
        if attn_metadata is None:  # a profile
            return output
        tokens = attn_metadata.num_actual_tokens
        shared: Any = self._stores(layer, kv_cache) | {
            "k_lengths": attn_metadata.seq_lens,
            "block_table": attn_metadata.block_table,
            "sinks": self.sinks,
            "causal": None if attn_metadata.causal else False,
        }
        query = _first(query, tokens)
        if self._decodes(attn_metadata):
            new = query, _first(key, tokens), _first(value, tokens)
            _decode(new, attn_metadata, _first(output, tokens), config=self._decoding, **shared)
        else:
            starts = attn_metadata.query_start_loc
            found = attention(query, cu_seqlens=starts, config=self._config, **shared)
            _first(output, tokens).copy_(found)
        return output

    def _decodes(self, step: Metadata | None) -> bool:
        """Whether `forward` caches a step's tokens, too. A graph of pieces may hold the cache's
        write, whatever its steps are, but not attention."""
        if step is None or step.max_query_len > _FEW or self.kv_sharing_target_layer_name:
            return False
        if not is_forward_context_available():
            return True
        return bool(get_forward_context().cudagraph_runtime_mode != CUDAGraphMode.PIECEWISE)

    def do_kv_cache_update(
        self, layer: Any, key: Tensor, value: Tensor, kv_cache: Tensor, slot_mapping: Tensor
    ) -> None:
        is_step = is_forward_context_available()
        if is_step and self._decodes(get_attention_context(layer.layer_name)[0]):
            return
        tokens = slot_mapping.shape[0]  # of a captured graph, key has more
        append(
            None,
            _first(key, tokens),
            _first(value, tokens),
            slots=slot_mapping,
            config=_ROTATED,
            **self._stores(layer, kv_cache),
        )

    def fused_rope_kvcache_supported(self) -> bool:
        return True

    def fused_qk_norm_rope_kvcache_supported(self) -> bool:
        return True

    def do_rope_and_kv_cache_update(
        self,
        layer: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        positions: Tensor,
        cos_sin_cache: Tensor,
        is_neox: bool,
        kv_cache: Tensor,
        layer_slot_mapping: Tensor,
    ) -> None:
        """Rotates query and key in place and caches key and value."""
        q, k, v = (x.view(x.shape[0], -1, self.head_size) for x in (query, key, value))
        table = (positions, cos_sin_cache, is_neox)
        self._fused(layer, (q, k, v), (q, k), table, kv_cache, layer_slot_mapping)

    def do_qk_norm_rope_kvcache_update(
        self,
        layer: Any,
        qkv: Tensor,
        q_out: Tensor,
        k_out: Tensor,
        positions: Tensor,
        q_weight: Tensor,
        k_weight: Tensor,
        rms_norm_eps: float,
        cos_sin_cache: Tensor,
        is_neox: bool,
        kv_cache: Tensor,
        layer_slot_mapping: Tensor,
    ) -> None:
        """Normalises and rotates q and k of qkv, and caches k and v."""
        heads = [self.num_heads, self.num_kv_heads, self.num_kv_heads]
        parts = qkv.view(qkv.shape[0], -1, self.head_size).split(heads, 1)
        outs = tuple(x.view(x.shape[0], -1, self.head_size) for x in (q_out, k_out))
        self._fused(
            layer,
            parts,
            outs,
            (positions, cos_sin_cache, is_neox),
            kv_cache,
            layer_slot_mapping,
            q_weight=q_weight,
            k_weight=k_weight,
            norm_type="rms",
            norm_eps=rms_norm_eps,
            norm_rounding="twice",  # ahead of the weight too, as vLLM's RMSNorm
        )

    def _fused(
        self,
        layer: Any,
        parts: tuple[Tensor, ...],
        outs: tuple[Tensor, ...],
        table: tuple[Tensor, Tensor, bool],
        kv_cache: Tensor,
        slots: Tensor,
        **norm: Any,
    ) -> None:
        tokens = slots.shape[0]
        positions, cos_sin, is_neox = table
        cos, sin = cos_sin.chunk(2, -1)
        append(
            *(_first(x, tokens) for x in parts),
            q_out=_first(outs[0], tokens),
            k_out=_first(outs[1], tokens),
            slots=slots,
            positions=positions[:tokens],
            cos=cos,
            sin=sin,
            angle_mode="table",
            table_width="half",
            rotary_dim=cos_sin.shape[-1],
            pairing_in="half_split" if is_neox else "interleaved",
            **norm | self._stores(layer, kv_cache),
        )

    def _caches(self, kv_cache: Tensor) -> Any:
        """Pages of keys and of values, [page, slot, head, element], made once for a cache."""
        if self._pages is not kv_cache:
            self._pages = kv_cache
            if self.kv_cache_dtype in _STORED:
                kv_cache = kv_cache.view(_STORED[self.kv_cache_dtype])
            self._parts = kv_cache.transpose(1, 2).split(self.head_size, -1)
        return self._parts

    def _stores(self, layer: Any, kv_cache: Tensor) -> Any:
        k_cache, v_cache = self._caches(kv_cache)
        stores = {"k_cache": k_cache, "v_cache": v_cache}
        if self.kv_cache_dtype in _STORED:
            stores |= {"k_scale": layer._k_scale, "v_scale": layer._v_scale}
        return stores


def _decode(new: tuple[Tensor, ...], step: Metadata, out: Tensor, **options: Any) -> None:
    """By rows where each sequence has a token, or else packed. A captured graph's own sizes bound
    those of its replays; sequences that pad it have no slots and no keys."""
    slots = _first(step.slot_mapping, step.num_actual_tokens)
    if step.max_query_len == 1 and step.num_actual_tokens == step.seq_lens.shape[0]:
        q, k, v, slots, out = (x.unsqueeze(1) for x in (*new, slots, out))
    else:
        q, k, v = new
        options |= {"cu_seqlens": step.query_start_loc, "max_seqlen_q": step.max_query_len}
    decode(q, k, v, slots=slots, out=out, **options)


def _first(x: Tensor, tokens: int) -> Tensor:
    return x if x.shape[0] == tokens else x[:tokens]


_NAMES = {  # of a layer's arguments, in vLLM's order, with what they are where left out
    "num_heads": None,
    "head_size": None,
    "scale": None,
    "num_kv_heads": None,
    "alibi_slopes": None,
    "sliding_window": None,
    "kv_cache_dtype": "auto",
    "logits_soft_cap": None,
    "attn_type": AttentionType.DECODER,
    "kv_sharing_target_layer_name": None,
}


def _given(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    return _NAMES | dict(zip(_NAMES, args, strict=False)) | kwargs


def _reasons(given: dict[str, Any]) -> Iterator[str]:
    """Why ropekit does not take a layer of these arguments."""
    config = get_current_vllm_config()
    parallel = config.parallel_config
    for name in given.keys() - _NAMES.keys() - {"sinks"} | {"alibi_slopes"}:
        if given[name] is not None:
            yield f"{name} is given"
    if given["attn_type"] != AttentionType.DECODER:
        yield f"attn_type is {given['attn_type']}"
    if given["kv_cache_dtype"] not in (*_STORED, "auto", "float16", "bfloat16"):
        yield f"kv_cache_dtype is {given['kv_cache_dtype']}"
    if config.attention_config.use_non_causal or config.model_config.is_mm_prefix_lm:
        yield "its mask is not causal"
    if config.kv_transfer_config is not None:
        yield "keys and values are transferred"
    if parallel.decode_context_parallel_size > 1 or parallel.prefill_context_parallel_size > 1:
        yield "a sequence is spread over devices"
    other = given["kv_sharing_target_layer_name"]
    if other is not None:
        layers = config.compilation_config.static_forward_context
        if not isinstance(layers[other].impl, Attention):
            yield f"it reads keys of {other}, which vLLM wrote"


def _tell(model: Any, name: str, layer: Any) -> None:
    """Says why a layer that joins a model has another backend."""
    backend = layer.get_attn_backend() if isinstance(layer, AttentionLayerBase) else Backend
    if not issubclass(backend, Backend):
        own = f"only {_PLACE.name} is ropekit's"
        reason = "MLA caches latents" if backend.is_mla() else own
        logger.warning_once("ropekit leaves a layer to %s: %s", backend.get_name(), reason)


_watch = cache(register_module_module_registration_hook)  # once, however often vLLM registers


def register() -> None:
    register_backend(_PLACE, f"{__name__}.{Backend.__qualname__}")
    _watch(_tell)
