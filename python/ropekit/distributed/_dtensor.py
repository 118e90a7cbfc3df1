"""What DTensor does with ropekit's operators: batch and heads may be sharded, tokens may not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import torch
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.experimental import register_sharding

from ropekit._attention import rotated
from ropekit._operators import fields_of

# Dimensions of batch, tokens and heads.
_DIMS = {"bshd": (0, 1, 2), "bhsd": (0, 2, 1), "sbhd": (1, 0, 2), "thd": (None, 0, 1)}
_ROWS = ("q", "k", "v", "dout", "out", "lse")  # which have all of these
# Which have tokens, heads and elements as their last dimensions.
_APPENDED = ("q", "k", "v", "q_out", "k_out", "v_out", "k_cache", "v_cache")
_WEIGHTS = ("q_weight", "k_weight")  # of norms, and their gradients
_REPLICATED: Any = Replicate()


@dataclass(frozen=True)
class _Operator:
    """The names of its arguments, and the kind of each result: a row, "sinks" or "none"."""

    names: tuple[str, ...]
    results: tuple[str, ...]

    def rules(self, *values: Any) -> list[tuple[list[Any], list[Any]]]:
        """Placements of results and of arguments that DTensor may take."""
        given = dict(zip(self.names, values, strict=False))
        first = next(given[name] for name in _ROWS if name in given and name != "dout")
        layout = fields_of(given["config"]).get("layout") or ("thd" if first.ndim == 3 else "bshd")
        batch, tokens, heads = _DIMS[layout]
        _refuse_tokens(given, tokens)
        found = [self._rule(given, dict.fromkeys((*_ROWS, "sinks"), _REPLICATED))]
        ranks = _shards_of(first, heads)
        if all(x.shape[heads] % ranks == 0 for x in _rows(given)) and _are_shared(given):
            own: dict[str, Any] = dict.fromkeys(_ROWS, Shard(heads)) | {"sinks": Shard(0)}
            own["dweight"] = Partial()
            found.append(self._rule(given, own))
        if batch is not None and not _has_rows_of_batch(given):
            own = dict.fromkeys(_ROWS, Shard(batch)) | {"sinks": _REPLICATED, "dsinks": Partial()}
            own["dweight"] = Partial()
            found.append(self._rule(given, own))
        return found

    def _rule(self, given: dict[str, Any], own: dict[str, Any]) -> tuple[list[Any], list[Any]]:
        inputs = [
            own.get(name, _REPLICATED) if hasattr(x, "placements") else None
            for name, x in given.items()
        ]
        made = {"none": _REPLICATED, "dweight": _REPLICATED}
        own = made | {"dsinks": own["sinks"], "row": own["q"]} | own
        outputs = [own[kind] for kind in self._kinds(given)]
        return outputs, inputs

    def _kinds(self, given: dict[str, Any]) -> Iterator[str]:
        """Those of a call: what it does not rotate, and sinks that it has not, are empty."""
        turned = dict(zip(("rotated_q", "rotated_k"), rotated(given["config"]), strict=True))
        for kind in self.results:
            if kind == "dsinks":
                yield "none" if given.get("sinks") is None else "dsinks"
            elif kind in _WEIGHTS:
                yield "none" if given.get(kind) is None else "dweight"
            elif kind in turned:
                normed = given.get(f"{kind[-1]}_weight") is not None
                yield "row" if turned[kind] and not normed else "none"
            else:
                yield kind


def _shards_of(x: Any, dim: int) -> int:
    """Into how many parts a dimension is cut; where it is not, into how many it may be at most."""
    sizes = [n for n, p in zip(x.mesh.shape, x.placements, strict=True) if p == Shard(dim)]
    return prod(sizes) if sizes else int(x.mesh.size())


def _rows(given: dict[str, Any]) -> list[Any]:
    return [x for name, x in given.items() if name in _ROWS and hasattr(x, "placements")]


def _are_shared(given: dict[str, Any]) -> bool:
    """Whether heads have a norm each, of the same weights."""
    weights = [given[name] for name in _WEIGHTS if given.get(name) is not None]
    return all(x.ndim == 1 for x in weights) and not (
        weights and "norm_scope=token" in given["config"]
    )


def _has_rows_of_batch(given: dict[str, Any]) -> bool:
    """Whether an index tensor may have a row for each of the batch."""
    others = {n: x for n, x in given.items() if n not in (*_ROWS, *_WEIGHTS, "sinks")}
    of_tokens = ("positions", "position_ids", "k_positions")
    return any(
        hasattr(x, "placements") and not (name in of_tokens and x.ndim == 1)
        for name, x in others.items()
    )


def _refuse_tokens(given: dict[str, Any], tokens: int) -> None:
    for name, x in given.items():
        if name in _ROWS and hasattr(x, "placements"):
            for placement in x.placements:
                if isinstance(placement, Shard) and placement.dim % x.ndim == tokens:
                    raise RuntimeError(
                        f"{name} is sharded in dim {tokens}, its tokens; allowed for a DTensor are "
                        "its batch and heads: ropekit.distributed attends over sharded tokens"
                    )


@dataclass(frozen=True)
class _Append:
    """Its caches are written where they lie, so that nothing of a call may move: all that has heads
    is sharded by them, or nothing is."""

    names: tuple[str, ...]

    def rules(self, *values: Any) -> list[tuple[list[Any], list[Any]]]:
        given = dict(zip(self.names, values, strict=False))
        tensors = {name: x for name, x in given.items() if hasattr(x, "placements")}
        heads = {name: _heads_of(name, x) for name, x in tensors.items()}
        wanted = {n: _REPLICATED if d is None else Shard(d) for n, d in heads.items()}
        first = next(
            name for name in ("k_cache", "v_cache", "q", "k", "v", *tensors) if name in tensors
        )
        for i, leads in enumerate(tensors[first].placements):
            is_sharded = leads != _REPLICATED
            for name, x in tensors.items():
                allowed = wanted[name] if is_sharded else _REPLICATED
                if x.placements[i] != allowed:
                    raise RuntimeError(
                        f"{name} has the placement {x.placements[i]} beside {first} with {leads}; "
                        f"allowed is {allowed}: append writes caches of whole tokens, whose heads "
                        "alone may be sharded; ropekit.distributed attends over sharded tokens"
                    )
        inputs = {n: [_REPLICATED, wanted[n]] if n in tensors else [None] * 2 for n in given}
        return [([], [own[i] for own in inputs.values()]) for i in range(2)]


def _heads_of(name: str, x: Any) -> int | None:
    """The dimension of heads, None where a tensor has none."""
    if name.endswith("_weight"):
        return 0 if x.ndim == 2 else None
    if "_scale" in name:
        return x.ndim - 1 if x.numel() > 1 else None
    if name in ("k_cache", "v_cache") and x.ndim == 3:
        return None
    return x.ndim - 2 if name in _APPENDED else None


def _register(name: str, overloads: Sequence[str], results: tuple[str, ...]) -> None:
    packet = getattr(torch.ops.ropekit, name)
    for overload in overloads:
        operator = getattr(packet, overload)
        names = tuple(x.name for x in operator._schema.arguments)
        rules = _Operator(names, results).rules if results else _Append(names).rules
        register_sharding(operator)(partial(rules))


def register() -> None:
    """Tells DTensor of `apply`, `append` and `attention`, and of gradients."""
    for ending, overloads in (("", ("default",)), ("_no_grad", ("default", "few", "ids"))):
        _register(f"rotate{ending}", overloads, ("row",))
        _register(f"rotate_pair{ending}", overloads, ("row", "row"))
    for name in ("append", "append_no_grad"):
        _register(name, ("default",), ())
    _register("attention", ("default",), ("row",))
    _register("attention_no_grad", ("default", "few"), ("row",))
    for name in ("attention_lse", "attention_lse_no_grad"):
        _register(name, ("default",), ("row", "row"))
    _register("attention_rotated", ("default",), ("row", "row", "rotated_q", "rotated_k"))
    _register("attention_backward", ("default",), ("row", "row", "row", "dsinks", *_WEIGHTS))
