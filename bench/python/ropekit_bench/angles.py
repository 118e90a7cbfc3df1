"""Errors of an implementation's angles by position: rotations of unit vectors are cos and sin."""

import torch

from ropekit_bench.case import Case

RANGES = (1 << 10, 1 << 13, 1 << 17, 1 << 20)
TOKENS = 256
SHAPE = {
    "batch": 1,
    "tokens": TOKENS,
    "q_heads": 1,
    "k_heads": 1,
    "head_dim": 128,
    "rotary_dim": 0,
    "rotary_offset": 0,
    "k_head_dim": 0,
    "k_rotary_offset": 0,
    "axes": 0,
    "dtype": "f32",
    "pairing_in": "half-split",
    "pairing_out": "half-split",
    "direction": "forward",
    "position_ids": "random",
    "angle_mode": "exact",
    "rope_type": "default",
    "rope_theta": 10000,
    "xpos": False,
    "in_place": False,
}


def measure(peers, device, seed, positions):
    """Records of every peer that takes f32 and position ids, for positions below a number."""
    records = []
    for peer in peers:
        case = Case({**SHAPE, "max_position": positions - 1}, device, 0, seed, False)
        case.positions[0, -1] = positions - 1
        half = case.rotary_dim // 2
        case.data.view(-1, case.rotary_dim)[:, :half] = 1
        case.data.view(-1, case.rotary_dim)[:, half:] = 0
        case.refresh()
        try:
            q, _ = peer.prepare(case)(0)
        except Exception:  # the timed cases say why
            continue
        angles = case.positions[0].cpu().double()[:, None] * case.frequencies()
        truth = torch.cat((angles.cos(), angles.sin()), -1)
        error = (q[0, :, 0].double().cpu() - truth).abs()
        records.append(
            {
                "case": f"positions below {positions}",
                "suite": "accuracy",
                "implementation": peer.name,
                "kernel": peer.adapter.kernel,
                "dtype": "f32",
                "angle_mode": "its own",
                "positions": positions,
                "cos_sin_error": error.max().item(),
                # Unit vectors: the larger element of a pair lies in (0.7, 1], where an ulp is 2^-24.
                "output_ulp": error.max().item() * 2.0**24,
                "samples": error.numel() // 2,
            }
        )
    return records
