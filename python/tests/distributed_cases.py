"""Calls of ropekit.distributed.attention, and the same calls on one device."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

import ropekit
import torch
import torch.distributed as dist
from ropekit import distributed
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.utils.checkpoint import checkpoint

GRADIENTS = ("dq", "dk", "dv", "dsinks")


@dataclass(frozen=True)
class Case:
    """A call of whole tensors."""

    tokens: int = 53
    batch: int = 1
    heads: tuple[int, int] = (4, 2)
    dims: tuple[int, int] = (32, 32)
    dtype: torch.dtype = torch.float32
    order: Any = "zigzag"
    cu_seqlens: tuple[int, ...] | None = None
    sinks: bool = False
    tensor_layout: Any = "bshd"
    options: dict[str, Any] = field(default_factory=dict)

    def tensors(self) -> dict[str, Tensor]:
        """Unrotated q, k and v, dout and sinks, by token as bshd."""
        random = torch.Generator().manual_seed(self.tokens)
        (heads, k_heads), (dim, v_dim) = self.heads, self.dims
        shapes = {"q": (heads, dim), "k": (k_heads, dim), "v": (k_heads, v_dim)}
        shapes["dout"] = (heads, v_dim)
        made = {
            name: torch.randn(self.batch, self.tokens, *shape, generator=random).to(self.dtype)
            for name, shape in shapes.items()
        }
        return made | {"sinks": torch.randn(heads, generator=random)}

    def on_one_device(self) -> dict[str, Tensor]:
        given = self.tensors()
        if self.cu_seqlens is not None:
            given = {name: x if name == "sinks" else x[0] for name, x in given.items()}
        bounds = None if self.cu_seqlens is None else torch.tensor(self.cu_seqlens)

        def attend(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
            if bounds is not None:
                options["cu_seqlens"] = options["k_cu_seqlens"] = bounds
            return ropekit.attention(
                q, k, v, return_lse=True, kernel="library", **options, **self.options
            )

        found = self._derived(given, attend)
        if bounds is not None:
            found = {name: x if name == "dsinks" else x[None] for name, x in found.items()}
        return found

    def on_ranks(self, method: str) -> dict[str, Tensor]:
        """Whole tensors again, the same on every rank."""
        given, group = self.tensors(), dist.group.WORLD
        layout = distributed.Layout.of(
            group, self.tokens, order=self.order, cu_seqlens=self.cu_seqlens
        )
        sinks = given.pop("sinks")
        given = {name: layout.shard(x) for name, x in given.items()}

        def attend(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
            swap = self.tensor_layout == "bhsd"
            q, k, v = (x.transpose(1, 2) if swap else x for x in (q, k, v))
            out, lse = distributed.attention(
                q, k, v, layout=layout, method=method, return_lse=True, **options,
                tensor_layout=self.tensor_layout, **self.options,
            )  # fmt: skip
            return (out.transpose(1, 2), lse.transpose(1, 2)) if swap else (out, lse)

        found = self._derived(given | {"sinks": sinks}, attend)
        whole = {name: layout.unshard(x) for name, x in found.items() if name != "dsinks"}
        if self.sinks:
            whole["dsinks"] = found["dsinks"]
            dist.all_reduce(whole["dsinks"])
        return whole

    def _derived(self, given: dict[str, Tensor], attend: Any) -> dict[str, Tensor]:
        leaves = [given[name].clone().requires_grad_() for name in ("q", "k", "v")]
        options: dict[str, Any] = {}
        if self.sinks:
            options["sinks"] = given["sinks"].clone().requires_grad_()
        out, lse = attend(*leaves, **options)
        grads = torch.autograd.grad(out, [*leaves, *options.values()], given["dout"])
        return {"out": out.detach(), "lse": lse, **dict(zip(GRADIENTS, grads, strict=False))}


def run(rank: int, cases: list[tuple[Case, str]]) -> list[dict[str, Tensor]]:
    return [case.on_ranks(method) for case, method in cases]


def compiled(rank: int) -> list[Tensor]:
    """Gradients of a compiled function that calls attention, and of the function itself."""
    case = Case(tokens=12)
    layout = distributed.Layout.of(dist.group.WORLD, case.tokens)
    given = {n: layout.shard(x) for n, x in case.tensors().items() if n != "sinks"}

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return distributed.attention(2 * q, k, v.sin(), layout=layout).cos()

    found = []
    for function in (attend, torch.compile(attend, backend="aot_eager")):
        leaves = [given[n].clone().requires_grad_() for n in "qkv"]
        found += torch.autograd.grad(function(*leaves), leaves, given["dout"])
    return found


def repeats(rank: int, method: str) -> dict[str, list[Tensor]]:
    """Results and gradients of three runs: as they are, again, and of a checkpoint."""
    case = Case(tokens=90, batch=2, heads=(6, 3), dtype=torch.bfloat16)
    layout = distributed.Layout.of(dist.group.WORLD, case.tokens)
    given = {n: layout.shard(x) for n, x in case.tensors().items() if n != "sinks"}

    def attend(*tensors: Tensor) -> Any:
        return distributed.attention(*tensors, layout=layout, method=method, kernel="library")

    def checkpointed(*tensors: Tensor) -> Any:
        return checkpoint(attend, *tensors, use_reentrant=False)

    found = {}
    for name, function in (("first", attend), ("again", attend), ("checkpoint", checkpointed)):
        leaves = [given[n].clone().requires_grad_() for n in "qkv"]
        out = function(*leaves)
        found[name] = [out.detach(), *torch.autograd.grad(out, leaves, given["dout"])]
    return found


# ---- what is refused ----


def _refusal(rank: int, **own: Any) -> str:
    """The error of a call of 12 tokens, otherwise as a Case's."""
    case = Case(tokens=12, **own)
    given = case.tensors()
    layout = distributed.Layout.of(
        dist.group.WORLD, case.tokens, order=case.order, cu_seqlens=case.cu_seqlens
    )
    q, k, v = (layout.shard(given[name]) for name in "qkv")
    try:
        distributed.attention(q, k, v, layout=layout, **case.options)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def refusals(rank: int) -> dict[str, str]:
    """What each rank says where rank 1 is another."""
    differing: dict[str, dict[str, Any]] = {
        "theta": {"options": {"rope_theta": 5e5}},
        "window": {"options": {"window": 4}},
        "type": {"dtype": torch.bfloat16},
        "heads": {"heads": (4, 4)},
        "batch": {"batch": 2},
        "order": {"order": "contiguous"},
        "sequences": {"cu_seqlens": (0, 5, 12)},
        "method": {"options": {"method": "ring"}},
        "refused": {"options": {"soft_cap": 3.0}},
        "positions": {"options": {"positions": torch.arange(4)}},
    }
    found = {name: _refusal(rank, **(x if rank == 1 else {})) for name, x in differing.items()}
    found["ulysses"] = _refusal(rank, options={"method": "ulysses"})
    found["sdpa"] = _refusal(rank, options={"kernel": "sdpa"})
    return found


