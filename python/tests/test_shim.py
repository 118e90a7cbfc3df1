"""What csrc declares of PyTorch and of Python is what their own headers declare."""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest
import torch
from torch.utils.cpp_extension import include_paths

CSRC = Path(__file__).parents[1] / "csrc"
OURS = (CSRC / "torch_shim.h").read_text(encoding="utf-8")
OF_PYTHON = (CSRC / "python_shim.h").read_text(encoding="utf-8")
PYTHON_INCLUDE = Path(sysconfig.get_path("include"))
needs_compiler = pytest.mark.skipif(not shutil.which("g++"), reason="no g++")
needs_python_header = pytest.mark.skipif(
    not shutil.which("g++") or not (PYTHON_INCLUDE / "Python.h").exists(),
    reason="no g++ or no Python.h",
)
METHOD = """
static_assert(PYTHON_FASTCALL == METH_FASTCALL, "");
static_assert(sizeof(python_method) == sizeof(PyMethodDef), "");
static_assert(offsetof(python_method, function) == offsetof(PyMethodDef, ml_meth), "");
static_assert(offsetof(python_method, flags) == offsetof(PyMethodDef, ml_flags), "");
"""
# Of undispatched.c; a mangled name does not tell what a function returns.
CXX = """
#include <Python.h>
#include <ATen/ATen.h>
#include <ATen/NativeFunctions.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/python_variable.h>
#if __has_include(<ATen/NamedTensorUtils.h>)
#include <ATen/NamedTensorUtils.h>
bool (*has_names)(const c10::TensorImpl *) = &at::impl::has_names;
#endif
static_assert(sizeof(at::Tensor) == sizeof(void *), "");
PyObject *(*wrap)(at::TensorBase &&) = &THPVariable_Wrap;
bool (*has_callbacks)() = &at::hasCallbacks;
bool (*is_neg)(const at::Tensor &) = &at::native::is_neg;
bool (*is_inference)(const at::Tensor &) = &at::native::is_inference;
bool (*in_inference_mode)() = &c10::InferenceMode::is_enabled;
bool (c10::TensorImpl::*requires_grad)() const = &c10::TensorImpl::requires_grad;
"""


def compiled(source: str, shim: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Declarations of the same C function that differ do not compile together."""
    file = folder / "both.cpp"
    (folder / "shim.h").write_text(shim, encoding="utf-8")
    file.write_text(source, encoding="utf-8")
    includes = [f"-I{path}" for path in (*include_paths(), PYTHON_INCLUDE)]
    return subprocess.run(
        ["g++", "-std=c++20", "-fsyntax-only", *includes, file],
        capture_output=True,
        text=True,
        check=False,
    )


def compiled_beside_torch(shim: str, folder: Path) -> subprocess.CompletedProcess[str]:
    source = '#include <torch/csrc/stable/c/shim.h>\n#include "shim.h"\n'
    return compiled(source, shim, folder)


def compiled_beside_python(shim: str, folder: Path) -> subprocess.CompletedProcess[str]:
    limited = "#define Py_LIMITED_API 0x030a0000\n#include <Python.h>\n"
    return compiled(f'{limited}#include "shim.h"\n{METHOD}', shim, folder)


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


@needs_python_header
def test_declarations_are_those_of_python(tmp_path: Path) -> None:
    done = compiled_beside_python(OF_PYTHON, tmp_path)
    assert done.returncode == 0, done.stderr


@needs_python_header
@pytest.mark.parametrize(
    "right, wrong, name",
    [
        ("long long PyLong", "long PyLong", "PyLong_AsLongLong"),
        ("PYTHON_FASTCALL = 0x80", "PYTHON_FASTCALL = 8", "PYTHON_FASTCALL"),
        ("int flags;", "char flags[16];", "sizeof"),
    ],
)
def test_a_wrong_declaration_of_python_is_seen(
    right: str, wrong: str, name: str, tmp_path: Path
) -> None:
    assert right in OF_PYTHON
    done = compiled_beside_python(OF_PYTHON.replace(right, wrong), tmp_path)
    assert done.returncode != 0
    assert name in done.stderr


@needs_python_header
@pytest.mark.compiles
def test_what_undispatched_calls_take_from_cxx_is_declared_so(tmp_path: Path) -> None:
    done = compiled(CXX, "", tmp_path)
    assert done.returncode == 0, done.stderr


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
