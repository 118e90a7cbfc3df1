#!/usr/bin/env python3
"""Writes tests/goldens.h: what Transformers computes, run by itself on the CPU.

Needs scripts/requirements-goldens.txt. With --check, compares with the file that is there.
"""
import argparse
import json
import os
import pathlib
import sys

os.environ["ATEN_CPU_CAPABILITY"] = "default"  # the same code on every x86-64

import torch
import transformers
from transformers import AutoConfig, LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as deepseek_v3
from transformers.models.ernie4_5_vl_moe import modeling_ernie4_5_vl_moe as ernie
from transformers.models.gemma3 import modeling_gemma3 as gemma3
from transformers.models.gpt_neox import modeling_gpt_neox as gpt_neox
from transformers.models.gpt_oss import modeling_gpt_oss as gpt_oss
from transformers.models.gptj import modeling_gptj as gptj
from transformers.models.hunyuan_v1_dense import modeling_hunyuan_v1_dense as hunyuan
from transformers.models.llama import modeling_llama as llama
from transformers.models.phi3 import modeling_phi3 as phi3
from transformers.models.qwen2_vl import modeling_qwen2_vl as qwen2_vl
from transformers.models.qwen3 import modeling_qwen3 as qwen3
from transformers.models.qwen3_vl import modeling_qwen3_vl as qwen3_vl

ROOT = pathlib.Path(__file__).resolve().parent.parent
OUTPUT = ROOT / "tests" / "goldens.h"

HEADER = """\
/* What Transformers {transformers} computes with torch {torch}: written by scripts/goldens.py. */
/* clang-format off */
#ifndef ROPEKIT_TESTS_GOLDENS_H
#define ROPEKIT_TESTS_GOLDENS_H

#include <ropekit/rope.h>

/* A field of a configuration; text and list are NULL where it is a number. */
typedef struct golden_field {{
    const char *scope, *name;
    double number;
    const char *text;
    const double *list;
    int32_t count;
}} golden_field;

/* A configuration, the descriptor it stands for (struct_size 0: none), and its frequencies. */
typedef struct golden_frequency {{
    const char *name;
    const golden_field *fields;
    int32_t field_count;
    int32_t long_set;
    int64_t sequence_length; /* of a dynamic forward pass */
    rope_desc desc;
    int32_t count;
    const float *inv_freq;
    double attention_factor;
}} golden_frequency;

/* Axis of each pair. */
typedef struct golden_axes {{
    const char *model_type;
    int32_t layout, sections[3], pairs; /* sections in the order of a descriptor */
    const uint8_t *pair_axis;
}} golden_axes;

/* cos and sin of the fp32 angle: positions rows of pairs entries. */
typedef struct golden_cos_sin {{
    const char *name;
    const golden_frequency *frequency;
    int32_t positions, pairs;
    const int64_t *position;
    const float *cosine, *sine;
}} golden_cos_sin;

/* Eager rotation of `tokens` rows of head_dim elements, as bit patterns, with half-width tables. */
typedef struct golden_rotation {{
    const char *name;
    int32_t dtype, pairing_in, pairing_out, tokens, head_dim;
    const uint32_t *input, *cosine, *sine, *output;
}} golden_rotation;
"""

