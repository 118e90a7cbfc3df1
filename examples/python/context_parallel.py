"""Trains a small Llama on long sequences: FSDP2 over all ranks, context parallelism over pairs.

torchrun --nproc-per-node 4 examples/python/context_parallel.py
"""

import ropekit.transformers  # noqa: F401, makes attn_implementation "ropekit" known
import torch
import torch.distributed as dist
from ropekit.distributed import Layout, use
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM

CONFIG = LlamaConfig(
    vocab_size=256,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    attn_implementation="ropekit",
)


def main(steps: int = 3, tokens: int = 255, batch: int = 2) -> list[float]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if not dist.is_initialized():
        dist.init_process_group("nccl" if device == "cuda" else "gloo")
    if device == "cuda":
        torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())
    ranks = dist.get_world_size()
    cp = 2 if ranks % 2 == 0 else 1
    mesh = init_device_mesh(device, (ranks // cp, cp), mesh_dim_names=("dp", "cp"))

    torch.manual_seed(0)  # the same weights and data on every rank
    model = LlamaForCausalLM(CONFIG).to(device)
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    text = torch.randint(256, (batch, 1), device=device) + torch.arange(tokens + 1, device=device)

    layout = Layout.of(mesh["cp"], tokens)  # zigzag: every rank has as much to attend to
    positions = layout.positions(device)[None]
    rows = slice(mesh["dp"].get_local_rank(), None, mesh["dp"].size())
    losses = []
    for _ in range(steps):
        inputs, labels = text[rows, :-1] % 256, text[rows, 1:] % 256
        with use(layout, "allgather"):  # backward within it, too, as checkpoints attend there again
            found = model(layout.shard(inputs), position_ids=positions, use_cache=False)
            loss = cross_entropy(
                found.logits.flatten(0, 1), layout.shard(labels).flatten(), reduction="sum"
            )
            (loss * ranks / (batch * tokens)).backward()  # FSDP takes the mean over ranks
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(loss)
        losses.append(loss.item() / (batch * tokens))
    return losses


if __name__ == "__main__":
    found = main()
    if dist.get_rank() == 0:
        print("loss", *(f"{x:.4f}" for x in found))
    dist.destroy_process_group()
