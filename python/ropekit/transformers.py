"""Hugging Face models on ropekit's kernels: `patch`."""

from __future__ import annotations

import importlib
import inspect
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import ModuleType, TracebackType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ropekit._functions import rotate
from ropekit.config import Config, merge

NAMES = (
    "apply_rotary_pos_emb",
    "apply_rotary_pos_emb_interleave",
    "apply_rotary_pos_emb_vision",
)


@dataclass(frozen=True)
class Form:
    """A way in which Transformers' functions rotate."""

    pairing_in: str
    pairing_out: str
    columns: str  # how a row of cos holds the pairs: "once", "twice" as halves, or "repeated"
    upcast: bool = False  # rotates in float32 whatever the type of q
    keeps_type: bool = False  # gives the type of q where that of cos is wider

    def table(self, pairs: Tensor) -> Tensor:
        """A row of cos of this form."""
        if self.columns == "twice":
            return torch.cat((pairs, pairs), -1)
        return pairs.repeat_interleave(2, -1) if self.columns == "repeated" else pairs

    def text(self, columns: int) -> str:
        """The configuration for the caller's tables with so many columns."""
        return (
            f"rotary_dim={2 * columns if self.columns == 'once' else columns} "
            f"table_width={'full' if self.columns == 'repeated' else 'half'} "
            f"angle_mode=table arithmetic=model_dtype {self.pairing()}"
        )

    def pairing(self) -> str:
        """The pairing as text of a configuration."""
        return f"pairing_in={self.pairing_in} pairing_out={self.pairing_out}"


_FORMS = [
    Form(pairing_in, pairing_out, columns, upcast, keeps_type)
    for upcast, keeps_type in ((False, False), (False, True), (True, True))
    for pairing_in, pairing_out, columns in (
        ("half_split", "half_split", "twice"),
        ("half_split", "half_split", "once"),
        ("interleaved", "half_split", "twice"),
        ("interleaved", "interleaved", "repeated"),
        ("interleaved", "interleaved", "twice"),
        ("interleaved", "interleaved", "once"),
    )
]


@dataclass(frozen=True)
class Angles:
    """What a patched rotary embedding gives for sin; for cos it gives the position ids."""

    text: str
    sequence_lengths: Tensor | None

    def to(self, *args: Any, **kwargs: Any) -> Angles:
        """As a tensor's, for what sends a layer's arguments to the layer's device."""
        lengths = self.sequence_lengths
        return self if lengths is None else Angles(self.text, lengths.to(*args, **kwargs))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"the angles of a patched embedding have no {name}: a function that is not patched was "
            "given them, as one that is run again for a gradient once the patch is restored"
        )


def _rotate(form: Form, layout: str, tensors: list[Tensor], cos: Tensor, sin: Any) -> Any:
    types = [x.dtype for x in tensors]
    if isinstance(sin, Angles):
        text, positions = f"{sin.text} {form.pairing()}", cos
        rest: tuple[Any, ...] = (0, None, None, sin.sequence_lengths)
    else:
        text, positions = form.text(cos.shape[-1]), None
        if form.upcast:
            cos, sin = cos.float(), sin.float()
        elif cos.dtype != tensors[0].dtype:  # under autocast: a product of both promotes
            dtype = torch.promote_types(tensors[0].dtype, cos.dtype)
            tensors, cos, sin = [x.to(dtype) for x in tensors], cos.to(dtype), sin.to(dtype)
            types = types if form.keeps_type else [dtype for _ in types]
        rest = (0, None, None, None, cos, sin)
    given = [x.float() for x in tensors] if form.upcast else tensors
    text = f"{text} layout={layout}"
    found = rotate(len(given), *given, text, positions, *rest)
    if len(given) == 1:
        return found.to(types[0])
    return tuple(y.to(dtype) for y, dtype in zip(found, types, strict=True))


# Dimensions of a table, those of a tensor, and where that has its heads, counted from its end.
_LAYOUTS = {
    (2, 3, -2): "thd",
    (2, 4, -2): "bshd",
    (2, 4, -3): "bhsd",
    (3, 4, -2): "bshd",
    (3, 4, -3): "bhsd",
}


