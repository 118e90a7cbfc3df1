"""torch.onnx.export: rotation and attention as RotaryEmbedding and Attention of ONNX, opset 23.

An exported program has the operators; torch.onnx.export traces it once more, where they are
translated. PyTorch's table of decompositions is no place for that: Inductor would look there too.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode

from ropekit import _attention as _loaded
from ropekit import _sdpa
from ropekit._attention_arguments import Arguments
from ropekit._operators import fields_of, follows_length
from ropekit.config import Config

assert _loaded  # first: the operators below are its
OPSET = 23  # the first that has both
_HALF = (torch.float16, torch.bfloat16)
# What RotaryEmbedding has not, unless it is this.
_FIELDS = {
    "direction": "forward",
    "rotary_offset": "0",
    "k_head_dim": "0",
    "k_rotary_offset": "0",
    "arithmetic": "fp32",
    "axes": "1",
    "shard": "none",
    "xpos_scale_base": "0",
}
# Arguments that these operators have.
_OF_ROTATION = {"q", "k", "config", "position_ids", "position_offset"}
_OF_ATTENTION = {"q", "k", "v", "config", "positions", "k_positions", "position_offset"}


def _opset() -> int:
    """What torch.onnx.export was asked for, which it tells nobody; OPSET where it is not found."""
    frame: Any = sys._getframe()
    while frame and frame.f_code.co_name != "export_compat":
        frame = frame.f_back
    found = frame.f_locals.get("opset_version") if frame else None
    return found if isinstance(found, int) else OPSET


def _refuse(what: str, allowed: str) -> None:
    raise ValueError(f"{what}; allowed where torch.onnx.export translates it is {allowed}")


def _check(given: dict[str, Any], names: set[str], function: str) -> None:
    opset = _opset()
    if opset < OPSET:
        raise ValueError(
            f"opset_version is {opset}; allowed for ropekit's operators is {OPSET} or later, as in "
            f"torch.onnx.export(..., opset_version={OPSET})"
        )
    for name in ("k_cache", *given):  # lengths are of a cache
        if name not in names and isinstance(given.get(name), Tensor):
            _refuse(f"{name} of {function} is given", "None")


def _constant(numbers: list[float]) -> Tensor:
    """float64 [numbers] without an error, as sums of floats: no attribute has float64."""
    found: Any = 0
    for _ in range(3):
        floats = list(struct.unpack(f"{len(numbers)}f", struct.pack(f"{len(numbers)}f", *numbers)))
        numbers = [x - y for x, y in zip(numbers, floats, strict=True)]
        part = torch.onnx.ops.symbolic(
            "Constant",
            (),
            {"value_floats": floats},
            dtype=torch.float32,
            shape=(len(numbers),),
            version=OPSET,
        )
        found = found + part.double()
    return found  # type: ignore[no-any-return]


def _frequencies(text: str, width: int) -> tuple[Tensor, float]:
    fields = fields_of(text)
    for name, value in _FIELDS.items():
        if fields.get(name, value) != value:
            _refuse(f"{name} is {fields[name]}", value)
    pairing = fields.get("pairing_in", "half_split")
    if fields.get("pairing_out", pairing) != pairing:
        _refuse(f"pairing_out is {fields['pairing_out']}", f"pairing_in, {pairing}")
    if follows_length(text):
        _refuse("rope_type is dynamic without sequence_length", "one with it")
    select = fields.get("longrope_select")
    if fields.get("rope_type") == "longrope" and select not in ("short", "long"):
        _refuse(f"longrope_select is {select}", "short or long")
    numbers, factor = Config.from_text(text).frequencies(width, select == "long")
    return _constant(numbers), factor


def _batch_first(x: Tensor, layout: str) -> Tensor:
    """[batch, tokens, heads, head_dim] from a layout, or back to it."""
    if layout == "thd":
        return x.unsqueeze(0) if x.dim() == 3 else x.squeeze(0)
    places = {"bhsd": (1, 2), "sbhd": (0, 1)}.get(layout)
    return x.transpose(*places) if places else x


def _rotate(given: dict[str, Any], count: int) -> Any:
    _check(given, _OF_ROTATION, "apply")
    text, layout = given["config"], fields_of(given["config"]).get("layout", "bshd")
    tensors = [_batch_first(given[name], layout) for name in ("q", "k")[:count]]
    first, fields = tensors[0], fields_of(text)
    if first.dtype not in (torch.float32, *_HALF):
        _refuse(f"q is {first.dtype}", "float32, float16 or bfloat16")
    width = int(fields.get("rotary_dim", 0)) or first.shape[-1]
    frequencies, factor = _frequencies(text, width)
    ids = given.get("position_ids")
    if ids is None:
        ids = torch.arange(first.shape[1], device=first.device)
    dtype = torch.float32 if fields.get("angle_mode") == "f32" else torch.float64
    places = (ids + given.get("position_offset", 0)).to(dtype)
    angles = places[..., None] * frequencies.to(dtype)
    shape = *first.shape[:2], width // 2
    tables = [(x * factor).float().expand(shape) for x in (angles.cos(), angles.sin())]
    attributes: dict[str, Any] = {"rotary_embedding_dim": 0 if width == first.shape[-1] else width}
    attributes["interleaved"] = int(fields.get("pairing_in") == "interleaved")
    found = []
    for x in tensors:  # in float32, as the kernels
        flat = x.flatten(2).float()
        y = torch.onnx.ops.symbolic(
            "RotaryEmbedding",
            (flat, *tables),
            attributes | {"num_heads": x.shape[2]},
            dtype=torch.float32,
            shape=flat.shape,
            version=OPSET,
        )
        found.append(_batch_first(y.view(x.shape).to(x.dtype), layout))
    return found[0] if count == 1 else tuple(found)


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    softcap: float,
    mask: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    attributes: dict[str, Any] = {"is_causal": int(causal), "softcap": softcap}
    attributes |= {} if scale is None else {"scale": scale}
    attributes |= {"softmax_precision": 1} if q.dtype in _HALF else {}  # float32
    shape = *q.shape[:-1], v.shape[-1]
    return torch.onnx.ops.symbolic(
        "Attention", (q, k, v, mask), attributes, dtype=q.dtype, shape=shape, version=OPSET
    )


def _are_equal(tokens: Any, keys: Any) -> bool:
    """Whatever the sizes of the example."""
    # An exporter has imported it; an import above would import sympy with the package.
    shapes: Any = import_module("torch.fx.experimental.symbolic_shapes")
    return bool(shapes.statically_known_true(tokens == keys))


def _attention(given: dict[str, Any]) -> Tensor:
    _check(given, _OF_ATTENTION, "attention")
    settings = _sdpa.settings_of(given["config"])
    return _sdpa.run(
        Arguments(**given),
        settings,
        by=partial(_attend, softcap=float(fields_of(settings.text).get("softcap", 0))),
        equal=_are_equal,
    )


def _lse(given: dict[str, Any]) -> None:
    _refuse("return_lse is True", "False")


_TRANSLATIONS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "rotate": partial(_rotate, count=1),
    "rotate_pair": partial(_rotate, count=2),
    "attention": _attention,
    "attention_lse": _lse,
}


def _translate(name: str, operator: Any, translation: Callable[[dict[str, Any]], Any]) -> None:
    names = [argument.name for argument in operator._schema.arguments]

    def traced(mode: Any, function: Any, types: Any, arguments: Any, keywords: Any) -> Any:
        if not torch.onnx.is_in_onnx_export():
            return mode.__torch_dispatch__(function, types, arguments, keywords)
        with mode:
            return translation(dict(zip(names, arguments, strict=False)) | (keywords or {}))

    torch.library.register_torch_dispatch(name, ProxyTorchDispatchMode, traced)


for _name, _translation in _TRANSLATIONS.items():
    for _own in (_name, f"{_name}_no_grad"):
        _packet = getattr(torch.ops.ropekit, _own)
        for _overload in _packet.overloads():
            _operator = getattr(_packet, _overload)
            _translate(_operator.name(), _operator, _translation)
