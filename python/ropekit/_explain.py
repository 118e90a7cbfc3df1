"""explain: which kernel a call of `attention` would take, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Unpack

from ropekit import _sdpa
from ropekit._attention import (
    KEYWORDS,
    OTHERS,
    Options,
    masked,
    number,
    of_autocast,
    other_candidate,
    with_one_key,
)
from ropekit._attention_errors import ARGUMENTS, refuse_attention
from ropekit._cache import PARTS, pages, parts_of, scales, text_of_cache
from ropekit._errors import whole
from ropekit._fields import refuse_fields
from ropekit._functions import text_for
from ropekit._library import library
from ropekit._operators import fields_of, of_backward


@dataclass(frozen=True)
class Explanation:
    """What a call of `attention` would do."""

    #: as in "cpu:avx512", or "sdpa" for our rotation and PyTorch's attention; a call whose layout
    #: or workspace it declines takes the first that accepted
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


_OF_CACHE = "k_cache", "v_cache", "block_table", "k_scale", "v_scale"


def explain(
    q: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    *,
    return_lse: bool = False,
    **options: Unpack[Options],
) -> Explanation:
    """Which kernel `attention` would take for the same arguments, and why; it is not run.

    It also tells what rotates and by what: base 10000 where neither config nor rope_theta,
    inv_freq, cos and sin say otherwise.

    Raises:
        TypeError, ValueError, RuntimeError: what the call itself would raise.
    """
    return _explain(q, k, v, return_lse=return_lse, **options)


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
    q, k, v = of_autocast((q, k, v))
    given = {"q": q, "k": k, "v": v}
    given |= {name: options.pop(name, None) for name in ARGUMENTS[3:]}
    filled = options.pop("cache", None)
    if filled is not None:
        parts = parts_of(filled, (given[name] for name in PARTS))
        given |= dict(zip(PARTS, parts, strict=True))
    if cache_layout != "nhd":
        for part in "kv":
            given[f"{part}_cache"] = pages(given[f"{part}_cache"], part, cache_layout)
            name, cache = f"{part}_scale", given[f"{part}_cache"]
            given[name] = scales(given[name], name, cache)
    given["tree_mask"], keys = masked(causal, given["tree_mask"], tree_keys, options)
    text = text_for(config, options, q)
    if filled is not None:
        text = text_of_cache(filled, text)
    named = "kernel=" in text
    of_library = "kernel=library" in text
    if of_library:
        text = _sdpa.without_library(text)
    of_cache = any(given[name] is not None for name in _OF_CACHE) or max_seqlen_k is not None
    only_library = of_library or of_cache or (keys > 0 and given["tree_mask"] is None)
    flags = given | {"return_lse": return_lse}
    others = [flags[name] for name in OTHERS]
    is_alone = all(x is None or x is False for x in others)
    if not only_library and isinstance(k, Tensor) and isinstance(v, Tensor):
        settings = other_candidate((q, k, v), text, None if is_alone and k.numel() else others)
        if settings:
            rotation = _rotation(text, given)
            return _of_sdpa(_sdpa.prefers(q, k, v, settings), settings, text, rotation)
    arguments: list[Any] = [given[name] for name in ARGUMENTS[:-1]]
    arguments.insert(3, of_backward(text))
    arguments = list(chain(*with_one_key(arguments[:11], arguments[11:])))
    numbers = whole(position_offset), keys, number("max_seqlen_k", max_seqlen_k)
    try:
        with torch.no_grad():
            torch.ops.ropekit.attention_explained.default(*arguments, *numbers)
    except (AttributeError, RuntimeError) as error:
        refuse_attention(error, arguments, numbers[0])
    parts = library.ropekit_explanation().decode(errors="replace").split("\1")
    kernel, candidates, backward, backward_candidates = parts
    why = "named by kernel"
    if not named:
        why = "the library's, of a table for such calls, else the first to accept"
        asked = "k_cache", *OTHERS
        has = [name for name in asked if flags[name] is not None and flags[name] is not False]
        has += ["softcap"] if _sdpa.settings_of(text).softcap else []
        told = f"declined: {has[0]} is given" if has else "not the faster one for such a call"
        candidates = f"{_sdpa.KERNEL} {told}\n{candidates}"
    return Explanation(
        kernel, why, candidates, backward, backward_candidates, text, _rotation(text, given)
    )


def _rotation(text: str, given: Mapping[str, Tensor | None]) -> str:
    fields = fields_of(text)
    turns = "none" if fields.get("rotation") == "off" else "qk" if given["k_cache"] is None else "q"
    turns = fields.get("rotate", turns)
    if turns == "none":
        return "none"
    by = "base 10000, as rope_theta is not given"
    if given["cos"] is not None:
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
