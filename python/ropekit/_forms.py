"""The ways in which Transformers' functions rotate. A trial tells which one a function has."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.compiler import is_compiling

from ropekit._functions import needs_grad, rotate
from ropekit._operators import applied, constants, is_derived

NAMES = (
    "apply_rotary_pos_emb",
    "apply_rotary_pos_emb_interleave",
    "apply_rotary_pos_emb_vision",
    "apply_rotary_emb",
    "vision_apply_rotary_emb",
)
_TENSORS = ("q", "k", "x", "tensor", "xq", "xk", "query", "key")
_COMPLEX = ("freqs_cis", "freqs_ci")
_ANY = "any"  # device
_VECTORS = 16  # complex numbers, of two vectors of 512 bits


@dataclass(frozen=True)
class Form:
    """A way in which a function rotates."""

    pairing_in: str
    pairing_out: str
    columns: str  # how a row of cos holds the pairs: "once", "twice" as halves, or "repeated"
    upcast: bool = False  # rotates in float32 whatever the type of q
    keeps_type: bool = False  # gives the type of q where that of cos is wider
    # The gradient of a wider rotation: each product is rounded to the type of q, else their sum.
    rounds_products: bool = True
    reverses: bool = False  # rotates by the negative angle
    complex_layout: str = ""  # multiplies complex numbers, of tensors with this layout
    fuses: bool = False  # rounds a product and the sum once, as complex numbers on some devices

    def __str__(self) -> str:
        """As a report tells it."""
        into = f" into {self.pairing_out}" if self.pairing_out != self.pairing_in else ""
        kind = ", complex numbers" if self.complex_layout else ""
        return f"ropekit's kernels, {self.pairing_in} pairs{into}{kind}"

    def table(self, pairs: Tensor) -> Tensor:
        """A row of cos of this form."""
        if self.columns == "twice":
            return torch.cat((pairs, pairs), -1)
        return pairs.repeat_interleave(2, -1) if self.columns == "repeated" else pairs

    def pairs(self, table: Tensor) -> Tensor:
        """The row that `table` made one of."""
        if self.columns == "twice":
            return table.chunk(2, -1)[0]
        return table[..., ::2] if self.columns == "repeated" else table

    def text(self, columns: int) -> str:
        """The configuration for the caller's tables with so many columns."""
        return (
            f"rotary_dim={2 * columns if self.columns == 'once' else columns} "
            f"table_width={'full' if self.columns == 'repeated' else 'half'} angle_mode=table "
            f"arithmetic={'fp32' if self.fuses else 'model_dtype'} {self.direction()}"
        )

    def direction(self) -> str:
        """What the configuration of a model leaves to its function."""
        direction = " direction=transpose" if self.reverses else ""
        return f"pairing_in={self.pairing_in} pairing_out={self.pairing_out}{direction}"


def _forms() -> list[Form]:
    pairings = (
        Form("half_split", "half_split", "twice"),
        Form("half_split", "half_split", "once"),
        Form("interleaved", "half_split", "twice"),
        Form("interleaved", "interleaved", "repeated"),
        Form("interleaved", "interleaved", "twice"),
        Form("interleaved", "interleaved", "once"),
        Form("half_split", "half_split", "twice", reverses=True),
    )
    types = ((False, False), (False, True), (True, True))
    return [
        replace(form, upcast=upcast, keeps_type=keeps_type, rounds_products=rounds_products)
        for upcast, keeps_type in types
        for form in pairings
        for rounds_products in (True, False)
    ]


_FORMS = _forms()
_COMPLEX_FORMS = [
    Form("interleaved", "interleaved", "once", True, True, False, False, layout, fuses)
    for layout in ("bshd", "bhsd")
    for fuses in (False, True)
]


@dataclass(frozen=True)
class Angles:
    """What a patched rotary embedding gives for sin, where it gives the position ids for cos; or
    for the complex numbers of both."""

    text: str
    position_ids: Tensor
    sequence_lengths: Tensor | None

    def to(self, *args: Any, **kwargs: Any) -> Angles:
        """As a tensor's, for what sends a layer's arguments to the layer's device."""
        lengths = self.sequence_lengths
        return Angles(
            self.text,
            self.position_ids.to(*args, **kwargs),
            None if lengths is None else lengths.to(*args, **kwargs),
        )

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"the angles of a patched embedding have no {name}: a function that is not patched was "
            "given them, as one that is run again for a gradient once the patch is restored"
        )


