"""attn_implementation "ropekit" of Transformers: attention of queries and keys that are rotated."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.compiler import is_dynamo_compiling
from transformers import AttentionInterface, AttentionMaskInterface

from ropekit import _sdpa
from ropekit._attention import attend
from ropekit._attention_arguments import Arguments
from ropekit._fields import merge
from ropekit._sharding import Sharded, in_use
from ropekit._transformers_masks import (
    BITS,
    CHUNK,
    CUT,
    FULL,
    OWN,
    PACKED,
    PADDED,
    PLAIN,
    Mask,
    build_mask,
    check_own,
    dense_of,
    moved,
)

NAME = "ropekit"
# Keywords that change what attention computes, and that it has not.
_REFUSED = {
    "position_bias": "a bias of positions",
    "indices": "keys that an indexer chose",
    "block_indices": "blocks of keys that an indexer chose",
    "head_mask": "a mask of heads",
}


_BOUNDARIES = "cu_seq_lens_q", "cu_seq_lens_k"
_LOOKED_AT = {*_REFUSED, *_BOUNDARIES, "output_attentions", "cache"}


def _refuse(kwargs: dict[str, Any]) -> None:
    for name, what in _REFUSED.items():
        if kwargs.get(name) is not None:
            raise ValueError(
                f"{name} is given, {what}; allowed with attn_implementation {NAME!r} is None: use "
                "'eager' or 'sdpa' for this model"
            )
    if kwargs.get("output_attentions"):
        raise ValueError(
            f"output_attentions is True; allowed with attn_implementation {NAME!r} is False, as "
            "its kernels keep no weights: use 'eager'"
        )
    if type(kwargs.get("cache")).__name__ == "PagedAttentionCache":
        raise ValueError(
            "the cache is paged, of continuous batching; allowed with attn_implementation "
            f"{NAME!r} is a DynamicCache or a StaticCache"
        )


def _boundaries_of(query: Tensor, key: Tensor, kwargs: dict[str, Any]) -> Any:
    """Boundaries of packed sequences in the tokens of the batch, of queries and of keys; None."""
    found = [kwargs.get(name) for name in _BOUNDARIES]
    if found[0] is found[1] is None:
        return None
    for i, x in enumerate(found):
        if not isinstance(x, Tensor):
            raise ValueError(
                f"{_BOUNDARIES[i]} is {x if x is None else type(x).__name__}; allowed with "
                f"{_BOUNDARIES[1 - i]} is a tensor"
            )
    if query.shape[2] != key.shape[2]:
        raise ValueError(
            f"cu_seq_lens_q is given with {query.shape[2]} queries and {key.shape[2]} keys; "
            f"allowed with attn_implementation {NAME!r} is as many of both, without a cache"
        )
    return found


def _within(bounds: Any, mask: Tensor, options: dict[str, Any], tensors: Any) -> Any:
    """Attention within packed sequences, of rotated tensors [batch, heads, tokens, head_dim]."""
    q, k, v = tensors
    batch, _, tokens, _ = q.shape
    own = Mask.decode(mask) if mask.dtype == torch.int64 else None
    if own is not None and own.flags & CHUNK:
        raise ValueError(
            "cu_seq_lens_q is given and the layer attends within chunks; allowed is None: pack by "
            "position_ids"
        )
    is_free = own is not None and own.kind in (PLAIN, PACKED)
    if own is not None and is_free and not options["dropout"] and not _is_of_torch(q):
        flat = [x.transpose(1, 2).flatten(0, 1) for x in tensors]
        out = _packed(flat, _text_of("thd", own, options), bounds, options)
        return out.view(batch, tokens, *out.shape[1:])
    if own is not None:
        seen = _dense(own, tokens, tokens, batch)
    else:
        seen = dense_of(mask, tokens) if mask.dtype == torch.int32 else mask
    first, second = (x.to(q.device).contiguous() for x in bounds)
    packed = _sequences((first, second), batch, tokens)[0]
    if seen is None:
        seen = packed
    elif seen.dtype == torch.bool:
        seen = seen & packed
    else:
        seen = seen.masked_fill(~packed, torch.finfo(seen.dtype).min)
    return _by_torch(q, k, v, seen, options)


def _check_mask(attention_mask: object) -> None:
    if not isinstance(attention_mask, Tensor) or attention_mask.dim() != 4:
        kind = getattr(attention_mask, "shape", None) or type(attention_mask).__name__
        raise TypeError(
            f"attention_mask is {kind}; allowed is what Transformers' create_causal_mask makes, or "
            "four dimensions [batch, heads, queries, keys] of bool or a floating type"
        )


def _plain(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    options: dict[str, Any],
) -> Tensor:
    """Attention by PyTorch's operators, where its one kernel lacks what a layer has."""
    groups = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(groups, 1) if groups > 1 else x for x in (k, v))
    scale = options.get("scale", q.shape[-1] ** -0.5)
    scores = (q @ k.transpose(-1, -2)).float() * scale
    if options.get("softcap") is not None:
        scores = options["softcap"] * (scores / options["softcap"]).tanh()
    if mask is not None and mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    elif mask is not None:
        scores = scores + mask
    sinks = options.get("sinks")
    if sinks is not None:
        sink = sinks.float()[:, None, None].expand(*scores.shape[:-1], 1)
        scores = torch.cat((scores, sink), -1)
    weights = scores.softmax(-1)[..., : k.shape[2]].to(v.dtype)
    if mask is not None and mask.dtype == torch.bool:  # 0 of a query that sees no key, as sdpa
        weights = weights.masked_fill(~mask, 0)
    found: Tensor = torch.dropout(weights, options["dropout"], True) @ v
    return found


