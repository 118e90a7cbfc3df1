"""Attention of sequences whose tokens are on several devices: context parallelism.

`shard` gives each rank its tokens and their `Layout`, from which positions and masks follow;
`attention` attends over all ranks' tokens; `unshard` gives the whole again. Within `use` whole
models do, and `ContextParallel` is that for one module of attention. Importing this module also
lets DTensors of sharded batch or heads into `ropekit.apply` and `ropekit.attention`. Groups,
processes and connections are torch.distributed's. docs/distributed.md is an introduction.
"""

from ropekit.distributed._attention import attention
from ropekit.distributed._costs import Call, Costs, Rates, costs
from ropekit.distributed._dtensor import register as _register
from ropekit.distributed._layout import Layout, shard, unshard
from ropekit.distributed._parallel import ContextParallel, use

_register()
__all__ = [
    "Call",
    "ContextParallel",
    "Costs",
    "Layout",
    "Rates",
    "attention",
    "costs",
    "shard",
    "unshard",
    "use",
]
