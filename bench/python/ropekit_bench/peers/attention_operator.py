"""ropekit's PyTorch operator attention, on tensors, with the gradient that autograd records."""

import ropekit
import torch

from ropekit_bench.peers import require


class adapter:
    kernel = "ropekit.attention"
    table_bytes = 0

    def __init__(self, name, tool):
        if ropekit.__version__ != tool.version:
            raise ImportError(f"the package is {ropekit.__version__} and the tool {tool.version}")

    def attending(self, case):
        """A function of q, k and v, [token, head, dim]."""
        require(not case.cached, "attention of tensors alone is compared")
        s = case.shape
        fields = {"rope_theta": s["rope_theta"], "pairing_in": s["pairing_in"].replace("-", "_")}
        if case.window:
            fields["window"] = case.window
        config = ropekit.Config(**fields)
        if "cu_seqlens" in s:
            return lambda *x: ropekit.attention(*x, config=config, cu_seqlens=case.boundary_list)
        rows = case.batch, case.tokens
        return lambda *x: ropekit.attention(*(t.unflatten(0, rows) for t in x), config=config)

    def prepare_attention(self, case):
        attend, calls = self.attending(case), [case.tensors(slot) for slot in range(case.sets)]
        return lambda slot: attend(*calls[slot])

    def prepare_attention_backward(self, case):
        attend, leaves = self.attending(case), case.leaves

        def run(slot):
            out = attend(*leaves[slot])
            return out, *torch.autograd.grad(out, leaves[slot], case.dout(slot).view(out.shape))

        return run
