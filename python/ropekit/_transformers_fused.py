"""Layers of Transformers whose norm, rotation, cache write and attention are one call.

The cache is a StaticCache. A layer is taken where a trial of it on a small cache gives its
attention the same queries, keys and values; every call that is no such step goes to the layer's own
forward.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache as kept
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, StaticCache
from transformers.cache_utils import StaticLayer

from ropekit._append import append
from ropekit._decode import decode
from ropekit._forms import NAMES, find_form
from ropekit._transformers_attention import NAME, attention_forward, options_of
from ropekit._transformers_masks import Mask, is_of_lengths
from ropekit.config import Config

_NORMS = (
    "",
    "norm_type=rms norm_rounding=twice",
    "norm_type=rms",
    "norm_type=rms norm_weight=one_plus_weight",
)
_TOKENS, _CAPACITY = 5, 8
_form = kept(find_form)


@dataclass(eq=False)
class FusedForward:
    """The forward of an attention layer, over the one it replaced on the instance."""

    module: Any
    config: Config
    options: dict[str, Any]  # what the layer gives to attention, but for sinks
    cache_name: str
    under: Callable[..., Any] | None = None

    def original(self, *args: Any, **kwargs: Any) -> Any:
        if self.under:
            return self.under(*args, **kwargs)
        return type(self.module).forward(self.module, *args, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        layer = None if args else self._layer(kwargs)
        if layer is None:
            return self.original(*args, **kwargs)
        module, mask = self.module, Mask.decode(kwargs["attention_mask"])
        cos, sin = kwargs["position_embeddings"]
        hidden = kwargs["hidden_states"]
        options = self.options | mask.of_token()
        if hasattr(module, "sinks"):
            options["sinks"] = module.sinks.to(hidden.dtype)
        q, k, v = self._tensors(hidden)
        out = decode(q, k, v, **self._places(hidden, cos, sin, layer), **options)
        layer.cumulative_length.add_(hidden.shape[1])
        return module.o_proj(out.flatten(2)), None

    def _layer(self, kwargs: dict[str, Any]) -> Any:
        """The layer of the cache, of a call that this is for: one token without a gradient."""
        cache, mask = kwargs.get(self.cache_name), kwargs.get("attention_mask")
        tables = kwargs.get("position_embeddings")
        if torch.is_grad_enabled() or not isinstance(mask, Tensor) or mask.dtype != torch.int64:
            return None
        if torch.is_autocast_enabled(mask.device.type):  # of which a cache may have another type
            return None
        if self.module.training and getattr(self.module, "attention_dropout", 0.0):
            return None
        if mask.dim() != 4 or not is_of_lengths(mask) or not isinstance(tables, tuple):
            return None
        if self.module.config._attn_implementation != NAME or not isinstance(cache, StaticCache):
            return None
        layer = cache.layers[self.module.layer_idx]
        hidden = kwargs["hidden_states"]
        fits = type(layer) is StaticLayer and layer.is_initialized
        typed = all(x.dtype == hidden.dtype for x in (tables[0], layer.keys)) if fits else False
        return layer if fits and typed and hidden.shape[1] == 1 else None

    def append(self, hidden: Tensor, cos: Tensor, sin: Tensor, layer: Any) -> Tensor:
        """Writes keys and values behind those of the layer's cache; returns the queries."""
        q, k, v = self._tensors(hidden)
        found: Tensor = append(q, k, v, **self._places(hidden, cos, sin, layer))
        layer.cumulative_length.add_(hidden.shape[1])
        return found

    def _tensors(self, hidden: Tensor) -> Any:
        module = self.module
        return (
            proj(hidden).unflatten(-1, (-1, module.head_dim))
            for proj in (module.q_proj, module.k_proj, module.v_proj)
        )

    def _places(self, hidden: Tensor, cos: Tensor, sin: Tensor, layer: Any) -> dict[str, Any]:
        """Keywords of `append` and `decode`."""
        module = self.module
        options: dict[str, Any] = {"config": self.config, "cache_layout": "hnd"}
        if "norm_type" in self.config.text:
            options |= {"q_weight": module.q_norm.weight, "k_weight": module.k_norm.weight}
        options |= {"k_cache": layer.keys, "v_cache": layer.values}
        batch = hidden.shape[0]
        options |= {"cos": cos.expand(batch, -1, -1), "sin": sin.expand(batch, -1, -1)}
        return options | {"cache_starts": layer.cumulative_length.repeat(batch)}

    def __reduce__(self) -> tuple[Any, ...]:
        if self.under:
            return partial, (self.under,)
        return getattr, (self.module, "forward")


