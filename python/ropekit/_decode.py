"""decode: append and attention as one operator, torch.ops.ropekit.decode."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling
from typing_extensions import Unpack

from ropekit import _sdpa
from ropekit._append import settle
from ropekit._append_errors import CACHES, FIXED, refuse_gradients
from ropekit._attention import by_token, layout_for, masked, number
from ropekit._cache import CacheLayout, pages, scales
from ropekit._decode_errors import (
    ALWAYS,
    ARGUMENTS,
    NUMBERS,
    WRITTEN,
    check_decode,
    given_of,
    refuse_decode,
)
from ropekit._errors import whole
from ropekit._fields import LayerFields, refuse_fields
from ropekit._functions import text_for
from ropekit._operators import (
    are_transforms_active,
    check_may_write,
    define,
    fields_of,
    implement,
    increment_version,
    is_tracing,
)


def _argument(name: str) -> str:
    letter = "abcde"[WRITTEN.index(name)] if name in WRITTEN else ""
    kind = f"Tensor{f'({letter}!)' if letter else ''}"
    if name in ALWAYS:
        return f"{kind} {name}"
    return f"{kind}? {name}{'' if name == 'v' else '=None'}"  # ahead of what has no default


def _schema(names: tuple[str, ...]) -> str:
    return ", ".join((*map(_argument, names[:3]), "str config", *map(_argument, names[3:])))


def _fake(*arguments: Any) -> Tensor:
    given = {name: x for name, x in given_of(arguments).items() if isinstance(x, Tensor)}
    check_decode(given)
    settle(given)
    q, config = given["q"], arguments[3]
    width = given.get("v", given["v_cache"]).shape[-1]
    return by_token([*q.shape[:-1], width], layout_for(q, config), q.dtype, q.device)


_SCHEMA = _schema(ARGUMENTS) + "".join(f", SymInt {name}=0" for name in NUMBERS)
# The second for a caller that counts what is written, the third for `explain`.
for _name in ("decode", "decode_no_grad", "decode_explained"):
    define(_name, f"({_SCHEMA}) -> Tensor", _fake)
_FEW = ARGUMENTS.index("k_weight") + 1  # that most calls give: PyTorch takes its time over each
define("decode_no_grad.few", f"({_schema(ARGUMENTS[:_FEW])}) -> Tensor", _fake)
_OUT = ARGUMENTS.index("k_lengths") + 2  # its place, behind k_lengths and config
_INTO_SCHEMA = _SCHEMA.replace("Tensor? block_table", "Tensor(f!) out, Tensor? block_table")
define("decode_no_grad.into", f"({_INTO_SCHEMA}) -> ()", lambda *_: None)


def _written(arguments: Any) -> dict[str, Tensor]:
    return {name: x for name, x in given_of(arguments).items() if name in WRITTEN}


def _counted(keyset: Any, *arguments: Any) -> Tensor:
    if torch.is_grad_enabled():
        refuse_gradients(given_of(arguments).items())
    written = _written(arguments)
    check_may_write(written)
    below = keyset & torch._C._after_ADInplaceOrView_keyset
    found: Tensor = _OPERATOR.redispatch(below, *arguments)
    increment_version(list(written.values()))
    return found


implement("decode", _counted, "ADInplaceOrView", with_keyset=True)
_OPERATOR = torch.ops.ropekit.decode.default
for _name in ("", ".few", ".into"):  # else autograd looks at each tensor
    implement(f"decode_no_grad{_name}", torch.library.fallthrough_kernel, "Autograd")
_DIRECT: Any = torch.ops.ropekit.decode_no_grad.default._op
_DIRECT_FEW: Any = torch.ops.ropekit.decode_no_grad.few._op
_DIRECT_INTO: Any = torch.ops.ropekit.decode_no_grad.into._op


class Options(LayerFields, total=False):
    """Keywords of `decode` but caches and k_lengths."""

    block_table: Tensor | None
    slots: Tensor | None
    cache_starts: Tensor | None
    cache_layout: CacheLayout
    causal: bool | None
    config: object
    positions: Tensor | None
    k_positions: Tensor | None
    q_weight: Tensor | None
    k_weight: Tensor | None
    v_weight: Tensor | None
    k_scale: Tensor | None
    v_scale: Tensor | None
    k_scale_out: Tensor | None
    v_scale_out: Tensor | None
    max_seqlen_k: int | None
    max_seqlen_q: int | None
    sinks: Tensor | None
    tree_mask: Tensor | None
    tree_keys: int | None
    position_offset: int
    sequence_offsets: Tensor | None
    cu_seqlens: Tensor | None
    sequence_lengths: Tensor | None
    cos: Tensor | None
    sin: Tensor | None
    position_flag: Tensor | None


_KEYWORDS = frozenset({*Options.__annotations__, *CACHES, "k_lengths", "out"})


def decode(
    q: Tensor,
    k: Tensor,
    v: Tensor | None,
    *,
    k_cache: Tensor,
    v_cache: Tensor,
    k_lengths: Tensor,
    block_table: Tensor | None = None,
    slots: Tensor | None = None,
    cache_starts: Tensor | None = None,
    cache_layout: CacheLayout = "nhd",
    causal: bool | None = None,
    config: object = None,
    positions: Tensor | None = None,
    k_positions: Tensor | None = None,
    q_weight: Tensor | None = None,
    k_weight: Tensor | None = None,
    v_weight: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    k_scale_out: Tensor | None = None,
    v_scale_out: Tensor | None = None,
    max_seqlen_k: int | None = None,
    max_seqlen_q: int | None = None,
    sinks: Tensor | None = None,
    tree_mask: Tensor | None = None,
    tree_keys: int | None = None,
    position_offset: int = 0,
    sequence_offsets: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    sequence_lengths: Tensor | None = None,
    cos: Tensor | None = None,
    sin: Tensor | None = None,
    position_flag: Tensor | None = None,
    out: Tensor | None = None,
    **fields: Unpack[LayerFields],
) -> Tensor:
    """Appends new tokens to a cache and attends from them: `append`, then `attention`, in one call.

    q and k are normalised and rotated, k and v are cached, and each query attends to the keys of
    its sequence there, the new ones included. A call may have one token of each sequence, a few
    drafts, or a prompt.

    Example:
        >>> k_cache, v_cache = torch.zeros(2, 4, 16, 2, 64)  # page, slot, head, element
        >>> pages = torch.tensor([[0, 1], [2, 3]])  # of each of two sequences
        >>> q, (k, v) = torch.randn(2, 1, 8, 64), torch.randn(2, 2, 1, 2, 64)
        >>> caches = {"k_cache": k_cache, "v_cache": v_cache, "block_table": pages}
        >>> out = ropekit.decode(q, k, v, k_lengths=torch.tensor([6, 1]), **caches)
        >>> out.shape, torch.equal(v_cache[0, 5], v[0, 0])
        (torch.Size([2, 1, 8, 64]), True)

    Tensors:
        q, k, v: of the new tokens, [batch, tokens, heads, head_dim], [tokens, heads, head_dim] of
            packed sequences, or the order of `layout`; the heads of k and v divide those of q. v is
            None where values are the first elements of cached keys, as of DeepSeek's absorbed MLA:
            v_cache is then a view of k_cache, as k_cache[..., :512], and has its scales. A norm
            and a factor of v are refused.
        k_lengths: [sequences], int32 or int64, keys of each sequence with the new ones, which are
            its last.

    Cache:
        k_cache, v_cache, block_table, cache_layout, ring: as of `append`.
        slots: places of the new tokens, as of `append`; block_table then names all pages.
        cache_starts: [sequences], the index of the first new token of each. None: what
            position_offset and sequence_offsets give, and without those by k_lengths.
        k_scale, v_scale, k_scale_out, v_scale_out: as of `append`.
        max_seqlen_k: as of `attention`.
        max_seqlen_q: no sequence of cu_seqlens has more new tokens. So one launch may take them
            where they are few. A GPU may leave out a sequence that has more, and sets
            position_flag. None: any may have all tokens.
        out: receives the result, which is else a new tensor. There tokens of no sequence are 0;
            here they may keep what it holds.

    Rotation, norms and positions:
        config, positions, position_offset, sequence_offsets, cu_seqlens, sequence_lengths, cos,
            sin, position_flag, q_weight, k_weight, v_weight: as of `append`. Without positions,
            offsets and starts a token's position is its index in its sequence.
        fields: those of `append` and of `attention`, but for rotate.

    Masks:
        causal, tree_mask, tree_keys, k_positions, sinks, and fields as window: as of `attention`.

    Values are those of the two calls where a kernel of attention is composed with an append, bit
    for bit; `kernel` names one, or "composed" for the library's choice among them. A kernel that
    does all in one launch is within the same bound of error. Lists of one integer type, and slots
    with positions, save a packed call small launches. There is no gradient: where a weight requires
    one, call it within torch.no_grad(). Under torch.compile a function is compiled anew for other
    sizes of its caches.

    Returns:
        out, as of `attention`.

    Raises:
        TypeError, ValueError, RuntimeError: as `append` does; nothing is written then.
    """
    if fields:
        refuse_fields(fields, _KEYWORDS, "LayerFields")
    are_tensors = isinstance(q, Tensor) and isinstance(k, Tensor) and isinstance(k_lengths, Tensor)
    are_tensors = are_tensors and isinstance(k_cache, Tensor) and isinstance(v_cache, Tensor)
    if not (are_tensors and (isinstance(v, Tensor) or v is None)):
        _refuse_others(q, k, v, k_lengths, k_cache, v_cache)
    if cache_layout != "nhd":
        k_cache, v_cache = (pages(x, n, cache_layout) for n, x in (("k", k_cache), ("v", v_cache)))  # type: ignore[assignment]
        k_scale, k_scale_out = (
            scales(x, n, k_cache) for n, x in (("k_scale", k_scale), ("k_scale_out", k_scale_out))
        )
        v_scale, v_scale_out = (
            scales(x, n, v_cache) for n, x in (("v_scale", v_scale), ("v_scale_out", v_scale_out))
        )
    options: Any = fields
    if causal is not None or tree_mask is not None or tree_keys is not None:
        tree_mask, tree_keys = masked(causal, tree_mask, tree_keys, options)
    text = text_for(config, options, q)
    if "kernel=library" in text:
        text = _sdpa.without_library(text)
    offset = whole(position_offset)
    if cache_starts is None and sequence_offsets is None and isinstance(offset, int) and not offset:
        if positions is not None and slots is None:
            cache_starts = _starts(q, text, k_lengths, cu_seqlens)
        elif positions is None and cu_seqlens is not None and not _is_unread(slots, text):
            sequence_offsets = _starts(q, text, k_lengths, cu_seqlens)
    arguments: Any = (q, k, v, text, k_cache, v_cache, k_lengths, block_table, positions)
    arguments = (*arguments, q_weight, k_weight)  # those of _DIRECT_FEW
    usual = slots is cu_seqlens is cache_starts is sequence_offsets is sequence_lengths is None
    usual = usual and v_weight is tree_mask is k_positions is cos is sin is position_flag is None
    usual = usual and sinks is k_scale is v_scale is k_scale_out is v_scale_out is None
    usual = usual and out is None
    if usual and not (offset or tree_keys) and max_seqlen_k is max_seqlen_q is None:
        return _call(arguments, [k_cache, v_cache])
    if out is not None and not isinstance(out, Tensor):
        raise TypeError(f"out is {type(out).__name__}; allowed is a tensor or None")
    stored = sinks, k_scale, v_scale, k_scale_out, v_scale_out
    places = slots, cu_seqlens, cache_starts, sequence_offsets, sequence_lengths, v_weight
    others = tree_mask, k_positions, cos, sin, position_flag
    most = number("max_seqlen_k", max_seqlen_k), number("max_seqlen_q", max_seqlen_q)
    arguments = (*arguments, *stored, *places, *others, offset, tree_keys or 0, *most)
    results = k_cache, v_cache, k_scale_out, v_scale_out, position_flag, out
    return _call(arguments, [x for x in results if x is not None], out)


def _refuse_others(*tensors: Any) -> None:
    names = "q", "k", "v", "k_lengths", "k_cache", "v_cache"
    allowed = {"v": "a tensor or None", "v_cache": "a tensor, which without v is a view of k_cache"}
    for name, x in zip(names, tensors, strict=True):
        if not isinstance(x, Tensor) and (name != "v" or x is not None):
            which = allowed.get(name, "a tensor")
            raise TypeError(f"{name} is {type(x).__name__}; allowed is {which}")


def _is_unread(slots: Tensor | None, text: str) -> bool:
    """Whether neither a rotation nor the cache asks for a token's index."""
    return slots is not None and fields_of(text).get("rotation") == "off"


