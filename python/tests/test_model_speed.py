"""scripts/model_speed.py on a tiny model: what it measures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import ropekit

ROOT = Path(__file__).parents[2]
DEVICE = {"backend": "cpu", "device": 0, "name": "CPU", "compute_units": 1}
INFO = dict.fromkeys(("time", "build", "host")) | {"records": [DEVICE]}


def test_a_tiny_model_is_measured(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    tool, path = tmp_path / "tool", tmp_path / "models.jsonl"
    tool.write_text(f"#!/bin/sh\necho '{json.dumps(INFO)}'\n", encoding="utf-8")
    tool.chmod(0o755)
    command = [sys.executable, str(ROOT / "scripts" / "model_speed.py"), str(path), "--size=tiny"]
    command += ["--only=Llama 3.2 1B", "--device=cpu", "--rounds=2", "--plain"]
    command += [f"--tool={tool}", "--attention=sdpa", "--attention=ropekit, patched"]
    own = {"PYTHONPATH": str(Path(ropekit.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=os.environ | own, check=True, capture_output=True, text=True)
    assert "1 of 1 layers append in one call" in done.stderr
    run, *cases = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    assert run["command"] == "models" and run["device"] == DEVICE
    tasks = ["3 tokens behind 8, batch 1", "3 tokens behind 8, batch 32", "training, 1 x 8 tokens"]
    assert [case["task"] for case in cases] == tasks
    for case in cases:
        assert (
            list(case["speed"]) == ["sdpa", "ropekit, patched"] and min(case["speed"].values()) > 0
        )
    one, other = cases[2]["loss"].values()
    assert abs(one - other) < 1e-4
