"""ropekit.apply, our PyTorch operator, then scaled_dot_product_attention, with autograd through both: eager,
and as one compiled function."""

import ropekit
import torch

from ropekit_bench.peers import is_compiled, require
from ropekit_bench.peers.sdpa import attend_all, make_masks


class adapter:
    table_bytes = 0

    def __init__(self, name, tool):
        if tool and ropekit.__version__ != tool.version:
            raise ImportError(f"the package is {ropekit.__version__} and the tool {tool.version}")
        self.calls, self.prepared = "ropekit.apply, scaled_dot_product_attention", lambda function: function
        if is_compiled(name):
            self.calls = f"torch.compile({self.calls}, dynamic=False)"
            torch._dynamo.config.fail_on_recompile_limit_hit = True  # it would run eagerly instead
            self.prepared = lambda function: torch.compile(function, dynamic=False)

    def attending(self, case):
        """A function of q, k and v, [token, head, dim]."""
        require(not case.cached, "attention of tensors alone is compared")
        s, masks = case.shape, make_masks(case)
        pairing = s["pairing_in"].replace("-", "_")
        packed = "cu_seqlens" in s
        config = ropekit.Config(
            rope_theta=s["rope_theta"], pairing_in=pairing, layout="thd" if packed else "bshd"
        )
        boundaries = case.boundary_list if packed else None
        rows = (case.tokens,) if packed else (case.batch, case.tokens)

        def attend(q, k, v):
            q, k = (x.unflatten(0, rows) for x in (q, k))
            q, k = ropekit.apply(q, k, config=config, cu_seqlens=boundaries)
            flat = (x if packed else x.flatten(0, 1) for x in (q, k))
            return attend_all(case.split(*flat, v), masks, case.window)

        return self.prepared(attend)

    def prepare_attention(self, case):
        attend, calls = self.attending(case), [case.tensors(slot) for slot in range(case.sets)]
        self.kernel = self.calls
        return lambda slot: attend(*calls[slot])

    def prepare_attention_backward(self, case):
        attend, leaves = self.attending(case), case.leaves
        self.kernel = f"{self.calls}, autograd"

        def run(slot):
            out = attend(*leaves[slot])
            return out, *torch.autograd.grad(out, leaves[slot], case.dout(slot).view(out.shape))

        return run
