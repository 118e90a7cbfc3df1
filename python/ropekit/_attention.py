"""attention: rotation and attention as one operator, torch.ops.ropekit.attention."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal, overload

import torch
from torch import Tensor
from torch.compiler import is_compiling, is_dynamo_compiling
from typing_extensions import Unpack

from ropekit import _norms, _sdpa
from ropekit._attention_arguments import (
    CACHED,
    FEW,
    FLAGGED,
    FULL,
    NUMBERS,
    TENSORS,
    USUAL,
    Arguments,
    Signature,
)
from ropekit._attention_errors import (
    NO_FORWARD,
    check_attention,
    check_differentiable,
    check_no_grad,
    check_no_tangent,
    refuse_attention,
    wants_gradient,
)
from ropekit._cache import CacheLayout, KeyValueCache, pages, parts_of, scales, text_of_cache
from ropekit._errors import whole
from ropekit._fields import AttentionFields, refuse_fields
from ropekit._functions import text_for
from ropekit._operators import (
    applied,
    are_transforms_active,
    check_may_write,
    check_trace,
    define,
    fields_of,
    follows_length,
    implement,
    increment_version,
    is_derived,
    is_tracing,
    of_backward,
)


def rotated(config: str) -> tuple[bool, bool]:
    """Whether q and k rotate, where they are tensors."""
    fields = fields_of(config)
    rotate = fields.get("rotate", "none" if fields.get("rotation") == "off" else "qk")
    return rotate in ("q", "qk"), rotate == "qk"


# ---- fake kernels ----


def layout_for(q: Tensor, config: str) -> str:
    layout = fields_of(config).get("layout", "thd" if q.dim() == 3 else "bshd")
    dims = 3 if layout == "thd" else 4
    if q.dim() != dims:
        raise ValueError(f"q has {q.dim()} dimensions; allowed is {dims}, for layout {layout!r}")
    return layout


def by_token(sizes: list[Any], layout: str, dtype: torch.dtype, device: torch.device) -> Tensor:
    """As results_like of python/csrc/attention_results.c: by token in memory."""
    if layout != "bhsd":
        return torch.empty(sizes, dtype=dtype, device=device)
    sizes[1], sizes[2] = sizes[2], sizes[1]
    return torch.empty(sizes, dtype=dtype, device=device).transpose(1, 2)


def _fake_out(call: Arguments) -> tuple[Tensor, str]:
    check_attention(TENSORS.given(call))
    q, layout = call.q, layout_for(call.q, call.config)
    values = call.v_cache if call.v is None else call.v
    if values is None:
        raise ValueError("v and v_cache are None; allowed is one of them")
    width = values.shape[-1] * (values.shape[3] if values.dim() == 5 else 1)
    return by_token([*q.shape[:-1], width], layout, q.dtype, q.device), layout


def _fake(call: Arguments) -> Tensor:
    return _fake_out(call)[0]


def _fake_lse(call: Arguments) -> tuple[Tensor, Tensor]:
    out, layout = _fake_out(call)
    return out, by_token([*out.shape[:-1]], layout, torch.float32, out.device)


def _fake_rotated(call: Arguments) -> tuple[Tensor, ...]:
    check_differentiable(TENSORS.given(call))
    out, layout = _fake_out(call)
    q, k, _ = call.tensors
    weights = call.q_weight, call.k_weight
    found = (
        by_token([*x.shape], layout, x.dtype, x.device) if turn and w is None else q.new_empty(0)
        for x, w, turn in zip((q, k), weights, rotated(call.config), strict=True)
    )
    return (out, by_token([*out.shape[:-1]], layout, torch.float32, out.device), *found)


def _fake_backward(dout: Tensor, out: Tensor, lse: Tensor, *values: Any) -> tuple[Tensor, ...]:
    call = FULL.read(values)
    check_differentiable(TENSORS.given(call))
    like, layout = _fake_out(call)
    for name, x, shape in (
        ("dout", dout, like.shape),
        ("out", out, like.shape),
        ("lse", lse, like.shape[:-1]),
    ):
        if x.shape != shape:
            raise ValueError(f"{name} has the shape {list(x.shape)}; allowed is {list(shape)}")
    found = [by_token([*x.shape], layout, x.dtype, x.device) for x in call.tensors]
    for given in (call.sinks, call.q_weight, call.k_weight):
        shape = torch.Size((0,)) if given is None else given.shape
        found.append(torch.empty(shape, dtype=torch.float32, device=out.device))
    return tuple(found)


# ---- the operators; those named no_grad are for a caller that looks for gradients itself ----

_KINDS: dict[str, tuple[Signature, str, Any]] = {
    "attention": (FULL, "Tensor", _fake),
    "attention_lse": (FULL, "(Tensor, Tensor)", _fake_lse),
    "attention_flag": (FLAGGED, "(Tensor, Tensor)", _fake_lse),
}
_OPERATORS: dict[str, Any] = {}
_DIRECT: dict[str, Any] = {}


def _define(name: str, signature: Signature, results: str, fake: Any) -> None:
    define(name, f"({signature.schema}) -> {results}", lambda *x: fake(signature.read(x)))


def _flagged(keyset: Any, *values: Any) -> Any:
    """attention_flag, which has no gradient."""
    call = FLAGGED.read(values)
    check_no_grad(TENSORS.given(call), "attention with position_flag")
    if call.position_flag is not None:
        check_may_write({"position_flag": call.position_flag})
    below = keyset & torch._C._after_ADInplaceOrView_keyset
    found = _OPERATORS["attention_flag"].redispatch(below, *values)
    if call.position_flag is not None:
        increment_version([call.position_flag])
    return found


def _derived(name: str) -> Any:
    """attention or attention_lse, of which derivatives are recorded where they are asked for."""

    def attend(keyset: Any, *values: Any) -> Any:
        call = FULL.read(values)
        if wants_gradient(TENSORS.given(call)):
            return _recorded(name, call)
        below = keyset & torch._C._after_autograd_keyset
        return _OPERATORS[name].redispatch(below, *values)

    return attend


def _recorded(name: str, call: Arguments) -> Any:
    out, lse, *_ = recorded(*FULL.values(call))
    return (out, lse) if name == "attention_lse" else out


def _refusing(name: str) -> Any:
    """What a derivative calls, of which there is none."""

    def run(keyset: Any, *arguments: Any) -> Any:
        check_no_grad({f"argument {i}": x for i, x in enumerate(arguments)}, name)
        below = keyset & torch._C._after_ADInplaceOrView_keyset
        return getattr(torch.ops.ropekit, name).default.redispatch(below, *arguments)

    return run


for _name, (_signature, _results, _of) in _KINDS.items():
    for _own in (_name, f"{_name}_no_grad"):
        _define(_own, _signature, _results, _of)
    _OPERATORS[_name] = getattr(torch.ops.ropekit, _name).default
    _DIRECT[_name] = getattr(torch.ops.ropekit, f"{_name}_no_grad").default._op
_define("attention_no_grad.few", FEW, "Tensor", _fake)
_define("attention_no_grad.cached", CACHED, "Tensor", _fake)
_few: Any = torch.ops.ropekit.attention_no_grad.few._op
_cached: Any = torch.ops.ropekit.attention_no_grad.cached._op
implement("attention_flag", _flagged, "ADInplaceOrView", with_keyset=True)
for _name in ("attention", "attention_lse"):
    implement(_name, _derived(_name), "Autograd", with_keyset=True)
_define("attention_explained", FULL, "Tensor", _fake)
_FOUR = "(Tensor, Tensor, Tensor, Tensor)"
_SIX = "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
_define("attention_rotated", FULL, _FOUR, _fake_rotated)
_FIRST = "Tensor dout, Tensor out, Tensor lse"
define("attention_backward", f"({_FIRST}, {FULL.schema}) -> {_SIX}", _fake_backward)
for _name in ("attention_rotated", "attention_backward"):
    implement(_name, _refusing(_name), "ADInplaceOrView", with_keyset=True)


# ---- the gradient ----

_NO_GRADIENTS = dict.fromkeys(FULL.names)


def _is_last() -> bool:
    """Whether nobody takes a derivative of what runs now."""
    return not (torch.is_grad_enabled() or is_compiling() or are_transforms_active())


def _within(operator: Any, *arguments: Any) -> Any:
    """An operator that a derivative calls, there without the operator's own check that it is one:
    PyTorch's dispatcher would call Python for that, twice as long as the rest takes."""
    if not _is_last():
        return operator.default(*arguments)
    with torch._C._AutoDispatchBelowADInplaceOrView():
        return operator.default._op(*arguments)


