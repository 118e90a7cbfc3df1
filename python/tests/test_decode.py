"""decode beside append and attention."""

from __future__ import annotations

from typing import Any

import pytest
import ropekit
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

op = torch.ops.ropekit.decode
HEADS, KV, DIM, SIZE = 8, 2, 64, 4
LENGTHS = [6, 1, 11]
PAGES = 3  # of each sequence
EIGHT = (torch.float8_e4m3fn, torch.int8)
NORM: dict[str, Any] = {"norm_type": "rms", "norm_eps": 1e-6, "norm_rounding": "twice"}


def tokens_of(device: str, tokens: int = 1, dtype: torch.dtype = torch.float32) -> Any:
    """q, k and v of each sequence, views of one projection."""
    shape = len(LENGTHS), tokens, HEADS + 2 * KV, DIM
    return torch.randn(shape, device=device).to(dtype).split([HEADS, KV, KV], 2)


def caches_of(device: str, dtype: torch.dtype = torch.float32, paged: bool = True) -> Any:
    """Keywords of a cache that holds something."""
    pages, size = (PAGES * len(LENGTHS) + 1, SIZE) if paged else (len(LENGTHS), PAGES * SIZE)
    found = {
        f"{part}_cache": torch.randn(pages, size, KV, DIM, device=device).to(dtype) for part in "kv"
    }
    if dtype in EIGHT:
        scale = torch.full((2, pages, size, KV), 0.02, device=device)
        found |= {"k_scale_out": scale[0], "v_scale_out": scale[1]}
    if paged:
        order = torch.randperm(pages, device=device)[: PAGES * len(LENGTHS)]
        found["block_table"] = order.view(len(LENGTHS), PAGES).int()
    return found


def lengths_of(device: str) -> torch.Tensor:
    return torch.tensor(LENGTHS, device=device)


def separately(tensors: Any, caches: Any, places: Any, masks: Any, **options: Any) -> Any:
    """append, then attention, over a copy of the caches: its result and them."""
    copies = {name: x.clone() for name, x in caches.items()}
    own = {x: y for x, y in copies.items() if x != "block_table" or "slots" not in places}
    q = ropekit.append(*tensors, **own, **places, **options)
    seen = {name.removesuffix("_out"): x for name, x in copies.items()}
    shared = {x: places[x] for x in ("cu_seqlens",) if x in places}
    kept = {x: options[x] for x in ("config", "layout", "ring") if x in options}
    return ropekit.attention(q, **seen, **masks, **shared, **kept, rotate="none"), copies


def check(tensors: Any, caches: Any, places: Any, masks: Any, **options: Any) -> None:
    """decode, which finds places by k_lengths, gives the same bits."""
    wanted, copies = separately(tensors, caches, places, masks, **options)
    own = {x: y for x, y in places.items() if x in ("cu_seqlens", "slots", "positions")}
    if "cu_seqlens" in own:
        own["max_seqlen_q"] = int(own["cu_seqlens"].diff().max())
    found = ropekit.decode(*tensors, **caches, **masks, **own, **options)
    assert torch.equal(found, wanted)
    for name, x in caches.items():
        bits = torch.uint8 if x.itemsize == 1 else x.dtype
        assert torch.equal(x.view(bits), copies[name].view(bits)), name


@pytest.mark.parametrize("paged", [True, False])
@pytest.mark.parametrize("kept", [torch.float32, torch.bfloat16, *EIGHT])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equals_append_and_attention(
    dtype: torch.dtype, kept: torch.dtype, paged: bool, device: str
) -> None:
    lengths = lengths_of(device)
    weights = torch.rand(2, DIM, device=device).to(dtype) + 0.5
    options = {"q_weight": weights[0], "k_weight": weights[1], **NORM, "rope_theta": 5e5}
    places = {"sequence_offsets": lengths - 1}
    masks = {"k_lengths": lengths}
    check(tokens_of(device, 1, dtype), caches_of(device, kept, paged), places, masks, **options)


