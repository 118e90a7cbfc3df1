"""Results of scripts/model_speed.py, and what pages show of them."""

import pytest

from ropekit_bench import results
from ropekit_bench.report.model import machines
from ropekit_bench.report.models import models_markdown


def record(attention, speed, **more):
    case = {"model": "llama", "size": "whole", "task": "generate", "batch": 1, "prompt": 4, "tokens": 8}
    case |= {"compiled": False, "attention": attention, "reason": "" if speed else "no room", "note": ""}
    if speed:
        seconds = {"median": 8 / speed, "low": 8 / speed, "high": 8 / speed}
        case |= {"seconds": seconds, "tokens_per_second": speed, "rounds": 3, "loss": 0.0}
    return case | more


@pytest.fixture
def document(make):
    device = {"backend": "cuda", "device": 0, "name": "GPU", "features": "sm_90"}
    device |= {"memory_bytes": 1, "cache_bytes": 1, "compute_units": 1}
    versions = {"torch": "2.11", "transformers": "5.17", "liger-kernel": ""}
    speeds = {"eager": 100.0, "sdpa": 200.0, "liger": 0.0, "ropekit": 230.0, "ropekit, patched": 250.0}
    more = {"task": "train", "compiled": True, "prompt": 0}
    records = [device, *(record(*item) for item in speeds.items()), record("sdpa", 3.0, **more)]
    named = [{"implementation": n, "version": v, "reason": ""} for n, v in versions.items()]
    found = {**make(records), "command": "models", "implementations": named}
    del found["device"]
    return found


def test_a_page_shows_tokens_and_ratios(document):
    results.check(document, "models")
    assert machines([document]) == []  # no device's section: the report compares calls
    text = models_markdown([document])
    assert text.startswith("GPU, PyTorch 2.11, Transformers 5.17, commit ")
    assert "| 8 tokens behind 4, batch 1 | 100 | 200 | - | 230 | 250 | 1.25 | 1.25 |" in text
    assert "| training, 1 x 8 tokens, compiled | - | 3 | - | - | - | - | - |" in text
    shapes = {"whole": "shape |", "half": "shape, half its layers |", "small": "shape, smaller |"}
    for size, said in shapes.items():
        document["records"] = [document["records"][0], record("sdpa", 3.0, size=size)]
        results.check(document, "models")
        assert f"| Llama 3.2 1B {said} eager" in models_markdown([document])


def test_without_a_run(make):
    assert models_markdown([make([])]) == "No run is in bench/results."
