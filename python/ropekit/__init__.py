"""Rotary position embedding, append and attention for PyTorch on ropekit's kernels.

docs/python.md is an introduction. Functions: `apply`, `apply_`, `append`, `attention`,
`attention_merge`, `decode`, `explain`, `rope`; a module: `RoPEAttention`; what a layer is:
`Config`, and which kinds of layers a model has: `layer_kinds`.
Importing `ropekit.transformers` makes attn_implementation "ropekit" known.

Operators: torch.ops.ropekit has rotate, rotate_pair, rotate_ and rotate_pair_, of `apply` and
`apply_`; append; decode; attention, attention_lse, attention_flag and attention_merge, and
attention_rotated and attention_backward, which autograd calls. Those that write declare it and
raise the version, so that autograd refuses a tensor that it saved before. Names with _no_grad, and
the overloads few, ids, cached and into, are for calls without a gradient, of fewer arguments or
with a result of the caller's, which spare the host most of a call.

Devices: all tensors of a call live on one device; its backend is that device's, whatever
ROPE_BACKEND says. A plan is made at the first call with a configuration, type or width of head, and
kept until the process ends: a CUDA graph needs a call before its capture.

torch.func: of `apply`, grad, jvp, vmap and what is made of them work. vmap over q and k is one
call; over positions or tables, and in a compiled function, it is one call after another.
torch.compile leaves a function that calls grad or jvp to eager PyTorch, which fullgraph=True
forbids.

Integer tensors may differ in type, and tensors may be empty. Boundaries in cu_seqlens that fall are
an error on the CPU; a GPU gives a token to one of the sequences that hold it, or leaves it as it
is.
"""

from ropekit import _onnx  # noqa: F401
from ropekit._append import append
from ropekit._attention import attention
from ropekit._attention_merge import attention_merge
from ropekit._cache import KeyValueCache
from ropekit._decode import decode
from ropekit._explain import Explanation, explain
from ropekit._functions import apply, apply_, rope
from ropekit._library import version
from ropekit._module import RoPEAttention
from ropekit.config import (
    AppendFields,
    AttentionFields,
    Config,
    Fields,
    LayerFields,
    LayerKind,
    layer_kinds,
)

__version__ = version()
__all__ = [
    "AppendFields",
    "AttentionFields",
    "Config",
    "Explanation",
    "Fields",
    "KeyValueCache",
    "LayerFields",
    "LayerKind",
    "RoPEAttention",
    "append",
    "apply",
    "apply_",
    "attention",
    "attention_merge",
    "decode",
    "explain",
    "layer_kinds",
    "rope",
]
