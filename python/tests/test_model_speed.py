"""scripts/model_speed.py on a tiny model: what it measures and how a file is resumed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import ropekit

ROOT = Path(__file__).parents[2]
DEVICE = {"backend": "cpu", "device": 0, "name": "CPU", "features": "", "memory_bytes": 0}
INFO = dict.fromkeys(("schema", "version", "time", "seed", "build", "host")) | {
    "records": [DEVICE | {"cache_bytes": 0, "compute_units": 1}]
}


def test_a_tiny_model_is_measured_and_resumed(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    tool, path = tmp_path / "tool", tmp_path / "models.json"
    tool.write_text(f"#!/bin/sh\necho '{json.dumps(INFO)}'\n", encoding="utf-8")
    tool.chmod(0o755)
    command = [sys.executable, str(ROOT / "scripts" / "model_speed.py"), str(path), "--size=tiny"]
    command += ["--only=llama", "--device=cpu", "--rounds=2", "--resume", "--plain"]
    command += [f"--tool={tool}", "--attention=sdpa", "--attention=ropekit, patched"]
    own = {"PYTHONPATH": str(Path(ropekit.__file__).parents[1]), "OMP_NUM_THREADS": "1"}

    done = subprocess.run(
        [*command, "--seconds=0"], env=os.environ | own, check=True, capture_output=True, text=True
    )
    assert "the 0 s are over" in done.stdout and not path.exists()

    for _ in range(2):  # the second has nothing left
        subprocess.run(command, env=os.environ | own, check=True)
        records = json.loads(path.read_text(encoding="utf-8"))["records"][1:]
        assert not any(r["reason"] for r in records)
        told = [(r["task"], r["batch"], r["attention"]) for r in records]
        cases = ("generate", 1), ("generate", 32), ("train", 1)
        assert told == [(*case, kind) for case in cases for kind in ("sdpa", "ropekit, patched")]
    assert records[1]["note"] == "1 of 1 layers append in one call"
    assert all(r["tokens_per_second"] > 0 for r in records)
    assert abs(records[4]["loss"] - records[5]["loss"]) < 1e-4