def _by_tables(form: Form, layout: str, cos: Tensor, sin: Tensor, tensors: Any) -> list[Tensor]:
    """Rotates in the type of the tables and gives the type of the original."""
    text = f"{form.text(cos.shape[-1])} layout={layout}"
    wide = [x.to(cos.dtype) for x in tensors]
    found = rotate(len(wide), *wide, text, None, 0, None, None, None, cos, sin)
    several = [found] if len(wide) == 1 else found
    keeps_type = form.upcast or form.keeps_type
    return [y.to(x.dtype) if keeps_type else y for x, y in zip(tensors, several, strict=True)]


class _ByTables(torch.autograd.Function):
    """Rotates by tables, with a gradient of eager PyTorch's bits and, as a reduction follows the
    order of memory, of its strides: contiguous."""

    generate_vmap_rule = True

    @staticmethod
    def forward(form: Form, layout: str, cos: Tensor, sin: Tensor, *tensors: Tensor) -> Any:
        return tuple(_by_tables(form, layout, cos, sin, tensors))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.form, ctx.layout, cos, sin, *tensors = inputs
        ctx.save_for_backward(cos, sin)
        ctx.save_for_forward(cos, sin)
        ctx.types = [x.dtype for x in tensors]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        cos, sin = ctx.saved_tensors
        if ctx.form.rounds_products and cos.dtype != ctx.types[0]:
            found = [
                _rounded_gradient(ctx.form, ctx.layout, (cos, sin), grad, dtype)
                for grad, dtype in zip(grads, ctx.types, strict=True)
            ]
        else:
            found = _by_tables(_transposed(ctx.form), ctx.layout, cos, sin, grads)
        typed = zip(found, ctx.types, strict=True)
        return None, None, None, None, *(x.to(dtype).contiguous() for x, dtype in typed)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        cos, sin = ctx.saved_tensors
        return tuple(_by_tables(ctx.form, ctx.layout, cos, sin, tangents[4:]))


_recorded = applied(_ByTables)


@cache
def _transposed(form: Form) -> Form:
    return replace(
        form,
        pairing_in=form.pairing_out,
        pairing_out=form.pairing_in,
        reverses=not form.reverses,
    )


def _rounded_gradient(
    form: Form, layout: str, tables: tuple[Tensor, Tensor], grad: Tensor, dtype: torch.dtype
) -> Tensor:
    """Of a tensor that eager PyTorch widens for each product: its gradient rounds each product to
    the tensor's type before it adds them."""
    heads = -3 if layout == "bhsd" else -2
    c, s = (form.pairs(table).unsqueeze(heads) for table in tables)
    s = -s if form.reverses else s
    turned = grad[..., : 2 * c.shape[-1]]
    if form.pairing_out == "half_split":
        a, b = turned.chunk(2, -1)
    else:
        a, b = turned[..., ::2], turned[..., 1::2]
    both = (a * c).to(dtype) + (b * s).to(dtype), (b * c).to(dtype) - (a * s).to(dtype)
    if form.pairing_in == "half_split":
        found = torch.cat(both, -1)
    else:
        found = torch.stack(both, -1).flatten(-2)
    rest = grad[..., found.shape[-1] :]
    return torch.cat((found, rest.to(dtype)), -1) if rest.shape[-1] else found


def _rotate(form: Form, layout: str, tensors: list[Tensor], cos: Any, sin: Any) -> Any:
    if isinstance(sin, Angles):
        text = f"{sin.text} {form.direction()} layout={layout}"
        given = [x.float() for x in tensors] if form.upcast else tensors
        lengths = sin.sequence_lengths
        found = rotate(len(given), *given, text, sin.position_ids, 0, None, None, lengths)
        several = [found] if len(given) == 1 else found
        rotated = [y.to(x.dtype) for x, y in zip(tensors, several, strict=True)]
    else:
        own = tensors[0].dtype
        wide = torch.float32 if form.upcast else torch.promote_types(own, cos.dtype)
        cos, sin = cos.to(wide), sin.to(wide)
        if needs_grad(*tensors) and not is_compiling():
            tables = constants((cos, sin)) if is_derived() else (cos, sin)
            rotated = _recorded(form, layout, *tables, *tensors)
        else:
            rotated = _by_tables(form, layout, cos, sin, tensors)
    return rotated[0] if len(tensors) == 1 else tuple(rotated)


