"""The other candidate of `attention`: our rotation, then PyTorch's scaled_dot_product_attention.

Which one a call takes follows from its device, type and shape, and whether it is compiled or
captured: `prefers`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from operator import eq
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling, is_dynamo_compiling
from torch.nn import Parameter
from torch.nn.functional import scaled_dot_product_attention

from ropekit._append_errors import FLOATS
from ropekit._attention_arguments import Arguments
from ropekit._attention_errors import KERNELS, NO_FORWARD, NO_SECOND, explain_attention
from ropekit._functions import rotate
from ropekit._library import library
from ropekit._operators import applied, fields_of, is_derived, is_tracing, of_backward

KERNEL, LIBRARY = KERNELS
_OWN = ("kernel", "rotate", "mask", "scale", "softcap", "window", "window_right", "chunk", "ring")
TAKEN = (*FLOATS, torch.float64)  # types that PyTorch's kernel takes
# Which kernel of a call on CUDA is the faster one, as the library's `ropekit_faster` has it.
FASTER = range(3)
BY_PYTORCH, BY_LIBRARY_UNCAPTURED, BY_LIBRARY_IN_VECTORS = FASTER
_faster: dict[Any, int] = {}  # what `_faster_of` found


@dataclass(frozen=True)
class Settings:
    """What a configuration says of attention."""

    text: str
    layout: str | None
    rotation: str  # the configuration for the rotation
    turns_q: bool
    turns_k: bool
    causal: bool
    scale: float | None
    window: int | None
    window_right: int | None
    chunk: int | None
    softcap: bool
    ring: str | None
    kernel: str | None
    is_limited: bool  # whether a query sees some keys only, beside the order


def _refuse(text: str) -> None:
    """Refuses what the library refuses of attention's own fields: PyTorch's kernel has none."""
    error = library.ropekit_check_attention(text.encode())
    if error:
        raise ValueError(explain_attention(error.decode()))


# As torch.compiler.assume_constant_result does, which imports the compiler, a second of processor.
_check: Callable[[str], None] = _refuse
_check._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _settings(text: str) -> Settings:
    _check(text)
    fields = fields_of(text)
    given = fields.get("rotate", "none" if fields.get("rotation") == "off" else "qk")
    numbers = {name: int(fields[name]) if name in fields else None for name in _OWN[5:8]}
    beyond = numbers["window_right"]
    if beyond == 0:  # no key after a query's own
        numbers["window_right"] = None
    kept = (part for part in text.split() if part.partition("=")[0] not in _OWN)
    return Settings(
        text=text,
        layout=fields.get("layout"),
        rotation=" ".join(kept),
        turns_q=given in ("q", "qk"),
        turns_k=given == "qk",
        causal=beyond == 0 or fields.get("mask", "causal") == "causal",
        scale=float(fields["scale"]) if "scale" in fields else None,
        window=numbers["window"],
        window_right=numbers["window_right"],
        chunk=numbers["chunk"],
        softcap="softcap" in fields,
        ring=fields.get("ring"),
        kernel=fields.get("kernel"),
        is_limited=any(x is not None for x in numbers.values()),
    )


_cached = lru_cache(maxsize=1024)(_settings)


def without_library(text: str) -> str:
    """A configuration that names the library's kernels, without that."""
    return " ".join(part for part in text.split() if part != f"kernel={LIBRARY}")


def settings_of(text: str) -> Settings:
    return _settings(text) if is_dynamo_compiling() else _cached(text)


def of_autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Tensors in the type of autocast, as PyTorch's kernel takes them; else as they are."""
    device = tensors[0].device.type
    if device == "meta" or not torch.is_autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    return tuple(x if x.dtype is torch.float64 else x.to(dtype) for x in tensors)


def are_alike(q: Tensor, k: Tensor, v: Tensor) -> bool:
    return q.dtype is k.dtype is v.dtype


def is_slow(q: Tensor) -> bool:
    """Whether PyTorch's kernel is the faster one even with a mask: float32 on CUDA, for which the
    library has its generic kernel alone."""
    return q.is_cuda and q.dtype == torch.float32


