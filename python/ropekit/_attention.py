"""attention: rotation and attention as one operator, torch.ops.ropekit.attention."""

from __future__ import annotations

from typing import Any, Literal, overload

import torch
from torch import Tensor
from torch.compiler import is_compiling, is_dynamo_compiling
from typing_extensions import Unpack

from ropekit import _sdpa
from ropekit._attention_errors import (
    ARGUMENTS,
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

_NO_OFFSET = 0  # by identity, as of `apply`
_NUMBERS = "SymInt position_offset=0, SymInt tree_keys=0, SymInt max_seqlen_k=0"


def _schema(results: str, flag: bool, first: str = "") -> str:
    """In the order of python/csrc/operators.c."""
    optional = [f"Tensor? {name}=None" for name in ARGUMENTS[3:-1]]
    if flag:
        optional.append("Tensor(a!)? position_flag=None")
    rest = ", ".join(optional)
    return f"({first}Tensor q, Tensor? k, Tensor? v, str config, {rest}, {_NUMBERS}) -> {results}"


def _named(arguments: tuple[Any, ...]) -> list[tuple[str, Any]]:
    return list(zip(ARGUMENTS, (*arguments[:3], *arguments[4:]), strict=False))


def rotated(config: str) -> tuple[bool, bool]:
    """Whether q and k rotate, where they are tensors."""
    fields = fields_of(config)
    rotate = fields.get("rotate", "none" if fields.get("rotation") == "off" else "qk")
    return rotate in ("q", "qk"), rotate == "qk"


# ---- fake kernels ----


def _layout(q: Tensor, config: str) -> str:
    layout = fields_of(config).get("layout", "thd" if q.dim() == 3 else "bshd")
    dims = 3 if layout == "thd" else 4
    if q.dim() != dims:
        raise ValueError(f"q has {q.dim()} dimensions; allowed is {dims}, for layout {layout!r}")
    return layout


def _by_token(sizes: list[Any], layout: str, dtype: torch.dtype, device: torch.device) -> Tensor:
    """As results_like of python/csrc/attention_results.c: by token in memory."""
    if layout != "bhsd":
        return torch.empty(sizes, dtype=dtype, device=device)
    sizes[1], sizes[2] = sizes[2], sizes[1]
    return torch.empty(sizes, dtype=dtype, device=device).transpose(1, 2)


def _fake_out(*arguments: Any) -> tuple[Tensor, str]:
    given = {name: x for name, x in _named(arguments) if isinstance(x, Tensor)}
    check_attention(given)
    q, layout = given["q"], _layout(given["q"], arguments[3])
    values = given["v"] if "v" in given else given.get("v_cache")
    if values is None:
        raise ValueError("v and v_cache are None; allowed is one of them")
    width = values.shape[-1] * (values.shape[3] if values.dim() == 5 else 1)
    return _by_token([*q.shape[:-1], width], layout, q.dtype, q.device), layout


def _fake(*arguments: Any) -> Tensor:
    return _fake_out(*arguments)[0]


def _fake_few(q: Tensor, k: Tensor, v: Tensor, config: str, *rest: Tensor | None) -> Tensor:
    return _fake(q, k, v, config, None, None, rest[0], None, None, None, rest[1])


def _fake_cached(q: Tensor, config: str, *rest: Tensor | None) -> Tensor:
    return _fake(q, None, None, config, None, None, *rest)


def _fake_lse(*arguments: Any) -> tuple[Tensor, Tensor]:
    out, layout = _fake_out(*arguments)
    return out, _by_token([*out.shape[:-1]], layout, torch.float32, out.device)


def _fake_rotated(*arguments: Any) -> tuple[Tensor, ...]:
    check_differentiable(_named(arguments))
    out, layout = _fake_out(*arguments)
    q, k, config = arguments[0], arguments[1], arguments[3]
    turns = rotated(config)
    found = (
        _by_token([*x.shape], layout, x.dtype, x.device) if turn else q.new_empty(0)
        for x, turn in zip((q, k), turns, strict=True)
    )
    return (out, _by_token([*out.shape[:-1]], layout, torch.float32, out.device), *found)


def _fake_backward(*arguments: Any) -> tuple[Tensor, ...]:
    given = arguments[3:]
    check_differentiable(_named(given))
    out, layout = _fake_out(*given)
    for name, x, like in (
        ("dout", arguments[0], out.shape),
        ("out", arguments[1], out.shape),
        ("lse", arguments[2], out.shape[:-1]),
    ):
        if x.shape != like:
            raise ValueError(f"{name} has the shape {list(x.shape)}; allowed is {list(like)}")
    found = [_by_token([*x.shape], layout, x.dtype, x.device) for x in given[:3]]
    sinks = dict(_named(given)).get("sinks")
    heads = 0 if sinks is None else sinks.shape[0]
    return (*found, torch.empty(heads, dtype=torch.float32, device=out.device))


# ---- the operators; those named no_grad are for a caller that looks for gradients itself ----

_FIRST = "Tensor dout, Tensor out, Tensor lse, "
_FOUR = "(Tensor, Tensor, Tensor, Tensor)"
_KINDS: dict[str, tuple[str, Any]] = {
    "attention": ("Tensor", _fake),
    "attention_lse": ("(Tensor, Tensor)", _fake_lse),
    "attention_flag": ("(Tensor, Tensor)", _fake_lse),
}
_OPERATORS: dict[str, Any] = {}
_DIRECT: dict[str, Any] = {}


def _flagged(keyset: Any, *arguments: Any) -> Any:
    """attention_flag, which has no gradient."""
    named = _named(arguments)
    check_no_grad(named, "attention with position_flag")
    flag = dict(named).get("position_flag")
    if flag is not None:
        check_may_write({"position_flag": flag})
    below = keyset & torch._C._after_ADInplaceOrView_keyset
    found = _OPERATORS["attention_flag"].redispatch(below, *arguments)
    if flag is not None:
        increment_version([flag])
    return found


def _derived(name: str) -> Any:
    """attention or attention_lse, of which derivatives are recorded where they are asked for."""

    def attend(keyset: Any, *arguments: Any) -> Any:
        if wants_gradient(_named(arguments)):
            found = recorded(*_filled(arguments))
            return found[:2] if name == "attention_lse" else found[0]
        below = keyset & torch._C._after_autograd_keyset
        return _OPERATORS[name].redispatch(below, *arguments)

    return attend


def _refusing(name: str) -> Any:
    """What a derivative calls, of which there is none."""

    def run(keyset: Any, *arguments: Any) -> Any:
        tensors = [(f"argument {i}", x) for i, x in enumerate(arguments)]
        check_no_grad(tensors, name)
        below = keyset & torch._C._after_ADInplaceOrView_keyset
        return getattr(torch.ops.ropekit, name).default.redispatch(below, *arguments)

    return run


for _name, (_results, _of) in _KINDS.items():
    for _own in (_name, f"{_name}_no_grad"):
        define(_own, _schema(_results, _name == "attention_flag"), _of)
    _OPERATORS[_name] = getattr(torch.ops.ropekit, _name).default
    _DIRECT[_name] = getattr(torch.ops.ropekit, f"{_name}_no_grad").default._op
# What most calls give: PyTorch takes its time over each argument, a default too.
_FEW = "(Tensor q, Tensor k, Tensor v, str config, Tensor? k_lengths, Tensor? sinks)"
_CACHED = (
    "(Tensor q, str config, Tensor k_lengths, Tensor k_cache, Tensor v_cache, Tensor? block_table, "
    "Tensor? sinks)"
)
define("attention_no_grad.few", f"{_FEW} -> Tensor", _fake_few)
define("attention_no_grad.cached", f"{_CACHED} -> Tensor", _fake_cached)
_few: Any = torch.ops.ropekit.attention_no_grad.few._op
_cached: Any = torch.ops.ropekit.attention_no_grad.cached._op
implement("attention_flag", _flagged, "ADInplaceOrView", with_keyset=True)
for _name in ("attention", "attention_lse"):
    implement(_name, _derived(_name), "Autograd", with_keyset=True)
define("attention_explained", _schema("Tensor", False), _fake)
define("attention_rotated", _schema(_FOUR, False), _fake_rotated)
define("attention_backward", _schema(_FOUR, False, _FIRST), _fake_backward)
for _name in ("attention_rotated", "attention_backward"):
    implement(_name, _refusing(_name), "ADInplaceOrView", with_keyset=True)


# ---- the gradient ----

_COUNT = len(ARGUMENTS) + 3  # of attention_rotated: less position_flag, with config and numbers
_CONFIG, _SINKS = 3, ARGUMENTS.index("sinks") + 1


def _filled(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """With the defaults that a dispatcher leaves out."""
    tensors = len(ARGUMENTS)
    missing = (*(None,) * (tensors - len(arguments)), 0, 0, 0)
    return (
        arguments + missing[-(_COUNT - len(arguments)) :] if len(arguments) < _COUNT else arguments
    )


class _Attention(torch.autograd.Function):
    """The arguments of attention_rotated. What it rotated is saved in place of q and k."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*arguments: Any) -> Any:
        return torch.ops.ropekit.attention_rotated.default(*arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        out, lse, *turned = output
        ctx.mark_non_differentiable(lse, *turned)
        ctx.set_materialize_grads(False)
        choices = zip(inputs[:2], turned, rotated(inputs[_CONFIG]), strict=True)
        kept = [y if turn else x for x, y, turn in choices]
        tensors = [x for x in inputs[2 : _COUNT - 3] if not isinstance(x, str)]
        ctx.config, ctx.numbers = inputs[_CONFIG], inputs[_COUNT - 3 :]
        ctx.save_for_backward(out, lse, *kept, *tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        if grads[0] is None:
            return (None,) * _COUNT
        out, lse, q, k, v, *rest = ctx.saved_tensors
        dout = grads[0] if all(grads[0].stride()) else grads[0].contiguous()
        config = of_backward(ctx.config)
        *found, dsinks = _gradient(dout, out, lse, q, k, v, config, *rest, *ctx.numbers)
        all_of = [*found, *(None,) * (_COUNT - 3)]
        sinks = rest[_SINKS - _CONFIG - 1]
        if sinks is not None:
            all_of[_SINKS] = dsinks.to(sinks.dtype)
        return tuple(all_of)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise RuntimeError(NO_FORWARD)


class _Gradient(_sdpa.Last):
    @staticmethod
    def forward(*arguments: Any) -> Any:
        return torch.ops.ropekit.attention_backward.default(*arguments)


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
    position_flag: Tensor | None = None,
    **fields: Unpack[AttentionFields],
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention of unrotated queries; keys and values are tensors or a cache.

    A sequence has m queries and n keys, and query i has the index n - m + i among the keys: a
    prompt, a part of one and one decoded token are the same call. Every length is in tokens.

    Args:
        q: [batch, tokens, heads, head_dim], [tokens, heads, head_dim] of packed sequences, or the
            order of `layout`; float32, float16 or bfloat16.
        k, v: in the same order, of as many heads as divide those of q; v may have a head_dim of its
            own. None with a cache.
        causal: True, or None without tree_mask: a query sees keys up to its own index. False: all.
        return_lse: also returns the logarithm of each row's sum of exponentials.
        positions, k_positions: position ids of q and k, [tokens], [batch, tokens] or [axes, batch,
            tokens]. None: a token's index among the keys, plus position_offset and
            sequence_offsets. k_positions may be left out where k has the tokens of q. Where keys
            do not rotate, it is read with tree_mask and window or chunk alone.
        config, sequence_lengths, cos, sin: as of `apply`: with none of them, rope_theta and
            inv_freq, q and k rotate by base 10000. rotate="none" rotates nothing.
        cu_seqlens, k_cu_seqlens: boundaries of packed sequences in q, and in k and v where they
            differ.
        q_lengths, k_lengths: int32 or int64, queries and keys that each sequence has; the rest is
            padding. k_lengths is required with a cache. Beside cu_seqlens they are seqused_q and
            seqused_k of flash-attention: of its part a sequence uses the first so many rows.
        cache: in place of k_cache, v_cache, block_table, k_lengths, k_scale and v_scale, one that a
            `RoPEAttention` filled.
        k_cache, v_cache, block_table, cache_layout, k_scale, v_scale: as `append` writes them; only
            read, of 8 bits without a scale as with scale 1. MLA: both are one cache, v_cache its
            first elements.
        max_seqlen_k: no sequence of a cache has more keys. None: what its pages hold.
        sinks: [heads], float32 or the type of q: a logit of each head that takes part in the
            softmax and has no value.
        tree_mask: [batch, tokens, n] or [tokens, n] of bool: which of the last n keys a query sees;
            it sees all before them. Or int32 words, of which key j is bit j % 32 of word j / 32,
            for tree_keys keys. window and chunk narrow that by `positions` where they are given, so
            that siblings are as far from their root: docs/attention.md.
        position_flag: as of `apply_`; a GPU also sets it where a length or a page is out of range,
            and leaves that sequence out.
        rotate: "qk", "q" where keys are rotated already, as `append` caches them, or "none". None:
            "q" with a cache, else "qk"; of a `cache` whose layer does not rotate its keys, as with
            longrope, "qk".
        window, window_right, chunk: keys up to its own that a query sees, as Transformers'
            sliding_window; keys after its own, with causal=False; chunks in which attention stays.
            None and -1 are none, as is 0 of window, chunk and softcap; window_right=0 is no key
            after its own.
        kernel: "sdpa" for ropekit's rotation followed by PyTorch's scaled_dot_product_attention,
            "library" for the library's choice among its own, or the name of one of them. None: the
            faster one by device, type and shape, whether a gradient is wanted and, on CUDA,
            whether the call is eager, as `explain` tells. PyTorch's is a candidate of
            calls without cache, lengths, packing, tree_mask, cap, sinks or lse, and the only one of
            float64, for gradcheck.
        scale, softcap: factor of the products, 1 / sqrt(head_dim) unless given; scores become
            softcap * tanh(score / softcap).
        fields: any other field of a Config but those of norms; it goes before that of `config`.

    Bits are, within a kernel, those of `apply` followed by the same call with rotate="none", of
    each sequence alone, and of any paging: who compares lengths, batches or packing names a kernel.

    Under autocast q, k and v of several types are cast to its type, as PyTorch's kernel casts them;
    those of one type keep it.

    Gradients flow into q, k, v and sinks, of calls without a cache, tree_mask or position_flag; not
    through lse. They have the same bits call after call, those of PyTorch's kernel and of cuDNN's
    with torch.use_deterministic_algorithms. Autograd keeps q and k rotated, v, out and lse. There
    is no second derivative and no tangent.

    Returns:
        out, in the order of q with v's head_dim ("bhsd" lies by token, so that transpose(1, 2) is
        contiguous), and with return_lse lse, float32 in the order of q
        without its last dimension. Rows that no sequence has, as padding of q_lengths and tokens
        past the end of cu_seqlens, are 0 and -inf, and 0 in gradients.

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
    named = (k_positions, k_cu_seqlens, q_lengths, k_scale, v_scale, tree_mask)
    rest: Any = (*named, sequence_offsets, sequence_lengths, cos, sin)
    numbers: Any = position_offset, tree_keys or 0, 0
    if max_seqlen_k is not None:
        numbers = (*numbers[:2], number("max_seqlen_k", max_seqlen_k))
    if position_offset is _NO_OFFSET and not any(numbers) and all(x is None for x in rest):
        rest = numbers = ()
    first = (q, k, v, text, positions, cu_seqlens, k_lengths, k_cache, v_cache, block_table, sinks)
    try:
        found = attend(first, rest, numbers, return_lse, position_flag)
    except TypeError:
        cast = of_autocast(first)
        if cast is first:
            raise
        found = attend(cast, rest, numbers, return_lse, position_flag)
    return found  # type: ignore[no-any-return]


def of_autocast(arguments: Any) -> Any:
    """Arguments whose q, k and v are tensors of several types, in that of autocast if it is on."""
    tensors = arguments[:3]
    if not all(isinstance(x, Tensor) for x in tensors) or _sdpa.are_alike(*tensors):
        return arguments
    cast = _sdpa.of_autocast(*tensors)
    return (*cast, *arguments[3:]) if _sdpa.are_alike(*cast) else arguments


def attend(
    first: Any,
    rest: Any = (),
    numbers: Any = (),
    return_lse: bool = False,
    flag: Tensor | None = None,
) -> Any:
    """`attention` of the operator's arguments, by the library's kernel or PyTorch's.

    first are those up to sinks; rest and numbers those behind, or empty where none is given.
    """
    q, k, v, text, _, cu_seqlens, k_lengths = first[:7]
    of_library = "kernel=library" in text
    if of_library:
        text = _sdpa.without_library(text)
        first = (*first[:3], text, *first[4:])
    of_tensors = isinstance(k, Tensor) and isinstance(v, Tensor)
    is_empty = of_tensors and not (is_compiling() or is_tracing() or k.numel())
    if not of_library and of_tensors and not _has_cache(first, rest, numbers):
        others: Any = (None,) * len(OTHERS) if is_empty else None
        alone = cu_seqlens is k_lengths is first[10] is flag is None and not return_lse
        if not alone or (rest and not rest[1] is rest[2] is rest[5] is None):
            more = (rest[5], rest[1], rest[2]) if rest else (None, None, None)
            others = cu_seqlens, k_lengths, first[10], *more, flag, return_lse
        settings = other_candidate((q, k, v), text, others)
        if settings:
            return _by_sdpa(first, rest, numbers, settings)
    if is_empty:
        first, rest = with_one_key(first, rest)
    if rest or numbers or return_lse or flag is not None:
        name = "attention_flag" if flag is not None else "attention"
        name = "attention_lse" if return_lse and flag is None else name
        rest = rest or (None,) * 10
        numbers = (whole(numbers[0]), *numbers[1:]) if numbers else (0, 0, 0)
        arguments = (*first, *rest) if flag is None else (*first, *rest, flag)
        found = _call(name, arguments, numbers, flag)
        return found[0] if name == "attention_flag" and not return_lse else found
    is_traced = is_compiling() or is_tracing() or is_derived()
    if is_traced or (torch.is_grad_enabled() and _requires_grad(first)):
        return _call("attention", first, (), None)
    try:
        return _usual(first)
    except (AttributeError, RuntimeError) as error:
        refuse_attention(error, first, 0)


def with_one_key(first: Any, rest: Any) -> Any:
    """The same with a key that no query sees, of k and v without tokens: the library takes 0 keys
    for as many as queries."""
    q, k, v, text, positions, cu_seqlens, k_lengths, *others = first
    layout = _sdpa.settings_of(text).layout or ("thd" if q.dim() == 3 else "bshd")
    axis, dims = _sdpa.TOKENS[layout], 3 if layout == "thd" else 4
    if not isinstance(k, Tensor) or not isinstance(v, Tensor) or k_lengths is not None:
        return first, rest
    if not k.dim() == v.dim() == q.dim() == dims:
        return first, rest
    if k.shape[axis] or v.shape[axis] or not q.shape[axis]:
        return first, rest
    shape = [1 if i == axis else n for i, n in enumerate(k.shape)]
    k = torch.cat((k, k.new_zeros(shape)), axis)
    v = torch.cat((v, v.new_zeros((*shape[:-1], v.shape[-1]))), axis)
    k_positions, k_bounds, *behind = rest or (None,) * 10
    if k_positions is not None:
        k_positions = torch.nn.functional.pad(k_positions, (0, 1))
    if cu_seqlens is None:
        batch = 1 if layout == "thd" else k.shape[_sdpa.BATCH[layout]]
        k_lengths = torch.zeros(batch, dtype=torch.int64, device=k.device)
    elif k_bounds is None:
        k_bounds = torch.zeros_like(cu_seqlens)
    return (
        (q, k, v, text, positions, cu_seqlens, k_lengths, *others),
        (k_positions, k_bounds, *behind),
    )


def _has_cache(first: Any, rest: Any, numbers: Any) -> bool:
    """Whether an argument of a cache is given, or the keys of a tree that is not: of these the
    library tells whether it takes them."""
    k_scale, v_scale, tree_mask = rest[3:6] if rest else (None, None, None)
    given = (*first[7:10], k_scale, v_scale)
    if any(x is not None for x in given):
        return True
    return bool(numbers and (numbers[2] or (numbers[1] and tree_mask is None)))


def _by_sdpa(first: Any, rest: Any, numbers: Any, settings: _sdpa.Settings) -> Tensor:
    q, k, v, _, positions = (of_autocast(first) if is_dynamo_compiling() else first)[:5]
    offset = whole(numbers[0]) if numbers else 0
    k_positions, tables = (rest[0], rest[6:]) if rest else (None, None)
    if k_positions is not None and follows_length(settings.rotation):  # q and k turn one by one
        raise ValueError(
            "sequence_length is not given; allowed with rope_type 'dynamic', k_positions and "
            "PyTorch's kernel is the longest position + 1"
        )
    if not is_compiling() and is_derived():
        check_no_tangent(zip("qkv", (q, k, v), strict=True), "attention")
    try:
        return _sdpa.run(
            q,
            k,
            v,
            settings,
            positions=positions,
            k_positions=k_positions,
            position_offset=offset,
            tables=tables,
        )
    except (AttributeError, RuntimeError) as error:
        refuse_attention(error, first, offset, _sdpa.TAKEN)


OTHERS = (
    *("cu_seqlens", "k_lengths", "sinks", "tree_mask", "k_cu_seqlens", "q_lengths"),
    *("position_flag", "return_lse"),
)


def other_candidate(
    tensors: tuple[Tensor, Tensor, Tensor], text: str, others: Any
) -> _sdpa.Settings | None:
    """The settings of a call that PyTorch's kernel takes: named, the only one, or the faster.

    others are what that kernel has not, in the order of OTHERS, or None where none is given.
    """
    settings = _sdpa.settings_of(text)
    if settings.kernel == _sdpa.KERNEL or tensors[0].dtype is torch.float64:
        named = settings.kernel == _sdpa.KERNEL
        why = "with kernel 'sdpa'" if named else "of float64, which PyTorch's kernel alone takes,"
        _sdpa.refuse_others(settings, zip(OTHERS, others or (), strict=False), why)
        return settings
    return settings if others is None and _sdpa.prefers(*tensors, settings) else None


def _call(name: str, arguments: Any, numbers: tuple[int, ...], flag: Tensor | None) -> Any:
    try:
        if is_compiling() or is_tracing():  # with a gradient or without
            if not is_compiling():
                check_trace()
            return _OPERATORS[name](*of_autocast(arguments), *numbers)
        if is_derived() or torch.is_grad_enabled():
            derived = wants_gradient(_named(arguments))
            if derived and flag is None:
                found = recorded(*_filled((*arguments, *numbers)))
                return found[:2] if name == "attention_lse" else found[0]
            if derived or is_derived():
                return _OPERATORS[name](*arguments, *numbers)
        if flag is not None:
            check_may_write({"position_flag": flag})
        found = _DIRECT[name](*arguments, *numbers)
    except (AttributeError, RuntimeError) as error:
        refuse_attention(error, arguments, numbers[0] if numbers else 0)
    if flag is not None:
        increment_version([flag])
    return found


def _requires_grad(arguments: Any) -> bool:
    return any(x.requires_grad for x in arguments if isinstance(x, Tensor))


def _usual(first: Any) -> Any:
    """The operator of no argument behind sinks, by the overload that has the fewest."""
    q, k, v, text, positions, cu_seqlens, k_lengths, k_cache, v_cache, block_table, sinks = first
    if positions is cu_seqlens is None:
        of_tensors = isinstance(k, Tensor) and isinstance(v, Tensor)
        if of_tensors and k_cache is v_cache is block_table is None:
            return _few(q, k, v, text, k_lengths, sinks)
        of_caches = isinstance(k_cache, Tensor) and isinstance(v_cache, Tensor)
        if k is v is None and of_caches and isinstance(k_lengths, Tensor):
            return _cached(q, text, k_lengths, k_cache, v_cache, block_table, sinks)
    return _DIRECT["attention"](*first)