class _Attention(torch.autograd.Function):
    """The arguments of attention_rotated. What it rotated is saved in place of q and k, but of one
    with a norm, whose gradient reads what the norm read."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*arguments: Any) -> Any:
        return _within(torch.ops.ropekit.attention_rotated, *arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        call = Arguments(*inputs)
        out, lse, turned_q, turned_k = output
        ctx.mark_non_differentiable(lse, turned_q, turned_k)
        ctx.set_materialize_grads(False)
        turns_q, turns_k = rotated(call.config)
        call.q = turned_q if turns_q and call.q_weight is None else call.q
        call.k = turned_k if turns_k and call.k_weight is None else call.k
        ctx.config, ctx.numbers = call.config, NUMBERS.values(call)
        ctx.save_for_backward(out, lse, *TENSORS.values(call))

    @staticmethod
    def backward(ctx: Any, dout: Tensor | None, *_: Any) -> Any:
        if dout is None:
            return tuple(_NO_GRADIENTS.values())
        out, lse, q, k, v, *others, flag = ctx.saved_tensors
        values = (q, k, v, of_backward(ctx.config), *others, *ctx.numbers, flag)
        call = Arguments(*values)
        dout = dout if all(dout.stride()) else dout.contiguous()
        backward = _Gradient.forward if _is_last() else _gradient
        dq, dk, dv, *others = backward(dout, out, lse, *FULL.values(call))
        found = {"q": dq, "k": dk, "v": dv}
        for name, x in zip(("sinks", "q_weight", "k_weight"), others, strict=True):
            given = getattr(call, name)
            if given is not None:
                found[name] = x.to(given.dtype)
        return tuple((_NO_GRADIENTS | found).values())

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise RuntimeError(NO_FORWARD)


class _Gradient(_sdpa.Last):
    @staticmethod
    def forward(*arguments: Any) -> Any:
        return _within(torch.ops.ropekit.attention_backward, *arguments)


recorded, _gradient = applied(_Attention), applied(_Gradient)


# ---- the function ----


def bits_of(mask: Tensor) -> tuple[Tensor, int]:
    """Words of 32 bits from one bool for each query and key, and how many keys they cover."""
    keys = mask.shape[-1]
    words = torch.nn.functional.pad(mask, (0, -keys % 32)).unflatten(-1, (-1, 32))
    values = [1 << i for i in range(31)] + [-(1 << 31)]
    weights = torch.tensor(values, dtype=torch.int32, device=mask.device)
    return (words * weights).sum(-1, dtype=torch.int32), keys


def masked(
    causal: bool | None, tree_mask: Tensor | None, tree_keys: int | None, fields: Any
) -> tuple[Tensor | None, int]:
    """The bits of a tree and their count; `fields` gets the mask."""
    if causal is not None:
        if not isinstance(causal, bool):
            raise TypeError(f"causal is {causal!r}; allowed is True, False or None")
        fields["mask"] = "causal" if causal else "full"
    if isinstance(tree_mask, Tensor) and tree_mask.dtype == torch.bool:
        if tree_keys is not None:
            raise ValueError(f"tree_keys is {tree_keys}; allowed with a tree_mask of bool is None")
        if tree_mask.dim() not in (2, 3) or tree_mask.shape[-1] == 0:
            raise ValueError(
                f"tree_mask has the shape {list(tree_mask.shape)}; allowed is [batch, tokens, "
                "keys] or [tokens, keys]"
            )
        return bits_of(tree_mask)
    return tree_mask, number("tree_keys", tree_keys)


def number(name: str, value: int | None) -> int:
    """0 stands for None in the operator, and so is refused."""
    if value is None:
        return 0
    number = whole(value, name)
    if isinstance(number, int) and not 0 < number < 2**63:
        raise ValueError(f"{name} is {number}; allowed is > 0, or None")
    return number


class Options(AttentionFields, total=False):
    """Keywords of `attention` but return_lse."""

    causal: bool | None
    positions: Tensor | None
    k_positions: Tensor | None
    config: object
    cu_seqlens: Tensor | None
    k_cu_seqlens: Tensor | None
    q_lengths: Tensor | None
    k_lengths: Tensor | None
    cache: KeyValueCache | None
    k_cache: Tensor | None
    v_cache: Tensor | None
    block_table: Tensor | None
    cache_layout: CacheLayout
    k_scale: Tensor | None
    v_scale: Tensor | None
    max_seqlen_k: int | None
    sinks: Tensor | None
    tree_mask: Tensor | None
    tree_keys: int | None
    position_offset: int
    sequence_offsets: Tensor | None
    sequence_lengths: Tensor | None
    cos: Tensor | None
    sin: Tensor | None
    q_weight: Tensor | None
    k_weight: Tensor | None
    position_flag: Tensor | None


KEYWORDS = frozenset({*Options.__annotations__, "return_lse"})


@overload
def attention(
    q: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    *,
    return_lse: Literal[False] = False,
    **options: Unpack[Options],
) -> Tensor: ...


@overload
def attention(
    q: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    *,
    return_lse: Literal[True],
    **options: Unpack[Options],
) -> tuple[Tensor, Tensor]: ...


@overload
def attention(
    q: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    *,
    return_lse: bool,
    **options: Unpack[Options],
) -> Tensor | tuple[Tensor, Tensor]: ...


def attention(
    q: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    *,
    causal: bool | None = None,
    return_lse: bool = False,
    positions: Tensor | None = None,
    k_positions: Tensor | None = None,
    config: object = None,
    cu_seqlens: Tensor | None = None,
    k_cu_seqlens: Tensor | None = None,
    q_lengths: Tensor | None = None,
    k_lengths: Tensor | None = None,
    cache: KeyValueCache | None = None,
    k_cache: Tensor | None = None,
    v_cache: Tensor | None = None,
    block_table: Tensor | None = None,
    cache_layout: CacheLayout = "nhd",
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    max_seqlen_k: int | None = None,
    sinks: Tensor | None = None,
    tree_mask: Tensor | None = None,
    tree_keys: int | None = None,
    position_offset: int = 0,
    sequence_offsets: Tensor | None = None,
    sequence_lengths: Tensor | None = None,
    cos: Tensor | None = None,
    sin: Tensor | None = None,
    q_weight: Tensor | None = None,
    k_weight: Tensor | None = None,
    position_flag: Tensor | None = None,
    **fields: Unpack[AttentionFields],
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention of unrotated queries; keys and values are tensors or a cache.

    A sequence has m queries and n keys, and query i has the index n - m + i among the keys: a
    prompt, a part of one and one decoded token are the same call.

    Example:
        >>> q, (k, v) = torch.randn(1, 16, 8, 64), torch.randn(2, 1, 16, 2, 64)
        >>> out = ropekit.attention(q, k, v, rope_theta=500000.0)
        >>> out.shape
        torch.Size([1, 16, 8, 64])
        >>> last = ropekit.attention(q[:, -1:], k, v, rope_theta=500000.0)
        >>> torch.allclose(last, out[:, -1:], atol=1e-5)
        True

    Tensors:
        q: [batch, tokens, heads, head_dim], [tokens, heads, head_dim] of packed sequences, or the
            order of `layout`; float32, float16 or bfloat16.
        k, v: in the same order, of as many heads as divide those of q; v may have a head_dim of its
            own. None with a cache.
        sinks: [heads], float32 or the type of q: a logit of each head that takes part in the
            softmax and has no value.
        q_lengths, k_lengths: [sequences], int32 or int64, queries and keys that each sequence has,
            in tokens; the rest is padding. k_lengths is required with a cache. Beside cu_seqlens
            they are seqused_q and seqused_k of flash-attention: of its part a sequence uses the
            first so many rows.
        cu_seqlens, k_cu_seqlens: [sequences + 1], boundaries of packed sequences in q, and in k and
            v where they differ.

    Masks:
        causal: True, or None without tree_mask: a query sees keys up to its own index. False: all.
        window: how many keys up to its own a query sees, as Transformers' sliding_window.
        window_right: how many keys after its own it sees, with causal=False.
        chunk: the size of chunks in which attention stays. None and -1 are none of these three, and
            so is 0 but for window_right.
        tree_mask: [batch, tokens, n] or [tokens, n] of bool: which of the last n keys a query sees;
            it sees all before them. Or int32 words, of which key j is bit j % 32 of word j / 32.
            window and chunk narrow that by `positions` where they are given, so that siblings are
            as far from their root: docs/attention.md.
        tree_keys: how many keys the words of tree_mask cover.
        scale, softcap: factor of the products, 1 / sqrt(head_dim) unless given; scores become
            softcap * tanh(score / softcap), and None, 0 and -1 are none.

    Cache:
        k_cache, v_cache, block_table, cache_layout, k_scale, v_scale: as `append` writes them; only
            read, of 8 bits without a scale as with scale 1. MLA: both are one cache, v_cache its
            first elements.
        cache: in place of these and of k_lengths, one that a `RoPEAttention` filled.
        max_seqlen_k: no sequence of a cache has more keys. None: what its pages hold.
        ring: R where the cache keeps the last R tokens of each sequence.

    Rotation and positions:
        config, sequence_lengths, cos, sin: as of `apply`: with none of them, rope_theta and
            inv_freq, q and k rotate by base 10000.
        rotate: "qk", "q" where keys are rotated already, as `append` caches them, or "none". None:
            "q" with a cache, else "qk"; of a `cache` whose layer does not rotate its keys, as with
            longrope, "qk".
        positions, k_positions: position ids of q and k, [tokens], [batch, tokens] or [axes, batch,
            tokens]. None: a token's index among the keys, plus position_offset and
            sequence_offsets. k_positions may be left out where k has the tokens of q. Where keys
            do not rotate, it is read with tree_mask and window or chunk alone.
        position_flag: as of `apply_`; a GPU also sets it where a length or a page is out of range,
            and leaves that sequence out.
        fields: any other field of a Config; it goes before that of `config`.

    Norms:
        q_weight, k_weight: [elements] or [heads, elements]: q and k are normalised ahead of their
            rotation, as `append` does it and with its bits, by the norm that `config` or `fields`
            name, as norm_type. None: not, whatever a configuration says. Keys of a cache have had
            their norm.

    Choice of kernel:
        kernel: "sdpa" for ropekit's rotation followed by PyTorch's scaled_dot_product_attention,
            "library" for the library's choice among its own, or the name of one of them. None: the
            faster one by device, type and shape, whether a gradient is wanted and, on CUDA,
            whether the call is eager. `explain` tells which it is. PyTorch's is a candidate of
            calls without cache, lengths, packing, tree_mask, cap, sinks or lse, and the only one of
            float64, for gradcheck.

    Bits are, within a kernel, those of `apply` followed by the same call with rotate="none", of
    each sequence alone, and of any paging: who compares lengths, batches or packing names a kernel.

    Gradients flow into q, k, v, sinks and weights, of calls without a cache, tree_mask or
    position_flag; not through lse. They have the same bits call after call, those of PyTorch's
    kernel and of cuDNN's with torch.use_deterministic_algorithms. Autograd keeps q and k, rotated
    or ahead of a norm, v, out and lse. There is no second derivative and no tangent. Under autocast
    q, k and v of several types are cast to its type; those of one type keep it.

    Returns:
        out, in the order of q with v's head_dim ("bhsd" lies by token, so that transpose(1, 2) is
        contiguous). With return_lse also lse, the logarithm of each row's sum of exponentials:
        float32, in the order of q without its last dimension. Rows that no sequence has, as padding
        of q_lengths and tokens past the end of cu_seqlens, are 0 and -inf, and 0 in gradients.

    Raises:
        TypeError, ValueError: as `apply` does.
        RuntimeError: what the device or PyTorch refuses; a gradient that there is none of; from a
            compiled function, all of these.
    """
    if fields:
        refuse_fields(fields, KEYWORDS, "AttentionFields")
    if not isinstance(q, Tensor):
        raise TypeError(f"q is {type(q).__name__}; allowed is a tensor")
    if cache is not None:
        own = k_cache, v_cache, block_table, k_lengths, k_scale, v_scale
        k_cache, v_cache, block_table, k_lengths, k_scale, v_scale = parts_of(cache, own)
    if cache_layout != "nhd":
        k_cache, v_cache = (pages(x, n, cache_layout) for n, x in (("k", k_cache), ("v", v_cache)))
        k_scale = scales(k_scale, "k_scale", k_cache)
        v_scale = scales(v_scale, "v_scale", v_cache)
    options: Any = fields
    if causal is not None or tree_mask is not None or tree_keys is not None:
        tree_mask, tree_keys = masked(causal, tree_mask, tree_keys, options)
    text = text_for(config, options, q)
    if cache is not None:
        text = text_of_cache(cache, text)
    of_library = "kernel=library" in text
    call = Arguments(q, k, v, _sdpa.without_library(text) if of_library else text)
    call.positions, call.k_positions = positions, k_positions
    call.cu_seqlens, call.k_cu_seqlens = cu_seqlens, k_cu_seqlens
    call.q_lengths, call.k_lengths = q_lengths, k_lengths
    call.k_cache, call.v_cache, call.block_table = k_cache, v_cache, block_table
    call.k_scale, call.v_scale = k_scale, v_scale
    call.sinks, call.tree_mask = sinks, tree_mask
    call.sequence_offsets, call.sequence_lengths = sequence_offsets, sequence_lengths
    call.cos, call.sin, call.position_flag = cos, sin, position_flag
    call.q_weight, call.k_weight = q_weight, k_weight
    call.position_offset, call.tree_keys = whole(position_offset), tree_keys or 0
    if max_seqlen_k is not None:
        call.max_seqlen_k = number("max_seqlen_k", max_seqlen_k)
    try:
        found = attend(call, return_lse, of_library)
    except TypeError:
        cast = of_autocast(call)
        if cast is call:
            raise
        found = attend(cast, return_lse, of_library)
    return found  # type: ignore[no-any-return]