def prefers(q: Tensor, k: Tensor, v: Tensor, settings: Settings) -> str:
    """Why a call of tensors alone takes PyTorch's kernel; "" where it takes the library's.

    On CUDA PyTorch's kernel is faster on the device than the library's own, and as fast as those of
    its tables; an eager call of little work takes the library's, which asks less of the host. A
    CPU's are faster or level.
    """
    if settings.kernel is not None or settings.softcap or not q.is_cuda:
        return ""
    if is_slow(q) and q.dim() == 4:
        return "on CUDA PyTorch's kernel was measured faster in float32"
    tokens, keys = _lengths(q, k, settings)
    derives = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))
    is_plain = type(q) in (Tensor, Parameter) and not (is_compiling() or is_derived())
    if not tokens or (
        is_plain and _is_of_library((q, k, v), settings.text, (tokens, keys), derives)
    ):
        return ""
    return "on CUDA PyTorch's kernel was measured faster on the device"


def _is_in_vectors(x: Tensor) -> bool:
    """As cuDNN takes it: elements side by side, the rest in units of 16 bytes."""
    *others, last = x.stride()
    return last == 1 and not any(n % 8 for n in others) and x.data_ptr() % 16 == 0


def _is_of_library(
    tensors: tuple[Tensor, Tensor, Tensor], text: str, lengths: tuple[int, int], derives: bool
) -> bool:
    """Whether such a call takes the library's kernel, unless a graph is captured or tensors lie in
    another way than its kernel takes."""
    faster = _faster_of(tensors, text, lengths, derives)
    if faster == BY_LIBRARY_UNCAPTURED:
        return not torch.cuda.is_current_stream_capturing()
    return faster == BY_LIBRARY_IN_VECTORS and all(map(_is_in_vectors, tensors))


def _faster_of(
    tensors: tuple[Tensor, Tensor, Tensor], text: str, lengths: tuple[int, int], derives: bool
) -> int:
    """One of FASTER for tensors of such shapes; PyTorch's kernel where the library refuses them."""
    q, k, v = tensors
    in_order = derives and torch.are_deterministic_algorithms_enabled()
    key = q.device, q.dtype, q.shape, k.shape, v.shape, text, derives, in_order
    known = _faster.get(key)
    if known is not None:
        return known
    sizes = (*lengths, q.numel(), k.numel(), q.size(-1), v.size(-1), derives)
    found: int = library.ropekit_faster(None, None, *sizes)
    if found != BY_PYTORCH:
        try:
            with torch.no_grad():
                torch.ops.ropekit.attention_explained.default(q, k, v, of_backward(text))
        except RuntimeError:  # which the call itself tells
            return BY_PYTORCH
        kernel, _, backward, _ = library.ropekit_explanation().split(b"\1")
        found = library.ropekit_faster(kernel, backward, *sizes)
    if len(_faster) >= 4096:  # as of keys that grow by a token
        _faster.clear()
    _faster[key] = found
    return found


def _lengths(q: Tensor, k: Tensor, settings: Settings) -> tuple[int, int]:
    """Tokens of q and of k; 0, 0 of a call for which PyTorch's kernel needs a mask, and of a trace,
    which is for other tokens too."""
    is_traced = not is_compiling() and is_tracing()
    if q.dim() != 4 or k.dim() != 4 or settings.is_limited or is_traced:
        return 0, 0
    axis = TOKENS[settings.layout or "bshd"]
    tokens, keys = q.size(axis), k.size(axis)
    return (0, 0) if settings.causal and tokens not in (keys, 1) else (tokens, keys)


def visible(own: Tensor, key: Tensor, settings: Settings) -> Tensor | None:
    """Which keys a query sees, of indices that broadcast; None: all."""
    seen = key <= own if settings.causal else None
    for rule in (
        None if settings.window is None else key > own - settings.window,
        None if settings.window_right is None else key <= own + settings.window_right,
        None if settings.chunk is None else key // settings.chunk == own // settings.chunk,
    ):
        if rule is not None:
            seen = rule if seen is None else seen & rule
    return seen


