"""attention: that of a sequence whose tokens are on several ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from itertools import pairwise
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor

from ropekit._append_errors import FLOATS
from ropekit._attention import KEYWORDS, masked
from ropekit._fields import AttentionFields, refuse_fields
from ropekit._functions import rotate, text_for
from ropekit._library import version
from ropekit._operators import fields_of, follows_length
from ropekit._sdpa import Settings, settings_of, without_library
from ropekit.config import merge
from ropekit.distributed._agree import agree
from ropekit.distributed._costs import choose
from ropekit.distributed._layout import Layout
from ropekit.distributed._local import Inputs, Local, Results
from ropekit.distributed._methods import METHODS, Ulysses

Method = Literal["allgather", "ulysses", "ring", "auto"]
_TO_BSHD = {"bshd": (0, 1, 2, 3), "bhsd": (0, 2, 1, 3), "sbhd": (1, 0, 2, 3)}
_OWN = frozenset(
    ("causal", "return_lse", "config", "sinks", "cos", "sin", "layout", "method", "tensor_layout")
)


class _Attend(torch.autograd.Function):
    """A method's call of q and k that are rotated, v and sinks."""

    @staticmethod
    def forward(ctx: Any, method: Any, *tensors: Any) -> tuple[Tensor, Tensor]:
        out, lse, saved = method.forward(Inputs(*tensors))
        ctx.method = method
        ctx.save_for_backward(out, lse, *tensors, *saved)
        ctx.mark_non_differentiable(lse)
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dout: Tensor | None, _: Any) -> Any:
        out, lse, q, k, v, sinks, *saved = ctx.saved_tensors
        dout = torch.zeros_like(out) if dout is None else dout.contiguous()
        results, inputs = Results(dout, out, lse), Inputs(q, k, v, sinks)
        *found, dsinks = ctx.method.backward(results, inputs, saved)
        return None, *found, None if sinks is None else dsinks.to(sinks.dtype)


_attend: Any = _Attend.apply


@torch.compiler.disable  # type: ignore[untyped-decorator]
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    layout: Layout,
    method: Method = "allgather",
    causal: bool | None = None,
    return_lse: bool = False,
    config: object = None,
    sinks: Tensor | None = None,
    cos: Tensor | None = None,
    sin: Tensor | None = None,
    tensor_layout: Literal["bshd", "bhsd", "sbhd", "thd"] | None = None,
    **fields: Any,  # AttentionFields, of which `layout` is this one's
) -> Tensor | tuple[Tensor, Tensor]:
    """`ropekit.attention` of all ranks' tokens: unrotated shards in, this rank's results out.

    Args:
        q, k, v: this rank's tokens, in the order of `tensor_layout`; "bshd" unless given, "thd" of
            three dimensions. Positions are the layout's: q and k are rotated before they travel.
        layout: of `shard` or `Layout.of`.
        method: what travels. "allgather": k and v of all ranks. "ulysses": heads, so that a rank
            has all tokens of its own; the ranks divide the heads of q, and are a divisor or a
            multiple of those of k. "ring": k and v from rank to rank; none holds all of them.
            "auto": the one of the least predicted time, by rates that are measured at the first
            call; `print(layout.costs)` shows the table.
        sinks: one a head, the same on every rank.
        cos, sin: tables that positions index, as of `apply`.
        causal, return_lse, config, fields: as of `ropekit.attention`, without a cache.

    Out and dq of "allgather" and "ulysses" are in every bit those of one device with the same
    kernel, of kernel="library" unless it is given, and so are dk and dv of "ulysses" where the
    ranks divide the heads of k. Other dk and dv, and all of "ring", are the same on every run.
    Gradients of sinks are this rank's part of the sum over ranks, as those of any weight.

    Where the calls of ranks differ, or one is refused, every rank raises: on CPUs of each call, on
    GPUs of the first of its kind with a layout. Later on GPUs, a call that is new to one rank alone
    ends as the group's collectives of other sizes do. Every rank must make the same calls in the
    same order, backward too. Lse has no gradient.
    """
    if not isinstance(layout, Layout):
        raise TypeError(f"layout is {type(layout).__name__}; allowed is one of shard or Layout.of")
    named = {"q": q, "k": k, "v": v}
    extra = {"sinks": sinks, "cos": cos, "sin": sin}
    error: Exception | None = None
    call: Any = None
    told: dict[str, object] = {}
    try:
        _check_tensors(named, extra)
        _refuse_names(fields)
        masked(causal, None, None, fields)
        text = text_for(config, fields, q)
        key = (text, tensor_layout, str(method), *_looks(named), *_looks(extra))
        call, told = layout._kept.get(key, (None, told))
        if call is None:
            call = _call(text, tensor_layout, named, layout, method)
            told = call.told(named, extra)
            call.try_out(named, extra)
    except Exception as refused:
        error = refused
    device = q.device if isinstance(q, Tensor) else _device_of(layout)
    # Of a GPU's calls the first of each kind: it would be waited for.
    if error is not None or device.type == "cpu" or key not in layout._kept:
        agree(layout, told, error, device)
        layout._kept[key] = call, told
    out, lse = call.run((q, k, v), **extra)
    return (out, lse) if return_lse else out


