"""The ropekit tool and library that a comparison runs with."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from ropekit_bench import results
from ropekit_bench.library import Library


class ToolError(Exception):
    """The tool or its library cannot be run."""


def find_library(tool):
    """libropekit.so beside the tool: in its build tree, its prefix or its bundle."""
    home = Path(tool).resolve().parent.parent
    for folder in ("common", "lib", *(str(p.relative_to(home)) for p in home.glob("lib/*-linux-gnu"))):
        for path in sorted((home / folder).glob("libropekit.so*")):
            return str(path)
    raise ToolError(f"--library is not given and there is no libropekit.so beside {tool}")


class Tool:
    """Lists cases and says what the machine is; holds the library."""

    def __init__(self, path, library=None, threads=0, backend=None):
        self.path, self.options = shutil.which(path), []
        if self.path is None:
            raise ToolError(f"--tool is {path}, which is no program; allowed is the ropekit tool")
        # Teams of several libraries would spin on each other's processors between their calls.
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
        if threads:
            self.options += [f"--threads={threads}"]
            os.environ["OMP_NUM_THREADS"] = str(threads)
        if backend:
            os.environ["ROPE_BACKEND"] = backend
        self.library = Library(library or find_library(self.path))
        self.header = self.list("overhead", False)
        self.backend = self.header["device"]["backend"]
        self.version = self.header["build"]["library"]
        self.threads = self.header["host"]["threads"]
        os.environ["ROPE_BACKEND"] = self.backend

    def list(self, suite, quick):
        """The document of `ropekit bench --list`: cases, and the machine at this moment."""
        command = [self.path, "bench", "--list", "--json", f"--suite={suite}", *self.options]
        try:
            answer = subprocess.run(
                command + ["--quick"] * quick, capture_output=True, text=True, check=False
            )
        except OSError as error:
            raise ToolError(f"--tool is {self.path}: {error}") from error
        if answer.returncode:
            raise ToolError(answer.stderr.strip() or f"{command} gave status {answer.returncode}")
        sys.stderr.write(answer.stderr)  # what it leaves out
        document = json.loads(answer.stdout)
        results.check(document, "ropekit bench --list")
        return document
