"""explain: which kernel a call of `attention` would take, and why."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from typing_extensions import Unpack

from ropekit import _sdpa
from ropekit._attention import (
    KEYWORDS,
    OTHERS,
    Options,
    has_cache,
    masked,
    number,
    of_autocast,
    other_candidate,
    with_one_key,
)
from ropekit._attention_arguments import FULL, TENSORS, Arguments
from ropekit._attention_errors import refuse_attention
from ropekit._cache import PARTS, pages, parts_of, scales, text_of_cache
from ropekit._decode import decode
from ropekit._errors import whole
from ropekit._fields import refuse_fields
from ropekit._functions import text_for
from ropekit._library import library
from ropekit._operators import fields_of, of_backward


@dataclass(frozen=True)
class Explanation:
    """What a call of `attention` or `decode` would do."""

    #: as in "cpu:avx512" or "cuda:decode", which a profiler shows as gpu_attention_decode, or
    #: "sdpa" for our rotation and PyTorch's attention; a call whose layout or workspace it declines
    #: takes the first that accepted
    kernel: str
    why: str
    candidates: str  #: one a line, each accepted or why it declined
    backward: str  #: the kernel of a gradient, "" where there is none
    backward_candidates: str  #: likewise, or why there is no gradient
    config: str
    rotation: str  #: which of q and k rotate, and by what

    def __repr__(self) -> str:
        lines = [f"{self.kernel}: {self.why}", f"config: {self.config or 'none'}"]
        lines.append(f"rotation: {self.rotation}")
        lines += [f"  {line}" for line in self.candidates.splitlines()]
        lines.append(f"backward: {self.backward or 'none'}")
        lines += [f"  {line}" for line in self.backward_candidates.splitlines()]
        return "\n".join(lines)


def explain(
    q: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    *,
    return_lse: bool = False,
    **options: Unpack[Options],
) -> Explanation:
    """Which kernel `attention` would take for the same arguments, and why; it is not run. With a
    cache beside k and v, which kernel `decode` would take.

    It also tells what rotates and by what: base 10000 where neither config nor rope_theta,
    inv_freq, cos and sin say otherwise.

    Raises:
        TypeError, ValueError, RuntimeError: what the call itself would raise.
    """
    if isinstance(k, Tensor) and options.get("k_cache") is not None and not return_lse:
        return _of_decode(q, k, v, options)
    return _explain(q, k, v, return_lse=return_lse, **options)


class _Explained(TorchDispatchMode):
    """Explains calls of the operator decode; none is run."""

    config = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if str(func).startswith("ropekit.decode"):
            func, self.config = torch.ops.ropekit.decode_explained.default, args[3]
        return func(*args, **(kwargs or {}))


def _of_decode(q: Tensor, k: Tensor, v: Tensor | None, options: Any) -> Explanation:
    with _Explained() as told, torch.no_grad():  # type: ignore[no-untyped-call]
        decode(q, k, v, **options | {"out": None})
    kernel, candidates, none, no_gradient = library.ropekit_explanation().decode().split("\1")
    why = "attention behind an append, as no kernel of decode takes the call"
    if f"{kernel} accepted" in candidates:
        why = "the first kernel of decode that takes the call"
    why = "named by kernel" if "kernel=" in told.config else why
    turns = _rotation(Arguments(q, k, v, told.config, cos=options.get("cos")))
    return Explanation(kernel, why, candidates, none, no_gradient, told.config, turns)


def _explain(
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    *,
    causal: bool | None = None,
    return_lse: bool,
    config: object = None,
    cache_layout: str = "nhd",
    tree_keys: int | None = None,
    max_seqlen_k: int | None = None,
    position_offset: int = 0,
    **options: Any,
) -> Explanation:
    refuse_fields(options, KEYWORDS, "AttentionFields")
    if not isinstance(q, Tensor):
        raise TypeError(f"q is {type(q).__name__}; allowed is a tensor")
    given = {name: options.pop(name) for name in TENSORS.names if name in options}
    filled = options.pop("cache", None)
    if filled is not None:
        parts = parts_of(filled, map(given.get, PARTS))
        given |= dict(zip(PARTS, parts, strict=True))
    call = of_autocast(Arguments(q, k, v, "", **given))
    if cache_layout != "nhd":
        call.k_cache = pages(call.k_cache, "k", cache_layout)
        call.v_cache = pages(call.v_cache, "v", cache_layout)
        call.k_scale = scales(call.k_scale, "k_scale", call.k_cache)
        call.v_scale = scales(call.v_scale, "v_scale", call.v_cache)
    call.tree_mask, call.tree_keys = masked(causal, call.tree_mask, tree_keys, options)
    text = text_for(config, options, call.q)
    if filled is not None:
        text = text_of_cache(filled, text)
    named = "kernel=" in text
    of_library = "kernel=library" in text
    if of_library:
        text = _sdpa.without_library(text)
    call.config, call.position_offset = text, whole(position_offset)
    call.max_seqlen_k = number("max_seqlen_k", max_seqlen_k)
    of_tensors = isinstance(k, Tensor) and isinstance(v, Tensor)
    is_empty = isinstance(k, Tensor) and not k.numel()
    if of_tensors and not of_library and not has_cache(call):
        settings = other_candidate(call, return_lse, is_empty)
        if settings:
            faster = _sdpa.prefers(*call.tensors, settings)
            return _of_sdpa(faster, settings, text, _rotation(call))
    asked = with_one_key(replace(call, config=of_backward(text)))
    try:
        with torch.no_grad():
            torch.ops.ropekit.attention_explained.default(*FULL.values(asked))
    except (AttributeError, RuntimeError) as error:
        refuse_attention(error, asked)
    parts = library.ropekit_explanation().decode(errors="replace").split("\1")
    kernel, candidates, backward, backward_candidates = parts
    why = "named by kernel"
    if not named:
        why = "the library's, of a table for such calls, else the first to accept"
        has = [name for name in ("k_cache", *OTHERS) if getattr(call, name) is not None]
        has += ["return_lse"] if return_lse else []
        has += ["softcap"] if _sdpa.settings_of(text).softcap else []
        told = f"declined: {has[0]} is given" if has else "not the faster one for such a call"
        candidates = f"{_sdpa.KERNEL} {told}\n{candidates}"
    return Explanation(
        kernel, why, candidates, backward, backward_candidates, text, _rotation(call)
    )


def _rotation(call: Arguments) -> str:
    fields = fields_of(call.config)
    turns = "none" if fields.get("rotation") == "off" else "qk" if call.k_cache is None else "q"
    turns = fields.get("rotate", turns)
    if turns == "none":
        return "none"
    by = "base 10000, as rope_theta is not given"
    if call.cos is not None:
        by = "cos and sin"
    elif fields.get("rope_type") == "inv_freq":
        by = "inv_freq"
    elif "rope_theta" in fields:
        by = f"rope_theta {fields['rope_theta']}"
    return f"{' and '.join(turns)}, by {by}"


def _of_sdpa(faster: str, settings: _sdpa.Settings, text: str, rotation: str) -> Explanation:
    why = "named by kernel"
    if settings.kernel != _sdpa.KERNEL:
        why = faster or "the only one of float64"
    steps = "ropekit's rotation, then torch.nn.functional.scaled_dot_product_attention"
    return Explanation(_sdpa.KERNEL, why, steps, _sdpa.KERNEL, "PyTorch's own", text, rotation)