def of_autocast(call: Arguments) -> Arguments:
    """A call whose q, k and v are tensors of several types, in that of autocast if it is on."""
    tensors = call.tensors
    if not all(isinstance(x, Tensor) for x in tensors) or _sdpa.are_alike(*tensors):
        return call
    q, k, v = _sdpa.of_autocast(*tensors)
    return replace(call, q=q, k=k, v=v) if _sdpa.are_alike(q, k, v) else call


def attend(call: Arguments, return_lse: bool = False, of_library: bool = False) -> Any:
    """`attention` of the operator's arguments, by the library's kernel or PyTorch's."""
    k: Any = call.k
    of_tensors = isinstance(k, Tensor) and isinstance(call.v, Tensor)
    is_traced = is_compiling() or is_tracing()
    is_empty = of_tensors and (_is_known_empty(k) if is_traced else not k.numel())
    if of_tensors and _norms.has_norm(call) and _norms_apart(call):
        call = _norms.apart(call)
    if of_tensors and not of_library and not has_cache(call):
        settings = other_candidate(call, return_lse, is_empty)
        if settings:
            return _by_sdpa(_norms.apart(call) if _norms.has_norm(call) else call, settings)
    if is_empty:
        call = with_one_key(call)
    try:
        if return_lse or call.position_flag is not None:
            name = "attention_lse" if call.position_flag is None else "attention_flag"
            found = _call(name, call)
            return found if return_lse else found[0]
        if is_traced or is_derived() or _wants_gradient(call):
            return _call("attention", call)
        return _usual(call)
    except (AttributeError, RuntimeError) as error:
        refuse_attention(error, call)


