"""AITER's HIP rotation of q and k in one launch, [token, batch, head, dim] views, out of place."""

import aiter

from ropekit_bench.peers import require


class adapter:
    kernel = "aiter.rope_cached_positions_2c_fwd"

    def __init__(self, name, tool):
        pass

    def prepare(self, case):
        require(case.k_shape[2], "rotates q and k together")
        require(not case.backward, "forward alone is compared")
        import torch

        rows = torch.arange(case.rows, device=case.device)
        cos, sin = (t.to(case.dtype)[:, None, None] for t in case.table(rows))
        self.table_bytes = case.selected_bytes((cos, sin))
        positions = case.positions.transpose(0, 1).contiguous()
        style = 1 if case.interleaved else 0
        views = [tuple(x.transpose(0, 1) for x in pair) for pair in case.inputs]

        def run(slot):
            q, k = aiter.rope_cached_positions_2c_fwd(*views[slot], cos, sin, positions, style, True, False)
            return q.transpose(0, 1), k.transpose(0, 1)

        return run
