"""Gradients of patched models, parameter by parameter: families.tsv, of the pinned Transformers.
Another one is tested by the families that both have, of which none may differ."""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any

import families
import pytest
import ropekit.transformers
import torch
from models import IS_PINNED, widen

ROWS = families.TABLE.read_text(encoding="utf-8").splitlines()
BY_NAME = {row.split("\t")[0]: row for row in ROWS[1:]}
MODULES = families.names()


def test_the_table_has_every_family() -> None:
    assert ROWS[0] == families.HEADING
    assert list(BY_NAME) == list(MODULES) or not IS_PINNED
    assert len(BY_NAME.keys() & MODULES.keys()) > 190
    assert not [row for row in ROWS if "DIFFERS" in row]
    assert sum("bfloat16/" in row for row in ROWS) > 130


@pytest.mark.parametrize("family", [name for name in MODULES if name in BY_NAME])
def test_a_patched_model_keeps_every_bit(family: str) -> None:
    _, name, variant, *_ = BY_NAME[family].split("\t")
    found = families.row(import_module(MODULES[family]), (name, variant))
    assert "DIFFERS" not in found
    assert found == BY_NAME[family] or not IS_PINNED


# Words of an error that says why a model keeps its own attention.
REASONS = "keys that an indexer chose|a bias of positions"


def visible(model: Any) -> torch.Tensor:
    """The result of two sequences, of which one is padded before, where it has their tokens."""
    ids = torch.randint(3, 80, (2, 24), generator=torch.Generator().manual_seed(1))
    mask = torch.arange(24) >= torch.tensor([[0], [5]])
    with torch.no_grad():
        found = model(input_ids=ids, attention_mask=mask.long())[0]
        if found.shape[:2] == mask.shape:
            return found[mask]
        whole: torch.Tensor = model(input_ids=ids, attention_mask=torch.ones_like(ids))[0]
        return whole


@pytest.mark.parametrize("family", [name for name in MODULES if name in BY_NAME])
def test_attention_is_eagers_or_refused(family: str) -> None:
    _, name, variant, *_ = BY_NAME[family].split("\t")
    if name == "-":
        pytest.skip("no small model of it reads text")
    kind = getattr(import_module(MODULES[family]), name)
    model = families.make(kind, int(variant), torch.float32, "eager")
    widen(model)
    try:
        expected = visible(model)
    except Exception as error:
        pytest.skip(f"it does not run padded: {error}")
    model.set_attn_implementation(ropekit.transformers.ATTENTION)
    try:
        found = visible(model)
    except ValueError as error:
        assert re.search(REASONS, str(error))
        return
    assert (found - expected).abs().max() <= 3e-5 * expected.abs().max()