def _texts(module: Any, columns: int) -> list[str]:
    """Configurations that may be the layer's."""
    source = sys.modules[type(module).__module__]
    function = next((getattr(source, name) for name in NAMES if hasattr(source, name)), None)
    form = _form(getattr(function, "original", function)) if function else None
    if form is None:
        raise ValueError("its rotary function is of no known form")
    if form.complex_layout or form.upcast or form.reverses:
        raise ValueError("its rotary function multiplies complex numbers, in float32 or backwards")
    norm = getattr(module, "q_norm", None)
    if norm is None:
        return [form.text(columns)]
    eps = getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
    if not isinstance(eps, float):
        raise ValueError("its norm tells no epsilon")
    return [f"{form.text(columns)} {text} norm_eps={eps!r}" for text in _NORMS[1:]]


@dataclass
class _Seen:
    """What a layer gave to attention in a trial."""

    query: Tensor
    options: dict[str, Any]
    hidden: Tensor
    tables: tuple[Tensor, Tensor]
    layer: Any


def _try(module: Any, rotary: Any, cache_name: str) -> _Seen:
    """A prompt of one sequence through the layer."""
    weight = module.q_proj.weight
    generator = torch.Generator().manual_seed(0)
    shape = 1, _TOKENS, module.q_proj.in_features
    hidden = torch.randn(shape, generator=generator).to(weight.device, weight.dtype)
    by_layer = "layer_type" in inspect.signature(type(rotary).forward).parameters
    kind = (module.config.layer_types[module.layer_idx],) if by_layer else ()
    tables = rotary(hidden, torch.arange(_TOKENS, device=weight.device)[None], *kind)
    cache = StaticCache(config=module.config, max_cache_len=_CAPACITY)
    seen: list[Any] = []

    def note(own: Any, query: Tensor, *args: Any, **kwargs: Any) -> Any:
        seen.append((query, kwargs))
        return attention_forward(own, query, *args, **kwargs)

    none = torch.full((1, 1), _TOKENS, device=weight.device)
    AttentionInterface.register(NAME, note)
    try:
        forward = type(module).forward
        given = {
            "position_embeddings": tables,
            "attention_mask": Mask(none, 0, 0).encode(_CAPACITY),
        }
        forward(module, hidden_states=hidden, **given, **{cache_name: cache})
    finally:
        AttentionInterface.register(NAME, attention_forward)
    if len(seen) != 1 or type(cache.layers[module.layer_idx]) is not StaticLayer:
        raise ValueError("its cache is not one that a StaticCache keeps whole")
    query, kwargs = seen[0]
    return _Seen(query, options_of(query, kwargs), hidden, tables, cache.layers[module.layer_idx])


def _agrees(found: Tensor, expected: Tensor, exact: bool) -> bool:
    """Norms add in an order of their own."""
    if exact:
        return torch.equal(found, expected)
    bound = 4 * torch.finfo(expected.dtype).eps * expected.float().abs().max()
    return bool((found.float() - expected.float()).abs().max() <= bound)


def fuse(module: Any, rotary: Any) -> FusedForward:
    """The forward of a layer that a trial found to be one call; ValueError: why it is none."""
    needed = "q_proj", "k_proj", "v_proj", "o_proj", "head_dim", "layer_idx", "config"
    missing = [name for name in needed if not hasattr(module, name)]
    if missing:
        raise ValueError(f"it has no {missing[0]}")
    parameters = inspect.signature(type(module).forward).parameters
    cache_name = next((x for x in ("cache", "past_key_values") if x in parameters), "")
    given = "self", "hidden_states", "position_embeddings", "attention_mask", cache_name
    other = [
        name
        for name, x in parameters.items()
        if name not in given and x.default is x.empty and x.kind is x.POSITIONAL_OR_KEYWORD
    ]
    if not cache_name or "position_embeddings" not in parameters or other:
        raise ValueError(f"its forward has other arguments: {', '.join(other or parameters)}")
    with torch.no_grad():
        seen = _try(module, rotary, cache_name)
        if hasattr(module, "sinks") != ("sinks" in seen.options):
            raise ValueError("its sinks are not its own")
        options = {name: x for name, x in seen.options.items() if name != "sinks"}
        for text in _texts(module, seen.tables[0].shape[-1]):
            made = FusedForward(module, Config.from_text(text), options, cache_name)
            layer: Any = StaticLayer(_CAPACITY)
            layer.lazy_initialization(seen.layer.keys[:, :, :1], seen.layer.values[:, :, :1])
            q = made.append(seen.hidden, *seen.tables, layer)
            pairs = (
                (q, seen.query.transpose(1, 2)),
                (layer.keys, seen.layer.keys),
                (layer.values, seen.layer.values),
            )
            if all(_agrees(a, b, "norm_type" not in text) for a, b in pairs):
                return made
    raise ValueError("a trial of it gave other queries, keys or values")


def rotary_of(model: nn.Module, layer: str) -> Any:
    """The rotary embedding of the part of a model that a layer is in."""
    path = layer.split(".")
    for end in range(len(path), -1, -1):
        part: Any = model.get_submodule(".".join(path[:end]))
        if hasattr(part, "rotary_emb"):
            return part.rotary_emb
    raise ValueError("no rotary embedding is found")
