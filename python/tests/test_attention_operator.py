"""What PyTorch asks of attention: schema, fake kernels, compilation, export, graphs, gradients."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import ropekit
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad

ops = torch.ops.ropekit
TOKENS, HEADS, KV, DIM = 5, 4, 2, 64
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def tensors_of(
    device: str, dtype: torch.dtype = torch.float32, v_dim: int = DIM
) -> list[torch.Tensor]:
    shapes = (HEADS, DIM), (KV, DIM), (KV, v_dim)
    return [torch.randn(2, TOKENS, *shape, device=device).to(dtype) for shape in shapes]


def paged(device: str) -> dict[str, torch.Tensor]:
    """A cache in 8 bits of two sequences, and all that goes with it."""
    return {
        "k_cache": torch.randint(-9, 9, (6, 4, KV, DIM), device=device).to(torch.int8),
        "v_cache": torch.randint(-9, 9, (6, 4, KV, DIM), device=device).to(torch.int8),
        "block_table": torch.tensor([[4, 1, 0], [2, 3, 5]], device=device),
        "k_lengths": torch.tensor([9, 5], device=device),
        "k_scale": torch.full((1,), 0.1, device=device),
        "v_scale": torch.rand(KV, device=device) + 0.1,
    }


@pytest.mark.parametrize("name", ["attention", "attention_lse", "attention_flag"])
@pytest.mark.parametrize("suffix", ["", "_no_grad"])
def test_opcheck(name: str, suffix: str, device: str) -> None:
    operator = getattr(ops, name + suffix).default
    q, k, v = tensors_of(device, v_dim=32)
    more: dict[str, Any] = {}
    if name == "attention_flag":
        more["position_flag"] = torch.zeros(1, dtype=torch.int32, device=device)
    torch.library.opcheck(operator, (q, k, v, "window=3 mask=full"), more)
    if suffix:
        return
    moved = [x.transpose(1, 2) for x in (q, k, v)]
    torch.library.opcheck(operator, (*moved, "layout=bhsd"), more)
    torch.library.opcheck(operator, (q, None, None, ""), paged(device) | more)
    bounds = torch.tensor([0, 3, 8], device=device)
    packed = [x.flatten(0, 1) for x in (q, k, v)]
    torch.library.opcheck(operator, (*packed, ""), {"cu_seqlens": bounds} | more)


def test_opcheck_of_overloads(device: str) -> None:
    q, k, v = tensors_of(device, v_dim=32)
    lengths, sinks = torch.tensor([4, 2], device=device), torch.randn(HEADS, device=device)
    for given in ((None, None), (lengths, sinks)):
        torch.library.opcheck(ops.attention_no_grad.few, (q, k, v, "window=3", *given))
        caches = (lengths, k, v)
        more = (None, given[1])
        torch.library.opcheck(ops.attention_no_grad.cached, (q, "rotate=none", *caches, *more))


def test_overloads_are_the_operator(device: str) -> None:
    q, k, v = tensors_of(device)
    sinks, lengths = torch.randn(HEADS, device=device), torch.tensor([4, 2], device=device)
    table = torch.tensor([[1], [0]], device=device)
    with torch.no_grad():
        found = ropekit.attention(q, k, v, sinks=sinks, k_lengths=lengths)
        wanted = ops.attention.default(q, k, v, "", k_lengths=lengths, sinks=sinks)
        assert torch.equal(found, wanted)
        caches = {"k_cache": k, "v_cache": v, "k_lengths": lengths, "block_table": table}
        found = ropekit.attention(q, sinks=sinks, **caches)
        assert torch.equal(found, ops.attention.default(q, None, None, "", **caches, sinks=sinks))


@pytest.mark.parametrize("suffix", ["", "_no_grad"])
def test_opcheck_of_merge(suffix: str, device: str) -> None:
    out, lse = torch.randn(3, 2, 4, 5, 64, device=device), torch.randn(3, 2, 4, 5, device=device)
    operator = getattr(ops, "attention_merge" + suffix).default
    torch.library.opcheck(operator, (out, lse))
    torch.library.opcheck(operator, (out[:, 0].transpose(1, 2), lse[:, 0].transpose(1, 2)))


def test_a_tensor_that_is_written_is_declared() -> None:
    for name in ("attention", "attention_lse", "attention_flag", "attention_merge"):
        for suffix in ("", "_no_grad"):
            arguments = getattr(ops, name + suffix).default._schema.arguments
            written = {a.name for a in arguments if a.alias_info and a.alias_info.is_write}
            assert written == ({"position_flag"} if name == "attention_flag" else set())


def test_fake_tensors_have_the_kind_of_the_results() -> None:
    q, k, v = tensors_of("cpu", torch.bfloat16, 96)
    blocks = torch.zeros(6, KV, DIM // 8, 4, 8).bfloat16(), torch.zeros(6, KV, 96, 4).bfloat16()
    places = paged("cpu") | dict(zip(("k_cache", "v_cache"), blocks, strict=True))
    places = {name: x for name, x in places.items() if "scale" not in name}
    calls: list[tuple[list[torch.Tensor], dict[str, Any]]] = [
        ([q, k, v], {}),
        ([x.transpose(1, 2) for x in (q, k, v)], {"layout": "bhsd"}),
        ([x.flatten(0, 1) for x in (q, k, v)], {"cu_seqlens": torch.tensor([0, 10])}),
        ([q], {"cache_layout": "vllm", **places}),
    ]
    for tensors, options in calls:
        wanted = ropekit.attention(*tensors, return_lse=True, **options)
        with FakeTensorMode() as mode:
            given = {
                name: mode.from_tensor(x) if isinstance(x, torch.Tensor) else x
                for name, x in options.items()
            }
            fakes = [mode.from_tensor(x) for x in tensors]
            found = ropekit.attention(*fakes, return_lse=True, **given)
        for a, b in zip(found, wanted, strict=True):
            assert (a.shape, a.stride(), a.dtype) == (b.shape, b.stride(), b.dtype)


@pytest.mark.compiles
def test_compiles_without_a_break(device: str) -> None:
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    config = ropekit.Config(rope_theta=5e5, softcap=20.0)
    flag = torch.zeros(1, dtype=torch.int32, device=device)

    def layer(x: torch.Tensor, tree: torch.Tensor, cache: dict[str, torch.Tensor]) -> Any:
        q, k, v = (2 * x).split([HEADS, KV, KV], 2)
        out = ropekit.attention(q, k, v, config=config, window=3)
        parts = [
            ropekit.attention(q, k, v, causal=False, return_lse=True),
            ropekit.attention(q, config=config, position_flag=flag, return_lse=True, **cache),
        ]
        merged, lse = ropekit.attention_merge(*(list(y) for y in zip(*parts, strict=True)))
        return out + merged + ropekit.attention(q, k, v, tree_mask=tree), lse

    compiled = torch.compile(layer, fullgraph=True, backend=counter, dynamic=True)
    for tokens in (7, 9):  # other sizes than the cache has
        x = torch.randn(2, tokens, HEADS + 2 * KV, DIM, device=device)
        tree, cache = torch.rand(tokens, tokens, device=device) < 0.5, paged(device)
        found, wanted = compiled(x, tree, cache), layer(x, tree, cache)
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)
    assert counter.frame_count == 1


@pytest.mark.compiles
def test_inductor_keeps_the_bits(device: str) -> None:
    torch._dynamo.reset()

    def layer(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        moved = (x.transpose(1, 2) for x in (q, k, v))
        return ropekit.attention(*moved, layout="bhsd").transpose(1, 2).flatten(2)

    given = tensors_of(device)
    assert torch.equal(torch.compile(layer, fullgraph=True)(*given), layer(*given))


def test_is_exported(device: str) -> None:
    class Layer(torch.nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return ropekit.attention(q, k, v, window=3, rope_theta=5e5)

    tokens = torch.export.Dim("tokens", min=2, max=64)
    given = tuple(tensors_of(device))
    dims = tuple({1: tokens} for _ in given)
    program = torch.export.export(Layer(), given, dynamic_shapes=dims).run_decompositions()
    longer = [torch.cat((x, x), 1) for x in given]
    assert torch.equal(program.module()(*longer), Layer()(*longer))


def test_the_flag_is_counted(device: str) -> None:
    q, k, v = tensors_of(device)
    flag = torch.zeros(1, dtype=torch.int32, device=device)
    calls = (
        lambda: ropekit.attention(q, k, v, position_flag=flag),
        lambda: ops.attention_flag(q, k, v, "", position_flag=flag)[0],
    )
    for call in calls:
        before = flag._version
        assert torch.equal(call(), ropekit.attention(q, k, v))
        assert flag._version == before + 1
    assert flag.item() == 0


# ---- there is no derivative forward, and none of a merge ----


def test_a_derivative_is_refused(device: str) -> None:
    q, k, v = tensors_of(device)
    with forward_ad.dual_level(), pytest.raises(RuntimeError, match="q has a tangent and"):
        ropekit.attention(forward_ad.make_dual(q, q), k, v)
    with pytest.raises(RuntimeError, match="q has a tangent and"):
        torch.func.jvp(lambda x: ropekit.attention(x, k, v), (q,), (q,))
    for dtype in (torch.float32, torch.float64):  # by the library's kernel and by PyTorch's
        x, y, z = (t.to(dtype) for t in (q, k, v))
        with pytest.raises(RuntimeError, match="attention has no derivative forward; allowed is"):
            torch.func.hessian(lambda x, y=y, z=z: ropekit.attention(x, y, z).sum())(x)
    out, lse = ropekit.attention(q, k, v, return_lse=True)
    parts = out[None].clone().requires_grad_(), lse[None]
    for call in (ropekit.attention_merge, ops.attention_merge):
        with pytest.raises(RuntimeError, match="out requires a gradient and attention_merge has"):
            call(*parts)


# ---- calls at the edge ----


@pytest.mark.parametrize("name", ["batch", "tokens", "heads"])
def test_empty_calls(name: str, device: str) -> None:
    q, k, v = tensors_of(device)
    if name == "batch":
        q, k, v = q[:0], k[:0], v[:0]
    elif name == "tokens":
        q, k, v = q[:, :0], k[:, :0], v[:, :0]
    else:
        q = q[:, :, :0]
    lengths = torch.full((len(q),), k.shape[1], device=device)
    out, lse = ropekit.attention(q, k, v, k_lengths=lengths, return_lse=True)
    assert (out.shape, lse.shape) == (q.shape, q.shape[:-1])
    out, lse = ropekit.attention_merge(out[None], lse[None])
    assert (out.shape, lse.shape) == (q.shape, q.shape[:-1])


@pytest.mark.parametrize("name", ["attends", "two index types", "refused"])
def test_no_handle_leaks(name: str) -> None:
    q, _, _ = tensors_of("cpu")
    options: dict[str, Any] = paged("cpu")
    if name == "two index types":
        options["cu_seqlens"] = torch.tensor([0, 5, 10], dtype=torch.int32)
        q = q.flatten(0, 1)
    elif name == "refused":
        options["block_table"] = options["block_table"] + 6
    tensors = q, *(x for x in options.values())
    before = [x._use_count() for x in tensors]
    for _ in range(100):
        with pytest.raises(ValueError, match="page") if name == "refused" else nullcontext():
            out, lse = ropekit.attention(q, return_lse=True, **options)
            assert [x._use_count() for x in (out, lse)] == [1, 1]
            merged = ropekit.attention_merge(out[None], lse[None])
            assert [x._use_count() for x in (out, lse, *merged)] == [1] * 4
    assert [x._use_count() for x in tensors] == before


def test_the_workspace_is_given_back() -> None:
    """Of rotated keys, 4 MB a call."""
    q, k, v = (torch.randn(1, n, KV, DIM) for n in (1, 8192, 8192))

    def pages() -> int:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])

    ropekit.attention(q, k, v)
    before = pages()
    for _ in range(50):
        ropekit.attention(q, k, v)
    assert (pages() - before) * os.sysconf("SC_PAGE_SIZE") < 100 << 20


def test_the_same_call_has_the_same_bits(device: str) -> None:
    q, k, v = (torch.randn(3, 300, h, DIM, device=device).bfloat16() for h in (HEADS, KV, KV))
    found = ropekit.attention(q, k, v)
    assert torch.equal(found, ropekit.attention(q, k, v))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    assert torch.equal(found, ropekit.attention(q, k, v))
    torch.set_num_threads(threads)
    assert torch.equal(found[1:2], ropekit.attention(q[1:2], k[1:2], v[1:2]))


@needs_cuda
def test_cuda_graph_follows_its_lengths_and_pages() -> None:
    q = torch.randn(2, 1, HEADS, DIM, device="cuda").bfloat16()
    cache = paged("cuda")
    ropekit.attention(q, **cache)  # makes the plan
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = ropekit.attention(q, **cache)
    for lengths, table in (([3, 12], [[0, 1, 2], [3, 4, 5]]), ([7, 1], [[5, 4, 3], [2, 1, 0]])):
        cache["k_lengths"].copy_(torch.tensor(lengths))
        cache["block_table"].copy_(torch.tensor(table))
        q.copy_(torch.randn_like(q))
        graph.replay()
        assert torch.equal(out, ropekit.attention(q, **cache))


def captured(step: Any, device: str) -> Any:
    """step as a graph of a stream of its own, or as it is on a CPU; both give the same tensor."""
    if device == "cpu":
        return step
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    step()  # makes the plans
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        out = step()

    def replay() -> torch.Tensor:
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            graph.replay()
        torch.cuda.current_stream().wait_stream(stream)
        return out

    return replay


def test_steps_of_an_engine_have_the_bits_of_each_sequence_alone(device: str) -> None:
    """Metadata as vLLM's: the new tokens of each sequence behind those in its pages, and padding
    without slots or queries up to the size of the captured step."""
    dtype, rows, room, page = torch.bfloat16, 4, 40, 16
    kernel = "tiles" if device == "cuda" else "library"
    pages = torch.zeros(12, KV, page, 2 * DIM, dtype=dtype, device=device)
    k_cache, v_cache = pages.transpose(1, 2).split(DIM, -1)
    q, k, v = (torch.zeros(room, n, DIM, dtype=dtype, device=device) for n in (HEADS, KV, KV))
    starts = torch.zeros(rows + 1, dtype=torch.int32, device=device)
    lengths = torch.zeros(rows, dtype=torch.int32, device=device)
    table = torch.tensor([[7, 2, 0], [1, 9, 3], [11, 4, 5], [6, 10, 8]], dtype=torch.int32)
    pages_of, slots = table.to(device), torch.full((room,), -1, device=device)

    def step() -> torch.Tensor:
        ropekit.append(None, k, v, k_cache=k_cache, v_cache=v_cache, slots=slots, rotation="off")
        return ropekit.attention(
            q, k_cache=k_cache, v_cache=v_cache, block_table=pages_of, cu_seqlens=starts,
            k_lengths=lengths, rotate="none", window=20, kernel=kernel,
        )  # fmt: skip

    run = captured(step, device)
    kept: list[list[torch.Tensor]] = [[k[:0], v[:0]] for _ in range(rows)]
    for new in ([19, 7, 1], [1, 1, 14, 20], [1, 1, 1, 1], [0, 4, 1]):
        before = [len(x[0]) for x in kept]
        for x in (q, k, v):
            x.normal_()
        ends = torch.tensor([0, *new] + [0] * (rows - len(new))).cumsum(0)
        starts.copy_(ends)
        lengths.zero_()
        slots.fill_(-1)
        for i, n in enumerate(new):
            own = slice(int(ends[i]), int(ends[i + 1]))
            kept[i] = [torch.cat(pair) for pair in zip(kept[i], (k[own], v[own]), strict=True)]
            at = torch.arange(before[i], before[i] + n)
            lengths[i] = before[i] + n
            slots[own] = (table[i, at // page] * page + at % page).to(device)
        out = run()
        for i, n in enumerate(new):
            own = slice(int(ends[i]), int(ends[i + 1]))
            if n:
                alone = ropekit.attention(
                    q[own][None], *(x[None] for x in kept[i]), rotate="none", window=20,
                    kernel=kernel,
                )  # fmt: skip
                assert torch.equal(out[own], alone[0]), (new, i)


@needs_cuda
def test_a_page_out_of_range_raises_the_flag() -> None:
    q = torch.randn(2, 1, HEADS, DIM, device="cuda").bfloat16()
    cache, flag = paged("cuda"), torch.zeros(1, dtype=torch.int32, device="cuda")
    wanted = ropekit.attention(q, **cache)
    cache["block_table"][1, 0] = 6
    found = ropekit.attention(q, position_flag=flag, **cache)
    assert torch.equal(found[0], wanted[0])
    assert flag.item() == 1