def _dense(mask: Mask, tokens: int, keys: int, batch: int) -> Tensor | None:
    """A mask of the kernels as one of bool, [batch, 1, tokens, keys]; None: all keys are seen."""
    values, fields = mask.values, mask.fields()
    order = "causal" if fields.pop("causal") else "full"
    settings = _sdpa.settings_of(merge(f"mask={order}", fields))
    own, key = (torch.arange(n, device=values.device) for n in (tokens, keys))
    if mask.kind == PLAIN:
        return _sdpa.visible(own[:, None] + (keys - tokens), key, settings)
    if mask.kind in (PACKED, PADDED):
        first, *more = (_sequences(x, batch, tokens) for x in _pairs(mask))
        within, own, key = first
        seen = _sdpa.visible(own, key, settings)
        within = within if seen is None else within & seen
        return within | more[0][0] if more else within
    lengths = values[:, :, None, None]
    if mask.kind == BITS:
        told = mask.of_token()
        seen = dense_of(told["tree_mask"], told["tree_keys"])
        return moved(seen, told["tree_keys"] - values[0, 0], keys)[:, None]
    seen = _sdpa.visible(own[:, None] + (lengths - tokens), key, settings)
    return key < lengths if seen is None else (key < lengths) & seen


def _pairs(mask: Mask) -> list[tuple[Tensor, Tensor]]:
    """Boundaries of queries and of keys in the tokens of the batch."""
    rows = mask.values.unbind()
    return [(rows[i], rows[i + 1 if len(rows) > 1 else i]) for i in range(0, len(rows), 2)]


def _sequences(bounds: tuple[Tensor, Tensor], batch: int, tokens: int) -> tuple[Tensor, ...]:
    """Whether a query and a key are of one sequence, and the places of both in theirs."""
    places = torch.arange(batch * tokens, device=bounds[0].device).view(batch, 1, tokens)
    numbers = [torch.searchsorted(x, places, right=True) for x in bounds]
    own, key = (places - x[n - 1] for x, n in zip(bounds, numbers, strict=True))
    return numbers[0][..., None] == numbers[1][..., None, :], own[..., None], key[..., None, :]


def _by_torch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    options: dict[str, Any],
) -> Tensor:
    """[batch, tokens, heads, head_dim] by PyTorch's attention, of any mask."""
    if options.get("softcap") is None and options.get("sinks") is None:
        scale, dropout = options.get("scale"), options["dropout"]
        if mask is not None and mask.is_floating_point():
            (mask,) = _sdpa.of_autocast(mask)
        out = _sdpa.attend(q, k, v, mask=mask, scale=scale, dropout=dropout)
    else:
        out = _plain(q, k, v, mask, options)
    return out.transpose(1, 2)


def _text(layout: str, scale: float | None, softcap: float | None, mask: Mask | None) -> str:
    """The configuration of a call of rotated q and k."""
    fields: dict[str, Any] = {"layout": layout, "scale": scale, "softcap": softcap}
    if mask is not None:
        fields |= mask.fields()
        fields["mask"] = "causal" if fields.pop("causal") else "full"
    return merge("rotation=off", fields)


@lru_cache(maxsize=1024)
def _text_cached(
    layout: str, scale: float | None, softcap: float | None, size: int, flags: int
) -> str:
    return _text(layout, scale, softcap, Mask(_NONE, size, flags))


_NONE = torch.empty(1, 0, dtype=torch.int64)


