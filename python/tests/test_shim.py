"""What csrc declares of PyTorch is what its own headers declare."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from torch.utils.cpp_extension import include_paths

CSRC = Path(__file__).parents[1] / "csrc"
OURS = (CSRC / "torch_shim.h").read_text(encoding="utf-8")
needs_compiler = pytest.mark.skipif(not shutil.which("g++"), reason="no g++")


def compiled_beside_torch(shim: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Declarations of the same C function that differ do not compile together."""
    file = folder / "both.cpp"
    (folder / "shim.h").write_text(shim, encoding="utf-8")
    source = '#include <torch/csrc/stable/c/shim.h>\n#include "shim.h"\n'
    file.write_text(source, encoding="utf-8")
    return subprocess.run(
        ["g++", "-std=c++20", "-fsyntax-only", *(f"-I{path}" for path in include_paths()), file],
        capture_output=True,
        text=True,
        check=False,
    )


@needs_compiler
def test_declarations_are_those_of_torch(tmp_path: Path) -> None:
    done = compiled_beside_torch(OURS, tmp_path)
    assert done.returncode == 0, done.stderr


@needs_compiler
def test_a_wrong_declaration_is_seen(tmp_path: Path) -> None:
    wrong = OURS.replace("StringHandle handle, size_t *length", "StringHandle handle, int *length")
    assert wrong != OURS
    done = compiled_beside_torch(wrong, tmp_path)
    assert "torch_string_length" in done.stderr


def test_every_function_is_one_of_torch() -> None:
    headers = "".join(
        (Path(path) / "torch" / "csrc" / part).read_text(encoding="utf-8")
        for path in include_paths()
        for part in ("stable/c/shim.h", "inductor/aoti_torch/c/shim.h")
        if (Path(path) / "torch" / "csrc" / part).exists()
    )
    declared = re.findall(r"\b((?:aoti_)?torch_\w+)\(", OURS)
    assert len(declared) > 20
    assert [name for name in declared if f"{name}(" not in headers] == []


def test_torch_serves_the_abi() -> None:
    major, minor = (int(part) for part in torch.__version__.split(".")[:2])
    assert (major, minor) >= (2, 10)
