"""Modules and Transformers' models over sharded tokens, beside one device, by gloo."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
import ranks
import ropekit.transformers
import torch
import torch.distributed as dist
from ropekit.distributed import ContextParallel, Layout, use
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM

ROOT = Path(__file__).parents[2]
EXAMPLE, PAGE = ROOT / "examples/python/context_parallel.py", ROOT / "docs/distributed.md"
TOKENS = 29
pytestmark = pytest.mark.compiles  # its processes take seconds to begin


def layer() -> ropekit.RoPEAttention:
    torch.manual_seed(3)
    return ropekit.RoPEAttention(32, heads=4, kv_heads=2, qk_norm=True, window=11)


def hidden() -> Tensor:
    return torch.randn(2, TOKENS, 32, generator=torch.Generator().manual_seed(4))


def llama() -> Any:
    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, attn_implementation="ropekit",
    )  # fmt: skip
    return LlamaForCausalLM(config)


def of_weights(module: Any) -> list[Tensor]:
    return [x.grad for x in module.parameters()]


def within_use(rank: int) -> list[Tensor]:
    module, layout = layer(), Layout.of(dist.group.WORLD, TOKENS)
    with use(layout, "ring"):
        y = layout.unshard(module(layout.shard(hidden())))
    (y * hidden()).sum().backward()
    grads = of_weights(module)
    for x in grads:
        dist.all_reduce(x)
    return [y.detach(), *grads]


def of_a_style(rank: int) -> list[Tensor]:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    module = parallelize_module(layer(), mesh, ContextParallel(method="ulysses"))
    x = DTensor.from_local(hidden(), mesh, [Replicate()]).redistribute(placements=[Shard(1)])
    y = module(x)
    assert y.placements == (Shard(1),)
    whole = y.full_tensor()
    (whole * hidden()).sum().backward()
    grads = of_weights(module)
    for grad in grads:
        dist.all_reduce(grad)
    return [whole.detach(), *grads]


def of_a_model(rank: int) -> list[Any]:
    model, ids = llama(), torch.arange(TOKENS)[None] * 7 % 64
    bounds = (0, 12, TOKENS)
    found: list[Any] = []
    for cu_seqlens in (None, bounds):
        layout = Layout.of(dist.group.WORLD, TOKENS, cu_seqlens=cu_seqlens)
        with use(layout), torch.no_grad():
            mine = layout.shard(ids)
            out = model(mine, position_ids=layout.positions()[None], use_cache=False)
            found.append(layout.unshard(out.logits))
    padding = torch.ones_like(mine).index_fill_(1, torch.tensor(0), 0)
    with use(Layout.of(dist.group.WORLD, TOKENS)):
        for given in ({}, {"attention_mask": padding}):
            try:
                model(mine, use_cache=False, **given)
            except ValueError as error:
                found.append(str(error))
    return found


def example(rank: int) -> list[float]:
    spec = importlib.util.spec_from_file_location("context_parallel", EXAMPLE)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: list[float] = module.main()
    return found


def page(rank: int) -> list[Tensor]:
    """Weights after what docs/distributed.md shows of training, on a mesh of 2 x 2."""
    found = re.findall(r"(?s)```python\n(.*?)```", PAGE.read_text(encoding="utf-8"))
    code = next(x for x in found if "fully_shard" in x)
    code = code.replace('"cuda"', '"cpu"').replace("(2, 4)", f"({dist.get_world_size() // 2}, 2)")
    ids = torch.randint(64, (2, TOKENS + 1), generator=torch.Generator().manual_seed(6))
    torch.manual_seed(5)
    own = ids[rank // 2 :: dist.get_world_size() // 2]
    names = {
        "config": llama().config, "tokens": TOKENS, "batches": [(own[:, :-1], own[:, 1:])] * 2,
        "torch": torch, "init_device_mesh": init_device_mesh, "cross_entropy": cross_entropy,
    }  # fmt: skip
    torch.manual_seed(5)
    exec(code, names)
    model: Any = names["model"]
    return [x.full_tensor().detach() for x in model.parameters()]


@pytest.mark.parametrize("function", [within_use, of_a_style])
def test_a_layer(function: Any) -> None:
    module = layer()
    y = module(hidden())
    (y * hidden()).sum().backward()
    for found in ranks.run(2, function):
        assert isinstance(found, list), found
        for x, wanted in zip(found, [y.detach(), *of_weights(module)], strict=True):
            torch.testing.assert_close(x, wanted, rtol=1e-4, atol=1e-5)


def test_a_model() -> None:
    model, ids = llama(), torch.arange(TOKENS)[None] * 7 % 64
    positions = torch.cat((torch.arange(12), torch.arange(TOKENS - 12)))[None]
    with torch.no_grad():
        wanted = [model(ids, position_ids=x, use_cache=False).logits for x in (None, positions)]
    for rank, found in enumerate(ranks.run(2, of_a_model)):
        assert isinstance(found, list), found
        for x, logits in zip(found, wanted, strict=False):
            torch.testing.assert_close(x, logits, rtol=1e-4, atol=1e-5)
        assert f"allowed on rank {rank} are layout.positions()" in found[2]
        assert "attention_mask is given; allowed within ropekit.distributed.use" in found[3]


def test_the_example_trains_as_on_one_rank() -> None:
    alone, *others = (*ranks.run(1, example), *ranks.run(4, example))
    assert isinstance(alone, list) and alone[-1] < alone[0], alone
    for found in others:
        assert found == pytest.approx(alone, rel=1e-4), found


def test_the_page_trains_alike_on_two_ranks_and_four() -> None:
    few, many = ranks.run(2, page), ranks.run(4, page)
    for found in (*few, *many):
        assert isinstance(found, list), found
        for x, wanted in zip(found, few[0], strict=True):
            torch.testing.assert_close(x, wanted, rtol=1e-3, atol=1e-5)
