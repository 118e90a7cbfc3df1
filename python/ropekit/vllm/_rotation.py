"""vLLM's rotary embeddings by `ropekit.apply_`, of exact angles at any position.

The fields of a layer follow from vLLM's module. Where they do not give the module's own cos and
sin, it keeps its own code.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.module import register_module_module_registration_hook
from vllm.logger import init_logger
from vllm.model_executor.custom_op import CustomOp, op_registry_oot
from vllm.model_executor.layers import rotary_embedding as own
from vllm.model_executor.layers.rotary_embedding.common import ApplyRotaryEmb

from ropekit._fields import Pairing
from ropekit._functions import apply, apply_
from ropekit.config import Config

logger = init_logger("vllm.ropekit")

_CHECKED = (0, 1, 2, 5, 17, 60)  # positions at which fp32 angles of any rule are near exact


def _plain(x: Any) -> dict[str, Any]:
    return {"rope_theta": float(x.base)}


def _linear(x: Any) -> dict[str, Any]:
    (factor,) = x.scaling_factors
    return _plain(x) | {"rope_type": "linear", "factor": float(factor)}


def _llama3(x: Any) -> dict[str, Any]:
    return _plain(x) | {
        "rope_type": "llama3",
        "factor": float(x.scaling_factor),
        "low_freq_factor": float(x.low_freq_factor),
        "high_freq_factor": float(x.high_freq_factor),
        "original_max_position_embeddings": x.orig_max_position,
    }


def _ntk(x: Any) -> dict[str, Any]:
    base, dim = float(x.base), x.rotary_dim
    rates = (base ** (-2 * i / dim) for i in range(dim // 2))
    if x.mixed_b is None:
        factor = float(x.scaling_factor)
        steps = (factor ** -(2 * (i + 1) / dim) for i in range(dim // 2))
    else:
        scaled = torch.tensor(x.scaling_factor, dtype=torch.float64).log() / (dim / 2) ** x.mixed_b
        order = torch.arange(1, dim // 2 + 1, dtype=torch.float64) ** x.mixed_b
        steps = iter((-scaled * order).exp().tolist())
    inv_freq = [rate * step for rate, step in zip(rates, steps, strict=True)]
    return {"rope_type": "inv_freq", "inv_freq": inv_freq}


def _stretched(x: Any, stretch: float) -> dict[str, Any]:
    return {"rope_theta": x.base * stretch ** (x.rotary_dim / (x.rotary_dim - 2))}


def _dynamic(x: Any) -> dict[str, Any]:
    longest = x.scaling_factor * x.max_position_embeddings / x.max_trained_positions
    return _stretched(x, longest - (x.scaling_factor - 1))


def _alpha(x: Any) -> dict[str, Any]:
    return _stretched(x, x.scaling_alpha)


def _yarn(x: Any) -> dict[str, Any]:
    return _plain(x) | {
        "rope_type": "yarn",
        "factor": float(x.scaling_factor),
        "original_max_position_embeddings": x.max_position_embeddings,
        "beta_fast": float(x.beta_fast),
        "beta_slow": float(x.beta_slow),
        "truncate": "on" if getattr(x, "truncate", True) else "off",
        "attention_factor": x.mscale,
    }


def _axes(x: Any) -> dict[str, Any]:
    rule = _plain(x) if x.scaling_factor is None else _yarn(x)
    if not x.mrope_section:
        return rule
    layout = "interleaved" if x.mrope_interleaved else "chunked"
    return rule | {"axes": 3, "axis_layout": layout, "sections": list(x.mrope_section)}


def _proportional(x: Any) -> dict[str, Any]:
    share = 2 * x.rope_angles / x.head_size
    return _plain(x) | {"rope_type": "proportional", "partial_rotary_factor": share}


_RULES: dict[type, Callable[[Any], dict[str, Any]]] = {
    own.RotaryEmbedding: _plain,
    own.LinearScalingRotaryEmbedding: _linear,
    own.Llama3RotaryEmbedding: _llama3,
    own.NTKScalingRotaryEmbedding: _ntk,
    own.DynamicNTKScalingRotaryEmbedding: _dynamic,
    own.DynamicNTKAlphaRotaryEmbedding: _alpha,
    own.YaRNScalingRotaryEmbedding: _yarn,
    own.DeepseekScalingRotaryEmbedding: _yarn,
    own.MRotaryEmbedding: _axes,
    own.Gemma4RotaryEmbedding: _proportional,
}


class _Rotary:
    """What a class of _RULES becomes. `config` is None where its own code rotates."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.config: Config | None = None
        try:
            config = self._fields()
            self._check(config)
            self.config = config
        except (AttributeError, TypeError, ValueError) as error:
            logger.warning_once("ropekit leaves %s to vLLM: %s", type(self).__name__, error)
        else:
            logger.info_once("%s rotates by ropekit.", type(self).__name__)

    def _fields(self: Any) -> Config:
        rule = _RULES[type(self).__mro__[2]](self)
        pairing: Pairing = "half_split" if self.is_neox_style else "interleaved"
        width = {} if "partial_rotary_factor" in rule else {"rotary_dim": self.rotary_dim}
        return Config(layout="bshd", pairing_in=pairing, **width, **rule)

    def _check(self: Any, config: Config) -> None:
        """Turns (1, 0) by some positions, which is a row of vLLM's cos and sin."""
        known = self.cos_sin_cache[list(_CHECKED)].float()
        pairs = self.rotary_dim // 2
        x = torch.zeros(1, len(_CHECKED), 1, self.head_size, device=known.device)
        first = slice(0, pairs) if self.is_neox_style else slice(0, 2 * pairs, 2)
        x[..., first] = 1
        ids = torch.tensor(_CHECKED, device=known.device)
        found = apply(x, positions=self._positions(ids, config), config=config)[0, :, 0]
        found = found[:, : 2 * pairs]
        if not self.is_neox_style:
            found = found.unflatten(-1, (pairs, 2)).transpose(1, 2).flatten(1)
        off = float((found - known).abs().max() / known.abs().max())
        allowed = max(1e-4, torch.finfo(self.cos_sin_cache.dtype).eps)
        if not off <= allowed:
            raise ValueError(f"its cos and sin are {off:.1g} off; allowed is {allowed:.1g}")

    @staticmethod
    def _positions(positions: Tensor, config: Config) -> Tensor:
        """[axes, batch, tokens], or without the first."""
        if "axes=" not in config.text:
            return positions.view(1, -1)
        return positions.expand(3, positions.shape[-1]).unsqueeze(1)

    def forward(
        self: Any,
        positions: Tensor,
        query: Tensor,
        key: Tensor | None = None,
        offsets: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        if self.config is None or offsets is not None:
            given = (positions, query, key)
            return super().forward(*given) if offsets is None else super().forward(*given, offsets)  # type: ignore[no-any-return, misc]
        heads = (1, positions.shape[-1], -1, self.head_size)
        apply_(
            query.view(heads),
            None if key is None else key.view(heads),
            positions=self._positions(positions, self.config),
            config=self.config,
        )
        return query, key


def _tell(model: Any, name: str, module: Any) -> None:
    """Says why a rotary embedding that joins a model is vLLM's own."""
    kind = type(module)
    if not kind.__module__.startswith(own.__name__) or isinstance(module, ApplyRotaryEmb):
        return
    reason = "ropekit has no rule for it"
    if not isinstance(module, CustomOp):
        reason = "it is no CustomOp, and a plugin replaces no other class"
    logger.warning_once("ropekit leaves %s to vLLM: %s", kind.__name__, reason)


_watch = cache(register_module_module_registration_hook)  # once, however often vLLM registers


def register() -> None:
    for base in _RULES:
        if base.__name__ not in op_registry_oot:
            derived = type(base.__name__, (_Rotary, base), {"__module__": __name__})
            CustomOp.register_oot(derived, name=base.__name__)
    _watch(_tell)
