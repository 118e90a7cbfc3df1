"""use and ContextParallel: models whose layers attend over all ranks' tokens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import ParallelStyle

from ropekit._sharding import Sharded, in_use, using
from ropekit.distributed._attention import Method, attention
from ropekit.distributed._layout import Layout, group_of


@contextmanager
def use(layout: Layout, method: Method = "allgather") -> Iterator[Layout]:
    """Within it `RoPEAttention` and Transformers' models with attn_implementation="ropekit" take
    this rank's tokens of `layout`, and attend over all ranks'.

    A Transformers model needs position_ids=layout.positions(device)[None] too, as it rotates by
    itself. Call backward within as well where checkpoints are recomputed. It is of the process.
    """
    if not isinstance(layout, Layout):
        raise TypeError(f"layout is {type(layout).__name__}; allowed is one of shard or Layout.of")
    with using(Sharded(layout, partial(attention, layout=layout, method=method))):
        yield layout


class ContextParallel(ParallelStyle):
    """A ParallelStyle for a module of attention, of `parallelize_module`.

    Its input is a DTensor whose dimension 1, the tokens, is sharded over the mesh; the result is
    sharded alike. Or it is this rank's tokens within `use`, whose layout may be zigzag or packed.
    Weights stay as they are.
    """

    def __init__(self, *, method: Method = "allgather") -> None:
        super().__init__()
        self.method: Method = method

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        group_of(device_mesh)  # which refuses a mesh of several dimensions
        inner, layouts = module.forward, dict[int, Layout]()

        def forward(x: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(x, DTensor):
                _check_placement(x, device_mesh)
                tokens = x.shape[1]
                if tokens not in layouts:
                    layouts[tokens] = Layout.of(device_mesh, tokens, order="contiguous")
                with use(layouts[tokens], self.method):
                    out = inner(x.to_local(), *args, **kwargs)
                shape = torch.Size((*x.shape[:2], *out.shape[2:]))
                stride = out.new_empty(shape, device="meta").stride()
                return DTensor.from_local(
                    out, device_mesh, [Shard(1)], run_check=False, shape=shape, stride=stride
                )
            current = in_use()
            if current is None:
                raise RuntimeError(
                    "the module's input is no DTensor and no layout is in use; allowed is a "
                    "DTensor with Shard(1), or a call within ropekit.distributed.use(layout)"
                )
            with use(current.layout, self.method):
                return inner(x, *args, **kwargs)

        module.forward = forward
        return module


def _check_placement(x: DTensor, mesh: DeviceMesh) -> None:
    if x.device_mesh != mesh or tuple(x.placements) != (Shard(1),):
        raise ValueError(
            f"the module's input has the placements {tuple(x.placements)} on {x.device_mesh}; "
            f"allowed is Shard(1) on {mesh}"
        )