def _layout(x: Tensor | None, cos: Tensor, sin: Any, unsqueeze_dim: int) -> str | None:
    """The layout of x, whose heads are where a table gets one more dimension; None: another."""
    if x is None:
        return None
    # Of position ids, which stand for a table [batch, tokens, columns], tokens come last.
    dims, tokens = (3, -1) if isinstance(sin, Angles) else (cos.dim(), -2)
    heads = unsqueeze_dim if unsqueeze_dim < 0 else unsqueeze_dim - dims - 1
    layout = _LAYOUTS.get((dims, x.dim(), heads))
    fits = layout and x.shape[-2 if layout == "bhsd" else -3] == cos.shape[tokens]
    return layout if fits else None


def _replacement(original: Callable[..., Any], form: Form) -> Callable[..., Any]:
    parameters = inspect.signature(original).parameters
    names = tuple(parameters)
    tensor_names = _tensor_names(parameters)
    unsqueeze_dim = parameters["unsqueeze_dim"].default if "unsqueeze_dim" in names else -2

    def apply_rotary_pos_emb(*args: Any, **kwargs: Any) -> Any:
        given = dict(zip(names, args, strict=False)) | kwargs
        tensors: list[Any] = [given.get(name) for name in tensor_names]
        cos, sin = given["cos"], given["sin"]
        dim = given.get("unsqueeze_dim", unsqueeze_dim)
        layouts = {_layout(x, cos, sin, dim) for x in tensors}
        layout = layouts.pop() if len(layouts) == 1 else None
        if layout:
            return _rotate(form, layout, tensors, cos, sin)
        if isinstance(sin, Angles):
            raise RuntimeError(
                f"{original.__name__} has no layout for its tensors; allowed for this model is "
                'angle_mode "table"'
            )
        return original(*args, **kwargs)

    apply_rotary_pos_emb.__dict__.update(original=original, form=form, users=0)
    return apply_rotary_pos_emb


def _tensor_names(parameters: Mapping[str, inspect.Parameter]) -> list[str]:
    return [name for name in parameters if name in ("q", "k", "x", "tensor")]


def agrees(
    original: Callable[..., Any], form: Form, dtype: torch.dtype, device: str = "cpu"
) -> bool:
    """Whether the original and this form give the same bits on small trials: of whole heads, with
    tables of both types, and of a part of each head, where the original takes that."""
    wide = torch.promote_types(dtype, torch.float32)
    trials = [
        _agrees(original, form, dtype, device, pairs=pairs, table_dtype=table_dtype)
        for pairs, table_dtype in ((16, dtype), (16, wide), (4, dtype))
    ]
    return trials[0] is trials[1] is True and trials[2] is not False


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
    parameters = inspect.signature(original).parameters
    generator = torch.Generator().manual_seed(0)
    heads_first = "unsqueeze_dim" in parameters
    shape = (1, 2, 7, 32) if heads_first else (1, 7, 2, 32)
    dim = {"unsqueeze_dim": 1} if heads_first else {}  # of which the replacement has a layout
    angles = torch.randn(1, 7, pairs, generator=generator)
    arguments = {"cos": form.table(angles.cos()), "sin": form.table(angles.sin())}
    arguments = {name: x.to(device, table_dtype) for name, x in arguments.items()}
    for name in _tensor_names(parameters):
        arguments[name] = torch.randn(shape, generator=generator).to(device, dtype)
    try:
        expected = original(**arguments, **dim)
    except (RuntimeError, TypeError, IndexError):
        return None
    found = _replacement(original, form)(**arguments, **dim)
    several = zip(expected, found, strict=True) if isinstance(found, tuple) else [(expected, found)]
    return all(a.dtype == b.dtype and torch.equal(a, b) for a, b in several)


def find_form(original: Callable[..., Any]) -> Form | None:
    """The form of a rotary function, or None; bfloat16 tells in what type it rotates."""
    names = inspect.signature(original).parameters
    if not {"cos", "sin"} <= set(names) or not 1 <= len(_tensor_names(names)) <= 2:
        return None
    with torch.no_grad():
        return next((form for form in _FORMS if agrees(original, form, torch.bfloat16)), None)