def _check_tensors(named: Mapping[str, object], extra: Mapping[str, object]) -> None:
    for name, x in {**named, **extra}.items():
        if not isinstance(x, Tensor) and (x is not None or name in named):
            raise TypeError(f"{name} is {type(x).__name__}; allowed is a tensor")
        if hasattr(x, "placements"):
            raise TypeError(f"{name} is a DTensor; allowed is this rank's tensor, as of to_local()")


def _device_of(layout: Layout) -> torch.device:
    """One that the layout's group takes tensors of."""
    is_nccl = layout.ranks > 1 and dist.get_backend(layout.group) == "nccl"
    return torch.device("cuda", torch.cuda.current_device()) if is_nccl else torch.device("cpu")


def _looks(given: Mapping[str, Tensor | None]) -> Iterator[object]:
    """What a call's checks look at in its tensors."""
    derives = torch.is_grad_enabled()
    for x in given.values():
        if isinstance(x, Tensor):
            yield x.shape, x.dtype, x.device, derives and x.requires_grad
        else:
            yield x


@dataclass(frozen=True)
class _Call:
    """A call whose arguments are checked. Tensors are [batch, tokens, heads, head_dim]."""

    layout: Layout
    settings: Settings
    method: str
    order: str  # of the caller's tensors

    def told(
        self, named: Mapping[str, Tensor], extra: Mapping[str, Tensor | None]
    ) -> dict[str, object]:
        """What must be the same on every rank."""
        layout = self.layout
        named = {name: _as_rows(name, x, self.order) for name, x in named.items()}
        derives = [name for name, x in named.items() if x.requires_grad]
        of_tensors = {
            f"{name}'s batch, heads and head_dim": str((x.shape[0], *x.shape[2:]))
            for name, x in named.items()
        }
        of_extra = {
            name: None if x is None else f"{x.dtype} {tuple(x.shape)}" for name, x in extra.items()
        }
        return (
            of_tensors
            | of_extra
            | {
                "ropekit's version": version(),
                "layout.tokens": layout.tokens,
                "layout.order": layout.order,
                "layout.cu_seqlens": _shown(layout.cu_seqlens),
                "method": self.method,
                "config": self.settings.text,
                "type of q": str(named["q"].dtype),
                "device of q": named["q"].device.type,
                "what requires a gradient": str(derives if torch.is_grad_enabled() else []),
            }
        )

    def try_out(self, named: Mapping[str, Tensor], extra: Mapping[str, Tensor | None]) -> None:
        """Attends with one token, so that every rank meets the errors of the library alike."""
        longest, table, sinks = self.layout.longest, extra["cos"], extra["sinks"]
        heads = _as_rows("q", named["q"], self.order).shape[2]
        if sinks is not None and sinks.shape != (heads,):
            raise ValueError(f"sinks has the shape {list(sinks.shape)}; allowed is [{heads}]")
        if (
            table is not None
            and table.shape[-2] < longest
            and "out_of_range" not in self.settings.text
        ):
            raise ValueError(f"cos has {table.shape[-2]} rows; allowed is at least {longest}")
        rows = (_as_rows(name, x, self.order) for name, x in named.items())
        tokens = [x.new_zeros((x.shape[0], 1, *x.shape[2:])) for x in rows]
        with torch.no_grad():
            one = replace(self, layout=Layout(1, 0, 1), method="allgather", order="bshd")
            one.run(tokens, **extra)

    def run(
        self,
        tensors: Iterable[Tensor],
        sinks: Tensor | None,
        cos: Tensor | None,
        sin: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        q, k, v = (_as_rows("", x, self.order) for x in tensors)
        q, k = self._rotated(q, k, cos, sin)
        local, method = self._local, self.method
        if method == "auto":
            derives = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))
            with torch.no_grad():
                found = choose(local, Inputs(q, k, v, None), derives)
            self.layout._kept["costs"], method = found, found.best
        out, lse = _attend(METHODS[method](local), q, k, v, sinks)
        if self.order == "thd":
            return out.squeeze(0), lse.squeeze(0)
        if self.order == "bshd":
            return out, lse
        back = _TO_BSHD[self.order]  # each is its own inverse
        return out.permute(back), lse.permute(back[:3])

    @cached_property
    def _local(self) -> Local:
        return Local(self.layout, self.settings)

    @cached_property
    def _is_by_length(self) -> bool:
        """Whether longrope chooses its factors by each sequence's length."""
        fields = fields_of(self._rotation)
        select = fields.get("longrope_select", "per_sequence")
        return fields.get("rope_type") == "longrope" and select == "per_sequence"

    @cached_property
    def _rotation(self) -> str:
        is_packed = self.layout.cu_seqlens is not None
        return merge(self.settings.rotation, {"layout": "thd" if is_packed else None})

    def _rotated(
        self, q: Tensor, k: Tensor, cos: Tensor | None, sin: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        settings, layout, text = self.settings, self.layout, self._rotation
        is_packed, device = layout.cu_seqlens is not None, q.device
        bounds, lengths = None, None
        ids = layout._positions_on(device)
        if is_packed:
            q, k = q[0], k[0]
        if self._is_by_length:
            lengths = torch.tensor(_lengths(layout, q.shape[0]), device=device)
            if is_packed:
                bounds = torch.tensor(layout.local_boundaries(), device=device)
        rest = (ids, 0, None, bounds, lengths, cos, sin)
        if settings.turns_q and settings.turns_k:
            q, k = rotate(2, q, k, text, *rest)
        elif settings.turns_q:
            q = rotate(1, q, text, *rest)
        return (q[None], k[None]) if is_packed else (q, k)


def _call(
    text: str,
    order: str | None,
    given: Mapping[str, Tensor],
    layout: Layout,
    method: str,
) -> _Call:
    settings = _checked(text, layout)
    order = order or settings.layout or ("thd" if given["q"].dim() == 3 else "bshd")
    q, k, v = (_as_rows(name, x, order) for name, x in given.items())
    _check_types({"q": q, "k": k, "v": v}, layout)
    _check_heads(q, k, v)
    if not isinstance(method, str) or method not in (*METHODS, "auto"):
        raise ValueError(f"method is {method!r}; allowed is any of {', '.join(METHODS)}, auto")
    reason = Ulysses.reason(layout.ranks, q.shape[2], k.shape[2]) if method == "ulysses" else ""
    if reason:
        raise ValueError(reason)
    return _Call(layout, settings, method, order)


def _as_rows(name: str, x: Tensor, order: str) -> Tensor:
    """As [batch, tokens, heads, head_dim]."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} is {type(x).__name__}; allowed is a tensor")
    if order not in (*_TO_BSHD, "thd"):
        raise ValueError(
            f"tensor_layout is {order!r}; allowed is any of {', '.join(_TO_BSHD)}, thd"
        )
    dims = 3 if order == "thd" else 4
    if x.dim() != dims:
        raise ValueError(f"{name} has {x.dim()} dimensions; allowed is {dims}, of layout {order!r}")
    if order == "bshd":
        return x
    return x[None] if order == "thd" else x.permute(_TO_BSHD[order])


def _check_types(tensors: Mapping[str, Tensor], layout: Layout) -> None:
    """Element types, batch and tokens."""
    q = tensors["q"]
    for name, x in tensors.items():
        if x.shape[1] != layout.count():
            raise ValueError(
                f"{name} has {x.shape[1]} tokens; allowed is {layout.count()}, those of rank "
                f"{layout.rank}"
            )
        if x.dtype not in FLOATS or x.dtype != q.dtype:
            raise TypeError(
                f"{name} is {x.dtype}; allowed is float32, float16 or bfloat16, of q, k and v alike"
            )
        if x.device != q.device:
            raise ValueError(f"{name} is on {x.device}; allowed is the device of q, {q.device}")
        if x.shape[0] != q.shape[0]:
            raise ValueError(f"{name} has batch {x.shape[0]}; allowed is that of q, {q.shape[0]}")
    if layout.cu_seqlens is not None and q.shape[0] != 1:
        raise ValueError(f"q has batch {q.shape[0]}; allowed with cu_seqlens is 1")


def _check_heads(q: Tensor, k: Tensor, v: Tensor) -> None:
    heads = q.shape[2], k.shape[2], v.shape[2]
    if heads[1] != heads[2] or not heads[1] or heads[0] % heads[1]:
        raise ValueError(
            f"q, k and v have {heads[0]}, {heads[1]} and {heads[2]} heads; allowed is the same of "
            "k and v, a divisor of those of q"
        )
    if q.shape[3] != k.shape[3]:
        raise ValueError(f"k has head_dim {k.shape[3]}; allowed is that of q, {q.shape[3]}")


def _refuse_names(fields: Any) -> None:
    """Refuses what the layout has, or what no shard has."""
    for name in fields:
        if name in KEYWORDS and name not in AttentionFields.__annotations__ and name not in _OWN:
            raise ValueError(
                f"{name} is given; allowed in ropekit.distributed.attention is None: positions, "
                "lengths and boundaries are the layout's, and there is no cache"
            )
    refuse_fields(fields, KEYWORDS | _OWN, "AttentionFields")


def _checked(text: str, layout: Layout) -> Settings:
    """The settings, which a layout can serve."""
    if follows_length(text):
        text = merge(text, {"sequence_length": layout.longest})
    settings = settings_of(without_library(text))
    fields = fields_of(text)
    if settings.kernel == "sdpa":
        raise ValueError("kernel is 'sdpa'; allowed on several ranks is a kernel of the library")
    if settings.ring is not None:
        raise ValueError(f"ring is {settings.ring}; allowed is None without a cache")
    turns = settings.turns_q or settings.turns_k
    if turns and int(fields.get("axes", 1)) > 1:
        raise ValueError(
            f"axes is {fields['axes']}; allowed is 1, as positions are the layout's: rotate the "
            "shards by ropekit.apply with their positions, and attend with rotate='none'"
        )
    return settings


def _shown(bounds: tuple[int, ...] | None) -> str:
    """Boundaries, of many the first ones and a digest of all."""
    text = str(bounds)
    return text if len(text) < 200 else f"{text[:100]}... {sha256(text.encode()).hexdigest()}"


def _lengths(layout: Layout, batch: int) -> list[int]:
    bounds = layout.cu_seqlens
    if bounds is None:
        return [layout.tokens] * batch
    return [end - start for start, end in pairwise(bounds)]
