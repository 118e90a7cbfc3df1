"""Rotary position embedding for PyTorch on ropekit's kernels (docs/python.md)."""

from ropekit._append import append
from ropekit._functions import apply, apply_, rope
from ropekit._library import version
from ropekit.config import Config, Fields, LayerFields

__version__ = version()
__all__ = ["Config", "Fields", "LayerFields", "append", "apply", "apply_", "rope"]
