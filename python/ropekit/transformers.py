"""Hugging Face models on ropekit's kernels: `patch`, and attn_implementation "ropekit", which
importing this module makes known to Transformers.

The attention: padding in a cache becomes bits, one a key. Where a gradient is asked for through a
mask that the kernels lack (holes, images that see each other, a mask of the caller, any padding in
a compiled model), or there is dropout, PyTorch's attention takes the mask. What would change the
result and has no kernel is refused before the first token: output_attentions, a bias of positions,
keys that an indexer chose, the paged cache of continuous batching, a mask that the model pads.
"""

from __future__ import annotations

import importlib
import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from types import ModuleType, TracebackType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ropekit._forms import NAMES, Angles, find_forms, replacement
from ropekit._transformers_attention import NAME as ATTENTION
from ropekit._transformers_attention import register
from ropekit._transformers_fused import FusedForward, fuse, rotary_of
from ropekit.config import Config, merge

register()


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
            dict.fromkeys((*own, "pairing_in", "pairing_out", "direction"))
            | {"angle_mode": angle_mode, "arithmetic": arithmetic, "rotary_dim": 2 * known.numel()},
        )
    return texts


@dataclass(eq=False)
class _Forward:
    """The forward of a rotary embedding, with its texts, over the one it replaced on the instance.

    The copy of a module, or what is pickled, is another model than the one patched: there the
    forward is the copy's own, since no `restore` would take this one out.
    """

    module: nn.Module
    texts: dict[str | None, str]
    is_complex: bool  # gives complex numbers, not cos and sin
    under: Callable[..., Any] | None

    def __call__(self, x: Tensor, position_ids: Tensor, layer_type: str | None = None) -> Any:
        text = self.texts[layer_type]
        lengths = None
        if "axes=" in text and position_ids.dim() == 2:
            position_ids = position_ids.expand(3, -1, -1)
        if "rope_type=longrope" in text:  # one choice for the batch, as in Transformers
            lengths = (position_ids.amax() + 1).repeat(x.shape[0])
        angles = Angles(text, position_ids, lengths)
        return angles if self.is_complex else (position_ids, angles)

    def __reduce__(self) -> tuple[Any, ...]:
        if self.under:
            return partial, (self.under,)
        return getattr, (self.module, "forward")  # of a module without state yet: its class's


def _take_out(forward: _Forward | FusedForward) -> None:
    """Removes a patch's forward, also from below those of later patches."""
    module = forward.module
    above = module.__dict__.get("forward")
    if above is not forward:
        while above and getattr(above, "under", None) is not forward:
            above = getattr(above, "under", None)
        if above:
            above.under = forward.under
    elif forward.under:
        module.forward = forward.under
    else:
        del module.forward


