"""Devices under test, and what is true."""

from __future__ import annotations

import os

import pytest
import torch

CUDA = torch.cuda.is_available()
DEVICES = ["cpu", "cuda"] if CUDA else ["cpu"]


def pytest_report_header() -> str:
    return f"torch {torch.__version__}, devices {', '.join(DEVICES)}"


def pytest_configure() -> None:
    if os.environ.get("ROPE_TEST_REQUIRE") == "cuda" and not CUDA:
        pytest.exit("ROPE_TEST_REQUIRE is cuda and PyTorch finds no CUDA device", returncode=1)


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(14)