def later_refusals(rank: int) -> dict[str, str]:
    """What each rank says of a call that differs on rank 1, after one that all made alike; of one
    that the library refuses, of which a rank without tokens would not learn by itself."""
    case = Case(tokens=12)
    given = case.tensors()
    layout = distributed.Layout.of(dist.group.WORLD, case.tokens)
    short = distributed.Layout.of(dist.group.WORLD, 3, order="contiguous")
    table = torch.ones(12, 16)
    differing: dict[str, tuple[Any, dict[str, Any]]] = {
        "window": (layout, {"window": 4}),
        "misspelt": (layout, {"windows": 4}),
        "no tensor": (layout, {"sinks": 1.0}),
        "no file": (layout, {"config": "/no/such/config.json"}),
        "grads": (layout, {"derives": True}),
        "few rows": (layout, {"cos": table[:10], "sin": table[:10]}),
        "many sinks": (layout, {"sinks": torch.zeros(8)}),
        "kernel": (short, {"kernel": "nonsense"}),
    }
    found = {}
    for name, (of, own) in differing.items():
        q, k, v = (of.shard(given[n][:, : of.tokens]) for n in "qkv")
        is_alone = name in ("window", "misspelt", "no tensor", "no file", "grads")
        if is_alone:
            distributed.attention(q, k, v, layout=of)
        options = dict(own) if rank == 1 or not is_alone else {}
        if options.pop("derives", False):
            q = q.clone().requires_grad_()
        try:
            distributed.attention(q, k, v, layout=of, **options)
            found[name] = "no error"
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found


