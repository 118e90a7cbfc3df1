"""Transformers' own models with small random weights, on ropekit's kernels and without."""

from __future__ import annotations

import copy
import io
from typing import Any

import models
import pytest
import ropekit.transformers
import torch
import transformers
from torch._dynamo.exc import Unsupported
from torch._dynamo.utils import counters
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.models.cohere import modeling_cohere
from transformers.models.esm import modeling_esm
from transformers.models.llama import modeling_llama
from transformers.models.llama4 import modeling_llama4
from transformers.models.olmo2 import modeling_olmo2

rotary = modeling_llama.apply_rotary_pos_emb
FAMILIES = list(reversed(models.MODELS))  # what takes longest is begun first
# Rotation in one rounding where eager PyTorch has three: a few units in the last place of a logit.
RELATIVE_BOUND = 2e-6
STATIC = {"max_new_tokens": 4, "do_sample": False, "cache_implementation": "static"}


class Count(TorchDispatchMode):
    """Counts ropekit's operators."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += func.namespace == "ropekit"
        return func(*args, **(kwargs or {}))


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert (found - expected).abs().max() <= RELATIVE_BOUND * expected.abs().max()


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_keep_every_bit(name: str, device: str) -> None:
    for dtype in (torch.bfloat16, torch.float32):
        model, inputs = models.build(name, dtype, device), models.inputs(name, device)
        with torch.no_grad():
            with ropekit.transformers.patch(model) as patch, Count() as count:
                found = model(**inputs).logits
            # A device whose complex products round in another way keeps the original function.
            kinds = ", any device: ", f", {device} device: "
            served = any(kind in line for kind in kinds for line in patch.report)
            assert served or device == "cuda"
            assert count.calls >= 2 or not served
            with Count() as count:
                expected = model(**inputs).logits
            assert count.calls == 0
        assert torch.equal(found, expected)


@pytest.mark.parametrize("name", FAMILIES)
def test_autocast_keeps_every_bit(name: str, device: str) -> None:
    model, inputs = models.build(name, torch.float32, device), models.inputs(name, device)
    with torch.no_grad(), torch.autocast(device, torch.bfloat16):
        expected = model(**inputs).logits
        with ropekit.transformers.patch(model):
            assert torch.equal(model(**inputs).logits, expected)


@pytest.mark.parametrize("angle_mode", ["exact", "f32"])
@pytest.mark.parametrize("name", FAMILIES)
def test_logits_with_angles_of_the_configuration(name: str, angle_mode: str, device: str) -> None:
    model, inputs = models.build(name, torch.float32, device), models.inputs(name, device)
    with torch.no_grad():
        expected = model(**inputs).logits
        with ropekit.transformers.patch(model, angle_mode) as patch:
            found = model(**inputs).logits
        assert torch.equal(model(**inputs).logits, expected)
    close(found, expected)
    computed = [line for line in patch.report if f"angle_mode={angle_mode}" in line]
    assert len(computed) == {"gptj": 0, "gemma3": 2}.get(name, 1)
    if computed:
        assert not torch.equal(found, expected)


def gradients(
    name: str,
    device: str,
    angle_mode: Any,
    dtype: torch.dtype = torch.float32,
    autocast: bool = False,
) -> dict[str, torch.Tensor]:
    model, inputs = models.build(name, dtype, device), models.inputs(name, device)
    patch = ropekit.transformers.patch(model, angle_mode) if angle_mode else None
    with torch.autocast(device, torch.bfloat16, enabled=autocast):
        loss = model(**inputs, labels=inputs["input_ids"]).loss
    loss.backward()
    if patch:
        patch.restore()
    return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


def within(bound: float, found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    """Whether every gradient is the expected one but for a part of the largest."""
    assert found.keys() == expected.keys()
    largest = max(grad.abs().max() for grad in expected.values())
    for key, grad in expected.items():
        assert (found[key] - grad).abs().max() <= bound * largest, key


@pytest.mark.parametrize("name", FAMILIES)
def test_training_step(name: str, device: str) -> None:
    for dtype in (torch.bfloat16, torch.float32):
        plain = gradients(name, device, None, dtype)
        within(0, gradients(name, device, "table", dtype), plain)
    within(1e-5, gradients(name, device, "exact"), plain)


@pytest.mark.parametrize("name", FAMILIES)
def test_training_step_under_autocast(name: str, device: str) -> None:
    plain = gradients(name, device, None, autocast=True)
    within(0, gradients(name, device, "table", autocast=True), plain)


def test_a_gradient_rounds_where_eager_pytorch_does(device: str) -> None:
    x = torch.randn(2, 2, 4, 7, 16, device=device, dtype=torch.bfloat16).requires_grad_()
    angles, weight = torch.randn(2, 7, 8, device=device).repeat(1, 1, 2), torch.randn_like(x)

    def gradient(module: Any) -> torch.Tensor:
        found = module.apply_rotary_pos_emb(x[0], x[1], angles.cos(), angles.sin())
        return torch.autograd.grad(torch.stack(found), x, weight.to(found[0].dtype))[0]

    for module, rounds_products in (
        (modeling_llama, True),
        (modeling_esm, True),
        (modeling_cohere, False),
    ):
        expected = gradient(module)
        with ropekit.transformers.patch(module):
            form = module.apply_rotary_pos_emb.forms["any"]
            assert form.rounds_products == rounds_products
            assert torch.equal(gradient(module), expected)


@pytest.mark.parametrize("name", FAMILIES)
def test_greedy_generation(name: str, device: str) -> None:
    model, inputs = models.build(name, torch.float32, device), models.inputs(name, device)
    options = {"max_new_tokens": 12, "do_sample": False}
    expected = model.generate(**inputs, **options)
    for angle_mode in ("table", "exact"):
        with ropekit.transformers.patch(model, angle_mode):
            assert torch.equal(model.generate(**inputs, **options), expected)


@pytest.mark.compiles
@pytest.mark.parametrize("angle_mode", ["table", "exact"])
def test_compiled_whole(angle_mode: str, device: str) -> None:
    torch._dynamo.reset()
    model, inputs = models.build("llama", torch.float32, device, 1), models.inputs("llama", device)
    with torch.no_grad():
        expected = model(**inputs).logits
        with ropekit.transformers.patch(model, angle_mode):
            found = torch.compile(model, fullgraph=True)(**inputs).logits
    close(found, expected)


def generate(model: Any, inputs: Any, fullgraph: bool, backend: str) -> tuple[torch.Tensor, int]:
    """Tokens of the compiled model, and how many breaks its graphs have."""
    torch._dynamo.reset()
    counters.clear()
    model.forward = torch.compile(model.forward, fullgraph=fullgraph, backend=backend)
    try:
        tokens = model.generate(**inputs, **STATIC, disable_compile=True)
    finally:
        del model.forward
    return tokens, counters["graph_break"].total()


# Of every kind of angles: by layer, longrope, interleaved, of axes, complex numbers. Without a GPU
# a compiler is asked for these alone: the others differ in the model's own code.
KINDS_OF_ANGLES = ("gemma3", "phi3", "gptj", "qwen3_vl", "deepseek_v2")
COMPILED = FAMILIES if torch.cuda.is_available() else KINDS_OF_ANGLES


@pytest.mark.compiles
@pytest.mark.parametrize("name", FAMILIES)
def test_generation_with_a_static_cache_compiled_and_not(name: str, device: str) -> None:
    layers = models.KINDS.get(name, 1)
    model = models.build(name, torch.float32, device, layers)
    inputs = models.inputs(name, device)
    expected = model.generate(**inputs, **STATIC, disable_compile=True)
    most = 0  # breaks of the graphs
    for angle_mode in ("table", "exact"):
        with ropekit.transformers.patch(model, angle_mode):
            found = model.generate(**inputs, **STATIC, disable_compile=True)
            assert torch.equal(found, expected)
            # The next test has "exact" in one graph.
            if name not in COMPILED or (angle_mode == "exact" and device == "cpu"):
                continue
            try:
                tokens, own = generate(model, inputs, fullgraph=True, backend="aot_eager")
            except Unsupported:
                tokens, own = generate(model, inputs, fullgraph=False, backend="aot_eager")
        assert torch.equal(tokens, expected)
        most = max(most, own)
    if most:  # and no fewer without the patch
        assert most <= generate(model, inputs, fullgraph=False, backend="eager")[1]


@pytest.mark.compiles
@pytest.mark.parametrize("name", COMPILED)
def test_decoding_compiled_by_transformers(name: str, device: str) -> None:
    """As generate does by itself on a GPU, by inductor and with CUDA graphs there. "exact" leaves
    no break, where a model has one of its own too. Without a GPU inductor has one of the graphs."""
    layers = models.KINDS.get(name, 1)
    model = models.build(name, torch.float32, device, layers)
    inputs = models.inputs(name, device)
    expected = model.generate(**inputs, **STATIC, disable_compile=True)
    for angle_mode in ("table", "exact") if device == "cuda" else ("exact",):
        torch._dynamo.reset()
        counters.clear()
        compiled = transformers.CompileConfig(fullgraph=angle_mode == "exact")
        compiled._compile_all_devices = True
        if device == "cpu" and name != "gptj":
            compiled.backend, compiled.mode = "aot_eager", None
        with ropekit.transformers.patch(model, angle_mode):
            found = model.generate(**inputs, **STATIC, compile_config=compiled)
        assert torch.equal(found, expected)
        assert counters["stats"]["unique_graphs"] > 0 or name == "llama4"  # as without the patch


def test_longrope_turns_long_with_the_batch(device: str) -> None:
    model = models.build("phi3", torch.float32, device)
    for length in (60, 70):
        inputs = models.inputs("phi3", device, length)
        with torch.no_grad():
            expected = model(**inputs).logits
            with ropekit.transformers.patch(model, "exact"):
                close(model(**inputs).logits, expected)


def test_patches_nest_and_share_a_file() -> None:
    one, other = models.build("llama"), models.build("llama")
    original = modeling_llama.apply_rotary_pos_emb
    inputs = models.inputs("llama")
    with torch.no_grad():
        expected = other(**inputs).logits
        first = ropekit.transformers.patch(one, "exact")
        second = ropekit.transformers.patch(modeling_llama)
        assert torch.equal(other(**inputs).logits, expected)
        first.restore()
        assert modeling_llama.apply_rotary_pos_emb is not original
        second.restore()
    assert modeling_llama.apply_rotary_pos_emb is original


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_angles_nest(order: tuple[int, int]) -> None:
    model, inputs = models.build("llama", torch.float32), models.inputs("llama")
    rotary = model.model.rotary_emb
    kept = rotary.forward = rotary.forward  # on the instance, as a hook sets it
    with torch.no_grad():
        alone = []
        for angle_mode in ("exact", "f32"):
            with ropekit.transformers.patch(model, angle_mode):
                alone.append(model(**inputs).logits)
        patches = [ropekit.transformers.patch(model, mode) for mode in ("exact", "f32")]
        assert torch.equal(model(**inputs).logits, alone[1])
        patches[order[0]].restore()
        assert torch.equal(model(**inputs).logits, alone[order[1]])
        patches[order[1]].restore()
    assert not torch.equal(*alone)
    assert rotary.forward is kept


def pickled(model: Any) -> Any:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("has_own", [False, True])
@pytest.mark.parametrize("copied", [copy.deepcopy, pickled])
def test_a_copy_keeps_its_own_angles(copied: Any, has_own: bool) -> None:
    model, inputs = models.build("llama", torch.float32), models.inputs("llama")
    if has_own:
        model.model.rotary_emb.forward = model.model.rotary_emb.forward
    with torch.no_grad():
        expected = model(**inputs).logits
        with ropekit.transformers.patch(model, "exact"):
            exact = model(**inputs).logits
            other = copied(model)
            assert torch.equal(other(**inputs).logits, expected)
            assert torch.equal(model(**inputs).logits, exact)
        assert torch.equal(other(**inputs).logits, expected)
        model.model.rotary_emb.inv_freq.zero_()  # of the model that the copy was made of
        assert torch.equal(other(**inputs).logits, expected)
        with ropekit.transformers.patch(other, "exact"):
            assert torch.equal(other(**inputs).logits, exact)


def test_refuses_what_has_no_rotary_function() -> None:
    with pytest.raises(ValueError, match="no rotary function of a known form"):
        ropekit.transformers.patch(torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match='angle_mode is "exact"; allowed for a module'):
        ropekit.transformers.patch(modeling_llama, "exact")
    model, original = models.build("llama"), modeling_llama.apply_rotary_pos_emb
    for options, text in (
        ({"angle_mode": "exakt"}, 'angle_mode is "exakt"; allowed is table, exact or f32'),
        ({"angle_mode": "f32", "arithmetic": "bogus"}, 'arithmetic is "bogus"; allowed is fp32'),
        ({"arithmetic": "model_dtype"}, 'allowed with angle_mode "table" is the model\'s own'),
    ):
        with pytest.raises(ValueError, match=text):
            ropekit.transformers.patch(model, **options)
    assert modeling_llama.apply_rotary_pos_emb is original


def diverging(q: Any, k: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1) -> Any:
    return rotary(q, k, cos, sin, unsqueeze_dim)[0], rotary(q, k, cos, -sin, unsqueeze_dim)[1]


def at_the_end(q: Any, k: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1) -> Any:
    start, parts = 32 - cos.shape[-1], (q, k)
    found = rotary(q[..., start:], k[..., start:], cos, sin, unsqueeze_dim)
    return tuple(torch.cat((x[..., :start], y), -1) for x, y in zip(parts, found, strict=True))


@pytest.mark.parametrize("other", [diverging, at_the_end])
def test_refuses_a_function_that_rotates_otherwise(
    other: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", other)
    with pytest.raises(ValueError, match="no rotary function of a known form"):
        ropekit.transformers.patch(modeling_llama)


def small(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.bfloat16)


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("module", [modeling_llama, modeling_olmo2, modeling_cohere])
def test_results_have_the_type_of_the_original(module: Any, wide: bool) -> None:
    q, k = small(2, 4, 7, 16), small(2, 2, 7, 16)
    angles = torch.randn(2, 7, 8)
    form = ropekit._forms.find_form(module.apply_rotary_pos_emb)
    tables = [form.table(x).to(torch.float32 if wide else q.dtype) for x in (angles, angles.sin())]
    expected = module.apply_rotary_pos_emb(q, k, *tables)
    with ropekit.transformers.patch(module), Count() as count:
        found = module.apply_rotary_pos_emb(q, k, *tables)
    assert count.calls == 1
    for x, y in zip(found, expected, strict=True):
        assert x.dtype == y.dtype
        assert torch.equal(x, y)


# The shapes of q, of k and of the tables, unsqueeze_dim, and how many calls ropekit takes.
CALLS: dict[str, tuple[Any, Any, Any, int, int]] = {
    "heads first": ((2, 4, 7, 16), (2, 2, 7, 16), (2, 7, 16), 1, 1),
    "counted from the end": ((2, 4, 7, 16), (2, 2, 7, 16), (1, 7, 16), -3, 1),
    "tokens first": ((2, 7, 4, 16), (2, 7, 2, 16), (2, 7, 16), 2, 1),
    "tokens first from the end": ((2, 7, 4, 16), (2, 7, 2, 16), (2, 7, 16), -2, 1),
    "one table, heads first": ((2, 4, 7, 16), (2, 2, 7, 16), (7, 16), 0, 1),
    "one table, tokens first": ((2, 7, 4, 16), (2, 7, 2, 16), (7, 16), 1, 1),
    "packed": ((7, 4, 16), (7, 2, 16), (7, 16), 1, 1),
    "packed, heads first": ((4, 7, 16), (2, 7, 16), (7, 16), 0, 0),
    "one table of a batch": ((2, 4, 7, 16), (2, 2, 7, 16), (1, 7, 16), 0, 0),
    "one angle for all": ((2, 4, 7, 16), (2, 2, 7, 16), (2, 1, 16), 1, 0),
}


@pytest.mark.parametrize("name", CALLS)
def test_tables_belong_to_the_tokens_of_the_original(name: str) -> None:
    *shapes, table, dim, calls = CALLS[name]
    q, k, angles = small(*shapes[0]), small(*shapes[1]), small(*table[:-1], 8)
    tables = [torch.cat((x, x), -1) for x in (angles.cos(), angles.sin())]
    expected = modeling_llama.apply_rotary_pos_emb(q, k, *tables, unsqueeze_dim=dim)
    with ropekit.transformers.patch(modeling_llama), Count() as count:
        found = modeling_llama.apply_rotary_pos_emb(q, k, *tables, unsqueeze_dim=dim)
    assert count.calls == calls
    assert all(torch.equal(x, y) for x, y in zip(found, expected, strict=True))


def unrotated(
    q: Any, k: Any = None, cos: Any = None, sin: Any = None, unsqueeze_dim: int = 0
) -> Any:
    return q if k is None else rotary(q, k, cos, sin, unsqueeze_dim)


def test_a_tensor_that_is_not_given_goes_to_the_original(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", unrotated)
    q, table = small(2, 4, 7, 16), small(2, 7, 16)
    with ropekit.transformers.patch(modeling_llama):
        for options in ({}, {"k": None}):
            found = modeling_llama.apply_rotary_pos_emb(q, cos=table, sin=table, **options)
            assert found is q


def test_a_trial_is_of_the_kernel_whatever_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    def other(q: Any, k: Any, cos: Any, sin: Any, unsqueeze_dim: int = 0) -> Any:
        return diverging(q, k, cos, sin, unsqueeze_dim)

    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", other)
    with pytest.raises(ValueError, match="no rotary function of a known form"):
        ropekit.transformers.patch(modeling_llama)


def test_complex_tables_of_any_size_and_strides_keep_every_bit(device: str) -> None:
    for pairs in (4, 12, 16, 44, 64):
        q, k = torch.randn(2, 2, 9, 4, 2 * pairs, device=device)
        table = torch.polar(torch.ones(2, 9, pairs), 9 * torch.randn(2, 9, pairs)).to(device)
        for strided in (table, table.mT.contiguous().mT):
            expected = modeling_llama4.apply_rotary_emb(q, k, strided)
            with ropekit.transformers.patch(modeling_llama4):
                found = modeling_llama4.apply_rotary_emb(q, k, strided)
            assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("trained", [False, True])
def test_tables_with_a_gradient_go_to_the_model_itself(trained: bool) -> None:
    q, k = (torch.randn(1, 2, 5, 8, requires_grad=trained) for _ in range(2))
    table = torch.randn(1, 5, 8, requires_grad=True)

    def gradient() -> torch.Tensor:
        found = modeling_llama.apply_rotary_pos_emb(q, k, table, table)
        return torch.autograd.grad(found[0].square().sum(), table)[0]

    expected = gradient()
    with ropekit.transformers.patch(modeling_llama):
        assert torch.equal(gradient(), expected)
        with pytest.raises(RuntimeError, match="cos or sin has a tangent"):
            torch.func.jvp(
                lambda c: modeling_llama.apply_rotary_pos_emb(q.detach(), k.detach(), c, c),
                (expected,),
                (expected,),
            )


def test_a_function_put_in_place_of_the_patch_stays() -> None:
    patch = ropekit.transformers.patch(modeling_llama)
    modeling_llama.apply_rotary_pos_emb = diverging
    try:
        patch.restore()
        assert modeling_llama.apply_rotary_pos_emb is diverging
    finally:
        modeling_llama.apply_rotary_pos_emb = rotary


def test_a_patch_serves_one_block() -> None:
    patch = ropekit.transformers.patch(modeling_llama)
    with patch, pytest.raises(RuntimeError, match="serves a block"):
        patch.__enter__()
    assert modeling_llama.apply_rotary_pos_emb is rotary
    with pytest.raises(RuntimeError, match="was restored"):
        patch.__enter__()


@pytest.mark.parametrize("inside", [True, False])
def test_gradient_checkpoints_run_the_forward_within_the_patch(inside: bool) -> None:
    model, inputs = models.build("llama", torch.float32), models.inputs("llama")
    model.train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    with ropekit.transformers.patch(model, "exact"):
        loss = model(**inputs).logits.sum()
        if inside:
            loss.backward()
    if not inside:
        with pytest.raises(AttributeError, match="once the patch is restored"):
            loss.backward()


def test_angles_follow_their_layer_to_its_device() -> None:
    model, ids = models.build("phi3"), torch.arange(4)[None]
    with ropekit.transformers.patch(model, "exact"):
        positions, angles = model.model.rotary_emb(torch.ones(1), ids)
        moved = angles.to("meta", non_blocking=True)
        assert moved.sequence_lengths.is_meta and moved.text == angles.text
        assert positions is ids and not hasattr(angles, "device")


def test_a_part_of_no_known_file_is_left_alone() -> None:
    model = models.build("llama")
    model.part = type("Part", (torch.nn.Module,), {"__module__": "unknown"})()
    with ropekit.transformers.patch(model) as patch:
        assert len(patch.report) == 1


def test_a_patch_that_fails_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = models.build("llama", torch.float32)

    def interrupted(*_: object) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(ropekit.transformers, "_layer_texts", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ropekit.transformers.patch(model, "exact")
    assert modeling_llama.apply_rotary_pos_emb is rotary


def test_a_rotary_embedding_without_layer_types_in_its_dictionary() -> None:
    fields = {"vocab_size": 97, "hidden_size": 64, "intermediate_size": 96, "pad_token_id": 0}
    config = transformers.EsmConfig(
        **fields, num_hidden_layers=2, num_attention_heads=4, position_embedding_type="rotary"
    )
    model, ids = transformers.EsmModel(config).eval(), models.inputs("llama")["input_ids"]
    with torch.no_grad():
        expected = model(ids).last_hidden_state
        with ropekit.transformers.patch(model, "exact") as patch:
            close(model(ids).last_hidden_state, expected)
    assert len(patch.report) == 2


def test_unpatch() -> None:
    model = models.build("llama")
    ropekit.transformers.patch(model)
    ropekit.transformers.patch(model, "exact")
    assert modeling_llama.apply_rotary_pos_emb is not rotary
    ropekit.transformers.unpatch(model)
    assert modeling_llama.apply_rotary_pos_emb is rotary
    assert "forward" not in model.model.rotary_emb.__dict__
    with pytest.raises(RuntimeError, match="LlamaForCausalLM is not patched"):
        ropekit.transformers.unpatch(model)


@pytest.mark.parametrize("given", ["llama", transformers.LlamaForCausalLM, modeling_llama])
def test_a_name_a_class_and_a_module_are_taken(given: Any) -> None:
    patch = ropekit.transformers.patch(given)
    assert modeling_llama.apply_rotary_pos_emb is not rotary
    patch.restore()
    assert modeling_llama.apply_rotary_pos_emb is rotary
    ropekit.transformers.patch(given)
    ropekit.transformers.unpatch(given)
    assert modeling_llama.apply_rotary_pos_emb is rotary


def test_what_cannot_be_patched_is_named() -> None:
    linear = torch.nn.Linear(2, 2)
    for given, name in ((linear, "Linear"), (torch.nn.Linear, "Linear"), ("bert", "bert")):
        with pytest.raises(ValueError, match=rf"^{name} cannot be patched.*\nSupported.*\nwith"):
            ropekit.transformers.patch(given)
    with pytest.raises(ValueError, match='"no_model", of which Transformers has no source'):
        ropekit.transformers.patch("no_model")
    with pytest.raises(TypeError, match="model is int; allowed is a model, its class"):
        ropekit.transformers.patch(7)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match=r"^LlamaForCausalLM is not patched"):
        ropekit.transformers.unpatch(transformers.LlamaForCausalLM)
