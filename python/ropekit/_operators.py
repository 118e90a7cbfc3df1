"""The operators torch.ops.ropekit.*: schemas, fake kernels, gradients.

Kernels for the CPU and for GPUs are compiled (python/csrc/operators.c). The first argument after
the tensors is the text of a Config.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.compiler import is_compiling

from ropekit._errors import ARGUMENTS, check_rotated
from ropekit._fields import listed
from ropekit._library import library
from ropekit.config import merge

_REST = (
    "str config, Tensor? position_ids=None, SymInt position_offset=0, "
    "Tensor? sequence_offsets=None, Tensor? cu_seqlens=None, Tensor? sequence_lengths=None, "
    "Tensor? cos=None, Tensor? sin=None"
)
_FEW = "str config, Tensor? position_ids, SymInt position_offset"
_IDS = "str config, Tensor position_ids"
_FLAG = "Tensor({})? position_flag=None"
_SCHEMAS = {
    "rotate": f"(Tensor q, {_REST}) -> Tensor",
    "rotate_pair": f"(Tensor q, Tensor k, {_REST}) -> (Tensor, Tensor)",
    # The same without a gradient's bookkeeping, for where none is asked for.
    "rotate_no_grad": f"(Tensor q, {_REST}) -> Tensor",
    "rotate_pair_no_grad": f"(Tensor q, Tensor k, {_REST}) -> (Tensor, Tensor)",
    "rotate_": f"(Tensor(a!) q, {_REST}, {_FLAG.format('b!')}) -> ()",
    "rotate_pair_": f"(Tensor(a!) q, Tensor(b!) k, {_REST}, {_FLAG.format('c!')}) -> ()",
}
# In place likewise, for a caller that counts what is written: `increment_version`.
_SCHEMAS |= {
    "rotate_no_grad_": _SCHEMAS["rotate_"],
    "rotate_pair_no_grad_": _SCHEMAS["rotate_pair_"],
}
# What most calls give: PyTorch takes its time over each argument, a default too.
for _name, _rest in (("few", _FEW), ("ids", _IDS)):
    _SCHEMAS |= {
        f"rotate_no_grad.{_name}": f"(Tensor q, {_rest}) -> Tensor",
        f"rotate_pair_no_grad.{_name}": f"(Tensor q, Tensor k, {_rest}) -> (Tensor, Tensor)",
        f"rotate_no_grad_.{_name}": f"(Tensor(a!) q, {_rest}) -> ()",
        f"rotate_pair_no_grad_.{_name}": f"(Tensor(a!) q, Tensor(b!) k, {_rest}) -> ()",
    }

# What PyTorch calls after it has looked at the kind of its argument, here an iterable.
increment_version = torch._C._increment_version
are_transforms_active = torch._C._are_functorch_transforms_active
unwrapped = torch._C._functorch.unwrap_if_dead
is_tracing = torch._C._is_tracing  # by torch.jit.trace; Dynamo knows it not, so asked behind that

assert library  # loaded first: its kernels belong to these schemas
_definitions = torch.library.Library("ropekit", "DEF")
implement: Any = _definitions.impl


# What torch.onnx.export does not translate, of what functions call; _onnx.py translates the rest.
_NOT_IN_ONNX = {"rotate_", "rotate_pair_", "append", "attention_flag", "attention_merge", "decode"}


def define(name: str, schema: str, fake: Any) -> None:
    """An operator, whose kernels are compiled, with its fake kernel."""
    tags = torch.Tag.pt2_compliant_tag, torch.Tag.flexible_layout
    check_order(name, schema)
    _definitions.define(name + schema, tags=tags)
    if name.partition(".")[0].replace("_no_grad", "") in _NOT_IN_ONNX:
        fake = _unknown_to_onnx(name, fake)
    torch.library.register_fake(f"ropekit::{name}", fake)


def check_order(name: str, schema: str) -> None:
    """Refuses a library whose operator takes other arguments, or in another order."""
    given = [x.partition("=")[0].split() for x in schema.partition(" -> ")[0][1:-1].split(", ")]
    names = " ".join(f"{own}{'?' * kind.endswith('?')}" for kind, own in given)
    taken: str = library.ropekit_arguments(name.encode()).decode()
    if taken != names:
        raise ImportError(
            f"{name} in libtorch_ropekit.so takes ({taken}); allowed is ({names}): install the "
            "library and the package of one build"
        )


def _unknown_to_onnx(name: str, fake: Any) -> Any:
    def run(*arguments: Any, **keywords: Any) -> Any:
        if torch.onnx.is_in_onnx_export():
            raise RuntimeError(
                f"the operator is ropekit::{name}; allowed where torch.onnx.export translates are "
                "those of apply, attention and RoPEAttention, without a cache"
            )
        return fake(*arguments, **keywords)

    return run


def check_trace() -> None:
    """Refuses a trace that torch.onnx.export makes."""
    if torch.onnx.is_in_onnx_export():
        raise RuntimeError(
            "dynamo is False; allowed where torch.onnx.export meets ropekit's operators is True, "
            "with opset_version=23 or later"
        )


def empty_like(x: Tensor) -> Tensor:
    """As tensor_like of python/csrc/tensor.c: x's strides where x fills its memory."""
    if torch.ops.aten.is_non_overlapping_and_dense(x):
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def of_backward(config: str) -> str:
    """A configuration as a backward takes it: PyTorch's switch says whether it may choose a kernel
    that sums in no fixed order."""
    if torch.are_deterministic_algorithms_enabled():
        return config
    return f"{config} nondeterministic=1".lstrip()


