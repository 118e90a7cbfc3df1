"""Trains small language models on train.txt side by side from one seed, which differ in attention:
written out in PyTorch, PyTorch's scaled_dot_product_attention, and ropekit.attention.

    python train.py [folder] [--size large] [--dtype bfloat16] [--steps 200] [--twice]

On Hopper in bfloat16 FlashAttention 3 is beside them if xformers has it. All but the first train
a second time with deterministic gradients, for which PyTorch has a switch. Prints tokens per second
of each and how far the curves of the loss lie apart, and draws them into folder/train.png where
matplotlib is installed. --twice: whether ropekit's losses are the same in a second run.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import ropekit
import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Size:
    context: int
    batch: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int


SIZES = {
    "small": Size(128, 16, width=128, layers=2, heads=4, kv_heads=2, head_dim=32),
    # layers as wide as those of Qwen3-0.6B
    "large": Size(4096, 2, width=1024, layers=8, heads=16, kv_heads=8, head_dim=128),
}
THETA = 10000.0
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]  # [batch, tokens, heads, head_dim]
Kind = tuple[Attention, bool]  # and whether its gradients are deterministic


@cache
def table(tokens: int, half: int, device: torch.device, dtype: torch.dtype) -> list[Tensor]:
    steps = torch.arange(half, device=device) / half
    angles = torch.outer(torch.arange(tokens, device=device), THETA**-steps)
    return [y.to(dtype)[:, None] for y in (angles.cos(), angles.sin())]


def rotated(x: Tensor) -> Tensor:
    """The rotation in PyTorch's operators."""
    cos, sin = table(x.shape[1], x.shape[-1] // 2, x.device, x.dtype)
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def eager(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k = rotated(q), rotated(k)
    k, v = (x.repeat_interleave(q.shape[2] // x.shape[2], 2) for x in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
    later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    weights = scores.masked_fill(later, float("-inf")).float().softmax(-1).to(v.dtype)
    return torch.einsum("bhqk,bkhd->bqhd", weights, v)


def sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    heads = (x.transpose(1, 2) for x in (rotated(q), rotated(k), v))
    out = functional.scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True)
    return out.transpose(1, 2)


class FlashAttention3(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out, lse, *_ = torch.ops.flash_attn_3.fwd(q, k, v, is_causal=True)
        ctx.save_for_backward(q, k, v, out, lse)
        return out

    @staticmethod
    def backward(ctx: Any, dout: Tensor) -> Any:
        in_order = torch.are_deterministic_algorithms_enabled()
        bwd = torch.ops.flash_attn_3.bwd
        return bwd(dout, *ctx.saved_tensors, is_causal=True, deterministic=in_order)[:3]


def flash_attn_3(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    out: Tensor = FlashAttention3.apply(rotated(q), rotated(k), v)
    return out


def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return ropekit.attention(q, k, v, rope_theta=THETA)


def load_flash_attn_3() -> bool:
    """Its operators, without xformers itself, which asks for one version of PyTorch."""
    spec = importlib.util.find_spec("xformers")
    for folder in (spec and spec.submodule_search_locations) or ():
        if (path := Path(folder, "flash_attn_3", "_C.so")).exists():
            with contextlib.suppress(OSError):  # libcudart.so.12 is missing
                torch.ops.load_library(path)
                return True
    return False


def kinds_on(device: torch.device, dtype: torch.dtype) -> dict[str, Kind]:
    fast = {"sdpa": sdpa, "ropekit": fused}
    is_hopper = device.type == "cuda" and torch.cuda.get_device_capability(device) == (9, 0)
    if is_hopper and dtype == torch.bfloat16 and load_flash_attn_3():
        fast["FlashAttention 3"] = flash_attn_3
    kinds: dict[str, Kind] = {"eager": (eager, False)}
    for name, attention in fast.items():
        kinds |= {name: (attention, False), f"{name}, deterministic": (attention, True)}
    return kinds


class Block(nn.Module):
    def __init__(self, attention: Attention, size: Size) -> None:
        super().__init__()
        self.attention = attention
        self.heads = (size.heads, size.kv_heads, size.kv_heads)
        self.head_dim, width = size.head_dim, size.width
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.qkv = nn.Linear(width, sum(self.heads) * size.head_dim, bias=False)
        self.out = nn.Linear(size.heads * size.head_dim, width, bias=False)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(self.norms[0](x)).unflatten(-1, (-1, self.head_dim))
        found = self.attention(*parts.split(self.heads, dim=2))
        x = x + self.out(found.flatten(2))
        return x + self.down(functional.gelu(self.up(self.norms[1](x))))


class Model(nn.Module):
    def __init__(self, attention: Attention, size: Size) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, size.width)
        self.blocks = nn.ModuleList(Block(attention, size) for _ in range(size.layers))
        self.norm = nn.RMSNorm(size.width)

    def forward(self, bytes_: Tensor) -> Tensor:
        x = self.embedding(bytes_)
        for block in self.blocks:
            x = block(x)
        return functional.linear(self.norm(x), self.embedding.weight)


def train(
    kind: Kind, size: Size, text: Tensor, steps: int, dtype: torch.dtype
) -> Iterator[tuple[float, float]]:
    """The loss of each step, and its seconds."""
    attention, deterministic = kind
    torch.manual_seed(0)
    with text.device:
        model = Model(attention, size)
    nn.init.normal_(model.embedding.weight, std=0.02)
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.25 / size.width)
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        # of float32 some kernels of PyTorch have none, and warn
        torch.use_deterministic_algorithms(deterministic, warn_only=dtype == torch.float32)
        begin = time.perf_counter()
        starts = torch.randint(len(text) - size.context, (size.batch,), generator=generator)
        places = (starts[:, None] + torch.arange(size.context + 1)).to(text.device)
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
    for i, (losses, label) in enumerate(zip(curves.values(), labels, strict=True)):
        axes.plot(losses, linewidth=2 * (len(labels) - i), label=label)  # within the one before
    axes.set_xlabel("step")
    axes.set_ylabel("loss, nats per byte")
    axes.legend()
    figure.savefig(path, dpi=120, bbox_inches="tight")
    print(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=Path())
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--twice", action="store_true")
    given = parser.parse_args()
    if given.steps < 1:
        parser.error(f"--steps is {given.steps}; allowed is > 0")
    given.folder.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # else it is not deterministic
    torch.utils.deterministic.fill_uninitialized_memory = False  # finds faults, and takes time
    data = (Path(__file__).parent / "train.txt").read_bytes()
    text = torch.tensor(list(data), device=given.device)
    dtype, size = getattr(torch, given.dtype), SIZES[given.size]
    kinds = kinds_on(text.device, dtype)
    trainings = [train(kind, size, text, given.steps, dtype) for kind in kinds.values()]
    rounds = list(zip(*trainings, strict=True))  # step by step, so that all meet the same machine
    curves = {name: [r[i][0] for r in rounds] for i, name in enumerate(kinds)}
    labels = []
    for i, (name, losses) in enumerate(curves.items()):
        speed = size.batch * size.context / statistics.median(r[i][1] for r in rounds)
        apart = max(abs(a - b) for a, b in zip(losses, curves["eager"], strict=True))
        labels.append(f"{name}: {speed:.0f} tokens/s, at most {apart:.2g} from eager's loss")
        print(f"{labels[-1]}, {losses[-1]:.4f} at last", flush=True)
    if given.twice:
        name = "ropekit, deterministic"
        again = [loss for loss, _ in train(kinds[name], size, text, given.steps, dtype)]
        print(f"{name}, once more: {'the same' if again == curves[name] else 'other'} losses")
    draw(curves, labels, given.folder / "train.png")


if __name__ == "__main__":
    main()