def _text_of(layout: str, mask: Mask | None, options: dict[str, Any]) -> str:
    scale, softcap = options.get("scale"), options.get("softcap")
    if mask is None or is_dynamo_compiling():
        return _text(layout, scale, softcap, mask)
    return _text_cached(layout, scale, softcap, mask.size, mask.flags)


def _packed(flat: list[Tensor], text: str, bounds: Any, options: dict[str, Any]) -> Tensor:
    q, k, v = flat
    call = Arguments(q, k, v, text, sinks=options.get("sinks"))
    call.cu_seqlens, call.k_cu_seqlens = bounds
    if call.k_cu_seqlens is call.cu_seqlens:
        call.k_cu_seqlens = None
    return attend(call)  # type: ignore[no-any-return]


def _by_bounds(q: Tensor, k: Tensor, v: Tensor, mask: Mask, options: dict[str, Any]) -> Tensor:
    """As `attention` has sequences that are packed; a query that none has gets 0."""
    flat = [x.transpose(1, 2).flatten(0, 1) for x in (q, k, v)]
    parts: list[Tensor] = []
    for bounds in _pairs(mask):
        of = Mask(_NONE, 0, FULL) if parts else mask  # padding sees all keys of its row
        parts.append(_packed(flat, _text_of("thd", of, options), bounds, options))
    found = parts[0] if len(parts) == 1 else parts[0] + parts[1]
    return found.view(q.shape[0], q.shape[2], *found.shape[1:])


def _by_numbers(q: Tensor, k: Tensor, v: Tensor, mask: Mask, options: dict[str, Any]) -> Tensor:
    """As `attention` has the mask."""
    if mask.kind in (PACKED, PADDED):
        return _by_bounds(q, k, v, mask, options)
    call = Arguments(q, k, v, _text_of("bhsd", None if mask.kind == BITS else mask, options))
    call.sinks = options.get("sinks")
    if mask.kind != PLAIN:
        told = mask.of_token()
        call.k_lengths, call.tree_mask = told["k_lengths"], told.get("tree_mask")
        call.tree_keys = told.get("tree_keys", 0)
    out: Tensor = attend(call)
    return out.transpose(1, 2)


def _refuse_mask(tokens: int, keys: int) -> None:
    raise ValueError(
        f"attention_mask has other keys than a call of {tokens} queries and {keys} keys; allowed "
        f"without a cache is one of {keys} tokens"
    )


def _derives(*tensors: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)


def _is_of_torch(q: Tensor) -> bool:
    return q.dtype == torch.float64 or _sdpa.is_slow(q)


def _attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    given: Tensor,
    options: dict[str, Any],
) -> Tensor:
    batch, tokens, sinks = q.shape[0], q.shape[2], options.get("sinks")
    dropout, keys = options["dropout"], k.shape[2]
    if given.dtype == torch.int64:
        mask = Mask.decode(given)
        if not mask.fits(tokens, keys):
            _refuse_mask(tokens, keys)
        if mask.flags & CUT:
            k, v = k[:, :, :tokens], v[:, :, :tokens]
        alone = sinks is None and options.get("softcap") is None
        is_plain = mask.kind == PLAIN and alone  # of which `attention` chooses the kernel
        lacks = mask.kind == BITS and _derives(q, k, v, sinks)
        if not (dropout or lacks) and (is_plain or not _is_of_torch(q)):
            return _by_numbers(q, k, v, mask, options)
        return _by_torch(q, k, v, _dense(mask, tokens, k.shape[2], batch), options)
    if given.dtype != torch.int32:
        allowed = (1, batch), (1, q.shape[1]), (1, tokens), (keys,)
        if any(n not in sizes for n, sizes in zip(given.shape, allowed, strict=True)):
            raise ValueError(
                f"attention_mask has the shape {list(given.shape)}; allowed is "
                f"{[batch, q.shape[1], tokens, keys]}, with 1 for batch, heads or queries: a model "
                "that computes with its mask needs 'eager' or 'sdpa'"
            )
        return _by_torch(q, k, v, given, options)
    if (given.shape[1] == 1) != (keys == tokens):
        _refuse_mask(tokens, keys)
    if dropout or _is_of_torch(q) or _derives(q, k, v, sinks):
        return _by_torch(q, k, v, dense_of(given[:, :1], keys), options)
    text = _text_of("bhsd", None, options)
    call = Arguments(q, k, v, text, sinks=sinks, tree_mask=given[:, 0], tree_keys=keys)
    out: Tensor = attend(call)
    return out.transpose(1, 2)


