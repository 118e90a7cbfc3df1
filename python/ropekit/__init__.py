"""Rotary position embedding for PyTorch on ropekit's kernels (docs/python.md)."""

from ropekit._append import append
from ropekit._attention import attention
from ropekit._attention_merge import attention_merge
from ropekit._explain import Explanation, explain
from ropekit._functions import apply, apply_, rope
from ropekit._library import version
from ropekit._module import KeyValueCache, RoPEAttention
from ropekit.config import AttentionFields, Config, Fields, LayerFields

__version__ = version()
__all__ = [
    "AttentionFields",
    "Config",
    "Explanation",
    "Fields",
    "KeyValueCache",
    "LayerFields",
    "RoPEAttention",
    "append",
    "apply",
    "apply_",
    "attention",
    "attention_merge",
    "explain",
    "rope",
]