def inference_first(rank: int) -> bool:
    """Whether a call with a gradient follows one of inference_mode, and positions are a copy."""
    case = Case(tokens=12)
    given = case.tensors()
    layout = distributed.Layout.of(dist.group.WORLD, case.tokens)
    q, k, v = (layout.shard(given[name]) for name in "qkv")
    with torch.inference_mode():
        wanted = distributed.attention(q, k, v, layout=layout)
    layout.positions().zero_()
    out = distributed.attention(q.clone().requires_grad_(), k, v, layout=layout)
    out.sum().backward()
    return torch.equal(out, wanted)


def killed(rank: int, method: str) -> str:
    """What a rank sees when rank 1 has ended."""
    case = Case(tokens=24, heads=(6, 3))
    case.on_ranks(method)
    if rank == 1:
        os._exit(1)
    try:
        case.on_ranks(method)
    except RuntimeError as error:
        return f"{type(error).__name__}"
    return "no error"


def of_dtensors(rank: int) -> dict[str, Any]:
    """apply, attention and gradients of DTensors, and the error of sharded tokens."""
    mesh, case = init_device_mesh("cpu", (2,)), Case(batch=2, sinks=True)
    given = case.tensors()
    found: dict[str, Any] = {}
    for name, placement in (("batch", Shard(0)), ("heads", Shard(2)), ("tokens", Shard(1))):
        q, k, v, dout = (
            distribute_tensor(given[n], mesh, [placement]) for n in ("q", "k", "v", "dout")
        )
        of_sinks = Shard(0) if name == "heads" else Replicate()
        sinks = distribute_tensor(given["sinks"], mesh, [of_sinks])
        leaves = [x.requires_grad_() for x in (q, k, v, sinks)]
        try:
            turned = ropekit.apply(q, k, rope_theta=5e5)
            out = ropekit.attention(q, k, v, sinks=sinks, kernel="library")
            grads = torch.autograd.grad(out, leaves, dout)
            with torch.no_grad():
                again = ropekit.attention(q, k, v, sinks=sinks, kernel="library")
            parts = [*turned, out, again, *grads]
            found[name] = [x.full_tensor().detach() for x in parts]
        except RuntimeError as error:
            found[name] = str(error)
    return found


def of_a_mesh(rank: int) -> tuple[Any, Tensor]:
    """Placements and values of attention whose batch and heads are sharded over two dimensions."""
    mesh, case = init_device_mesh("cpu", (2, 2)), Case(batch=2)
    given, places = case.tensors(), [Shard(0), Shard(2)]
    q, k, v = (distribute_tensor(given[n], mesh, places) for n in "qkv")
    with torch.no_grad():
        out: Any = ropekit.attention(q, k, v, kernel="library")
    return out.placements == tuple(places), out.full_tensor()


def append_of_dtensors(rank: int) -> dict[str, Any]:
    """Of shards of heads what is returned and cached; errors of shards of tokens, and of a cache
    that is whole."""
    mesh = init_device_mesh("cpu", (2,))
    random = torch.Generator().manual_seed(0)
    q, k, v, k_cache, v_cache = (
        torch.randn(shape, generator=random)
        for shape in ((5, 4, 16), (5, 2, 16), (5, 2, 16), (2, 8, 2, 16), (2, 8, 2, 16))
    )
    slots, weight = torch.tensor([0, 3, 9, -1, 15]), torch.randn(16, generator=random)
    norm: Any = {"norm_type": "rms", "positions": slots.clamp(0), "slots": slots}

    def call(rows: Any, caches: Any, whole: Any) -> list[Tensor]:
        given = [whole(norm["positions"]), whole(slots), whole(weight), whole(weight)]
        names = ("positions", "slots", "q_weight", "k_weight")
        with torch.no_grad():
            own = [rows(x.clone()) for x in (q, k, v)]
            kept = [caches(x.clone()) for x in (k_cache, v_cache)]
            places = {"k_cache": kept[0], "v_cache": kept[1], "norm_type": "rms"}
            turned: Any = ropekit.append(*own, **places, **dict(zip(names, given, strict=True)))
        return [turned, *kept]

    def placed(*placements: Any) -> Any:
        return lambda x: distribute_tensor(x, mesh, list(placements))

    found: dict[str, Any] = {"one": call(*[lambda x: x] * 3)}
    cases = {"heads": (Shard(1), Shard(2)), "tokens": (Shard(0), Replicate())}
    cases["whole cache"] = Shard(1), Replicate()
    for name, (rows, caches) in cases.items():
        try:
            made = call(placed(rows), placed(caches), placed(Replicate()))
            found[name] = [x.full_tensor() for x in made]
        except RuntimeError as error:
            found[name] = str(error)
    return found
