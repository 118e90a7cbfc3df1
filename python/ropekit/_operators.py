"""The operators torch.ops.ropekit.*: schemas, fake kernels, gradients.

Kernels for the CPU and for GPUs are compiled (python/csrc/operators.c). The first argument after
the tensors is the text of a Config.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ropekit._library import library
from ropekit.config import merge

_REST = (
    "str config, Tensor? position_ids=None, SymInt position_offset=0, "
    "Tensor? sequence_offsets=None, Tensor? cu_seqlens=None, Tensor? sequence_lengths=None, "
    "Tensor? cos=None, Tensor? sin=None"
)
_FLAG = "Tensor({})? position_flag=None"
_SCHEMAS = {
    "rotate": f"(Tensor q, {_REST}) -> Tensor",
    "rotate_pair": f"(Tensor q, Tensor k, {_REST}) -> (Tensor, Tensor)",
    # The same without a gradient's bookkeeping, for where none is asked for.
    "rotate_no_grad": f"(Tensor q, {_REST}) -> Tensor",
    "rotate_pair_no_grad": f"(Tensor q, Tensor k, {_REST}) -> (Tensor, Tensor)",
    "rotate_": f"(Tensor(a!) q, {_REST}, {_FLAG.format('b!')}) -> ()",
    "rotate_pair_": f"(Tensor(a!) q, Tensor(b!) k, {_REST}, {_FLAG.format('c!')}) -> ()",
}

assert library  # loaded first: its kernels belong to these schemas
_definitions = torch.library.Library("ropekit", "DEF")
for _name, _schema in _SCHEMAS.items():
    _definitions.define(
        _name + _schema, tags=(torch.Tag.pt2_compliant_tag, torch.Tag.flexible_layout)
    )


def _empty_like(x: Tensor) -> Tensor:
    """As tensor_like of python/csrc/tensor.c: x's strides where x fills its memory."""
    if torch.ops.aten.is_non_overlapping_and_dense(x):
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def _fake_rotate(q: Tensor, config: str, *rest: object) -> Tensor:
    return _empty_like(q)


def _fake_rotate_pair(q: Tensor, k: Tensor, config: str, *rest: object) -> tuple[Tensor, Tensor]:
    return _empty_like(q), _empty_like(k)


def _fake_nothing(*arguments: object) -> None:
    pass


for _name in _SCHEMAS:
    _fake = _fake_rotate_pair if "pair" in _name else _fake_rotate
    torch.library.register_fake(
        f"ropekit::{_name}", _fake_nothing if _name.endswith("_") else _fake
    )


@lru_cache(maxsize=1024)
def transposed(config: str) -> str:
    """The configuration of the gradient."""
    fields = dict(part.partition("=")[::2] for part in config.split())
    direction = fields.get("direction", "forward")
    if direction == "inverse":
        raise RuntimeError(
            'direction is "inverse"; allowed with a gradient is forward or transpose'
        )
    pairing = fields.get("pairing_in", "half_split")
    return merge(
        config,
        {
            "direction": "transpose" if direction == "forward" else "forward",
            "pairing_in": fields.get("pairing_out", pairing),
            "pairing_out": pairing,
        },
    )


class _Rotate(torch.autograd.Function):
    """rotate and rotate_pair: `count` tensors, then the arguments from config on.

    Written out because the function that torch.library.register_autograd makes costs the host many
    times as much; like that one it serves no torch.func transform, for want of setup_context.
    """

    @staticmethod
    def forward(ctx: Any, count: int, *arguments: Any) -> Any:
        config, position_ids, position_offset, *others = arguments[count:]
        ctx.config, ctx.position_offset = transposed(config), position_offset
        ctx.save_for_backward(position_ids, *others)
        return (_ops.rotate_pair_no_grad if count == 2 else _ops.rotate_no_grad)(*arguments)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        position_ids, *others = ctx.saved_tensors
        rotate = _ops.rotate_pair if len(grads) == 2 else _ops.rotate
        found = rotate(*grads, ctx.config, position_ids, ctx.position_offset, *others)
        return (None, *(found if len(grads) == 2 else (found,)), *(None,) * (3 + len(others)))


def _rotate(q: Tensor, *rest: Any) -> Any:
    return _apply(1, q, *_filled(rest))


def _rotate_pair(q: Tensor, k: Tensor, *rest: Any) -> Any:
    return _apply(2, q, k, *_filled(rest))


def _filled(rest: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments from config on, with the defaults that a dispatcher leaves out."""
    return rest + (None, 0, None, None, None, None, None)[len(rest) - 1 :]


_ops = torch.ops.ropekit
_apply: Any = _Rotate.apply
_definitions.impl("rotate", _rotate, "Autograd")
_definitions.impl("rotate_pair", _rotate_pair, "Autograd")
