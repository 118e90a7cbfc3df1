"""Gradients of patched models, parameter by parameter: families.tsv."""

from __future__ import annotations

from collections.abc import Iterator

import families
import pytest
import torch

ROWS = families.TABLE.read_text(encoding="utf-8").splitlines()
MODULES = list(families.modules())


def test_the_table_has_every_family() -> None:
    names = [module.__name__.rpartition("modeling_")[2] for module in MODULES]
    assert [row.split("\t")[0] for row in ROWS] == ["family", *names]
    assert ROWS[0] == families.HEADING
    assert not [row for row in ROWS if "DIFFERS" in row]
    assert sum("bfloat16/eager" in row for row in ROWS) > 130


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """A team for each small call would wait for itself most of the time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("index", range(len(MODULES)), ids=[row.split("\t")[0] for row in ROWS[1:]])
def test_a_patched_model_keeps_every_bit(index: int) -> None:
    _, name, variant, *_ = ROWS[index + 1].split("\t")
    assert families.row(MODULES[index], (name, variant)) == ROWS[index + 1]