def options_of(query: Tensor, given: dict[str, Any]) -> dict[str, Any]:
    """Keywords of `attention` that a layer gives."""
    options: dict[str, Any] = {}
    if given.get("scaling") is not None:
        options["scale"] = float(given["scaling"])
    if given.get("softcap") not in (None, 0, -1):
        options["softcap"] = float(given["softcap"])
    sinks = given.get("s_aux") if given.get("sinks") is None else given["sinks"]
    if sinks is not None:
        options["sinks"] = sinks if sinks.dtype == query.dtype else sinks.float()
    return options


def _without_mask(module: nn.Module, query: Tensor, key: Tensor, is_causal: bool | None) -> Tensor:
    """The mask of a call that has none, as sdpa takes it."""
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    causal = bool(causal) and query.shape[2] > 1
    if causal and query.shape[2] != key.shape[2]:
        raise ValueError(
            f"attention_mask is None with {query.shape[2]} queries and {key.shape[2]} keys; "
            "allowed is as many of both, or a mask"
        )
    none = torch.empty(1, 0, dtype=torch.int64, device=query.device)
    return Mask(none, 0, 0 if causal else FULL).encode(key.shape[2])


def _sharded(
    sharded: Sharded,
    tensors: tuple[Tensor, Tensor, Tensor],
    mask: Tensor | None,
    causal: bool,
    kwargs: dict[str, Any],
) -> Tensor:
    """Attention over all ranks' tokens; `build_mask` made the mask."""
    ids, layout = kwargs.get("position_ids"), sharded.layout
    if any(kwargs.get(name) is not None for name in _BOUNDARIES):
        raise ValueError(
            "cu_seq_lens_q is given; allowed within ropekit.distributed.use is None: cu_seqlens "
            "are the layout's"
        )
    if isinstance(ids, Tensor):
        layout.check_positions(ids)
    if mask is not None and mask.dtype != torch.int64:
        raise ValueError(
            f"attention_mask is {mask.dtype}; allowed within ropekit.distributed.use is None"
        )
    fields = {"causal": causal} if mask is None else Mask.decode(mask).fields()
    options = options_of(tensors[0], kwargs) | fields
    found: Tensor = sharded.attend(*tensors, tensor_layout="bhsd", rotate="none", **options)
    return found.transpose(1, 2)


def attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The attention of attn_implementation "ropekit", of AttentionInterface: the mask, which
    `build_mask` made, tells windows and order."""
    sharded = in_use()
    if sharded is not None:
        _refuse(kwargs)
        if dropout:
            raise ValueError(f"dropout is {dropout}; allowed within ropekit.distributed.use is 0")
        causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
        tensors = _sdpa.of_autocast(query, key, value)
        found = _sharded(sharded, tensors, attention_mask, causal, kwargs)  # type: ignore[arg-type]
        return found.contiguous(), None
    bounds = None
    if not _LOOKED_AT.isdisjoint(kwargs):
        _refuse(kwargs)
        bounds = _boundaries_of(query, key, kwargs)
    if query.dtype is torch.float32 or not _sdpa.are_alike(query, key, value):
        query, key, value = _sdpa.of_autocast(query, key, value)
    if attention_mask is None:
        attention_mask = _without_mask(module, query, key, is_causal)
    else:
        _check_mask(attention_mask)
    shape = attention_mask.shape
    if shape[-1]:
        check_own(attention_mask, key.shape[2])
    options = options_of(query, kwargs)
    if bounds is not None:
        options["dropout"] = dropout
        out = _within(bounds, attention_mask, options, (query, key, value))
        return out.contiguous(), None
    alone = "sinks" not in options and "softcap" not in options
    is_usual = shape[-1] == 0 and not dropout and (alone or not _is_of_torch(query))
    if is_usual and not (shape[2] - 1) & CUT and not is_dynamo_compiling():
        # As _attend, of what most calls have: a host waits for each step.
        size, flags = shape[1] - OWN, shape[2] - 1
        text = _text_cached("bhsd", options.get("scale"), options.get("softcap"), size, flags)
        call = Arguments(query, key, value, text)
        call.sinks = options.get("sinks")
        return attend(call).transpose(1, 2).contiguous(), None
    options["dropout"] = dropout
    out = _attend(query, key, value, attention_mask, options)
    return out.contiguous(), None


def register() -> None:
    """Makes attn_implementation "ropekit" known to Transformers."""
    AttentionInterface.register(NAME, attention_forward)
    AttentionMaskInterface.register(NAME, build_mask)