def fields_of(config: str) -> dict[str, str]:
    return dict(part.partition("=")[::2] for part in config.split())


def follows_length(config: str) -> bool:
    """Whether dynamic scaling follows the longest position of each call."""
    if "rope_type=dynamic" not in config:
        return False
    fields = fields_of(config)
    return "alpha" not in fields and not int(fields.get("sequence_length", 0))


# Where batch and tokens stand in a tensor of each layout; thd has tokens alone.
_PLACES = {"bshd": (0, 1), "bhsd": (0, 2), "sbhd": (1, 0), "thd": (0, 0)}


def _check(q: Tensor, k: Tensor | None, config: str, rest: tuple[Any, ...]) -> None:
    """What python/csrc/call.c checks of tensors that need not be there: one may be meta or fake."""
    fields = fields_of(config)
    names = ARGUMENTS if fields.get("role") != "k" else ("k", "q", *ARGUMENTS[2:])
    given = zip(names, (q, k, *rest), strict=False)
    tensors = {name: x for name, x in given if isinstance(x, Tensor)}
    check_rotated(tensors)
    layout = fields.get("layout", "bshd")
    if layout not in _PLACES:
        allowed = listed([repr(name) for name in _PLACES])
        raise ValueError(f"layout is {layout!r}; allowed is {allowed}")
    dims = 3 if layout == "thd" else 4
    for name in tensors.keys() & {"q", "k"}:
        if (found := tensors[name].dim()) != dims:
            packed = ", or 3 with layout='thd'" if found == 3 else ""
            raise ValueError(
                f"{name} has {found} dimensions; allowed is {dims}, for layout {layout!r}{packed}"
            )
    other = q if k is None else k
    for place in _PLACES[layout]:
        torch._check_value(
            other.shape[place] == q.shape[place],
            lambda: "k has another batch or other tokens than q; allowed is that of q",
        )


def _fake_rotate(q: Tensor, config: str, *rest: Any) -> Tensor:
    _check(q, None, config, rest)
    return empty_like(q)


def _fake_rotate_pair(q: Tensor, k: Tensor, config: str, *rest: Any) -> tuple[Tensor, Tensor]:
    _check(q, k, config, rest)
    return empty_like(q), empty_like(k)


def _fake_rotate_(q: Tensor, config: str, *rest: Any) -> None:
    _check(q, None, config, rest)


def _fake_rotate_pair_(q: Tensor, k: Tensor, config: str, *rest: Any) -> None:
    _check(q, k, config, rest)


_FAKES: dict[str, Any] = {
    "rotate": _fake_rotate,
    "rotate_pair": _fake_rotate_pair,
    "rotate_": _fake_rotate_,
    "rotate_pair_": _fake_rotate_pair_,
}
for _name, _schema in _SCHEMAS.items():
    define(_name, _schema, _FAKES[_name.partition(".")[0].replace("_no_grad", "")])


@lru_cache(maxsize=1024)
def transposed(config: str) -> str:
    """The configuration of the gradient."""
    fields = fields_of(config)
    direction = fields.get("direction", "forward")
    if direction == "inverse":
        raise RuntimeError(
            "direction is 'inverse'; allowed with a gradient is 'forward' or 'transpose'"
        )
    pairing = fields.get("pairing_in", "half_split")
    return merge(
        config,
        {
            "direction": "transpose" if direction == "forward" else "forward",
            "pairing_in": fields.get("pairing_out", pairing),
            "pairing_out": pairing,
        },
    )


def applied(function: Any) -> Any:
    """`function.apply`, where no transform of torch.func is active less what that needs: PyTorch
    binds the arguments to a signature, which takes 60 us of the host, and looks through each."""
    direct = super(torch.autograd.Function, function).apply

    def apply(*arguments: Any) -> Any:
        if is_compiling() or are_transforms_active():
            return function.apply(*arguments)
        # A tensor may have been left over by one.
        return direct(*(unwrapped(x) if isinstance(x, Tensor) else x for x in arguments))

    return apply


