"""vLLM's rotary embeddings on ropekit, against their own code and against angles in double."""

from __future__ import annotations

import engines
import pytest
import torch
from ropekit.vllm import _rotation
from vllm.config import ModelConfig, VllmConfig, set_current_vllm_config
from vllm.model_executor.custom_op import op_registry_oot
from vllm.model_executor.layers import rotary_embedding

_HEAD = 64
_SCALED = {"factor": 4.0, "original_max_position_embeddings": 256}
_MROPE = {"mrope_section": [12, 10, 10]}
_RULES = {
    "plain": {},
    "partial": {"partial_rotary_factor": 0.5},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0} | _SCALED,
    "ntk": {"rope_type": "ntk", "factor": 4.0},
    "mixed_ntk": {"rope_type": "ntk", "factor": 4.0, "mixed_b": 0.6},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0, "max_trained_positions": 256},
    "alpha": {"rope_type": "dynamic", "alpha": 1000.0},
    "yarn": {"rope_type": "yarn"} | _SCALED,
    "deepseek": {"rope_type": "deepseek_yarn", "mscale": 0.7, "mscale_all_dim": 1.0} | _SCALED,
    "proportional": {"rope_type": "proportional", "partial_rotary_factor": 0.25},
    "mrope": _MROPE,
    "interleaved_mrope": _MROPE | {"mrope_interleaved": True},
    "mrope_yarn": {"rope_type": "yarn"} | _MROPE | _SCALED,
}


@pytest.fixture
def rope(saved):
    """A rotary embedding of vLLM's own code, or of ours."""
    model = ModelConfig(saved("llama"), skip_tokenizer_init=True, dtype="float32")
    kept = dict(op_registry_oot)

    def make(fields, is_ours, is_neox=True, dtype=torch.float32):
        rotary_embedding._ROPE_DICT.clear()
        op_registry_oot.clear()
        if is_ours:
            _rotation.register()
        given = {"rope_theta": 10000.0, "rope_type": "default"} | fields
        return rotary_embedding.get_rope(_HEAD, 1024, is_neox, given, dtype)

    with set_current_vllm_config(VllmConfig(model_config=model)):
        yield make
    op_registry_oot.clear()
    op_registry_oot.update(kept)
    rotary_embedding._ROPE_DICT.clear()


def _tensors(dtype=torch.float32, tokens=50):
    """q and k as views of one projection."""
    torch.manual_seed(0)
    return torch.randn(tokens, 6 * _HEAD).to(dtype).split([4 * _HEAD, 2 * _HEAD], -1)


@pytest.mark.parametrize("name", _RULES)
@pytest.mark.parametrize("is_neox", [True, False])
def test_rule(rope, name, is_neox):
    fields = _RULES[name]
    own, ours = rope(fields, False, is_neox), rope(fields, True, is_neox)
    assert ours.config is not None and not hasattr(own, "config")
    positions = torch.arange(7, 57)
    if "mrope_section" in fields:
        positions = torch.stack((positions, positions // 2, positions // 3))
    heads = (50, -1, _HEAD) if name == "deepseek" else (50, -1)
    known = own.forward_native(positions, *(x.clone().view(heads) for x in _tensors()))
    found = ours(positions, *(x.view(heads) for x in _tensors()))
    for x, y in zip(found, known, strict=True):
        assert (x - y).abs().max() < 2e-5  # vLLM's angles are products in float32


def test_angles_are_exact_far_away(rope):
    """At positions of a million, within rounding of float32."""
    ours = rope({}, True)
    positions = torch.tensor([0, 131071, 999983])
    q, k = _tensors(tokens=3)
    rates = 10000.0 ** (-torch.arange(0, _HEAD, 2, dtype=torch.float64) / _HEAD)
    angles = positions[:, None].double() * rates
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    first, second = q.view(3, -1, _HEAD).double().chunk(2, -1)
    known = torch.cat((first * cos - second * sin, second * cos + first * sin), -1)
    found, _ = ours(positions, q.clone(), k.clone())
    assert (found.view(3, -1, _HEAD) - known).abs().max() < 1e-6


def test_other_frequencies_are_left_to_vllm(rope, monkeypatch, caplog_vllm):
    monkeypatch.setitem(
        _rotation._RULES, rotary_embedding.RotaryEmbedding, lambda x: {"rope_theta": 9e3}
    )
    own, ours = rope({}, False), rope({}, True)
    assert ours.config is None
    assert "its cos and sin are" in caplog_vllm.text
    known = own(torch.arange(50), *(x.clone() for x in _tensors()))
    found = ours(torch.arange(50), *(x.clone() for x in _tensors()))
    assert all(torch.equal(x, y) for x, y in zip(found, known, strict=True))


def test_compiled_model(saved, own):
    """Attention and rotation on ropekit. An eager model is among test_models.py."""
    known = own("llama")
    with engines.engine(saved("llama"), "attention,rotation", enforce_eager=False) as llm:
        found = engines.run(llm, engines.PROMPTS, new=12)
    for (tokens, logprobs), (expected, of_own) in zip(found, known, strict=True):
        assert tokens == expected
        assert (logprobs - of_own).abs().max() < 1e-4
