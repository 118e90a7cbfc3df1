"""Devices under test, and what is true."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

# Inductor reads these as it is imported. Its code for the CPU is without vector instructions, which
# it tries in six processes first.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "0")
# A process of several compiles by itself; else each would start one more for every core.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

import torch
from ropekit import _sdpa

CUDA = torch.cuda.is_available()
DEVICES = ["cpu", "cuda"] if CUDA else ["cpu"]
OF_MODELS = {
    "test_families.py",
    "test_models.py",
    "test_module.py",
    "test_sdpa.py",
    "test_transformers.py",
    "test_transformers_attention.py",
}


def pytest_report_header() -> str:
    return f"torch {torch.__version__}, devices {', '.join(DEVICES)}"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "compiles: takes seconds, and so is begun first")
    required = os.environ.get("ROPE_TEST_REQUIRE", "")
    if required not in ("", "cpu", "cuda", "hip"):
        pytest.exit(f"ROPE_TEST_REQUIRE is {required!r}; allowed is cpu, cuda or hip", returncode=2)
    if required == "cuda" and not CUDA:
        pytest.exit("ROPE_TEST_REQUIRE is cuda and PyTorch finds no CUDA device", returncode=1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Processes that share the tests then end together: pytest -n 8 --maxschedchunk 1."""
    items.sort(key=lambda item: item.get_closest_marker("compiles") is None)


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(14)


@pytest.fixture
def deterministic() -> Iterator[None]:
    """PyTorch's switch is on, for tests of a gradient's bits; it is off again after the test."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(autouse=True)
def _one_thread_of_models(request: pytest.FixtureRequest) -> Iterator[None]:
    """A team for each small call of a model would wait for itself most of the time."""
    threads = torch.get_num_threads()
    if request.path.name in OF_MODELS:
        torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def _kernels_of_the_library(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tests of attention are of the library's kernels, also where PyTorch's is the faster one."""
    if request.path.name.startswith("test_attention"):
        monkeypatch.setattr(_sdpa, "prefers", lambda *_: "")
