#!/usr/bin/env python3
"""Writes tests/model/goldens.tsv: what Transformers computes, run by itself on the CPU.

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
OUTPUT = ROOT / "tests" / "model" / "goldens.tsv"
COLUMNS = 7
F32, HALF_SPLIT, INTERLEAVED, CHUNKED, INTERLEAVED_AXES, ALTERNATING = 1, 1, 2, 1, 2, 3  # of rope.h

LONG = [1.0 + 0.75 * i for i in range(32)]
SHORT = [1.0 + 0.03125 * (i // 3) for i in range(32)]


def bits(tensor):
    """The bit patterns of a tensor in hexadecimal, one after the other."""
    view, digits = (torch.int32, 8) if tensor.dtype is torch.float32 else (torch.int16, 4)
    mask = (1 << 4 * digits) - 1
    return "".join(f"{x & mask:0{digits}x}" for x in tensor.contiguous().view(view).flatten().tolist())


def numbers(values):
    return " ".join(str(int(x)) for x in values)


def frequency(name, config, inv_freq, factor, long_set=0, sequence_length=0):
    """Frequencies of a configuration, or of the shipped one of a name. long_set: those of longrope's long
    sequences; sequence_length: of a dynamic forward pass."""
    text = config if isinstance(config, str) else json.dumps(config, separators=(",", ":"))
    return ["frequency", name, text, long_set, sequence_length, float(factor).hex(), bits(inv_freq.float())]


def synthetic(name, kind, head_dim=128, longest=4096, sequence_length=0, long_set=0, **rope):
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
    return frequency(name, config, inv_freq, factor, long_set, sequence_length)


def synthetic_goldens():
    """Rules by the first word of a name."""
    p, original = "partial_rotary_factor", "original_max_position_embeddings"
    band = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    llama3 = {"longest": 131072, **band, original: 8192, "rope_theta": 500000.0}
    yarn = {"factor": 4.0, original: 32768, "rope_theta": 1000000.0}
    deep = {"factor": 40.0, original: 4096}
    oss, end = {"head_dim": 64, "factor": 32.0}, {original: 4096, "rope_theta": 150000.0}
    both = {"mscale": 1.0, "mscale_all_dim": 1.0}
    longrope = {"short_factor": SHORT, "long_factor": LONG, original: 4096}
    narrow = {"head_dim": 64, **longrope}
    cases = {
        "default": {},
        "default d 2": {"head_dim": 2},
        "default d 80": {"head_dim": 80},
        "default theta 5e5": {"rope_theta": 500000.0},
        "default theta 1e6 d 256": {"head_dim": 256, "rope_theta": 1000000.0},
        "default partial 0.25": {"head_dim": 96, p: 0.25},
        "default partial 0.4": {"head_dim": 80, p: 0.4},
        "linear": {"factor": 8.0},
        "linear below 1": {"factor": 0.5},
        "linear partial 0.5": {"factor": 3.0, p: 0.5},
        "dynamic at start": {"factor": 4.0},
        "dynamic below the length": {"factor": 4.0, "sequence_length": 1000},
        "dynamic one past": {"factor": 4.0, "sequence_length": 4097},
        "dynamic far past": {"factor": 4.0, "sequence_length": 131072},
        "dynamic d 4": {"factor": 2.0, "head_dim": 4, "sequence_length": 8192},
        "dynamic partial 0.5": {"factor": 2.0, p: 0.5, "sequence_length": 10000},
        "dynamic alpha": {"alpha": 1000.0, "factor": 1.0},
        "yarn": yarn,
        "yarn truncate": {**yarn, "truncate": True},
        "yarn no truncate": {**yarn, "truncate": False},
        "yarn gpt-oss": {**oss, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False, **end},
        "yarn gpt-oss truncated": {**oss, "truncate": True, **end},
        "yarn deepseek": {"head_dim": 64, **deep, "beta_fast": 32, "beta_slow": 1, **both},
        "yarn mscale 0.707": {"head_dim": 64, **deep, "mscale": 0.707, "mscale_all_dim": 1.0},
        "yarn mscale alone": {**deep, "mscale": 1.0},
        "yarn mscale 0": {**deep, "mscale": 0.0, "mscale_all_dim": 1.0},
        "yarn mscale_all_dim alone": {**deep, "mscale_all_dim": 1.0},
        "yarn attention_factor": {**deep, "attention_factor": 1.25},
        "yarn attention_factor over mscale": {
            **deep,
            "attention_factor": 1.25,
            **both,
            "mscale_all_dim": 0.5,
        },
        "yarn factor 1": {**yarn, "factor": 1.0},
        "yarn beta 0": {**yarn, "beta_fast": 0, "beta_slow": 0},
        "yarn beta 16 2": {**yarn, "beta_fast": 16.0, "beta_slow": 2.0},
        "yarn equal ends": {**deep, "beta_fast": 4000.0, "beta_slow": 1000.0, original: 64},
        "yarn factor from lengths": {"factor": None, original: 4096, "longest": 32768},
        "yarn partial 0.5": {**yarn, p: 0.5},
        "longrope short": {**narrow, "longest": 131072},
        "longrope long": {**narrow, "longest": 131072, "long_set": 1},
        "longrope factor": {"head_dim": 64, "factor": 16.0, **longrope},
        "longrope factor 1": narrow,
        "longrope attention_factor": {"head_dim": 64, "attention_factor": 1.5, "long_set": 1, **longrope},
        "longrope partial 0.5": {"head_dim": 128, "longest": 131072, p: 0.5, **longrope},
        "llama3": llama3,
        "llama3 factor 32": {**llama3, "head_dim": 64, "factor": 32.0},
        "llama3 narrow band": {**llama3, "low_freq_factor": 3.0, "high_freq_factor": 3.5},
        "llama3 nothing long": {**llama3, "head_dim": 16, "rope_theta": 10.0},
        "llama3 partial 0.5": {**llama3, p: 0.5},
        "proportional": {"rope_theta": 1000000.0},
        "proportional 0.25": {"head_dim": 512, "rope_theta": 1000000.0, p: 0.25},
        "proportional 0.3": {p: 0.3},
        "proportional factor": {p: 0.5, "factor": 8.0},
    }
    return [synthetic(name, name.split()[0], **options) for name, options in cases.items()]


def model_goldens():
    """The models of examples/configs with their own rotary embedding."""
    embeddings = {
        "llama": llama.LlamaRotaryEmbedding,
        "qwen3": qwen3.Qwen3RotaryEmbedding,
        "deepseek_v3": deepseek_v3.DeepseekV3RotaryEmbedding,
        "phi3": phi3.Phi3RotaryEmbedding,
        "gpt_oss": gpt_oss.GptOssRotaryEmbedding,
        "gemma3_text": gemma3.Gemma3RotaryEmbedding,
        "gpt_neox": gpt_neox.GPTNeoXRotaryEmbedding,
        "qwen2_vl_text": qwen2_vl.Qwen2VLRotaryEmbedding,
        "qwen3_vl_text": qwen3_vl.Qwen3VLTextRotaryEmbedding,
    }
    for path in sorted((ROOT / "examples" / "configs").glob("*.json")):
        name, config = path.stem, AutoConfig.for_model(**json.loads(path.read_text())).get_text_config()
        if config.model_type == "gptj":
            plain = LlamaConfig(head_dim=config.rotary_dim)
            yield frequency(name, name, *llama.LlamaRotaryEmbedding.compute_default_rope_parameters(plain))
            continue
        if config.model_type not in embeddings or path.stem.endswith("-shipped"):
            continue  # compared in python/tests/test_config.py
        embedding = embeddings[config.model_type](config)
        prefix = "full_attention_" if hasattr(embedding, "full_attention_inv_freq") else ""
        factor = getattr(embedding, prefix + "attention_scaling")
        yield frequency(name, name, getattr(embedding, prefix + "inv_freq"), factor)
        if config.model_type == "phi3":
            length = config.original_max_position_embeddings + 1
            yield frequency(
                name + " long", name, *ROPE_INIT_FUNCTIONS["longrope"](config, seq_len=length), long_set=1
            )


def axes_goldens():
    """The axis of each pair: each frequency is replaced by its axis; the model's own code arranges them."""
    models = [
        ("qwen2_vl", CHUNKED, qwen2_vl.Qwen2VLRotaryEmbedding, [16, 24, 24], [0, 1, 2]),
        ("qwen3_vl", INTERLEAVED_AXES, qwen3_vl.Qwen3VLTextRotaryEmbedding, [24, 20, 20], [0, 1, 2]),
        ("ernie4_5_vl_moe", ALTERNATING, ernie.Ernie4_5_VLMoeTextRotaryEmbedding, [22, 22, 20], [2, 0, 1]),
    ]
    for name, layout, kind, sections, order in models:
        stub = type("Sections", (), {"mrope_section": sections})()
        pairs = sum(sections)
        axes = torch.arange(3.0).reshape(3, 1, 1, 1).expand(3, 1, 1, pairs).clone()
        full = kind.recomposition_frequencies(stub, axes).flatten().int().tolist()
        mapping = full[::2] if layout == ALTERNATING else full[:pairs]
        yield ["axes", name, layout, numbers(sections[i] for i in order), "".join(map(str, mapping))]