def _norms_apart(call: Arguments) -> bool:
    """Whether norms are PyTorch's: for ONNX, and with a gradient on CUDA, of which the library$
    has a slow kernel."""
    return torch.onnx.is_in_onnx_export() or (call.q.is_cuda and _wants_gradient(call))


def _is_known_empty(k: Tensor) -> bool:
    """Of a graph's sizes only one that it knows: the others are no reason for another graph."""
    if not is_compiling():
        return False
    from torch.fx.experimental.symbolic_shapes import guard_or_false  # noqa: PLC0415, it is slow

    return guard_or_false(k.numel() == 0)


def with_one_key(call: Arguments) -> Arguments:
    """The same with a key that no query sees, of k and v without tokens: the library takes 0 keys
    for as many as queries."""
    q, k, v = call.tensors
    layout = _sdpa.settings_of(call.config).layout or ("thd" if q.dim() == 3 else "bshd")
    axis, dims = _sdpa.TOKENS[layout], 3 if layout == "thd" else 4
    if not isinstance(k, Tensor) or not isinstance(v, Tensor) or call.k_lengths is not None:
        return call
    is_of_layout = k.dim() == v.dim() == q.dim() == dims
    if not is_of_layout or k.shape[axis] or v.shape[axis] or not q.shape[axis]:
        return call
    shape = [1 if i == axis else n for i, n in enumerate(k.shape)]
    call = replace(call)
    call.k = torch.cat((k, k.new_zeros(shape)), axis)
    call.v = torch.cat((v, v.new_zeros((*shape[:-1], v.shape[-1]))), axis)
    if call.k_positions is not None:
        call.k_positions = torch.nn.functional.pad(call.k_positions, (0, 1))
    if call.cu_seqlens is None:
        batch = 1 if layout == "thd" else k.shape[_sdpa.BATCH[layout]]
        call.k_lengths = torch.zeros(batch, dtype=torch.int64, device=k.device)
    elif call.k_cu_seqlens is None:
        call.k_cu_seqlens = torch.zeros_like(call.cu_seqlens)
    return call