class Patch:
    """What `patch` did. `restore`, or leaving the `with` block, undoes it; `report` tells it."""

    def __init__(self, model: nn.Module | ModuleType) -> None:
        self.report: list[str] = []
        self._model = weakref.ref(model)
        self._serves = True  # until its block or restore
        self._functions: list[tuple[ModuleType, str, Any]] = []
        self._forwards: list[_Forward | FusedForward] = []
        self._attention: str | dict[str, Any] | None = None  # what the model had

    def _set_attention(self, model: Any) -> None:
        if not hasattr(model, "set_attn_implementation"):
            raise ValueError(
                f"attention is True; allowed for {type(model).__name__}, which is no model of "
                "Transformers, is False"
            )
        before = _attention_of(model.config)
        model.set_attn_implementation(ATTENTION)
        self._attention = before
        if model.config.get_text_config()._attn_implementation != ATTENTION:
            raise ValueError(
                f"attention is True; allowed for {type(model).__name__}, which does not attend by "
                "Transformers' AttentionInterface, is False"
            )
        self.report.append(f"attention: {ATTENTION}, in place of {before}")
        for name, part in model.named_modules():
            if hasattr(part, "layer_idx") and (
                hasattr(part, "q_proj") or hasattr(part, "is_causal")
            ):
                self._fuse(model, name, part)

    def _fuse(self, model: nn.Module, name: str, layer: nn.Module) -> None:
        try:
            forward = fuse(layer, rotary_of(model, name))
        except (RuntimeError, ValueError, TypeError, AttributeError, KeyError) as error:
            self.report.append(f"{name}: its own steps, because {error}")
            return
        forward.under = layer.__dict__.get("forward")
        layer.forward = forward
        self._forwards.append(forward)
        self.report.append(
            f"{name}: norm, rotation, a static cache's write and attention in one call"
        )

    def _replace(self, module: ModuleType, name: str) -> None:
        function = getattr(module, name)
        if not hasattr(function, "users"):
            forms = find_forms(function)
            if not forms:
                self.report.append(f"{module.__name__}.{name}: left alone, of no known form")
                return
            function = replacement(function, forms)
            setattr(module, name, function)
        function.users += 1
        self._functions.append((module, name, function))
        self.report += [
            f"{module.__name__}.{name}, {device} device: {form}"
            for device, form in function.forms.items()
        ]

    def _set_angles(self, name: str, rotary: nn.Module, angle_mode: str, arithmetic: str) -> None:
        try:
            texts = _layer_texts(rotary, angle_mode, arithmetic)
        except (RuntimeError, ValueError, AttributeError) as error:
            self.report.append(f"{name}: the model's own cos and sin, because {error}")
            return
        is_complex = any(
            form.complex_layout
            for module, _, function in self._functions
            for form in function.forms.values()
            if module.__name__ == type(rotary).__module__
        )
        forward = _Forward(rotary, texts, is_complex, rotary.__dict__.get("forward"))
        rotary.forward = forward
        self._forwards.append(forward)
        self.report += [f"{name}{(x and f', {x}') or ''}: {text}" for x, text in texts.items()]

    def restore(self) -> None:
        """Puts back what was there before."""
        for module, name, function in self._functions:
            function.users -= 1
            if function.users == 0 and getattr(module, name) is function:
                setattr(module, name, function.original)
        for forward in self._forwards:
            _take_out(forward)
        self._functions, self._forwards = [], []
        model: Any = self._model()
        if self._attention is not None and model is not None:
            later = _active[_active.index(self) + 1 :] if self in _active else []
            of_model = (x for x in later if x._model() is model and x._attention is not None)
            above = next(of_model, None)
            if above is None:
                model.set_attn_implementation(self._attention)
            else:
                above._attention = self._attention
            self._attention = None
        self._serves = False
        _active[:] = [patch for patch in _active if patch is not self]

    def __repr__(self) -> str:
        return "\n".join(["Patch", *(f"  {line}" for line in self.report)])

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


def _attention_of(config: Any) -> str | dict[str, Any]:
    """The attention of a configuration, with those of its parts where it has any."""
    parts = {
        name: _attention_of(part)
        for name in getattr(config, "sub_configs", ())
        if (part := getattr(config, name, None)) is not None
    }
    own: str = config._attn_implementation
    return {"": own} | parts if parts else own


_active: list[Patch] = []  # in the order in which they were made


def _resolve(model: object) -> nn.Module | ModuleType:
    """What `patch` takes: a model, its class, a module of Transformers, or the name of one."""
    if isinstance(model, str):
        try:
            return importlib.import_module(f"transformers.models.{model}.modeling_{model}")
        except ImportError as error:
            raise ValueError(
                f'model is "{model}", of which Transformers has no source file ({error}); allowed '
                'is a model, its class, or a name as in "llama"'
            ) from error
    if isinstance(model, type) and issubclass(model, nn.Module):
        return sys.modules[model.__module__]
    if isinstance(model, (nn.Module, ModuleType)):
        return model
    raise TypeError(
        f"model is {type(model).__name__}; allowed is a model, its class, the module of its source "
        'file or its name, as in "llama"'
    )


