"""The arguments of attention: one list, from which schemas, order and checks follow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import MISSING, dataclass, fields
from operator import attrgetter
from typing import Annotated, Any, get_type_hints

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from ropekit._append_errors import STORED

# A tensor or None, with the element types that it may have where they do not follow from q's.
Index = Annotated[Tensor | None, (torch.int32, torch.int64)]
Cache = Annotated[Tensor | None, STORED]
Scale = Annotated[Tensor | None, (torch.float32,)]
Tree = Annotated[Tensor | None, (torch.bool, torch.int32)]
Flag = Annotated[Tensor | None, (torch.int32,)]  # written


@dataclass(slots=True)
class Arguments:
    """In the order of the schemas, in which position_flag goes before the numbers. A number that is
    not given is 0."""

    q: Tensor
    k: Tensor | None
    v: Tensor | None
    config: str
    positions: Index = None
    cu_seqlens: Index = None
    k_lengths: Index = None
    k_cache: Cache = None
    v_cache: Cache = None
    block_table: Index = None
    sinks: Tensor | None = None
    k_positions: Index = None
    k_cu_seqlens: Index = None
    q_lengths: Index = None
    k_scale: Scale = None
    v_scale: Scale = None
    tree_mask: Tree = None
    sequence_offsets: Index = None
    sequence_lengths: Index = None
    cos: Tensor | None = None
    sin: Tensor | None = None
    q_weight: Tensor | None = None
    k_weight: Tensor | None = None
    position_offset: int = 0
    tree_keys: int = 0
    max_seqlen_k: int = 0
    position_flag: Flag = None

    @property
    def tensors(self) -> tuple[Any, Any, Any]:
        """q, k and v, of a call that is known to have them."""
        return self.q, self.k, self.v


_HINTS = get_type_hints(Arguments, include_extras=True)
_DEFAULTS = {x.name: f"={x.default}" for x in fields(Arguments) if x.default is not MISSING}
_TYPES = {Tensor: "Tensor", Flag: "Tensor(a!)?", str: "str", int: "SymInt"}
# Element types that do not follow from q's.
DTYPES: dict[str, tuple[torch.dtype, ...]] = {
    name: x.__metadata__[0] for name, x in _HINTS.items() if hasattr(x, "__metadata__")
}


class Signature:
    """Arguments by name, in the order of the list.

    An overload for few arguments has no defaults, and the tensors `always` are no option there.
    """

    def __init__(self, *names: str, always: tuple[str, ...] | None = None) -> None:
        self.names = names
        self._values = attrgetter(*names)
        hints = _HINTS | dict.fromkeys(always or (), Tensor)
        types = {x: _TYPES.get(hints[x], "Tensor?") for x in names}
        defaults = _DEFAULTS if always is None else {}
        self.schema = ", ".join(f"{types[x]} {x}{defaults.get(x, '')}" for x in names)

    def values(self, call: Arguments) -> Sequence[Any]:
        if is_dynamo_compiling():  # which knows no attrgetter
            return [getattr(call, name) for name in self.names]
        return self._values(call)

    def read(self, values: Iterable[Any]) -> Arguments:
        """Of values, from which a dispatcher leaves out the last ones that are defaults."""
        given = dict(zip(self.names, values, strict=False))
        return Arguments(**{"k": None, "v": None} | given)

    def given(self, call: Arguments) -> dict[str, Any]:
        """Those that are not None, by their names."""
        named = zip(self.names, self.values(call), strict=True)
        return {name: x for name, x in named if x is not None}


NUMBERS = Signature(*(name for name, x in _HINTS.items() if x is int))
TENSORS = Signature(*(name for name, x in _HINTS.items() if x not in (int, str)))
FULL = Signature(*(name for name in _HINTS if name != "position_flag"))
_FLAGGED = (name for name in _HINTS if name not in NUMBERS.names)
FLAGGED = Signature(*_FLAGGED, *NUMBERS.names)
# What most calls give: PyTorch takes its time over each argument, a default too.
USUAL = Signature(*FULL.names[: FULL.names.index("sinks") + 1])
FEW = Signature("q", "k", "v", "config", "k_lengths", "sinks", always=("k", "v"))
_PAGED = ("k_lengths", "k_cache", "v_cache")
CACHED = Signature("q", "config", *_PAGED, "block_table", "sinks", always=_PAGED)