def has_cache(call: Arguments) -> bool:
    """Whether an argument of a cache is given, or the keys of a tree that is not: of these the
    library tells whether it takes them."""
    none = call.k_cache is call.v_cache is call.block_table is call.k_scale is call.v_scale is None
    return not none or bool(call.max_seqlen_k or (call.tree_keys and call.tree_mask is None))


def _by_sdpa(call: Arguments, settings: _sdpa.Settings) -> Tensor:
    call = of_autocast(call) if is_dynamo_compiling() else call
    if call.k_positions is not None and follows_length(settings.rotation):
        raise ValueError(  # q and k turn one by one
            "sequence_length is not given; allowed with rope_type 'dynamic', k_positions and "
            "PyTorch's kernel is the longest position + 1"
        )
    if not is_compiling() and is_derived():
        check_no_tangent({"q": call.q, "k": call.k, "v": call.v}, "attention")
    try:
        return _sdpa.run(call, settings)
    except (AttributeError, RuntimeError) as error:
        refuse_attention(error, call, _sdpa.TAKEN)


# What PyTorch's kernel has not, beside a cache and return_lse.
OTHERS = (
    *("cu_seqlens", "k_lengths", "sinks", "tree_mask", "k_cu_seqlens", "q_lengths"),
    "position_flag",
)


