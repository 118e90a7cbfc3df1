"""Rotary position embedding for PyTorch on ropekit's kernels (docs/python.md)."""

from ropekit._functions import apply, apply_, rope
from ropekit._library import version
from ropekit.config import Config, Fields

__version__ = version()
__all__ = ["Config", "Fields", "apply", "apply_", "rope"]
