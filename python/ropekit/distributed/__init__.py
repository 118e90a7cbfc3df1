"""Attention of sequences whose tokens are on several devices: context parallelism.

`shard` gives each rank its tokens and their `Layout`, from which positions and masks follow;
`attention` attends over all ranks' tokens; `unshard` gives the whole again. Groups, processes and
connections are torch.distributed's. docs/distributed.md is an introduction.
"""

from ropekit.distributed._attention import attention
from ropekit.distributed._layout import Layout, shard, unshard

__all__ = ["Layout", "attention", "shard", "unshard"]