def cos_sin_goldens():
    """Transformers' own forward pass, whose angle is an fp32 product: a row of cos and sin a position."""
    positions = [0, 1, 4095, 131071, 1048575, 16777216]
    for name, kind in (
        ("gpt-oss-20b", gpt_oss.GptOssRotaryEmbedding),
        ("llama-3.1-8b", llama.LlamaRotaryEmbedding),
    ):
        config = AutoConfig.for_model(
            **json.loads((ROOT / "examples" / "configs" / f"{name}.json").read_text())
        )
        both = kind(config)(torch.zeros(1), torch.tensor([positions]))
        yield ["cos_sin", name, numbers(positions), *(bits(x[0, :, : config.head_dim // 2]) for x in both)]


def rotation_goldens():
    """The models' eager apply_rotary_pos_emb on normal, tiny and large inputs: input, cos and sin of half
    width, output."""
    torch.manual_seed(20)
    width, positions = 32, torch.tensor([[0, 1, 977, 131071]])
    base = torch.randn(1, 1, positions.numel(), width, dtype=torch.float64)
    base[..., ::7] *= 2.0**-20
    base[..., ::11] *= 2.0**9
    for number, dtype in enumerate((torch.float32, torch.float16, torch.bfloat16), F32):
        x = base.to(dtype)
        cosine, sine = llama.LlamaRotaryEmbedding(LlamaConfig(head_dim=width))(x, positions)
        half = (cosine[..., : width // 2], sine[..., : width // 2])
        step = x.transpose(1, 2)
        interleave = deepseek_v3.apply_rotary_pos_emb_interleave
        gpt_j = gptj.apply_rotary_pos_emb(step, half[1], half[0]).transpose(1, 2)
        results = [
            ("llama", HALF_SPLIT, HALF_SPLIT, llama.apply_rotary_pos_emb(x, x, cosine, sine)[0]),
            ("deepseek_v3", INTERLEAVED, HALF_SPLIT, interleave(x, x, cosine, sine)[0]),
            ("gptj", INTERLEAVED, INTERLEAVED, gpt_j),
        ]
        for name, before, after, y in results:
            yield ["rotation", name, numbers((number, before, after)), *map(bits, (x, *half, y))]


def generate():
    """Rows of COLUMNS columns; "=" is what the row before has there."""
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    versions = f"transformers {transformers.__version__}", f"torch {torch.__version__.split('+')[0]}"
    rows = [
        ["scripts/goldens.py", *versions],
        *synthetic_goldens(),
        *model_goldens(),
        *axes_goldens(),
        *cos_sin_goldens(),
        *rotation_goldens(),
    ]
    text, before = "", [""] * COLUMNS
    for row in rows:
        row = [str(cell) for cell in row] + [""] * (COLUMNS - len(row))
        pairs = zip(row[1:], before[1:], strict=True)
        text += "\t".join([row[0], *("=" if len(x) > 1 and x == y else x for x, y in pairs)]) + "\n"
        before = row
    return text


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
