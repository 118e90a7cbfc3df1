"""Liger-Kernel's Triton rotation, in place on [batch, head, token, dim] views."""

from liger_kernel.ops import rope

from ropekit_bench.cases.base import nbytes
from ropekit_bench.peers import require


class adapter:
    kernel = "liger_kernel.ops.rope"

    def __init__(self, name, tool):
        pass

    def prepare(self, case):
        require(case.is_whole, "rotates whole heads that lie densely")
        require(not case.interleaved, "half-split pairs alone")
        require(case.k_shape[2], "rotates q and k together")
        cos, sin = (case.spread(t).to(case.dtype) for t in case.table(case.positions))
        self.table_bytes = nbytes((cos, sin))
        views = [tuple(x.transpose(1, 2) for x in pair) for pair in case.inputs]

        def run(slot):
            q, k, *_ = rope.rope_forward(*views[slot], cos, sin)
            return q.transpose(1, 2), k.transpose(1, 2)

        return run