def other_candidate(call: Arguments, return_lse: bool, is_empty: bool) -> _sdpa.Settings | None:
    """The settings of a call that PyTorch's kernel takes: named, the only one, or the faster."""
    settings = _sdpa.settings_of(call.config)
    if settings.kernel == _sdpa.KERNEL or call.q.dtype is torch.float64:
        named = settings.kernel == _sdpa.KERNEL
        why = "with kernel 'sdpa'" if named else "of float64, which PyTorch's kernel alone takes,"
        others = {name: getattr(call, name) for name in OTHERS} | {"return_lse": return_lse or None}
        _sdpa.refuse_others(settings, others, why)
        return settings
    alone = call.cu_seqlens is call.k_lengths is call.sinks is call.tree_mask is None
    alone = alone and call.k_cu_seqlens is call.q_lengths is call.position_flag is None
    if is_empty or return_lse or not alone:
        return None
    return settings if _sdpa.prefers(*call.tensors, settings) else None


def _call(name: str, call: Arguments) -> Any:
    flag = call.position_flag
    signature = FULL if flag is None else FLAGGED
    if is_compiling() or is_tracing():  # with a gradient or without
        if not is_compiling():
            check_trace()
        return _OPERATORS[name](*signature.values(of_autocast(call)))
    if is_derived() or torch.is_grad_enabled():
        derived = wants_gradient(TENSORS.given(call))
        if derived and flag is None:
            return _recorded(name, call)
        if derived or is_derived():
            return _OPERATORS[name](*signature.values(call))
    if flag is not None:
        check_may_write({"position_flag": flag})
    found = _DIRECT[name](*signature.values(call))
    if flag is not None:
        increment_version([flag])
    return found


