"""Which attention a model's layers take while `ropekit.distributed.use` is on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Sharded:
    """A layout, and attention over its ranks."""

    layout: Any
    attend: Callable[..., Any]


# Of the process: a backward that recomputes a checkpoint runs in a thread of autograd's.
_in_use: list[Sharded] = []


def in_use() -> Sharded | None:
    return _in_use[-1] if _in_use else None


@contextmanager
def using(sharded: Sharded) -> Iterator[None]:
    _in_use.append(sharded)
    try:
        yield
    finally:
        _in_use.pop()
