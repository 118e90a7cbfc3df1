"""Gradients of patched models, parameter by parameter: families.tsv, of the pinned Transformers.
Another one is tested by the families that both have, of which none may differ."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import families
import pytest
import torch
import transformers

ROWS = families.TABLE.read_text(encoding="utf-8").splitlines()
BY_NAME = {row.split("\t")[0]: row for row in ROWS[1:]}
MODULES = {module.__name__.rpartition("modeling_")[2]: module for module in families.modules()}
REQUIREMENTS = (Path(__file__).parents[1] / "requirements.txt").read_text(encoding="utf-8")
IS_PINNED = transformers.__version__ in re.findall(r"(?m)^transformers==(.*)$", REQUIREMENTS)


def test_the_table_has_every_family() -> None:
    assert ROWS[0] == families.HEADING
    assert list(BY_NAME) == list(MODULES) or not IS_PINNED
    assert len(BY_NAME.keys() & MODULES.keys()) > 190
    assert not [row for row in ROWS if "DIFFERS" in row]
    assert sum("bfloat16/eager" in row for row in ROWS) > 130


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """A team for each small call would wait for itself most of the time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("family", [name for name in MODULES if name in BY_NAME])
def test_a_patched_model_keeps_every_bit(family: str) -> None:
    _, name, variant, *_ = BY_NAME[family].split("\t")
    found = families.row(MODULES[family], (name, variant))
    assert "DIFFERS" not in found
    assert found == BY_NAME[family] or not IS_PINNED
