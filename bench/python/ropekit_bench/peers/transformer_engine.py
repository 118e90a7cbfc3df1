"""Transformer Engine's fused rotation, one launch a tensor, out of place."""

import torch

from ropekit_bench.peers import require

try:
    from transformer_engine.pytorch.attention.rope import apply_rotary_pos_emb
except ImportError:  # where releases before 2.2 have it
    from transformer_engine.pytorch.attention import apply_rotary_pos_emb


class adapter:
    kernel = "transformer_engine.pytorch apply_rotary_pos_emb(fused=True)"

    def __init__(self, name, tool):
        pass

    def prepare(self, case):
        require(case.shape["position_ids"] != "random", "positions of a row follow each other")
        require(not case.interleaved, "half-split pairs alone")
        require(not case.backward, "its backward is autograd's")
        angles = case.positions[0, :, None].float() * case.inv_freq
        freqs = torch.cat((angles, angles), -1)[:, None, None]
        self.table_bytes = freqs.nbytes

        def run(slot):
            return tuple(
                None if x is None else apply_rotary_pos_emb(x, freqs, tensor_format="bshd", fused=True)
                for x in case.inputs[slot]
            )

        return run
