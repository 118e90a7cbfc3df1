"""python -m ropekit.check: ropekit beside Transformers' own functions, on every device.

First come the backends: the file of each, and why it cannot be used. Then, for each frequency rule,
type and range of positions, these are compared:

- "tables": Transformers' cos and sin in its arithmetic, where every bit must agree;
- "f32": angles as Transformers computes them, by ropekit;
- "exact": ropekit's own angles; at long positions they differ by what Transformers' are off;
- "error": the largest error of Transformers and of "exact" against float64;

and then the rotary functions of model files, bit for bit. Differences are those of a rotated
element. Exits with 1 where one is past its bound.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

import ropekit
from ropekit._forms import NAMES, agrees, find_forms, form_on
from ropekit._library import library
from ropekit.config import Config

HEAD_DIM, HEADS, KV_HEADS, TOKENS = 64, 8, 2, 64
STARTS = (0, 4096, 131072 - TOKENS)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
FAMILIES = (
    "llama",
    "qwen3",
    "mistral",
    "gemma3",
    "gpt_neox",
    "gptj",
    "phi3",
    "deepseek_v3",
    "deepseek_v2",
    "llama4",
    "nanochat",
    "gpt_oss",
    "qwen2_vl",
    "qwen3_vl",
)
_FACTORS = [1.0 + 0.03 * i for i in range(HEAD_DIM // 2)]
RULES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "yarn": {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096},
    "longrope": {
        "rope_type": "longrope",
        "short_factor": _FACTORS,
        "long_factor": [4.0 * f for f in _FACTORS],
        "original_max_position_embeddings": 4096,
        "factor": 32.0,
    },
}


@dataclass(frozen=True)
class Row:
    """One line of the table; a difference and its bound as shares of one element."""

    device: str
    rule: str
    dtype: str
    positions: str
    tables: bool
    f32: float
    exact: float
    errors: tuple[float, float]
    within: bool

    def __str__(self) -> str:
        return (
            f"{self.device:8} {self.rule:9} {self.dtype:9} {self.positions:15} "
            f"{'equal' if self.tables else 'DIFFER':7} {self.f32:9.2e} {self.exact:9.2e} "
            f"{self.errors[0]:12.2e} {self.errors[1]:9.2e}  {'ok' if self.within else 'FAILED'}"
        )


TITLE = (
    f"{'device':8} {'rule':9} {'dtype':9} {'positions':15} {'tables':7} {'f32':>9} {'exact':>9} "
    f"{'error: theirs':>12} {'ours':>8}"
)


def _config(rule: str) -> Any:
    from transformers.models.llama import LlamaConfig  # noqa: PLC0415 (an optional dependency)

    return LlamaConfig(
        head_dim=HEAD_DIM,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=131072,
        rope_parameters={"rope_theta": 500000.0, **RULES[rule]},
    )


def _truth(x: Tensor, angle: Tensor, factor: float) -> Tensor:
    cos, sin = angle.cos() * factor, angle.sin() * factor
    a, b = x.double().chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def _largest(a: Tensor, b: Tensor) -> float:
    return float((a.double() - b.double()).abs().max())


def compare(device: str, rule: str, dtype: torch.dtype, start: int) -> Row:
    """One cell of the grid."""
    from transformers.models.llama import modeling_llama  # noqa: PLC0415

    config = _config(rule)
    rotary = modeling_llama.LlamaRotaryEmbedding(config).to(device)
    generator = torch.Generator().manual_seed(start)
    q = torch.randn(1, HEADS, TOKENS, HEAD_DIM, generator=generator).to(device, dtype)
    k = torch.randn(1, KV_HEADS, TOKENS, HEAD_DIM, generator=generator).to(device, dtype)
    ids = torch.arange(start, start + TOKENS, device=device)[None]
    cos, sin = rotary(q, ids)
    theirs = modeling_llama.apply_rotary_pos_emb(q, k, cos, sin)

    bhsd: dict[str, Any] = {"layout": "bhsd"}
    tables = ropekit.apply(q, k, cos=cos, sin=sin, arithmetic="model_dtype", **bhsd)
    used = [float(w) for w in rotary.inv_freq.double().cpu()]
    scaling = float(rotary.attention_scaling)
    f32 = ropekit.apply(
        q,
        k,
        positions=ids,
        rope_type="inv_freq",
        inv_freq=used,
        attention_factor=scaling,
        angle_mode="f32",
        **bhsd,
    )
    own = Config.from_transformers(config)
    lengths = torch.tensor([start + TOKENS], device=device) if rule == "longrope" else None
    exact = ropekit.apply(q, k, positions=ids, config=own, sequence_lengths=lengths, **bhsd)

    frequencies, factor = own.frequencies(HEAD_DIM, rule == "longrope" and start + TOKENS > 4096)
    angle = ids[0, :, None].double() * torch.tensor(frequencies, dtype=torch.float64, device=device)
    truth = _truth(q, angle, factor)
    # |y| <= reach; a table entry, a product and a sum round once each, an fp32 angle twice.
    reach = float(q.double().abs().max()) * 2 * factor
    rounding = reach * (4e-7 + 2 * torch.finfo(dtype).eps)
    turning = reach * float(angle.max()) * 3e-7
    f32_difference = max(_largest(a, b) for a, b in zip(f32, theirs, strict=True))
    exact_difference = max(_largest(a, b) for a, b in zip(exact, theirs, strict=True))
    equal = all(torch.equal(a, b) for a, b in zip(tables, theirs, strict=True))
    error = _largest(exact[0], truth)
    within = f32_difference <= rounding and exact_difference <= rounding + turning
    return Row(
        device,
        rule,
        str(dtype).removeprefix("torch."),
        f"{start}..{start + TOKENS - 1}",
        equal,
        f32_difference,
        exact_difference,
        (_largest(theirs[0], truth), error),
        equal and within and error <= rounding,
    )


def grid(devices: list[str], quick: bool) -> Iterator[Row]:
    """Every cell, or with quick one type and range for each rule."""
    for device in devices:
        for rule in RULES:
            for dtype in DTYPES[1:2] if quick else DTYPES:
                for start in STARTS[-1:] if quick else STARTS:
                    yield compare(device, rule, dtype, start)


def functions(devices: list[str]) -> Iterator[tuple[str, bool]]:
    """Each rotary function of the models that the tests run, on each device on which it is
    replaced, and whether every bit agrees."""
    for family in FAMILIES:
        module = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
        for name in NAMES:
            original = getattr(module, name, None)
            if original is None:
                continue
            forms = find_forms(original)
            for device in devices:
                form = form_on(forms, device)
                if form or not forms:
                    equal = form is not None and all(
                        agrees(original, form, dtype, device) for dtype in DTYPES
                    )
                    yield f"{device:8} {family}.{name}", equal


class _Info(ctypes.Structure):
    """rope_backend_info of rope.h."""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("name", ctypes.c_char_p),
        ("origin", ctypes.c_char_p),
        ("status", ctypes.c_int32),
        ("reason", ctypes.c_char_p),
        ("device_count", ctypes.c_int32),
    )


class Backend(NamedTuple):
    """A backend of the library."""

    name: str
    origin: str  #: its file
    reason: str  #: why it cannot be used; "" where it can

    def __str__(self) -> str:
        return f"{self.name:8} {self.origin}: {self.reason or 'can be used'}"


def backends() -> Iterator[Backend]:
    for i in range(library.rope_backend_count()):
        info = _Info(struct_size=ctypes.sizeof(_Info))
        if library.rope_backend_get(i, ctypes.byref(info)) != 0:
            raise RuntimeError(library.rope_last_error().decode())
        yield Backend(*(x.decode() for x in (info.name, info.origin, info.reason)))


def main(arguments: list[str] | None = None) -> int:
    """Prints the table; 1 where a row failed."""
    parser = argparse.ArgumentParser(prog="python -m ropekit.check", description=__doc__)
    parser.add_argument("--backends", action="store_true", help="the backends alone")
    parser.add_argument("--quick", action="store_true", help="one type and range for each rule")
    known = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]
    parser.add_argument("--device", action="append", help=f"one of {', '.join(known)}; default all")
    options = parser.parse_args(arguments)
    print(*backends(), sep="\n")
    if options.backends:
        return 0
    if importlib.util.find_spec("transformers") is None:
        print("transformers is missing: pip install 'transformers>=5.16'", file=sys.stderr)
        return 1
    devices = options.device or known
    print(TITLE)
    failed = 0
    for row in grid(devices, options.quick):
        print(row)
        failed += not row.within
    for line, equal in functions(devices):
        print(f"{line:55} {'equal  ok' if equal else 'DIFFER  FAILED'}")
        failed += not equal
    print(f"{failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
