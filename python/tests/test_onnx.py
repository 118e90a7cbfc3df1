"""torch.onnx.export: ONNX Runtime's results of what it writes, beside the package's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ropekit
import torch
from ropekit import RoPEAttention
from torch import Tensor
from torch._decomp import get_decompositions

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
pytestmark = pytest.mark.filterwarnings("ignore")  # of PyTorch's exporters
ANY = torch.export.Dim.DYNAMIC
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
OPERATORS = {"RotaryEmbedding", "Attention"}


class Function(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, q: Tensor, k: Tensor | None = None) -> Any:
        return self.function(q) if k is None else self.function(q, k)


def export(module: Any, given: Any = (), dynamo: bool = True, **options: Any) -> Any:
    if dynamo:
        options = {"opset_version": 23, "verbose": False} | options
    return torch.onnx.export(module, given, dynamo=dynamo, **options)


def check(
    program: Any, module: Any, given: tuple[Tensor, ...], path: Path, bound: float = 1e-6
) -> list[str]:
    """The operators of ONNX, after what they give."""
    program.save(path / "model.onnx")
    session = onnxruntime.InferenceSession(path / "model.onnx")
    names = [x.name for x in session.get_inputs()]
    values = [x.detach().numpy() for x in given]
    found = session.run(None, dict(zip(names, values, strict=True)))
    expected = module(*given)
    expected = expected if isinstance(expected, tuple) else (expected,)
    for x, y in zip(found, expected, strict=True):
        wanted = y.detach().float()
        off = (torch.from_numpy(x).float() - wanted).abs().max()
        assert off <= bound * wanted.abs().max()
    return [node.op_type for node in program.model.graph if node.op_type in OPERATORS]


@pytest.mark.parametrize(
    "fields",
    [
        {"qk_norm": True, **LLAMA3},
        {"softcap": 3.0, "window": 4, "rotary_dim": 8},
        {"causal": False, "window": 3, "window_right": 2, "pairing_in": "interleaved"},
        {"chunk": 4, "scale": 0.3, "angle_mode": "f32"},
    ],
)
def test_a_module_is_rotary_embedding_and_attention(fields: dict[str, Any], tmp_path: Path) -> None:
    layer: Any = RoPEAttention(64, heads=4, kv_heads=2, **fields).eval()
    x, other = torch.randn(2, 6, 64), torch.randn(3, 9, 64)
    program = export(layer, (x,), dynamic_shapes={"x": {0: ANY, 1: ANY}})
    for given in (x, other):
        found = check(program, layer, (given,), tmp_path)
        assert found == ["RotaryEmbedding", "RotaryEmbedding", "Attention"]


@pytest.mark.parametrize(
    ("layout", "sizes"), [("bhsd", (2, 4, 5, 16)), ("sbhd", (5, 2, 4, 16)), ("thd", (5, 4, 16))]
)
@torch.no_grad()
def test_rotation_is_exact_at_positions_of_a_million(
    layout: Any, sizes: tuple[int, ...], tmp_path: Path
) -> None:
    module = Function(lambda q, ids: ropekit.apply(q, q + 1, layout=layout, positions=ids))
    given = torch.randn(sizes), torch.tensor([0, 5, 9, 10**6, 17])
    assert check(export(module, given), module, given, tmp_path) == ["RotaryEmbedding"] * 2


@torch.no_grad()
def test_float16_rotates_in_float32(tmp_path: Path) -> None:
    module = Function(lambda q: ropekit.apply(q, position_offset=3))
    given = (torch.randn(2, 5, 4, 16, dtype=torch.float16),)
    assert check(export(module, given), module, given, tmp_path, 1e-3) == ["RotaryEmbedding"]


def test_queries_that_are_the_last_of_their_keys(tmp_path: Path) -> None:
    """Of any number, also where an example has as many of both."""
    module = Function(lambda q, k: ropekit.attention(q, k, k[..., :8], softcap=2.0))
    q, k = torch.randn(2, 6, 4, 16), torch.randn(2, 6, 2, 16)
    program = export(module, (q, k), dynamic_shapes={"q": {1: ANY}, "k": {1: ANY}})
    assert check(program, module, (q, k), tmp_path)[-1] == "Attention"
    check(program, module, (q[:, :3], torch.randn(2, 9, 2, 16)), tmp_path)


def test_a_program_that_was_exported_before(tmp_path: Path) -> None:
    layer, x = RoPEAttention(64, heads=4).eval(), torch.randn(2, 6, 64)
    program = torch.export.export(layer, (x,))
    assert any("ropekit" in str(node.target) for node in program.graph.nodes)
    assert check(export(program), layer, (x,), tmp_path)[-1] == "Attention"


@torch.no_grad()
def test_a_padded_model_of_transformers(tmp_path: Path) -> None:
    pytest.importorskip("ropekit.transformers")
    models = pytest.importorskip("attention_models")
    model, given = models.build("llama", "ropekit"), models.inputs("llama", padding="right")
    program = export(model, kwargs=given | {"use_cache": False})
    program.save(tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    found = session.run(None, {name: x.numpy() for name, x in given.items()})[0]
    wanted = model(**given, use_cache=False).logits
    assert (torch.from_numpy(found) - wanted).abs().max() <= 2e-5 * wanted.abs().max()
    assert sum(node.op_type == "Attention" for node in program.model.graph) == 2


def refused(name: str) -> tuple[Any, Any, dict[str, Any]]:
    q = torch.randn(2, 6, 4, 16)
    one, two = torch.ones(4), torch.tensor([6, 3])
    cache = torch.zeros(4, 8, 4, 16)
    layer = RoPEAttention(64, heads=4).eval()
    options: dict[str, Any] = {"opset_version": 22} if name == "opset" else {}
    if name == "dynamo":
        options = {"dynamo": False, "f": "model.onnx"}
    functions = {
        "sinks": lambda q: ropekit.attention(q, q, q, sinks=one),
        "k_cache": lambda q: ropekit.attention(q, k_cache=cache, v_cache=cache, k_lengths=two),
        "rotary_offset": lambda q: ropekit.apply(q, rotary_dim=8, rotary_offset=4),
        "return_lse": lambda q: ropekit.attention(q, q, q, return_lse=True),
        "rotate_": lambda q: ropekit.apply_(q := q * 1) or q,
        "append": lambda q: ropekit.append(q, q, q, k_cache=cache, v_cache=cache, slots=two),
    }
    if name in functions:
        return Function(functions[name]), (q,), options
    return layer, (torch.randn(2, 6, 64),), options


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("opset", "opset_version is 22; allowed for ropekit's operators is 23 or later"),
        ("dynamo", "dynamo is False; allowed where torch.onnx.export meets ropekit's operators"),
        ("sinks", "sinks of attention is given; allowed where torch.onnx.export translates it"),
        ("k_cache", "k_cache of attention is given; allowed where"),
        ("rotary_offset", "rotary_offset is 4; allowed where"),
        ("return_lse", "return_lse is True; allowed where"),
        ("rotate_", "the operator is ropekit::rotate_; allowed where"),
        ("append", "the operator is ropekit::append; allowed where"),
    ],
)
@torch.no_grad()
def test_what_onnx_has_not_is_named(name: str, text: str) -> None:
    module, given, options = refused(name)
    with pytest.raises(Exception, match="allowed") as found:
        export(module, given, **options)
    assert text in str(found.value)


def test_inductor_finds_no_decomposition() -> None:
    """Where CI is set it refuses to compile an operator that has one."""
    for name in ("rotate", "rotate_pair_no_grad", "attention", "attention_no_grad"):
        packet = getattr(torch.ops.ropekit, name)
        operators = [getattr(packet, overload) for overload in packet.overloads()]
        assert not get_decompositions(operators)