def visible_in(tokens: int, keys: int, settings: Settings, device: torch.device) -> Tensor | None:
    """[tokens, keys] of queries that are the last of their keys."""
    own = torch.arange(tokens, device=device)[:, None] + (keys - tokens)
    return visible(own, torch.arange(keys, device=device), settings)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """scaled_dot_product_attention of [batch, heads, tokens, head_dim] in the type of q."""
    derives = torch.is_grad_enabled() and not (is_compiling() or is_tracing())
    if derives and (is_derived() or any(x.requires_grad for x in (q, k, v))):
        q, k, v = _once(q, k, v)
    grouped = bool(q.size(1) != k.size(1))  # of a trace sizes are tensors
    device = q.device.type
    if torch.is_autocast_enabled(device):
        with torch.autocast(device, enabled=False):
            return scaled_dot_product_attention(
                q, k, v, mask, dropout, causal, scale=scale, enable_gqa=grouped
            )
    return scaled_dot_product_attention(
        q, k, v, mask, dropout, causal, scale=scale, enable_gqa=grouped
    )


class _Once(torch.autograd.Function):
    """Tensors whose gradients have no derivative: PyTorch's kernel has none, and names itself."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*tensors: Tensor) -> Any:
        return tuple(x.view_as(x) for x in tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return _last(*grads) if torch.is_grad_enabled() else grads

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise RuntimeError(NO_FORWARD)


class Last(torch.autograd.Function):
    """A gradient that may be asked for a derivative of its own but has none."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*tensors: Any) -> Any:
        return tuple(x if x is None else x.view_as(x) for x in tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise RuntimeError(NO_SECOND)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise RuntimeError(NO_FORWARD)


_once, _last = applied(_Once), applied(Last)
_ORDERS = {
    "bshd": ("batch", "tokens", "heads", "head_dim"),
    "bhsd": ("batch", "heads", "tokens", "head_dim"),
    "sbhd": ("tokens", "batch", "heads", "head_dim"),
    "thd": ("tokens", "heads", "head_dim"),
}
TOKENS = {layout: order.index("tokens") for layout, order in _ORDERS.items()}
_HEADS = {layout: order.index("heads") for layout, order in _ORDERS.items()}
BATCH = {"bshd": 0, "bhsd": 0, "sbhd": 1, "thd": -1}  # -1: none, as head_dim is compared as well


def _fit(q: Tensor, k: Tensor, v: Tensor, layout: str) -> bool:
    """Whether the library takes such shapes, of which PyTorch broadcasts more."""
    of_q, of_k, of_v = q.shape, k.shape, v.shape
    if not len(of_q) == len(of_k) == len(of_v) == len(_ORDERS[layout]):
        return False
    batch, heads = BATCH[layout], _HEADS[layout]
    if of_k[:-1] != of_v[:-1] or of_q[-1] != of_k[-1] or of_q[batch] != of_k[batch]:
        return False
    return bool(of_k[-1] and of_v[-1] and of_k[heads] and of_q[heads] % of_k[heads] == 0)


def _refuse_shapes(q: Tensor, k: Tensor, v: Tensor, layout: str) -> None:
    """Says in the library's words why `_fit` is false."""
    order = _ORDERS[layout]
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() != len(order):
            packed = ", or 3 with layout='thd'" if x.dim() == len(_ORDERS["thd"]) else ""
            raise ValueError(
                f"{name} has {x.dim()} dimensions; allowed is {len(order)}, for layout "
                f"{layout!r}{packed}"
            )
        if x.shape[-1] == 0:
            raise ValueError(f"{name} has head_dim 0; allowed is 1..576")
    of_q, of_k, of_v = ({"batch": 1} | dict(zip(order, x.shape, strict=True)) for x in (q, k, v))
    for name in ("batch", "head_dim"):
        if of_k[name] != of_q[name]:
            raise ValueError(f"k has {name} {of_k[name]}; allowed is that of q, {of_q[name]}")
    heads = of_k["heads"]
    if heads == 0:
        raise ValueError("k has 0 heads; allowed is > 0")
    if of_q["heads"] % heads:
        raise ValueError(
            f"k has {heads} heads; allowed is a divisor of {of_q['heads']}, the heads of q in this "
            "layout"
        )
    if (of_v["batch"], of_v["tokens"]) != (of_k["batch"], of_k["tokens"]):
        raise ValueError(
            f"v has batch {of_v['batch']} and {of_v['tokens']} tokens; allowed is that of k, "
            f"{of_k['batch']} and {of_k['tokens']}"
        )
    if of_v["heads"] != heads:
        raise ValueError(f"v has {of_v['heads']} heads; allowed is that of k, {heads}")


_POSITIONS = "positions", "k_positions", "sequence_offsets", "sequence_lengths", "cos", "sin"


def _check_positions(settings: Settings, call: Arguments, are_alike: bool) -> None:
    """Refuses, in the library's words, what no rotation reads and positions of one of q and k."""
    if not (settings.turns_q or settings.turns_k):
        given = {name: getattr(call, name) for name in _POSITIONS}
        given["position_offset"] = call.position_offset or None
        for name, x in given.items():
            if x is not None:
                raise ValueError(f"{name} is given; allowed is None where neither q nor k rotates")
    ids, key_ids = call.positions, call.k_positions
    if key_ids is not None and not settings.turns_k:
        raise ValueError(
            "k_positions is given; allowed is None where keys do not rotate, unless there is a "
            "tree_mask with a window or chunk"
        )
    if key_ids is not None and ids is None:
        raise ValueError(
            "k_positions is given alone; allowed is positions and k_positions together"
        )
    if settings.turns_k and ids is not None and key_ids is None and not are_alike:
        raise ValueError(
            "k_positions is not given; allowed with positions is a tensor, unless k has the tokens "
            "of q"
        )


def _check_keys(tokens: int, keys: int, ring: str | None) -> None:
    if keys == 0 and tokens:
        raise ValueError("k has 0 tokens; allowed is > 0")
    if ring is not None:
        raise ValueError(f"ring is {ring}; allowed is None without a cache")


def run(
    call: Arguments,
    settings: Settings,
    *,
    by: Callable[..., Tensor] = attend,
    equal: Callable[[Any, Any], bool] = eq,
) -> Tensor:
    """The call by PyTorch's kernel, or another. `equal` tells whether q and k have as many
    tokens."""
    q, k, v = call.tensors
    layout = settings.layout or ("thd" if q.dim() == 3 else "bshd")
    axis = TOKENS[layout]
    if not is_compiling() and not _fit(q, k, v, layout):
        _refuse_shapes(q, k, v, layout)
    tokens, keys = q.size(axis), k.size(axis)
    is_square = equal(tokens, keys)
    _check_keys(tokens, keys, settings.ring)
    positions, k_positions = call.positions, call.k_positions
    _check_positions(settings, call, is_square)
    if settings.turns_q or settings.turns_k:
        tables = call.sequence_offsets, None, call.sequence_lengths, call.cos, call.sin
        more = tables if any(x is not None for x in tables) else ()
        text = settings.rotation
        if layout == "thd" and settings.layout is None:
            text = f"{text} layout=thd".lstrip()
        if settings.turns_q and settings.turns_k and is_square and k_positions is None:
            q, k = rotate(2, q, k, text, positions, call.position_offset, *more)
        else:
            behind = keys - tokens if positions is None else 0
            if settings.turns_q:
                q = rotate(1, q, text, positions, call.position_offset + behind, *more)
            if settings.turns_k:
                own = positions if k_positions is None and is_square else k_positions
                k = rotate(1, k, f"{text} role=k".lstrip(), own, call.position_offset, *more)
    square = bool(settings.causal and is_square)
    mask = None
    if settings.is_limited or (settings.causal and not square and tokens != 1):
        mask, square = visible_in(tokens, keys, settings, q.device), False
    if layout == "bhsd":
        return by(q, k, v, mask=mask, causal=square, scale=settings.scale)
    if layout == "sbhd":
        moved = (x.permute(1, 2, 0, 3) for x in (q, k, v))
        found = by(*moved, mask=mask, causal=square, scale=settings.scale)
        return found.permute(2, 0, 1, 3)
    if layout == "thd":
        q, k, v = (x.unsqueeze(0) for x in (q, k, v))
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    found = by(q, k, v, mask=mask, causal=square, scale=settings.scale).transpose(1, 2)
    return found.squeeze(0) if layout == "thd" else found


def refuse_others(settings: Settings, others: Mapping[str, Any], why: str) -> None:
    """Refuses what PyTorch's kernel has not."""
    for name, x in others.items():
        if x is not None:
            raise ValueError(f"{name} is given; allowed {why} is None")
    if settings.softcap:
        raise ValueError(f"softcap is given; allowed {why} is None")
