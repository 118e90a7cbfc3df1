"""rotate_plain, rotate_plain_: the operators' kernels, past PyTorch's dispatcher where that does
nothing else."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ropekit._library import library

# Any that is not false: a call is watched or changed on its way through the dispatcher.
_MODES = tuple(
    getattr(torch._C, name, None)
    for name in (
        "_len_torch_function_stack",
        "_len_torch_dispatch_stack",
        "_are_functorch_transforms_active",
        "_is_tracing",
    )
)


# PyTorch's versions that were tried: another may do more on the way of a call.
_TRIED = (2, 11), (2, 13)


def _was_tried(version: str) -> bool:
    found = tuple(map(int, re.findall(r"\d+", version)[:2]))
    return _TRIED[0] <= found <= _TRIED[1]


def _never(*_: object) -> None:
    """Leaves every call to the operator."""


def _find() -> tuple[Any, Any]:
    make = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object, ctypes.py_object, ctypes.c_int)(
        ("ropekit_undispatched", library)
    )
    found = None
    if _was_tried(torch.__version__) and None not in _MODES and hasattr(torch.Tensor, "_cdata"):
        found = make(torch.Tensor, _MODES, hasattr(torch.Tensor, "has_names"))
    return found or (_never, _never)


# Of q, k or None, config, position_ids or None, and position_offset: what rotate_pair_no_grad.few
# and rotate_no_grad.few do, and those in place, where no derivative is asked for. None: nothing is
# done, call those.
rotate_plain: Callable[..., Tensor | tuple[Tensor, Tensor] | None]
rotate_plain_: Callable[..., tuple[()] | None]
rotate_plain, rotate_plain_ = _find()
