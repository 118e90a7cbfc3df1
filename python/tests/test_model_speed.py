"""scripts/model_speed.py on a tiny model: what it measures and how a file is resumed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

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
    command += ["--only=llama", "--device=cpu", "--rounds=2", "--resume", "--plain", "--cases=1"]
    command += [f"--tool={tool}", "--attention=sdpa", "--attention=ropekit, patched"]
    own = {"PYTHONPATH": str(Path(ropekit.__file__).parents[1]), "OMP_NUM_THREADS": "1"}

    def run() -> list[dict[str, Any]]:
        subprocess.run(command, env=os.environ | own, check=True)
        records = json.loads(path.read_text(encoding="utf-8"))["records"]
        assert not any(r["reason"] for r in records[1:])
        return list(records[1:])

    first = run()
    assert [(r["task"], r["attention"]) for r in first] == [
        ("generate", "sdpa"),
        ("generate", "ropekit, patched"),
    ]
    assert first[1]["note"] == "1 of 1 layers append in one call"
    assert all(r["tokens_per_second"] > 0 for r in first)
    both = run()
    assert both[:2] == first and [r["task"] for r in both[2:]] == ["train", "train"]
    assert abs(both[2]["loss"] - both[3]["loss"]) < 1e-4