LONG = [1.0 + 0.75 * i for i in range(32)]
SHORT = [1.0 + 0.03125 * (i // 3) for i in range(32)]


def number(x):
    """A double, or an fp32 value with its suffix left to the caller, in hexadecimal."""
    text = float(x).hex()
    mantissa, exponent = text.split("p")
    return mantissa.rstrip("0").rstrip(".") + "p" + exponent if "." in mantissa else text


class Writer:
    """Collects C text and names its arrays."""

    def __init__(self):
        self.parts = []
        self.arrays = 0

    def array(self, c_type, values):
        name = f"golden_data_{self.arrays}"
        self.arrays += 1
        self.parts.append(f"static const {c_type} {name}[] = {{{', '.join(values)}}};")
        return name

    def floats(self, tensor):
        return self.array("float", [number(x) + "f" for x in tensor.float().flatten().tolist()])

    def doubles(self, values):
        return self.array("double", [repr(float(x)) for x in values])

    def bits(self, tensor):
        view = {torch.float32: torch.int32}.get(tensor.dtype, torch.int16)
        mask = 0xFFFFFFFF if view is torch.int32 else 0xFFFF
        return self.array("uint32_t", [hex(x & mask) for x in tensor.contiguous().view(view).flatten().tolist()])

    def table(self, c_type, name, rows):
        body = "\n".join(f"    {{{row}}}," for row in rows)
        self.parts.append(f"static const {c_type} {name}[] = {{\n{body}\n}};")


def field(out, scope, name, value):
    """A golden_field; None for what a configuration does not state or RoPE never reads."""
    head = f'"{scope}", "{name}"'
    if isinstance(value, str):
        return f'{{{head}, 0, "{value}", 0, 0}}'
    if isinstance(value, (bool, int, float)):
        return f"{{{head}, {float(value)!r}, 0, 0, 0}}"
    if isinstance(value, list) and value and all(isinstance(x, (int, float)) for x in value):
        return f"{{{head}, 0, 0, {out.doubles(value)}, {len(value)}}}"
    return None


def fields_of(out, config):
    """The fields of a config.json: text_config is the model, rope_* dictionaries the scope "rope"."""
    flat = {**config, **config.get("text_config", {})}
    items = []
    for name, value in flat.items():
        if name in ("rope_scaling", "rope_parameters"):
            items += [field(out, "rope", n, v) for n, v in (value or {}).items()]
        else:
            items.append(field(out, "", name, value))
    items = [item for item in items if item]
    return out.array("golden_field", items), len(items)


def frequency(out, name, config, inv_freq, factor, desc="{0}", long_set=0, sequence_length=0):
    fields, count = fields_of(out, config)
    return (f'"{name}", {fields}, {count}, {long_set}, {sequence_length}, {desc}, '
            f"{inv_freq.numel()}, {out.floats(inv_freq)}, {number(factor)}")


def descriptor(out, config, sequence_length):
    """The rope_desc of a synthetic configuration, from the meaning of its fields."""
    rope = dict(config["rope_parameters"])
    kind = rope.pop("rope_type")
    part = rope.pop("partial_rotary_factor", None)
    longest = config["max_position_embeddings"]
    known = {"head_dim": config["head_dim"], "rotary_dim": int(config["head_dim"] * (part or 1))}
    if kind == "proportional":
        known["rotary_dim"] = config["head_dim"]
        known["partial_rotary_factor"] = part or 0
    if kind == "yarn":
        if "attention_factor" in rope or not (rope.get("mscale") and rope.get("mscale_all_dim")):
            rope.pop("mscale", None), rope.pop("mscale_all_dim", None)
        if "truncate" in rope:
            rope["truncate"] = "ROPE_TRUNCATE_ON" if rope["truncate"] else "ROPE_TRUNCATE_OFF"
        if rope.get("factor") is None:
            rope["factor"] = longest / rope["original_max_position_embeddings"]
    if "alpha" in rope:
        rope.pop("factor")
    elif kind in ("longrope", "dynamic"):
        known["max_position_embeddings"] = longest
    if kind == "dynamic" and sequence_length:
        known["sequence_length"] = sequence_length
    if kind == "longrope":
        known["factor_count"] = len(rope["short_factor"])
    known.update(rope)
    text = [f".{n} = {out.doubles(v) if isinstance(v, list) else v}" for n, v in known.items()]
    return (f"{{.struct_size = sizeof(rope_desc), .dtype = ROPE_F32, .rope_type = ROPE_TYPE_{kind.upper()}, "
            + ", ".join(text) + "}")


def synthetic(out, name, kind, head_dim=128, longest=4096, sequence_length=0, long_set=0, **rope):
    """One rule of modeling_rope_utils, or of a model where that has its own."""
    rope = {"rope_type": kind, "rope_theta": 10000.0, **rope}
    config = {"head_dim": head_dim, "max_position_embeddings": longest, "rope_parameters": rope}
    model = LlamaConfig(hidden_size=8 * head_dim, num_attention_heads=8, **json.loads(json.dumps(config)))
    forward = rope["original_max_position_embeddings"] + 1 if long_set else sequence_length or None
    if kind == "default":
        inv_freq, factor = gpt_neox.GPTNeoXRotaryEmbedding.compute_default_rope_parameters(model)
    elif "alpha" in rope:
        inv_freq, factor = hunyuan.HunYuanDenseV1RotaryEmbedding.compute_ntk_alpha_rope_parameters(model)
    else:
        inv_freq, factor = ROPE_INIT_FUNCTIONS[kind](model, seq_len=forward)
    desc = descriptor(out, config, sequence_length)
    return frequency(out, name, config, inv_freq, factor, desc, long_set, sequence_length)


def synthetic_goldens(out):
    llama3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
              "original_max_position_embeddings": 8192, "rope_theta": 500000.0}
    yarn = {"factor": 4.0, "original_max_position_embeddings": 32768, "rope_theta": 1000000.0}
    deep = {"factor": 40.0, "original_max_position_embeddings": 4096}
    longrope = {"short_factor": SHORT, "long_factor": LONG, "original_max_position_embeddings": 4096}
    cases = [
        ("default", "default", {}),
        ("default d 2", "default", {"head_dim": 2}),
        ("default d 80", "default", {"head_dim": 80}),
        ("default theta 5e5", "default", {"rope_theta": 500000.0}),
        ("default theta 1e6 d 256", "default", {"head_dim": 256, "rope_theta": 1000000.0}),
        ("default partial 0.25", "default", {"head_dim": 96, "partial_rotary_factor": 0.25}),
        ("default partial 0.4", "default", {"head_dim": 80, "partial_rotary_factor": 0.4}),
        ("linear", "linear", {"factor": 8.0}),
        ("linear below 1", "linear", {"factor": 0.5}),
        ("linear partial 0.5", "linear", {"factor": 3.0, "partial_rotary_factor": 0.5}),
        ("dynamic at start", "dynamic", {"factor": 4.0}),
        ("dynamic below the length", "dynamic", {"factor": 4.0, "sequence_length": 1000}),
        ("dynamic one past", "dynamic", {"factor": 4.0, "sequence_length": 4097}),
        ("dynamic far past", "dynamic", {"factor": 4.0, "sequence_length": 131072}),
        ("dynamic d 4", "dynamic", {"factor": 2.0, "head_dim": 4, "sequence_length": 8192}),
        ("dynamic partial 0.5", "dynamic", {"factor": 2.0, "partial_rotary_factor": 0.5, "sequence_length": 10000}),
        ("dynamic alpha", "dynamic", {"alpha": 1000.0, "factor": 1.0}),
        ("yarn", "yarn", yarn),
        ("yarn truncate", "yarn", {**yarn, "truncate": True}),
        ("yarn no truncate", "yarn", {**yarn, "truncate": False}),
        ("yarn gpt-oss", "yarn", {"head_dim": 64, "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
                                  "truncate": False, "original_max_position_embeddings": 4096,
                                  "rope_theta": 150000.0}),
        ("yarn gpt-oss truncated", "yarn", {"head_dim": 64, "factor": 32.0, "truncate": True,
                                            "original_max_position_embeddings": 4096, "rope_theta": 150000.0}),
        ("yarn deepseek", "yarn", {"head_dim": 64, **deep, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0,
                                   "mscale_all_dim": 1.0}),
        ("yarn mscale 0.707", "yarn", {"head_dim": 64, **deep, "mscale": 0.707, "mscale_all_dim": 1.0}),
        ("yarn mscale alone", "yarn", {**deep, "mscale": 1.0}),
        ("yarn mscale 0", "yarn", {**deep, "mscale": 0.0, "mscale_all_dim": 1.0}),
        ("yarn mscale_all_dim alone", "yarn", {**deep, "mscale_all_dim": 1.0}),
        ("yarn attention_factor", "yarn", {**deep, "attention_factor": 1.25}),
        ("yarn attention_factor over mscale", "yarn", {**deep, "attention_factor": 1.25, "mscale": 1.0,
                                                       "mscale_all_dim": 0.5}),
        ("yarn factor 1", "yarn", {**yarn, "factor": 1.0}),
        ("yarn beta 0", "yarn", {**yarn, "beta_fast": 0, "beta_slow": 0}),
        ("yarn beta 16 2", "yarn", {**yarn, "beta_fast": 16.0, "beta_slow": 2.0}),
        ("yarn equal ends", "yarn", {**deep, "beta_fast": 4000.0, "beta_slow": 1000.0,
                                     "original_max_position_embeddings": 64}),
        ("yarn factor from lengths", "yarn", {"factor": None, "original_max_position_embeddings": 4096,
                                              "longest": 32768}),
        ("yarn partial 0.5", "yarn", {**yarn, "partial_rotary_factor": 0.5}),
        ("longrope short", "longrope", {"head_dim": 64, "longest": 131072, **longrope}),
        ("longrope long", "longrope", {"head_dim": 64, "longest": 131072, "long_set": 1, **longrope}),
        ("longrope factor", "longrope", {"head_dim": 64, "factor": 16.0, **longrope}),
        ("longrope factor 1", "longrope", {"head_dim": 64, **longrope}),
        ("longrope attention_factor", "longrope", {"head_dim": 64, "attention_factor": 1.5, "long_set": 1, **longrope}),
        ("longrope partial 0.5", "longrope", {"head_dim": 128, "longest": 131072, "partial_rotary_factor": 0.5,
                                              **longrope}),
        ("llama3", "llama3", {"longest": 131072, **llama3}),
        ("llama3 factor 32", "llama3", {"longest": 131072, "head_dim": 64, **llama3, "factor": 32.0}),
        ("llama3 narrow band", "llama3", {"longest": 131072, **llama3, "low_freq_factor": 3.0,
                                          "high_freq_factor": 3.5}),
        ("llama3 nothing long", "llama3", {"longest": 131072, "head_dim": 16, **llama3, "rope_theta": 10.0}),
        ("llama3 partial 0.5", "llama3", {"longest": 131072, **llama3, "partial_rotary_factor": 0.5}),
        ("proportional", "proportional", {"rope_theta": 1000000.0}),
        ("proportional 0.25", "proportional", {"head_dim": 512, "rope_theta": 1000000.0,
                                               "partial_rotary_factor": 0.25}),
        ("proportional 0.3", "proportional", {"partial_rotary_factor": 0.3}),
        ("proportional factor", "proportional", {"partial_rotary_factor": 0.5, "factor": 8.0}),
    ]
    return [synthetic(out, name, kind, **options) for name, kind, options in cases]


def model_goldens(out):
    """The models of examples/configs with their own rotary embedding."""
    embeddings = {
        "llama": llama.LlamaRotaryEmbedding, "qwen3": qwen3.Qwen3RotaryEmbedding,
        "deepseek_v3": deepseek_v3.DeepseekV3RotaryEmbedding, "phi3": phi3.Phi3RotaryEmbedding,
        "gpt_oss": gpt_oss.GptOssRotaryEmbedding, "gemma3_text": gemma3.Gemma3RotaryEmbedding,
        "gpt_neox": gpt_neox.GPTNeoXRotaryEmbedding, "qwen2_vl_text": qwen2_vl.Qwen2VLRotaryEmbedding,
        "qwen3_vl_text": qwen3_vl.Qwen3VLTextRotaryEmbedding,
    }
    rows = []
    for path in sorted((ROOT / "examples" / "configs").glob("*.json")):
        text = json.loads(path.read_text())
        config = AutoConfig.for_model(**json.loads(path.read_text())).get_text_config()
        if config.model_type == "gptj":
            plain = LlamaConfig(head_dim=config.rotary_dim)
            inv_freq, factor = llama.LlamaRotaryEmbedding.compute_default_rope_parameters(plain)
            rows.append(frequency(out, path.stem, text, inv_freq, factor))
            continue
        embedding = embeddings[config.model_type](config)
        prefix = "full_attention_" if hasattr(embedding, "full_attention_inv_freq") else ""
        factor = getattr(embedding, prefix + "attention_scaling")
        rows.append(frequency(out, path.stem, text, getattr(embedding, prefix + "inv_freq"), factor))
        if config.model_type == "phi3":
            length = config.original_max_position_embeddings + 1
            inv_freq, factor = ROPE_INIT_FUNCTIONS["longrope"](config, seq_len=length)
            rows.append(frequency(out, path.stem + " long", text, inv_freq, factor, long_set=1))
    return rows


def axes_goldens(out):
    """Each frequency is replaced by its axis, and the model's own code arranges them."""
    models = [
        ("qwen2_vl", "CHUNKED", qwen2_vl.Qwen2VLRotaryEmbedding, [16, 24, 24], [0, 1, 2]),
        ("qwen3_vl", "INTERLEAVED", qwen3_vl.Qwen3VLTextRotaryEmbedding, [24, 20, 20], [0, 1, 2]),
        ("ernie4_5_vl_moe", "ALTERNATING", ernie.Ernie4_5_VLMoeTextRotaryEmbedding, [22, 22, 20], [2, 0, 1]),
    ]
    rows = []
    for name, layout, kind, sections, order in models:
        stub = type("Sections", (), {"mrope_section": sections})()
        pairs = sum(sections)
        axes = torch.arange(3.0).reshape(3, 1, 1, 1).expand(3, 1, 1, pairs).clone()
        full = kind.recomposition_frequencies(stub, axes).flatten().int().tolist()
        mapping = full[::2] if layout == "ALTERNATING" else full[:pairs]
        listed = ", ".join(str(sections[i]) for i in order)
        data = out.array("uint8_t", [str(x) for x in mapping])
        rows.append(f'"{name}", ROPE_AXES_{layout}, {{{listed}}}, {pairs}, {data}')
    return rows


def cos_sin_goldens(out, names):
    """Transformers' own forward pass, whose angle is an fp32 product."""
    positions = [0, 1, 2, 100, 4095, 32768, 131071, 1048575, 16777216]
    rows = []
    for index, name in names:
        config = AutoConfig.for_model(**json.loads((ROOT / "examples" / "configs" / f"{name}.json").read_text()))
        kind = {"llama": llama.LlamaRotaryEmbedding, "gpt_oss": gpt_oss.GptOssRotaryEmbedding}[config.model_type]
        cosine, sine = kind(config)(torch.zeros(1), torch.tensor([positions]))
        pairs = config.head_dim // 2
        cosine, sine = cosine[0, :, :pairs], sine[0, :, :pairs]
        where = out.array("int64_t", [str(p) for p in positions])
        rows.append(f'"{name}", &golden_models[{index}], {len(positions)}, {pairs}, {where}, '
                    f"{out.floats(cosine)}, {out.floats(sine)}")
    return rows


def rotation_goldens(out):
    """The models' eager apply_rotary_pos_emb on normal, tiny and large inputs."""
    torch.manual_seed(20)
    width, positions = 32, torch.tensor([[0, 1, 977, 131071]])
    base = torch.randn(1, 1, positions.numel(), width, dtype=torch.float64)
    base[..., ::7] *= 2.0**-20
    base[..., ::11] *= 2.0**9
    rows = []
    for c_type, dtype in (("F32", torch.float32), ("F16", torch.float16), ("BF16", torch.bfloat16)):
        x = base.to(dtype)
        cosine, sine = llama.LlamaRotaryEmbedding(LlamaConfig(head_dim=width))(x, positions)
        half = (cosine[..., : width // 2], sine[..., : width // 2])
        tables = f"{out.bits(half[0])}, {out.bits(half[1])}"
        step = x.transpose(1, 2)
        results = [
            ("llama", "HALF_SPLIT", "HALF_SPLIT", llama.apply_rotary_pos_emb(x, x, cosine, sine)[0]),
            ("deepseek_v3", "INTERLEAVED", "HALF_SPLIT",
             deepseek_v3.apply_rotary_pos_emb_interleave(x, x, cosine, sine)[0]),
            ("gptj", "INTERLEAVED", "INTERLEAVED", gptj.apply_rotary_pos_emb(step, half[1], half[0]).transpose(1, 2)),
        ]
        source = out.bits(x)
        for name, before, after, y in results:
            rows.append(f'"{name} {c_type.lower()}", ROPE_{c_type}, ROPE_PAIRING_{before}, ROPE_PAIRING_{after}, '
                        f"{positions.numel()}, {width}, {source}, {tables}, {out.bits(y)}")
    return rows


def generate():
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    out = Writer()
    out.parts.append(HEADER.format(transformers=transformers.__version__, torch=torch.__version__.split("+")[0]))
    out.table("golden_frequency", "golden_rules", synthetic_goldens(out))
    models = model_goldens(out)
    out.table("golden_frequency", "golden_models", models)
    index = {name: i for i, row in enumerate(models) for name in ("llama-3.1-8b", "gpt-oss-20b")
             if row.startswith(f'"{name}",')}
    out.table("golden_axes", "golden_axis_maps", axes_goldens(out))
    out.table("golden_cos_sin", "golden_cos_sins", cos_sin_goldens(out, [(i, n) for n, i in index.items()]))
    out.table("golden_rotation", "golden_rotations", rotation_goldens(out))
    return "\n\n".join(out.parts) + "\n\n#endif\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only; exit status 1 where they differ")
    options = parser.parse_args()
    text = generate()
    if not options.check:
        OUTPUT.write_text(text)
        return 0
    if OUTPUT.read_text() == text:
        return 0
    print(f"{OUTPUT.relative_to(ROOT)} differs from what Transformers computes", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
