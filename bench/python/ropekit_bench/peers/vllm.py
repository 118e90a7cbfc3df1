"""vLLM's rotary kernel, in place, from a table of cos and sin in the model's dtype."""

import torch
from vllm import _custom_ops

from ropekit_bench.peers import require


class adapter:
    kernel = "vllm._custom_ops.rotary_embedding"

    def __init__(self, name, tool):
        pass

    def prepare(self, case):
        require(not case.backward, "forward alone")
        rows = torch.arange(case.rows, device=case.device)
        table = torch.cat(case.table(rows), -1).to(case.dtype)
        self.table_bytes = case.selected_bytes([table])
        positions = case.positions.flatten()
        flat = [tuple(None if x is None else x.flatten(0, 1) for x in pair) for pair in case.inputs]

        def run(slot):
            q, k = flat[slot]
            _custom_ops.rotary_embedding(positions, q, k, q.shape[-1], table, not case.interleaved)
            return case.inputs[slot]

        return run