def _layer_texts(rotary: nn.Module, angle_mode: str, arithmetic: str) -> dict[str | None, str]:
    """The configuration of each layer type (None: of all) whose frequencies are the module's."""
    by_layer = isinstance(rotary.rope_type, dict) and rotary.rope_type
    layer_types = list(by_layer) if by_layer else [None]
    texts = {}
    for layer_type in layer_types:
        config = Config.from_transformers(rotary.config, layer_type)
        prefix = f"{layer_type}_" if layer_type else ""
        known = getattr(rotary, f"{prefix}original_inv_freq").double().cpu()
        scaling = getattr(rotary, f"{prefix}attention_scaling")
        frequencies, factor = config.frequencies(2 * known.numel())
        found = torch.tensor(frequencies, dtype=torch.float64)
        if not torch.allclose(found, known, rtol=1e-5, atol=0) or abs(factor / scaling - 1) > 1e-6:
            raise RuntimeError("its frequencies are not those of its configuration")
        if "rope_type=dynamic" in config.text and "alpha=" not in config.text:
            raise RuntimeError("rope_type is dynamic: its frequencies change with the sequence")
        own = ("head_dim", "k_head_dim", "rotary_offset", "k_rotary_offset")
        texts[layer_type] = merge(
            config.text,
            dict.fromkeys((*own, "pairing_in", "pairing_out"))
            | {"angle_mode": angle_mode, "arithmetic": arithmetic, "rotary_dim": 2 * known.numel()},
        )
    return texts


@dataclass(eq=False)
class _Forward:
    """The forward of a rotary embedding, with its texts, over the one it replaced on the instance.

    The copy of a module, or what is pickled, is another model than the one patched: there the
    forward is the copy's own, since no `restore` would take this one out.
    """

    rotary: nn.Module
    texts: dict[str | None, str]
    under: Callable[..., Any] | None

    def __call__(self, x: Tensor, position_ids: Tensor, layer_type: str | None = None) -> Any:
        text = self.texts[layer_type]
        lengths = None
        if "axes=" in text and position_ids.dim() == 2:
            position_ids = position_ids.expand(3, -1, -1)
        if "rope_type=longrope" in text:  # one choice for the batch, as in Transformers
            lengths = (position_ids.amax() + 1).repeat(x.shape[0])
        return position_ids, Angles(text, lengths)

    def __reduce__(self) -> tuple[Any, ...]:
        if self.under:
            return partial, (self.under,)
        return getattr, (self.rotary, "forward")  # of a module without state yet: its class's


def _take_out(forward: _Forward) -> None:
    """Removes a patch's forward, also from below those of later patches."""
    rotary = forward.rotary
    above = rotary.__dict__.get("forward")
    if above is not forward:
        while above and getattr(above, "under", None) is not forward:
            above = getattr(above, "under", None)
        if above:
            above.under = forward.under
    elif forward.under:
        rotary.forward = forward.under
    else:
        del rotary.forward


class Patch:
    """What `patch` did. `restore`, or leaving the `with` block, undoes it; `report` tells it."""

    def __init__(self, model: nn.Module | ModuleType) -> None:
        self.report: list[str] = []
        self._model = weakref.ref(model)
        self._serves = True  # until its block or restore
        self._functions: list[tuple[ModuleType, str, Any]] = []
        self._forwards: list[_Forward] = []

    def _replace(self, module: ModuleType, name: str) -> None:
        function = getattr(module, name)
        if not hasattr(function, "users"):
            form = find_form(function)
            if form is None:
                self.report.append(f"{module.__name__}.{name}: left alone, of no known form")
                return
            function = _replacement(function, form)
            setattr(module, name, function)
        function.users += 1
        self._functions.append((module, name, function))
        self.report.append(f"{module.__name__}.{name}: {function.form}")

    def _set_angles(self, name: str, rotary: nn.Module, angle_mode: str, arithmetic: str) -> None:
        try:
            texts = _layer_texts(rotary, angle_mode, arithmetic)
        except (RuntimeError, ValueError, AttributeError) as error:
            self.report.append(f"{name}: the model's own cos and sin, because {error}")
            return
        forward = _Forward(rotary, texts, rotary.__dict__.get("forward"))
        rotary.forward = forward
        self._forwards.append(forward)
        self.report += [f"{name}: {text}" for text in texts.values()]

    def restore(self) -> None:
        """Puts back what was there before."""
        for module, name, function in self._functions:
            function.users -= 1
            if function.users == 0 and getattr(module, name) is function:
                setattr(module, name, function.original)
        for forward in self._forwards:
            _take_out(forward)
        self._functions, self._forwards = [], []
        self._serves = False
        _active[:] = [patch for patch in _active if patch is not self]

    def __enter__(self) -> Patch:
        if not self._serves:
            raise RuntimeError("the patch was restored or serves a block; allowed is a new one")
        self._serves = False
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.restore()


