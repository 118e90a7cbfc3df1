"""Trains three small language models on train.txt side by side from one seed: with attention
written out in PyTorch, with PyTorch's scaled_dot_product_attention, and with ropekit.attention.

    python train.py [folder] [--device cuda] [--steps 200] [--dtype bfloat16] [--twice]

Prints tokens per second of each and how far the curves of the loss lie apart, and draws them into
folder/train.png where matplotlib is installed. --twice: PyTorch's deterministic algorithms alone,
and whether ropekit's losses are the same in a second run.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import ropekit
import torch
from torch import Tensor, nn
from torch.nn import functional

CONTEXT, BATCH, WIDTH, LAYERS, HEADS, KV_HEADS = 128, 16, 128, 2, 4, 2
HEAD_DIM, THETA = WIDTH // HEADS, 10000.0
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]  # [batch, tokens, heads, head_dim]


def rotated(x: Tensor) -> Tensor:
    """The rotation in PyTorch's operators."""
    half = HEAD_DIM // 2
    steps = torch.arange(half, device=x.device) / half
    angles = torch.outer(torch.arange(x.shape[1], device=x.device), THETA**-steps)
    cos, sin = (y.to(x.dtype)[:, None] for y in (angles.cos(), angles.sin()))
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def eager(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k = rotated(q), rotated(k)
    k, v = (x.repeat_interleave(HEADS // KV_HEADS, 2) for x in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * HEAD_DIM**-0.5
    later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    weights = scores.masked_fill(later, float("-inf")).float().softmax(-1).to(v.dtype)
    return torch.einsum("bhqk,bkhd->bqhd", weights, v)


def sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    heads = (x.transpose(1, 2) for x in (rotated(q), rotated(k), v))
    out = functional.scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True)
    return out.transpose(1, 2)


def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return ropekit.attention(q, k, v, rope_theta=THETA)


KINDS: dict[str, Attention] = {"eager": eager, "sdpa": sdpa, "ropekit": fused}


class Block(nn.Module):
    def __init__(self, attention: Attention) -> None:
        super().__init__()
        self.attention = attention
        self.norms = nn.ModuleList(nn.RMSNorm(WIDTH) for _ in range(2))
        self.qkv = nn.Linear(WIDTH, (HEADS + 2 * KV_HEADS) * HEAD_DIM, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(self.norms[0](x)).unflatten(-1, (-1, HEAD_DIM))
        found = self.attention(*parts.split((HEADS, KV_HEADS, KV_HEADS), dim=2))
        x = x + self.out(found.flatten(2))
        return x + self.down(functional.gelu(self.up(self.norms[1](x))))


class Model(nn.Module):
    def __init__(self, attention: Attention) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, WIDTH)
        self.blocks = nn.ModuleList(Block(attention) for _ in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH)

    def forward(self, bytes_: Tensor) -> Tensor:
        x = self.embedding(bytes_)
        for block in self.blocks:
            x = block(x)
        return functional.linear(self.norm(x), self.embedding.weight)


def train(
    attention: Attention, text: Tensor, steps: int, dtype: torch.dtype
) -> Iterator[tuple[float, float]]:
    """The loss of each step, and its seconds."""
    torch.manual_seed(0)
    model = Model(attention).to(text.device)
    nn.init.normal_(model.embedding.weight, std=0.02)
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3)
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        begin = time.perf_counter()
        starts = torch.randint(len(text) - CONTEXT - 1, (BATCH,), generator=generator)
        places = (starts[:, None] + torch.arange(CONTEXT + 1)).to(text.device)
        rows = text[places]
        with torch.autocast(text.device.type, dtype, enabled=dtype != torch.float32):
            logits = model(rows[:, :-1])
        loss = functional.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        yield loss.item(), time.perf_counter() - begin  # item waits for the device


def draw(curves: dict[str, list[float]], labels: list[str], path: Path) -> None:
    try:
        from matplotlib import pyplot  # noqa: PLC0415 (it may be missing)
    except ImportError:
        print("matplotlib is missing: no plot")
        return
    figure, axes = pyplot.subplots(figsize=(7, 4))
    for losses, label, width in zip(curves.values(), labels, (6, 3, 1), strict=True):
        axes.plot(losses, linewidth=width, label=label)  # each within the one before
    axes.set_xlabel("step")
    axes.set_ylabel("loss, nats per byte")
    axes.legend()
    figure.savefig(path, dpi=120, bbox_inches="tight")
    print(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=Path())
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--twice", action="store_true")
    given = parser.parse_args()
    if given.steps < 1:
        parser.error(f"--steps is {given.steps}; allowed is > 0")
    given.folder.mkdir(parents=True, exist_ok=True)
    data = (Path(__file__).parent / "train.txt").read_bytes()
    text = torch.tensor(list(data), device=given.device)
    dtype = getattr(torch, given.dtype)
    torch.use_deterministic_algorithms(given.twice, warn_only=True)
    trainings = [train(attention, text, given.steps, dtype) for attention in KINDS.values()]
    rounds = list(zip(*trainings, strict=True))  # step by step, so that all meet the same machine
    curves = {name: [r[i][0] for r in rounds] for i, name in enumerate(KINDS)}
    labels = []
    for i, (name, losses) in enumerate(curves.items()):
        speed = BATCH * CONTEXT / statistics.median(r[i][1] for r in rounds)
        apart = max(abs(a - b) for a, b in zip(losses, curves["eager"], strict=True))
        labels.append(f"{name}: {speed:.0f} tokens/s, at most {apart:.2g} from eager's loss")
        print(f"{labels[-1]}, {losses[-1]:.4f} at last", flush=True)
    if given.twice:
        again = [loss for loss, _ in train(fused, text, given.steps, dtype)]
        same = again == curves["ropekit"]
        print(f"ropekit, once more: {'the same' if same else 'other'} losses")
    draw(curves, labels, given.folder / "train.png")


if __name__ == "__main__":
    main()