# Dimensions of a table, those of a tensor, and where that has its heads, counted from its end.
_LAYOUTS = {
    (2, 3, -2): "thd",
    (2, 4, -2): "bshd",
    (2, 4, -3): "bhsd",
    (3, 4, -2): "bshd",
    (3, 4, -3): "bhsd",
}


def _layout(x: Tensor, rows: Tensor, is_ids: bool, unsqueeze_dim: int) -> str | None:
    """The layout of x, whose heads are where a table gets one more dimension; None: another."""
    # Of position ids, which stand for a table [batch, tokens, columns], tokens come last.
    dims, tokens = (3, -1) if is_ids else (rows.dim(), -2)
    heads = unsqueeze_dim if unsqueeze_dim < 0 else unsqueeze_dim - dims - 1
    layout = _LAYOUTS.get((dims, x.dim(), heads))
    fits = layout and x.shape[-2 if layout == "bhsd" else -3] == rows.shape[tokens]
    return layout if fits else None


def _parts(table: Any, x: Tensor, layout: str) -> tuple[Any, Any]:
    """cos and sin of complex numbers, which may be one table for a batch in any shape."""
    if isinstance(table, Angles):
        return table.position_ids, table
    tokens, pairs = x.shape[1 if layout == "bshd" else 2], table.shape[-1]
    if table.numel() == tokens * pairs:
        table = table.reshape(tokens, pairs)
    return table.real, table.imag


def _is_as_in_trials(table: Any) -> bool:
    """Whether a device multiplies by complex numbers as it did when forms were sought: on a CPU
    PyTorch fuses operations on numbers that are not side by side or fill no vectors, whose loop
    takes up to 16."""
    if isinstance(table, Angles) or table.device.type != "cpu":
        return True
    return bool(table.stride(-1) == 1 and table.shape[-1] % _VECTORS == 0)


def replacement(original: Callable[..., Any], forms: Mapping[str, Form]) -> Callable[..., Any]:
    """The function that rotates by the form for its tensors' device, and by the original where
    there is none, or a call's tables do not belong to its tokens or require a gradient."""
    parameters = inspect.signature(original).parameters
    names = tuple(parameters)
    tensor_names = _tensor_names(parameters)
    unsqueeze_dim = parameters["unsqueeze_dim"].default if "unsqueeze_dim" in names else -2
    complex_name = _complex_name(parameters)

    first = next(iter(forms.values()))  # which angles need, however a device rounds tables

    def apply_rotary_pos_emb(*args: Any, **kwargs: Any) -> Any:
        given = dict(zip(names, args, strict=False)) | kwargs
        tensors: list[Any] = [given.get(name) for name in tensor_names]
        has_angles = any(isinstance(x, Angles) for x in given.values())
        if all(x is not None for x in tensors):
            form = first if has_angles else form_on(forms, tensors[0].device)
            if form and complex_name and not _is_as_in_trials(given[complex_name]):
                form = None
            elif form and form.complex_layout:
                cos, sin = _parts(given[complex_name], tensors[0], form.complex_layout)
                dim = -2 if form.complex_layout == "bshd" else -3
            elif form:
                cos, sin = given["cos"], given["sin"]
                dim = given.get("unsqueeze_dim", unsqueeze_dim)
            if form and (has_angles or not (cos.requires_grad or sin.requires_grad)):
                layouts = {_layout(x, cos, has_angles, dim) for x in tensors}
                if len(layouts) == 1 and (layout := layouts.pop()):
                    return _rotate(form, layout, tensors, cos, sin)
        if has_angles:
            raise RuntimeError(
                f"{original.__name__} has no layout for its tensors; allowed for this model is "
                'angle_mode "table"'
            )
        return original(*args, **kwargs)

    apply_rotary_pos_emb.__dict__.update(original=original, forms=forms, users=0)
    return apply_rotary_pos_emb


def form_on(forms: Mapping[str, Form], device: torch.device | str) -> Form | None:
    """The form on a device."""
    return forms.get(torch.device(device).type, forms.get(_ANY))


def _tensor_names(parameters: Mapping[str, inspect.Parameter]) -> list[str]:
    return [name for name in parameters if name in _TENSORS]


def _complex_name(parameters: Mapping[str, inspect.Parameter]) -> str:
    return next((name for name in parameters if name in _COMPLEX), "")


