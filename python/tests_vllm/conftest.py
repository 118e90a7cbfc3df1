"""Models as files, made once for all tests."""

from __future__ import annotations

import logging

import engines
import pytest
import vllm.logger
from ropekit.vllm import _attention


@pytest.fixture(scope="session")
def saved(tmp_path_factory):
    """The folder of a model, by its name."""
    made: dict[str, str] = {}

    def folder(name: str) -> str:
        if name not in made:
            made[name] = engines.save(name, str(tmp_path_factory.mktemp(name)))
        return made[name]

    return folder


@pytest.fixture(scope="session")
def own(saved):
    """What a model gives of engines.PROMPTS by vLLM's own code, by its name."""
    made: dict[str, list] = {}

    def results(name: str) -> list:
        if name not in made:
            with engines.engine(saved(name), "") as llm:
                assert _attention.Attention not in engines.attention_of(llm)
                made[name] = engines.run(llm, engines.PROMPTS, new=12)
        return made[name]

    return results


@pytest.fixture
def caplog_vllm(caplog, monkeypatch):
    """caplog of vLLM's loggers, which hand nothing up and say a line once."""
    vllm.logger._print_warning_once.cache_clear()
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    return caplog
