"""Models as files, made once for all tests."""

from __future__ import annotations

import logging

import engines
import pytest
import vllm.logger


@pytest.fixture(scope="session")
def saved(tmp_path_factory):
    """The folder of a model, by its name."""
    made: dict[str, str] = {}

    def folder(name: str) -> str:
        if name not in made:
            made[name] = engines.save(name, str(tmp_path_factory.mktemp(name)))
        return made[name]

    return folder


@pytest.fixture
def caplog_vllm(caplog, monkeypatch):
    """caplog of vLLM's loggers, which hand nothing up and say a line once."""
    vllm.logger._print_warning_once.cache_clear()
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    return caplog
