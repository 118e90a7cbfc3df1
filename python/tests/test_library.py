"""The libraries in the process: their backends, kernels and OpenMP runtime."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest
import ropekit
import torch
from ropekit import check
from ropekit._operators import check_order
from torch._inductor import config as inductor

KERNELS = {
    "x86_64": {"avx512_bf16", "avx512", "avx2", "scalar", "reference"},
    "aarch64": {"neon", "scalar", "reference"},
}


def test_a_library_of_another_order_is_refused() -> None:
    """Every schema was compared at the import."""
    check_order("attention_merge", "(Tensor out, Tensor lse) -> (Tensor, Tensor)")
    for arguments in ("Tensor lse, Tensor out", "Tensor out, Tensor? lse=None", "Tensor out"):
        with pytest.raises(ImportError, match=r"takes \(out lse\); allowed is"):
            check_order("attention_merge", f"({arguments}) -> (Tensor, Tensor)")
    with pytest.raises(ImportError, match=r"none in libtorch_ropekit.so takes \(\)"):
        check_order("none", "(Tensor x) -> Tensor")


def test_every_kernel_of_the_cpu_is_there() -> None:
    q = torch.randn(1, 3, 2, 64)
    with pytest.raises(ValueError, match="is None or any of") as caught:
        ropekit.apply(q, kernel="none")
    names = str(caught.value).rpartition(" any of ")[2].split(", ")
    assert set(names) == KERNELS[platform.machine()]
    tried = 0
    for name in names:
        try:
            y = ropekit.apply(q, kernel=name)
        except RuntimeError as error:  # this processor has it not
            assert "every kernel declined" in str(error)
            continue
        if name != "reference":
            assert torch.equal(y, ropekit.apply(q))
        tried += 1
    assert tried >= 2


def test_openmp_is_that_of_pytorch() -> None:
    """A second runtime would have a second team of threads."""
    if not re.search("OpenMP", torch.__config__.parallel_info()):
        pytest.skip("this PyTorch has another kind of threads")
    code = (
        "import ropekit, torch; ropekit.apply(torch.ones(1, 4096, 8, 128));"
        "print(open('/proc/self/maps').read())"
    )
    maps = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    runtimes = set(re.findall(r"/\S*lib(?:gomp|iomp5|omp)[-.]\S*so\S*", maps))
    assert len(runtimes) == 1, runtimes


def test_a_forked_child_waits_for_no_team_of_pytorch() -> None:
    code = """
import os, signal, torch
torch.set_num_threads(2)
torch.ones(1024, 1024).mm(torch.ones(1024, 1024)).exp()
import ropekit
q = torch.ones(1, 8, 512, 64)
if child := os.fork():
    os._exit(os.waitpid(child, 0)[1])
signal.alarm(60)  # a wait that does not end is a signal
ropekit.apply(q)
os._exit(0)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def listed(**environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "ropekit.check", "--backends"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_backends_are_told_with_their_reasons(tmp_path: Path) -> None:
    (tmp_path / "libropekit_broken.so").write_text("no library", encoding="utf-8")
    lines = listed(ROPE_PLUGIN_PATH=str(tmp_path)).splitlines()
    assert "cpu      built in: can be used" in lines
    broken = next(line for line in lines if line.startswith("broken"))
    assert str(tmp_path / "libropekit_broken.so") in broken
    assert not broken.endswith("can be used")
    found = {x.name: x.reason for x in check.backends()}
    assert found.keys() <= {"cpu", "cuda", "cudnn", "hip"} and not found["cpu"]


def test_inductor_has_what_conftest_sets() -> None:
    assert inductor.cpp.vec_isa_ok is False
    if "PYTEST_XDIST_WORKER" in os.environ:
        assert inductor.compile_threads == 1


def test_the_package_leaves_the_compiler_to_programs_that_use_it() -> None:
    code = "import sys, torch; had = {*sys.modules}; import ropekit; print(*{*sys.modules} - had)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "ropekit" in done.stdout.split()
    assert "torch._dynamo" not in done.stdout.split()