class _Rotate(torch.autograd.Function):
    """rotate and rotate_pair: `count` tensors, then the arguments from config on.

    Written out because the function that torch.library.register_autograd makes costs the host many
    times as much, and serves no transform of torch.func.
    """

    @staticmethod
    def forward(count: int, *arguments: Any) -> Any:
        return (DIRECT if len(arguments) > count + 3 else FEW)[count](*arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _keep(ctx, inputs[inputs[0] + 1 :])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        found = _again(ctx, transposed(ctx.config), grads)
        return (None, *found, *(None,) * ctx.rest)

    @staticmethod
    def jvp(ctx: Any, _: Any, *tangents: Any) -> Any:
        found = _again(ctx, ctx.config, tangents[: -ctx.rest])
        return found if len(found) == 2 else found[0]

    @staticmethod
    def vmap(info: Any, in_dims: Any, count: int, *arguments: Any) -> Any:
        tensors, rest = arguments[:count], arguments[count:]
        dims, size = in_dims[1:], info.batch_size
        if any(dim is not None for dim in dims[count:]):
            parts = [recorded(count, *_part(arguments, dims, i)) for i in range(size)]
            found = (
                [torch.stack(x) for x in zip(*parts, strict=True)]
                if count == 2
                else [torch.stack(parts)]
            )
            place = 0
        else:  # more heads turn alike
            place = _HEADS[fields_of(rest[0]).get("layout", "bshd")]
            folded = (_fold(x, dim, place, size) for x, dim in zip(tensors, dims, strict=False))
            many = recorded(count, *folded, *rest)
            found = [x.unflatten(place, (size, -1)) for x in (many if count == 2 else (many,))]
        return (tuple(found), (place, place)) if count == 2 else (found[0], place)


def _keep(ctx: Any, rest: tuple[Any, ...]) -> None:
    """What a derivative needs of the arguments from config on."""
    ctx.config, position_ids, ctx.position_offset, *others = rest
    ctx.rest = len(rest)
    ctx.save_for_backward(position_ids, *others)
    ctx.save_for_forward(position_ids, *others)
    if any(ctx.needs_input_grad):
        transposed(ctx.config)  # which is refused here, not in the backward pass


def _again(ctx: Any, config: str, tensors: Any) -> tuple[Tensor, ...]:
    """Rotates as the call that ctx is of, by another configuration."""
    position_ids, *others = ctx.saved_tensors
    count = len(tensors)
    arguments = (*tensors, config, position_ids, ctx.position_offset, *others)
    if are_transforms_active():
        found = recorded(count, *arguments)
    else:
        found = (GRAD if torch.is_grad_enabled() or is_derived() else NO_GRAD)[count](*arguments)
    return found if count == 2 else (found,)


_HEADS = {"bshd": 2, "bhsd": 1, "sbhd": 2, "thd": 1}


def _fold(x: Tensor, dim: int | None, place: int, size: int) -> Tensor:
    """x with what is mapped among its heads."""
    if dim is None:
        x = x.unsqueeze(place).expand(*x.shape[:place], size, *x.shape[place:])
    else:
        x = x.movedim(dim, place)
    return x.flatten(place, place + 1)


def _part(arguments: Any, dims: Any, i: int) -> Any:
    given = zip(arguments, dims, strict=True)
    return [x if dim is None else x.select(dim, i) for x, dim in given]


class _RotatedInPlace(torch.autograd.Function):
    """One tensor that rotate_ or rotate_pair_ has written, then the arguments from config on."""

    @staticmethod
    def forward(q: Tensor, *rest: Any) -> Tensor:
        return q

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_dirty(inputs[0])
        _keep(ctx, inputs[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        found = _again(ctx, transposed(ctx.config), (grad,))
        return (*found, *(None,) * ctx.rest)


recorded, record_in_place = applied(_Rotate), applied(_RotatedInPlace)


def check_tables(tables: tuple[Tensor | None, ...]) -> None:
    """Refuses cos and sin that a gradient is to flow into."""
    for table in tables:
        if table is not None and table.requires_grad and torch.is_grad_enabled():
            raise RuntimeError("cos or sin requires a gradient; allowed are tables without one")


class _Constant(torch.autograd.Function):
    """A table, into which no derivative flows: one that a transform takes further out, of which the
    table itself does not tell, is refused when it is taken."""

    generate_vmap_rule = True

    @staticmethod
    def forward(table: Tensor) -> Tensor:
        return table.view_as(table)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise RuntimeError("cos or sin requires a gradient; allowed are tables without one")

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise RuntimeError("cos or sin has a tangent; allowed are tables without one")


_constant = applied(_Constant)


def constants(tables: tuple[Tensor | None, ...]) -> Iterator[Tensor | None]:
    """The tables of a call under a transform or with tangents."""
    return (None if table is None else _constant(table) for table in tables)


def _rotate(q: Tensor, *rest: Any) -> Any:
    return recorded(1, q, *_filled(rest))


def _rotate_pair(q: Tensor, k: Tensor, *rest: Any) -> Any:
    return recorded(2, q, k, *_filled(rest))


def _filled(rest: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments from config on, with the defaults that a dispatcher leaves out."""
    check_tables(rest[6:8])
    if forward_ad._current_level >= 0:
        rest = (*rest[:6], *constants(rest[6:]))
    return rest + (None, 0, None, None, None, None, None)[len(rest) - 1 :]


def is_derived() -> bool:
    """Whether derivatives may be taken that no tensor's requires_grad tells: tangents are carried,
    or a transform of torch.func hides the tensors below it."""
    return forward_ad._current_level >= 0 or are_transforms_active()


def check_recorded(tensors: tuple[Tensor, ...]) -> None:
    """Refuses what autograd refuses to be written in place, which it says after the fact."""
    for name, x in zip(("q", "k"), tensors, strict=False):
        base = x._base if x._base is not None else x
        if not x.requires_grad:
            continue
        if base.is_leaf and base.requires_grad:
            raise RuntimeError(
                f"{name} is a leaf that requires a gradient, or a view of one; allowed in place is "
                "what was computed"
            )
        made = torch._C._autograd._get_creation_meta(x) if x._is_view() else None
        if made not in (None, torch._C._autograd.CreationMeta.DEFAULT):
            raise RuntimeError(
                f"{name} is a view made by a function of several results, as unbind, or without "
                "gradients; allowed in place is another, as of indexing"
            )


def check_written(q: Tensor | None, k: Tensor | None) -> None:
    """Refuses a tensor that cannot be written in place."""
    check_may_write({name: x for name, x in (("q", q), ("k", k)) if x is not None})


def check_may_write(tensors: dict[str, Tensor]) -> None:
    """check_written of any tensors, by their names."""
    has_bits = not torch.compiler.is_dynamo_compiling()
    for name, x in tensors.items():
        if has_bits and x.is_neg():
            raise RuntimeError(f"{name} has the negative bit; allowed in place is x.resolve_neg()")
        if has_bits and x.is_inference() and not torch.is_inference_mode_enabled():
            raise RuntimeError(
                f"{name} is an inference tensor; allowed in place outside inference mode is "
                "x.clone()"
            )


def _counted(count: int) -> Any:
    """Counts a write in place, from which autograd knows that what it saved has changed."""

    def rotate(keyset: Any, *arguments: Any) -> None:
        if torch.is_grad_enabled() and any(x.requires_grad for x in arguments[:count]):
            raise RuntimeError(
                "a tensor requires a gradient; allowed for this operator are those that do not, "
                "and for ropekit.apply_ all that are no leaf"
            )
        check_written(arguments[0], arguments[1] if count == 2 else None)
        check_tables(arguments[count + 6 : count + 8])
        below = keyset & torch._C._after_ADInplaceOrView_keyset
        IN_PLACE[count].redispatch(below, *arguments)
        written = arguments[:count] + arguments[count + 8 :]
        increment_version([x for x in written if x is not None])

    return rotate


_ops = torch.ops.ropekit
# By the number of tensors rotated.
GRAD = {1: _ops.rotate.default, 2: _ops.rotate_pair.default}
NO_GRAD = {1: _ops.rotate_no_grad.default, 2: _ops.rotate_pair_no_grad.default}
IN_PLACE = {1: _ops.rotate_.default, 2: _ops.rotate_pair_.default}


def _direct(name: str, overload: str) -> Any:
    """By the number of tensors, what calling an operator calls in the end, which spares the way
    there; Dynamo knows it not."""
    packets = {1: getattr(_ops, f"rotate_{name}"), 2: getattr(_ops, f"rotate_pair_{name}")}
    operators = {count: getattr(packet, overload) for count, packet in packets.items()}
    return {count: getattr(operator, "_op", operator) for count, operator in operators.items()}


DIRECT, DIRECT_IN_PLACE = _direct("no_grad", "default"), _direct("no_grad_", "default")
FEW, FEW_IN_PLACE = _direct("no_grad", "few"), _direct("no_grad_", "few")
IDS, IDS_IN_PLACE = _direct("no_grad", "ids"), _direct("no_grad_", "ids")
implement("rotate", _rotate, "Autograd")
implement("rotate_pair", _rotate_pair, "Autograd")
implement("rotate_", _counted(1), "ADInplaceOrView", with_keyset=True)
implement("rotate_pair_", _counted(2), "ADInplaceOrView", with_keyset=True)
