"""Rotary position embedding as modules: the rotation alone, and causal attention with it."""

from __future__ import annotations

import ropekit
import torch
from ropekit import Config
from torch import Tensor, nn
from torch.nn import functional


class RotaryEmbedding(nn.Module):
    """Rotates q and k, [batch, heads, tokens, head_dim], by their positions.

    It has no table and no parameter, so there is no longest sequence to choose.
    """

    def __init__(self, config: Config | None = None) -> None:
        super().__init__()
        self.config = (config or Config()).replace(layout="bhsd")

    def forward(
        self, q: Tensor, k: Tensor, positions: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        return ropekit.apply(q, k, positions=positions, config=self.config)


class RoPEAttention(nn.Module):
    """Causal self-attention over [batch, tokens, width], with grouped keys and values.

    Args:
        width: elements of a token.
        heads: query heads; width / heads is the head_dim.
        kv_heads: heads of k and v; a divisor of heads. None: heads.
        config: the rotation; None: half-split pairs, base 10000.
    """

    def __init__(
        self, width: int, heads: int, kv_heads: int | None = None, config: Config | None = None
    ) -> None:
        super().__init__()
        kv_heads = kv_heads or heads
        if width % heads or heads % kv_heads:
            raise ValueError(f"width {width}, heads {heads} and kv_heads {kv_heads} do not divide")
        self.head_dim = width // heads
        self.heads, self.kv_heads = heads, kv_heads
        self.qkv = nn.Linear(width, (heads + 2 * kv_heads) * self.head_dim, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.rotary = RotaryEmbedding(config)

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        # q, k and v are views of one projection: the kernels take their strides as they are.
        parts = self.qkv(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        q, k, v = parts.split((self.heads, self.kv_heads, self.kv_heads), dim=1)
        q, k = self.rotary(q, k, positions)
        y = functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, enable_gqa=self.heads != self.kv_heads
        )
        return self.out(y.transpose(1, 2).flatten(2))


def scores(q: Tensor, k: Tensor, positions_q: Tensor, positions_k: Tensor) -> Tensor:
    """Dot product of one query and one key, each [head_dim], at every pair of positions."""
    rotary = RotaryEmbedding()
    q, _ = rotary(*[q.expand(1, 1, len(positions_q), -1)] * 2, positions_q)
    k, _ = rotary(*[k.expand(1, 1, len(positions_k), -1)] * 2, positions_k)
    return torch.einsum("bhqd,bhkd->qk", q.double(), k.double())