@pytest.mark.parametrize("name", ["window", "softcap", "sinks", "full", "kernel"])
def test_masks(name: str, device: str) -> None:
    lengths = lengths_of(device).clamp(min=3)
    more: dict[str, Any] = {
        "window": {"window": 2},
        "softcap": {"softcap": 5.0, "scale": 0.5},
        "sinks": {"sinks": torch.randn(HEADS, device=device)},
        "full": {"causal": False},
        "kernel": {"kernel": "scalar" if device == "cpu" else "generic"},
    }[name]
    masks = {"k_lengths": lengths, **more}
    check(tokens_of(device, 3), caches_of(device), {"sequence_offsets": lengths - 3}, masks)


def test_a_tree_of_drafts(device: str) -> None:
    lengths = lengths_of(device).clamp(min=3)
    tree = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 0, 1]], device=device).bool()
    masks = {"k_lengths": lengths, "tree_mask": tree}
    places = {
        "positions": lengths[:, None] - 3 + torch.tensor([0, 1, 1], device=device),
        "cache_starts": lengths - 3,
    }
    check(tokens_of(device, 3), caches_of(device), places, masks)


@pytest.mark.parametrize("slots", [False, True])
def test_packed_sequences(slots: bool, device: str) -> None:
    """2, 0 and 3 tokens; with slots they name the same places."""
    q, k, v = (x.flatten(0, 1)[:5] for x in tokens_of(device, 2))
    bounds = torch.tensor([0, 2, 2, 5], device=device, dtype=torch.int32)
    lengths, caches = lengths_of(device), caches_of(device)
    starts = lengths - bounds.diff()
    places: dict[str, Any] = {"cu_seqlens": bounds, "sequence_offsets": starts}
    if slots:
        of = [0, 0, 2, 2, 2]
        index = torch.stack([starts[s] + i - int(bounds[s]) for i, s in enumerate(of)])
        pages = caches["block_table"][of].gather(1, (index // SIZE)[:, None].long())[:, 0]
        places["slots"] = pages * SIZE + index % SIZE
    check((q, k, v), caches, places, {"k_lengths": lengths})


@pytest.mark.parametrize("layout", ["bhsd", "sbhd"])
def test_layouts(layout: str, device: str) -> None:
    order = {"bhsd": (0, 2, 1, 3), "sbhd": (1, 0, 2, 3)}[layout]
    tensors = [x.permute(order) for x in tokens_of(device, 2)]
    lengths = lengths_of(device).clamp(min=2)
    places = {"sequence_offsets": lengths - 2}
    check(tensors, caches_of(device), places, {"k_lengths": lengths}, layout=layout)


def test_a_layer_without_rotation_and_a_ring(device: str) -> None:
    lengths, caches = lengths_of(device), caches_of(device)
    places = {"cache_starts": lengths - 1}
    check(tokens_of(device), caches, places, {"k_lengths": lengths}, rotation="off", ring=5)


LATENT: dict[str, Any] = {
    **{"rotary_dim": 64, "rotary_offset": 512, "k_norm_dim": 512},
    **{f"k_{name}": value for name, value in NORM.items()},
}


def latents_of(device: str, kept: torch.dtype) -> tuple[Any, Any, Any]:
    """q and k of DeepSeek's absorbed heads, what belongs to k, and rows that begin with values."""
    dtype = torch.float32 if kept == torch.float32 else torch.bfloat16
    q, k = (torch.randn(3, 1, n, 576, device=device).to(dtype) for n in (16, 1))
    pages = {"block_table": torch.randperm(9, device=device).view(3, 3)}
    if kept in EIGHT:
        pages["k_scale"] = torch.full((1,), 0.02, device=device)
    rows = torch.randn(9, SIZE, 1, 576, device=device).to(kept)
    return (q, k), {"k_weight": torch.rand(512, device=device).to(dtype), **pages}, rows


@pytest.mark.parametrize("kept", [torch.float32, torch.bfloat16, *EIGHT])
def test_values_within_keys(kept: torch.dtype, device: str) -> None:
    """Without v the bits of an append of keys alone, and of attention to views of them."""
    (q, k), options, rows = latents_of(device, kept)
    lengths, other = lengths_of(device), rows.clone()
    values = rows.flatten(0, 1)[..., :512].unflatten(
        0, rows.shape[:2]
    )  # of one head, of any stride
    caches = {"k_cache": rows, "v_cache": values, "k_lengths": lengths}
    found = ropekit.decode(q, k, None, **caches, **options, **LATENT)
    turned = ropekit.append(q, k, k_cache=other, sequence_offsets=lengths - 1, **options, **LATENT)
    del options["k_weight"]
    if "k_scale" in options:
        options["v_scale"] = options["k_scale"]
    caches = {"k_cache": other, "v_cache": other[..., :512], "k_lengths": lengths}
    assert torch.equal(found, ropekit.attention(turned, rotate="none", **caches, **options))
    assert torch.equal(rows.view(torch.uint8), other.view(torch.uint8))


@pytest.mark.compiles
def test_values_within_keys_compile(device: str) -> None:
    torch._dynamo.reset()
    (q, k), options, rows = latents_of(device, torch.float32)
    config, other = ropekit.Config(**LATENT), rows.clone()

    def step(rows: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        caches = {"k_cache": rows, "v_cache": rows[..., :512], "k_lengths": lengths}
        return ropekit.decode(q, k, None, config=config, **caches, **options)

    compiled = torch.compile(step, fullgraph=True)
    for lengths in (lengths_of(device), lengths_of(device).clamp(max=8) + 1):
        assert torch.equal(compiled(rows, lengths), step(other, lengths))
        assert torch.equal(rows, other)


def test_orders_of_a_cache(device: str) -> None:
    lengths, caches, tensors = lengths_of(device), caches_of(device), tokens_of(device)
    other = {name: x.clone() for name, x in caches.items()}
    wanted = ropekit.decode(*tensors, **caches, k_lengths=lengths)
    for name in ("k_cache", "v_cache"):
        other[name] = other[name].transpose(1, 2)
    found = ropekit.decode(*tensors, **other, k_lengths=lengths, cache_layout="hnd")
    assert torch.equal(found, wanted)
    assert torch.equal(other["k_cache"].transpose(1, 2), caches["k_cache"])


@pytest.mark.parametrize("packed", [False, True])
def test_a_result_of_the_caller(packed: bool, device: str) -> None:
    """Of any strides; it counts as written, and what no sequence has is left as it was."""
    tensors, caches, options = (
        tokens_of(device),
        caches_of(device),
        {"k_lengths": lengths_of(device)},
    )
    if packed:
        tensors = [torch.cat([x[:, 0], x[:1, 0]]) for x in tensors]
        options["cu_seqlens"] = torch.arange(4, device=device)
    copies = {name: x.clone() for name, x in caches.items()}
    wanted = ropekit.decode(*tensors, **copies, **options)
    out = torch.full((*tensors[0].shape[:-1], 2 * DIM), 7.0, device=device)[..., ::2]
    assert ropekit.decode(*tensors, **caches, **options, out=out) is out
    count = len(LENGTHS)
    assert torch.equal(out[:count], wanted[:count]) and (out[count:] == 7).all()
    assert out._version == 1 and torch.equal(caches["k_cache"], copies["k_cache"])


def test_no_tokens(device: str) -> None:
    q, k, v = (x[:, :0] for x in tokens_of(device))
    caches = caches_of(device)
    before = caches["k_cache"].clone()
    found = ropekit.decode(q, k, v, **caches, k_lengths=lengths_of(device))
    assert found.shape == q.shape
    assert torch.equal(caches["k_cache"], before)


# ---- the operator ----


def test_mutation_is_declared() -> None:
    ops = torch.ops.ropekit
    few, caches = ops.decode_no_grad.few, {"k_cache", "v_cache"}
    for operator in (ops.decode.default, ops.decode_no_grad.default, few):
        arguments = operator._schema.arguments
        written = {a.name for a in arguments if a.alias_info and a.alias_info.is_write}
        assert written == caches | (
            set() if operator is few else {"k_scale_out", "v_scale_out", "position_flag"}
        )


class _Seen(TorchDispatchMode):
    """Names the operators of the library that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if operator.namespace == "ropekit":
            self.names.append(str(operator))
        return operator(*args, **kwargs or {})


def test_a_usual_call_has_few_arguments(device: str) -> None:
    lengths, tensors = lengths_of(device), tokens_of(device)
    weights = dict.fromkeys(("q_weight", "k_weight"), torch.ones(DIM, device=device))
    sinks = {"sinks": torch.zeros(HEADS, device=device)}
    for options, name in (({}, "few"), ({**weights, **NORM}, "few"), (sinks, "default")):
        caches = caches_of(device)
        others = {name: x.clone() for name, x in caches.items()}
        with _Seen() as seen:
            found = ropekit.decode(*tensors, **caches, k_lengths=lengths, **options)
        assert seen.names == [f"ropekit.decode_no_grad.{name}"]
        assert torch.equal(found, ropekit.decode(*tensors, **others, k_lengths=lengths, **options))
        assert torch.equal(caches["k_cache"], others["k_cache"])


def test_autograd_is_passed_by(device: str) -> None:
    """By the operators for calls that were looked at."""
    (q, k, v), caches = tokens_of(device), caches_of(device)
    table = caches.pop("block_table")
    given = (q.requires_grad_(), k, v, "", *caches.values(), lengths_of(device), table)
    for name in ("default", "few"):
        assert not getattr(torch.ops.ropekit.decode_no_grad, name)(*given).requires_grad


def test_fake_tensors(device: str) -> None:
    with FakeTensorMode():
        q, k, v = (torch.empty(3, 1, n, DIM, device=device) for n in (HEADS, KV, KV))
        lengths = torch.empty(3, dtype=torch.int64, device=device)
        keys, values = (torch.empty(9, SIZE, KV, DIM, device=device) for _ in range(2))
        table = torch.empty(3, 3, dtype=torch.int64, device=device)
        found = ropekit.decode(
            q, k, v, k_cache=keys, v_cache=values, k_lengths=lengths, block_table=table
        )
    assert found.shape == q.shape
    assert found.device == q.device


@pytest.mark.parametrize("kept", [torch.float32, torch.int8])
def test_opcheck(kept: torch.dtype, device: str) -> None:
    caches = caches_of(device, kept)
    lengths = lengths_of(device)
    options = {x: y for x, y in caches.items() if x not in ("k_cache", "v_cache")}
    first = *tokens_of(device), "window=4", caches["k_cache"], caches["v_cache"], lengths
    torch.library.opcheck(op, first, options)


def test_what_is_written_is_counted(device: str) -> None:
    q, k, v = tokens_of(device)
    caches, lengths = caches_of(device, torch.int8), lengths_of(device)
    written = [x for name, x in caches.items() if name != "block_table"]
    before = [x._version for x in written]
    ropekit.decode(q, k, v, **caches, k_lengths=lengths)
    assert written[0]._version == before[0] + 1
    assert all(x._version > y for x, y in zip(written, before, strict=True))
    with pytest.raises(RuntimeError, match=r"k requires a gradient; allowed is a call within"):
        ropekit.decode(q, k.clone().requires_grad_(), v, **caches, k_lengths=lengths)
    with torch.no_grad():
        ropekit.decode(q, k.clone().requires_grad_(), v, **caches, k_lengths=lengths)


def test_caches_of_inference_mode(device: str) -> None:
    tensors, lengths, known = tokens_of(device), lengths_of(device), caches_of(device)
    with torch.inference_mode():
        caches = {name: x.clone() for name, x in known.items()}
        found = ropekit.decode(*tensors, **caches, k_lengths=lengths)
    assert torch.equal(found, ropekit.decode(*tensors, **known, k_lengths=lengths))
    assert torch.equal(caches["v_cache"], known["v_cache"])
    before = caches["v_cache"].clone()
    with pytest.raises(RuntimeError, match=r"k_cache is an inference tensor; allowed in place"):
        ropekit.decode(*tensors, **caches, k_lengths=lengths + 1)
    assert torch.equal(caches["v_cache"], before)


@pytest.mark.compiles
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiles_without_a_break(backend: str, device: str) -> None:
    torch._dynamo.reset()
    counter = CompileCounterWithBackend(backend)
    config = ropekit.Config(**NORM, rope_theta=5e5, window=5)
    weight = torch.rand(DIM, device=device)

    def step(x: Any, caches: Any, lengths: torch.Tensor) -> torch.Tensor:
        q, k, v = (2 * x).split([HEADS, KV, KV], 2)
        weights = {"q_weight": weight, "k_weight": weight}
        out = ropekit.decode(q, k, v, **caches, k_lengths=lengths + 1, config=config, **weights)
        return out + caches["k_cache"][0, 0, 0, 0]

    compiled = torch.compile(step, fullgraph=True, backend=counter)
    caches = caches_of(device)
    wanted = {name: x.clone() for name, x in caches.items()}
    for i in range(3):
        x = torch.randn(len(LENGTHS), 1, HEADS + 2 * KV, DIM, device=device)
        lengths = lengths_of(device).clamp(max=8) + i
        assert torch.equal(compiled(x, caches, lengths), step(x, wanted, lengths))
        assert torch.equal(caches["k_cache"], wanted["k_cache"])
    assert counter.frame_count == 1


# ---- graphs ----

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
# A token and drafts of Hopper, a token of any GPU, and the kernels of append and attention.
GRAPHS = [(1, 16, None), (4, 16, None), (1, SIZE, None), (1, 16, "composed"), (4, 16, "tiles")]


class Growing:
    """A step over pages, in buffers that `fill` changes in place; keys are in one split or many."""

    def __init__(self, tokens: int, size: int, kernel: str | None) -> None:
        most = 2048
        shape, pages = (3, tokens, HEADS + 2 * KV, DIM), 3 * most // size
        self.new = torch.empty(shape, device="cuda", dtype=torch.bfloat16)
        both = torch.randn(2, pages, size, KV, DIM, device="cuda").bfloat16()
        self.caches = [x.clone() for x in both]  # as PyTorch before 2.13 compiles no offset
        self.lengths = torch.full((3,), tokens, device="cuda", dtype=torch.int32)
        self.table = torch.arange(pages, device="cuda", dtype=torch.int32).view(3, -1)
        self.weight = torch.rand(DIM, device="cuda").bfloat16()
        self.config = ropekit.Config(**NORM, rope_theta=5e5, kernel=kernel)
        self.fill([tokens] * 3)

    def fill(self, lengths: list[int]) -> None:
        self.new.normal_()
        self.lengths.copy_(torch.tensor(lengths))
        order = torch.randperm(self.table.numel(), device="cuda")
        self.table.copy_(order.view_as(self.table))

    def step(self, new: torch.Tensor, caches: list[torch.Tensor]) -> torch.Tensor:
        q, k, v = new.split([HEADS, KV, KV], 2)
        weights = {"q_weight": self.weight, "k_weight": self.weight}
        places = {"k_cache": caches[0], "v_cache": caches[1], "block_table": self.table}
        return ropekit.decode(
            q, k, v, **places, **weights, k_lengths=self.lengths, config=self.config
        )

    def follows(self, again: Any) -> None:
        """What a graph gives of other lengths, pages and tokens has the bits of a call."""
        for lengths in ([700, 40, 1500], [4, 2048, 600], [16, 17, 5], [2041, 1030, 513]):
            self.fill(lengths)
            caches = [x.clone() for x in self.caches]
            found, wanted = again(), self.step(self.new, caches)
            assert torch.equal(found, wanted), lengths
            assert all(map(torch.equal, self.caches, caches)), lengths


@needs_cuda
@pytest.mark.parametrize(("tokens", "size", "kernel"), GRAPHS)
def test_a_graph_follows_lengths_pages_and_tokens(
    tokens: int, size: int, kernel: str | None
) -> None:
    layer, graph = Growing(tokens, size, kernel), torch.cuda.CUDAGraph()
    layer.step(layer.new, layer.caches)  # makes the plan
    with torch.cuda.graph(graph):
        out = layer.step(layer.new, layer.caches)

    def again() -> torch.Tensor:
        graph.replay()
        return out

    layer.follows(again)


@needs_cuda
@pytest.mark.compiles
def test_a_compiled_graph_follows_lengths_pages_and_tokens() -> None:
    torch._dynamo.reset()
    counters.clear()
    layer = Growing(1, 16, None)
    compiled = torch.compile(layer.step, fullgraph=True, mode="reduce-overhead")
    for x in layer.caches:
        torch._dynamo.mark_static_address(x)  # a graph may then write it
    for _ in range(3):  # compiles, records, replays
        compiled(layer.new, layer.caches)
    layer.follows(lambda: compiled(layer.new, layer.caches))
    assert not counters["inductor"]["cudagraph_skips"]


# ---- which kernel runs ----


def test_explain(device: str) -> None:
    """Nothing is written."""
    tensors, caches = tokens_of(device, 1, torch.bfloat16), caches_of(device, torch.bfloat16)
    before = {name: x.clone() for name, x in caches.items()}
    given = {"k_lengths": lengths_of(device), **caches}
    told = ropekit.explain(*tensors, **given, rope_theta=5e5, cache_layout="nhd")
    assert told.kernel.startswith(f"{device}:") and not told.backward
    assert "composed" in told.candidates and told.rotation == "q and k, by rope_theta 500000.0"
    named = ropekit.explain(*tensors, **given, kernel="composed")
    assert (named.why, named.rotation[:7]) == ("named by kernel", "q and k")
    assert all(torch.equal(x, caches[name]) for name, x in before.items())


@needs_cuda
@pytest.mark.parametrize("table", [False, True])
def test_a_token_takes_one_launch(table: bool) -> None:
    """By angles, and by cos and sin of its own row as a patched model of Transformers gives it."""
    q, k, v = torch.randn(2, 1, 12, 128, device="cuda").bfloat16().split([8, 2, 2], 2)
    k_cache, v_cache = torch.zeros(2, 2, 2, 64, 128, device="cuda", dtype=torch.bfloat16)
    lengths = torch.tensor([7, 60], device="cuda")
    given: dict[str, Any] = {"k_cache": k_cache, "v_cache": v_cache, "cache_layout": "hnd"}
    if table:
        cos, sin = torch.randn(2, 2, 1, 64, device="cuda").bfloat16()
        given |= {"cos": cos, "sin": sin, "cache_starts": lengths - 1, "arithmetic": "model_dtype"}
    told = ropekit.explain(q, k, v, k_lengths=lengths, **given)
    assert told.kernel.startswith("cuda:decode_") and told.why.startswith("the first kernel of")
    with torch.profiler.profile() as found:
        ropekit.decode(q, k, v, k_lengths=lengths, **given)
        torch.cuda.synchronize()
    names = [x.name for x in found.events() if x.device_type == torch.autograd.DeviceType.CUDA]
    assert sum("gpu_" in name for name in names) == 1, names


# ---- errors ----

Q, K, V = (x.contiguous() for x in tokens_of("cpu"))
CACHES: Any = caches_of("cpu")
GIVEN: dict[str, Any] = {"q": Q, "k": K, "v": V, "k_lengths": lengths_of("cpu"), **CACHES}
BOUNDS = torch.tensor([0, 1, 1, 3])
PACKED: dict[str, Any] = {"q": Q[:, 0], "k": K[:, 0], "v": V[:, 0], "cu_seqlens": BOUNDS}
ERRORS: list[tuple[type[Exception], str, dict[str, Any]]] = [
    (TypeError, "k_lengths is NoneType; allowed is a tensor", {"k_lengths": None}),
    (TypeError, "v is int; allowed is a tensor or None", {"v": 1}),
    (TypeError, "v_cache is NoneType; allowed is a tensor, which without v", {"v_cache": None}),
    (ValueError, "v_cache lies elsewhere than k_cache; allowed without v is its first elements", {
        "v": None}),
    (ValueError, "v_cache has 5 dimensions; allowed without v is 4, those of k_cache", {
        "v": None, "v_cache": CACHES["k_cache"][..., None]}),
    (ValueError, "v_scale is given; allowed is None without v", {
        "v": None, "v_scale": torch.ones(1)}),
    (ValueError, "v_norm_type is 'rms'; allowed is None without v", {
        "v": None, "v_cache": CACHES["k_cache"], "config": ropekit.Config(v_norm_type="rms")}),
    (ValueError, "v_factor is 2; allowed is 1 without v", {
        "v": None, "v_cache": CACHES["k_cache"], "v_factor": 2.0}),
    (TypeError, "k is torch.float16; allowed is torch.float32, the type of q", {"k": K.half()}),
    (TypeError, "k_lengths is torch.float32; allowed is torch.int32 or torch.int64", {
        "k_lengths": lengths_of("cpu").float()}),
    (TypeError, "there is no field 'blok_table'", {"blok_table": CACHES["block_table"]}),
    (ValueError, "k_lengths has 2 entries; allowed is 3, one a sequence", {
        "k_lengths": torch.tensor([6, 1])}),
    (ValueError, r"k_lengths\[0\] is 99; allowed is 0..12", {
        "k_lengths": torch.tensor([99, 1, 1]), "sequence_offsets": torch.tensor([5, 0, 0])}),
    (ValueError, "the index in the cache of batch 1, token 0 is -1; allowed is 0..11", {
        "k_lengths": torch.tensor([6, 0, 1])}),
    (ValueError, "block_table has 2 rows; allowed is 3, one a sequence", {
        "block_table": CACHES["block_table"][:2]}),
    (ValueError, "block_table is not given; allowed with slots is a tensor", {
        "block_table": None, "slots": torch.tensor([[1], [2], [3]])}),
    (ValueError, "rotate is given; allowed in decode is None", {"rotate": "q"}),
    (ValueError, "out has the shape .3, 1, 8, 32.; allowed is that of q, .3, 1, 8, 64.", {
        "out": Q[..., :32].clone()}),
    (ValueError, "out is float16; allowed is the type of q, float32", {"out": Q.half()}),
    (ValueError, "q is given and out is given: they overlap", {"out": Q}),
    (TypeError, "out is int; allowed is a tensor or None", {"out": 3}),
    (RuntimeError, "out requires a gradient; allowed is", {"out": Q.clone().requires_grad_()}),
    (ValueError, "window is -3; allowed is > 0", {"window": -3}),
    (ValueError, "softcap is -2; allowed is", {"softcap": -2.0}),
    (ValueError, "kernel is 'nope'; allowed with .* is None, composed, library or any of", {
        "kernel": "nope"}),
    (ValueError, "kernel is 'sdpa'; allowed with .* is None, composed, library or any of", {
        "kernel": "sdpa"}),
    (ValueError, "q.heads is 0; allowed is > 0 and a multiple of k.heads", {"q": Q[:, :, :0]}),
    (ValueError, "sinks has 3 entries; allowed is 8, one a head of q", {"sinks": torch.zeros(3)}),
    (ValueError, "tree_keys is 3; allowed is None without tree_mask", {"tree_keys": 3}),
    (ValueError, "k_cache has 1 heads; allowed is 2", {"k_cache": CACHES["k_cache"][:, :, :1]}),
    (ValueError, "v_cache has head_dim 32; allowed is 64", {
        "v_cache": CACHES["v_cache"][..., :32]}),
    (ValueError, "v_cache and k_cache overlap; allowed is tensors that do not", {
        "v_cache": CACHES["k_cache"]}),
    (ValueError, "max_seqlen_k is 0; allowed is > 0, or None", {"max_seqlen_k": 0}),
    (ValueError, "max_seqlen_q is 0; allowed is > 0, or None", {"max_seqlen_q": 0}),
    (ValueError, "max_seqlen_q is 8; allowed is None without cu_seqlens", {"max_seqlen_q": 8}),
]  # fmt: skip
PACKED_ERRORS: list[tuple[type[Exception], str, dict[str, Any]]] = [
    (TypeError, "cu_seqlens is list; allowed is a tensor", {"cu_seqlens": [0, 1, 1, 3]}),
    (TypeError, "cu_seqlens is torch.bool; allowed is torch.int32 or", {
        "cu_seqlens": BOUNDS.bool()}),
    (ValueError, "cu_seqlens has 2 dimensions or gaps", {"cu_seqlens": BOUNDS[None]}),
    (ValueError, "block_table has 3 rows; allowed is 2", {"cu_seqlens": BOUNDS[1:]}),
    (ValueError, "k_lengths has 1 entries; allowed is 3", {"k_lengths": torch.tensor([6])}),
    (ValueError, "k_lengths has 2 dimensions or gaps", {"k_lengths": BOUNDS[None, 1:]}),
    (ValueError, r"cu_seqlens\[1\] is 3 and cu_seqlens\[2\] is 1", {
        "cu_seqlens": BOUNDS[[0, 3, 1, 3]], "max_seqlen_q": 3}),
    (ValueError, r"allowed is at most max_seqlen_q \(1\) apart", {"max_seqlen_q": 1}),
]  # fmt: skip
ERRORS += [(kind, words, PACKED | options) for kind, words, options in PACKED_ERRORS]


@pytest.mark.parametrize("kind, words, options", ERRORS)
def test_errors(kind: type[Exception], words: str, options: dict[str, Any]) -> None:
    given = GIVEN | options
    before = {name: x.clone() for name, x in given.items() if isinstance(x, torch.Tensor)}
    with pytest.raises(kind, match=words):
        ropekit.decode(**given)
    assert all(torch.equal(x, given[name]) for name, x in before.items())