def _wants_gradient(call: Arguments) -> bool:
    if torch.is_grad_enabled():
        for x in TENSORS.values(call):
            if x is not None and x.requires_grad:
                return True
    return False


def _usual(call: Arguments) -> Any:
    """The operator of one result, by the overload that has the fewest arguments."""
    is_usual = call.k_positions is call.k_cu_seqlens is call.q_lengths is call.tree_mask is None
    is_usual = is_usual and call.k_scale is call.v_scale is call.sequence_offsets is None
    is_usual = is_usual and call.sequence_lengths is call.cos is call.sin is None
    is_usual = is_usual and call.q_weight is call.k_weight is None
    if not is_usual or call.position_offset or call.tree_keys or call.max_seqlen_k:
        return _DIRECT["attention"](*FULL.values(call))
    if call.positions is call.cu_seqlens is None:
        of_tensors = isinstance(call.k, Tensor) and isinstance(call.v, Tensor)
        if of_tensors and call.k_cache is call.v_cache is call.block_table is None:
            return _few(*FEW.values(call))
        of_caches = isinstance(call.k_cache, Tensor) and isinstance(call.v_cache, Tensor)
        if call.k is call.v is None and of_caches and isinstance(call.k_lengths, Tensor):
            return _cached(*CACHED.values(call))
    return _DIRECT["attention"](*USUAL.values(call))
