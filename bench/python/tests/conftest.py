"""The tool that a tree built, cases of its suites made small, and documents made for the tests."""

import copy
import os
from pathlib import Path

import pytest
import torch

from ropekit_bench.cases import make_case
from ropekit_bench.peers import Absent, Peer
from ropekit_bench.tool import Tool

# As in python/tests/conftest.py: Inductor makes scalar code, and starts no processes beside xdist's.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "0")
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="session")
def tool_path():
    """ROPEKIT_TOOL, else what ./dev builds. Without it these tests fail: a skip would hide that."""
    path = Path(os.environ.get("ROPEKIT_TOOL", ROOT / "build/release/bench/ropekit"))
    assert path.exists(), f"{path} is not built"
    return str(path)


@pytest.fixture(scope="session")
def tool(tool_path):
    return Tool(tool_path, threads=1, backend="cpu")


def peer_of(name, tool):
    """A peer, which may be of a package that is not installed."""
    try:
        return Peer(name, tool)
    except Absent as error:
        pytest.skip(str(error))


def small(shape, **changes):
    """A shape of a suite with few tokens, keys and heads."""
    found = {**shape, "batch": 1, "tokens": 19, "q_heads": 4, "k_heads": 2, "max_position": 100}
    if append := shape.get("append"):
        found["append"] = {**append, **({"v_heads": 2} if "v_heads" in append else {})}
        found |= {"k_heads": 1} if append.get("k_norm_dim") else {}
        found |= {"q_heads": 0} if append.get("k_source") else {}
    if attention := shape.get("attention"):
        found["attention"] = {**attention, "keys": 50 if "kv_cache" in attention else 19}
        found["attention"] |= {"window": 5} if "window" in attention else {}
        found |= {"k_heads": 1} if "v_in_k" in attention else {}
        found |= {"cu_seqlens": [0, 3, 12, 19]} if "cu_seqlens" in shape else {"batch": 2}
    return {**found, **changes}


@pytest.fixture(scope="session")
def shapes(tool):
    """Of each suite the shape of each label, made small."""

    def listed(suite):
        return {c["label"]: small(c["shape"]) for c in tool.list(suite, False)["records"]}

    suites = "prefill", "append", "attention", "attention-backward", "attention-decode"
    return {suite: listed(suite) for suite in suites}


def case_of(shape, cache_bytes=0, cold=False):
    return make_case(shape, torch.device("cpu"), cache_bytes, 1, cold)


def quartiles(median):
    return {"median": median, "low": 0.999 * median, "high": 1.001 * median}


def measurement(implementation, seconds, tokens=1024, suite="prefill", label="Model", **more):
    shape = {"batch": 1, "tokens": tokens, "q_heads": 32, "k_heads": 8, "head_dim": 128, "rotary_dim": 0}
    shape |= {"rotary_offset": 0, "k_head_dim": 0, "k_rotary_offset": 0, "axes": 0, "max_position": 131071}
    shape |= {"dtype": "bf16", "pairing_in": "half-split", "pairing_out": "half-split"}
    shape |= {"direction": "forward", "position_ids": "none", "angle_mode": "exact", "rope_type": "default"}
    shape |= {"rope_theta": 10000, "xpos": False, "in_place": False}
    timing = {
        "seconds": quartiles(seconds),
        "gb_per_second": 1e-9 / seconds,
        "ratio": quartiles(1e-6 / seconds),
    }
    return {
        **{
            "case": f"--tokens={tokens} {label}",
            "suite": suite,
            "label": label,
            "cache": "cold",
            "shape": shape,
        },
        **{"implementation": implementation, "kernel": "kernel of " + implementation, "bytes": 1000},
        **{"table_bytes": 0, "sets": 1, "rounds": 5, "iterations": 10, "replay": timing},
        "eager": {**timing, "host_seconds": seconds / 2},
        "floor": {"seconds": quartiles(1e-6), "gb_per_second": 1e-3, "kernel": "copy"},
        "self_ratio": quartiles(1.01),
        "checked": {"elements": 1, "max_error": 0, "worst": 0},
        **more,
    }


def refused(implementation, reason, tokens, suite="prefill"):
    record = measurement(implementation, 1, tokens, suite)
    kept = ("case", "suite", "label", "cache", "shape", "implementation")
    return {name: record[name] for name in kept} | {"reason": reason}


@pytest.fixture(scope="session")
def make(tool):
    """make(records, name, implementations): a document of the peers' harness."""

    def document(records, name="Device", implementations=()):
        made = copy.deepcopy(tool.header)
        made |= {"command": "peers", "records": records, "implementations": list(implementations)}
        made["device"] |= {"name": name, "backend": "cuda"}
        return made

    return document