def _starts(q: Tensor, text: str, k_lengths: Tensor, cu_seqlens: Tensor | None) -> Tensor | None:
    """The index of each sequence's first new token; None by lists that the operator refuses."""
    if cu_seqlens is None:
        return k_lengths - q.shape[_sdpa.TOKENS[layout_for(q, text)]]
    if not isinstance(cu_seqlens, Tensor) or cu_seqlens.dtype not in FIXED["cu_seqlens"]:
        return None
    fit = k_lengths.device == cu_seqlens.device and k_lengths.dim() == cu_seqlens.dim() == 1
    if not is_tracing():  # of a trace sizes are tensors
        fit = fit and cu_seqlens.numel() == k_lengths.numel() + 1
    return k_lengths - cu_seqlens.diff() if fit else None


def _may_require(arguments: Any) -> bool:
    """Whether a gradient may be required. Of the usual arguments the others are integers."""
    q, k, v, _, k_cache, v_cache, _, _, _, *weights = arguments
    if len(weights) > 2 or weights[0] is not None or weights[1] is not None:
        return True
    are_wanted = q.requires_grad or k.requires_grad or (v is not None and v.requires_grad)
    return bool(are_wanted or k_cache.requires_grad or v_cache.requires_grad)


def _call(arguments: Any, written: list[Tensor], out: Tensor | None = None) -> Tensor:
    try:
        if is_compiling() or are_transforms_active():
            made: Tensor = _OPERATOR(*arguments)
            return made if out is None else out.copy_(made)
        if torch.is_grad_enabled() and _may_require(arguments):
            refuse_gradients([*given_of(arguments).items(), ("out", out)])
        is_apart = not torch.is_inference_mode_enabled()
        for x in written:
            if x.is_neg() or (is_apart and x.is_inference()):
                check_may_write(_written(arguments) | ({} if out is None else {"out": out}))
        if out is not None:
            found = out
            _DIRECT_INTO(*arguments[:_OUT], out, *arguments[_OUT:])
        else:
            direct = _DIRECT if len(arguments) > _FEW + 1 else _DIRECT_FEW
            found = direct(*arguments)
    except (AttributeError, RuntimeError) as error:
        refuse_decode(error, arguments)
    increment_version(written)
    return found
