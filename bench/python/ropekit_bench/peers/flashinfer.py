"""FlashInfer, angles in the kernel, in place."""

import flashinfer
import torch

from ropekit_bench.peers import require


class adapter:
    kernel = "flashinfer.apply_rope_pos_ids_inplace"
    table_bytes = 0

    def __init__(self, name, tool):
        pass

    def prepare(self, case):
        require(case.dtype in (torch.float16, torch.bfloat16), "f16 and bf16 alone")
        require(not case.backward, "forward alone")
        require(case.k_shape[2], "rotates q and k together")
        positions = case.positions.flatten().int()
        flat = [tuple(x.flatten(0, 1) for x in pair) for pair in case.inputs]
        theta, interleaved = case.shape["rope_theta"], case.interleaved

        def run(slot):
            q, k = flat[slot]
            flashinfer.apply_rope_pos_ids_inplace(q, k, positions, interleave=interleaved, rope_theta=theta)
            return case.inputs[slot]

        return run