def unpatch(model: nn.Module | ModuleType | type[nn.Module] | str) -> None:
    """Undoes every patch that was given this model."""
    target = _resolve(model)
    found = [patch for patch in _active if patch._model() is target]
    if not found:
        raise RuntimeError(f"{_name(model)} is not patched; allowed is what was given to patch")
    for patch in reversed(found):
        patch.restore()


def _name(model: nn.Module | ModuleType | type[nn.Module] | str) -> str:
    if isinstance(model, (ModuleType, type)):
        return model.__name__
    return model if isinstance(model, str) else type(model).__name__


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
    *,
    attention: bool = False,
) -> Patch:
    """Lets a Transformers model rotate with ropekit's kernels, and with `attention` attend too.

    With angle_mode "table" the model's own cos and sin are used in its own arithmetic: no bit of an
    eager model changes. With "exact" or "f32" ropekit computes the angles from the position ids and
    the model's configuration, in `arithmetic`, fp32 unless given.

    Logits in float32 then move by at most 2e-6 of the largest.

    The rotary functions of the model's source file are replaced, so other models of the same file
    run on the kernels too, with their own cos and sin; angles are replaced in this model alone.
    Copies, pickled or by copy.deepcopy, take their own cos and sin.

    A function is replaced where it and the kernel agree bit for bit on a trial, in results and
    gradients, and angles where the configuration gives the module's own frequencies; `Patch.report`
    tells what was left alone. Left alone are the angles of vision towers and GPT-J, dynamic
    scaling, calls whose tables require a gradient or do not belong to the tokens of q and k, and on
    a CPU complex numbers that are not side by side or not whole vectors, which PyTorch rounds
    otherwise. A rotated tensor keeps the order of q and k in memory: where the model's own result
    would be contiguous, a matrix product behind it may add in another order.

    Args:
        model: a model; or, for angle_mode "table", its class, the module of its source file or the
            name of that, as in "llama".
        attention: also sets attn_implementation "ropekit", until the patch is restored, and lets
            norm, rotation, a StaticCache's write and attention of one token be one `decode` in each
            layer of which a trial on a small cache gives the same queries, keys and values: bit for
            bit without a norm.

    Returns:
        a Patch, to restore or to use in a `with` statement; `unpatch(model)` undoes it as well.
        Patches nest and are restored in any order. A `with` block must hold the backward pass of
        gradient checkpoints too, as it runs the forward again.
    """
    given, model = model, _resolve(model)
    if angle_mode not in ("table", "exact", "f32"):
        raise ValueError(f'angle_mode is "{angle_mode}"; allowed is table, exact or f32')
    if arithmetic not in (None, "fp32", "model_dtype"):
        raise ValueError(f'arithmetic is "{arithmetic}"; allowed is fp32 or model_dtype')
    if angle_mode == "table" and arithmetic:
        raise ValueError(
            f'arithmetic is "{arithmetic}"; allowed with angle_mode "table" is the model\'s own'
        )
    if isinstance(model, ModuleType) and angle_mode != "table":
        raise ValueError(f'angle_mode is "{angle_mode}"; allowed for a module is "table"')
    if isinstance(model, ModuleType) and attention:
        raise ValueError("attention is True; allowed for a module is False")
    done = Patch(model)
    try:
        _apply(done, model, angle_mode, arithmetic or "fp32")
        if not done._functions:
            raise ValueError(
                f"{_name(given)} cannot be patched: its source file has no rotary function of a "
                f"known form.\nSupported are models whose file has one of {', '.join(NAMES)}\n"
                "with cos and sin or complex numbers, as of Llama, Gemma 3, GPT-NeoX or Llama 4."
            )
        if attention and isinstance(model, nn.Module):
            done._set_attention(model)
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
    if isinstance(model, ModuleType) or angle_mode == "table":
        return
    for name, part in model.named_modules():
        if hasattr(part, "rope_type") and hasattr(part, "config"):
            done._set_angles(name, part, angle_mode, arithmetic)