def agrees(
    original: Callable[..., Any], form: Form, dtype: torch.dtype, device: str = "cpu"
) -> bool:
    """Whether the original and this form give the same bits, of results and of gradients, on small
    trials: of whole heads, with tables of both types, and of a part of each head, where the
    original takes that."""
    wide = torch.promote_types(dtype, torch.float32)

    def trial(pairs: int, table: torch.dtype) -> bool | None:
        return _agrees(original, form, dtype, device, pairs=pairs, table_dtype=table)

    return all(trial(16, x) for x in {dtype, wide}) and trial(4, dtype) is not False


def _trial(
    original: Callable[..., Any], form: Form, device: str, pairs: int, table_dtype: torch.dtype
) -> tuple[dict[str, Any], list[str], tuple[int, ...]]:
    """Tables for a trial's call, the names of its tensors, and their shape."""
    parameters = inspect.signature(original).parameters
    generator = torch.Generator().manual_seed(0)
    heads_first = "unsqueeze_dim" in parameters or form.complex_layout == "bhsd"
    angles = torch.randn(1, 7, pairs, generator=generator)
    if form.complex_layout:
        tables: dict[str, Any] = {_complex_name(parameters): torch.polar(angles.exp(), angles)}
    else:
        tables = {"cos": form.table(angles.cos()), "sin": form.table(angles.sin())}
        tables = {name: x.to(table_dtype) for name, x in tables.items()}
    arguments = {name: x.to(device) for name, x in tables.items()}
    if "unsqueeze_dim" in parameters:
        arguments["unsqueeze_dim"] = 1  # of which the replacement has a layout
    return arguments, _tensor_names(parameters), (1, 2, 7, 32) if heads_first else (1, 7, 2, 32)


def _agrees(
    original: Callable[..., Any],
    form: Form,
    dtype: torch.dtype,
    device: str,
    *,
    pairs: int,
    table_dtype: torch.dtype,
) -> bool | None:
    """None: the original refuses the trial."""
    arguments, names, shape = _trial(original, form, device, pairs, table_dtype)
    generator = torch.Generator().manual_seed(1)
    tensors, weights = (
        [torch.randn(shape, generator=generator).to(device, dtype) for _ in names] for _ in range(2)
    )
    leaves = [x.requires_grad_() for x in tensors]

    def run(function: Callable[..., Any]) -> list[Tensor]:
        found = function(**dict(zip(names, leaves, strict=True)), **arguments)
        several = list(found) if isinstance(found, tuple) else [found]
        typed = [w.to(y.dtype) for w, y in zip(weights, several, strict=True)]
        return several + list(torch.autograd.grad(several, leaves, typed))

    try:
        expected = run(original)
    except (RuntimeError, TypeError, IndexError, ValueError):
        return None
    found = run(replacement(original, {_ANY: form}))
    return all(
        a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(expected, found, strict=True)
    )


def find_form(original: Callable[..., Any], device: str = "cpu") -> Form | None:
    """The form of a rotary function, or None; bfloat16 tells in what type it rotates, and float32
    how a device rounds complex products."""
    parameters = inspect.signature(original).parameters
    is_complex = bool(_complex_name(parameters))
    if not is_complex and not {"cos", "sin"} <= set(parameters):
        return None
    if not 1 <= len(_tensor_names(parameters)) <= 2:
        return None
    candidates = _COMPLEX_FORMS if is_complex else _FORMS
    types = (torch.bfloat16, torch.float32) if is_complex else (torch.bfloat16,)

    def fits(form: Form) -> bool:
        return all(agrees(original, form, dtype, device) for dtype in types)

    with torch.inference_mode(False), torch.enable_grad():
        return next((form for form in candidates if fits(form)), None)


_known: WeakKeyDictionary[Callable[..., Any], dict[str, Form]] = WeakKeyDictionary()


def find_forms(original: Callable[..., Any]) -> dict[str, Form]:
    """Forms by the type of a device, on which the rounding of complex products depends. A function
    is tried once."""
    if original not in _known:
        _known[original] = _try_forms(original)
    return _known[original]


def _try_forms(original: Callable[..., Any]) -> dict[str, Form]:
    form = find_form(original)
    if form is None or not form.complex_layout:
        return {_ANY: form} if form else {}
    found = {"cpu": form}
    if torch.cuda.is_available() and (other := find_form(original, "cuda")):
        found["cuda"] = other
    return found