_active: list[Patch] = []  # in the order in which they were made


def _resolve(model: object) -> nn.Module | ModuleType:
    """What `patch` takes: a model, its class, a module of Transformers, or the name of one."""
    if isinstance(model, str):
        try:
            return importlib.import_module(f"transformers.models.{model}.modeling_{model}")
        except ImportError as error:
            raise RuntimeError(
                f'model is "{model}", of which Transformers has no source file ({error}); allowed '
                'is a model, its class, or a name as in "llama"'
            ) from error
    if isinstance(model, type) and issubclass(model, nn.Module):
        return sys.modules[model.__module__]
    if isinstance(model, (nn.Module, ModuleType)):
        return model
    raise RuntimeError(
        f"model is {type(model).__name__}; allowed is a model, its class, the module of its source "
        'file or its name, as in "llama"'
    )


def unpatch(model: nn.Module | ModuleType | type[nn.Module] | str) -> None:
    """Undoes every patch that was given this model."""
    target = _resolve(model)
    found = [patch for patch in _active if patch._model() is target]
    if not found:
        raise RuntimeError(f"{_name(target)} is not patched; allowed is what was given to patch")
    for patch in reversed(found):
        patch.restore()


def _name(model: nn.Module | ModuleType) -> str:
    return model.__name__ if isinstance(model, ModuleType) else type(model).__name__


def _sources(model: nn.Module | ModuleType) -> Iterator[ModuleType]:
    if isinstance(model, ModuleType):
        yield model
        return
    names = {type(part).__module__: None for part in model.modules()}
    yield from (sys.modules[name] for name in names if name in sys.modules)


def patch(
    model: nn.Module | ModuleType | type[nn.Module] | str,
    angle_mode: Literal["table", "exact", "f32"] = "table",
    arithmetic: Literal["fp32", "model_dtype"] | None = None,
) -> Patch:
    """Lets a Transformers model rotate with ropekit's kernels.

    With angle_mode "table" the model's own cos and sin are used in its own arithmetic: no bit of an
    eager model changes. With "exact" or "f32" ropekit computes the angles from the position ids and
    the model's configuration, in `arithmetic`, fp32 unless given.

    The functions apply_rotary_pos_emb* of the model's source file are replaced, so other models of
    the same file run on the kernels too, with their own cos and sin; angles are replaced in this
    model alone.

    Args:
        model: a model; or, for angle_mode "table", its class, the module of its source file or the
            name of that, as in "llama".

    Returns:
        a Patch, to restore or to use in a `with` statement; `unpatch(model)` undoes it as well.
    """
    model = _resolve(model)
    if angle_mode not in ("table", "exact", "f32"):
        raise RuntimeError(f'angle_mode is "{angle_mode}"; allowed is table, exact or f32')
    if arithmetic not in (None, "fp32", "model_dtype"):
        raise RuntimeError(f'arithmetic is "{arithmetic}"; allowed is fp32 or model_dtype')
    if angle_mode == "table" and arithmetic:
        raise RuntimeError(
            f'arithmetic is "{arithmetic}"; allowed with angle_mode "table" is the model\'s own'
        )
    if isinstance(model, ModuleType) and angle_mode != "table":
        raise RuntimeError(f'angle_mode is "{angle_mode}"; allowed for a module is "table"')
    done = Patch(model)
    try:
        _apply(done, model, angle_mode, arithmetic or "fp32")
    except BaseException:
        done.restore()
        raise
    _active.append(done)
    return done


def _apply(done: Patch, model: nn.Module | ModuleType, angle_mode: str, arithmetic: str) -> None:
    for module in _sources(model):
        for name in NAMES:
            if callable(getattr(module, name, None)):
                done._replace(module, name)
    if not done._functions:
        raise RuntimeError(
            f"{_name(model)} cannot be patched: its source file has no rotary function of a known "
            f"form.\nSupported are models whose file has one of {', '.join(NAMES)}\n"
            "with cos and sin, as those of Llama, Qwen3, Mistral, Gemma 3 and GPT-NeoX have."
        )
    if isinstance(model, ModuleType) or angle_mode == "table":
        return
    for name, part in model.named_modules():
        if hasattr(part, "rope_type") and hasattr(part, "config"):
            done._set_angles(name, part, angle_mode, arithmetic)
