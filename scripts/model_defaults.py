#!/usr/bin/env python3
"""Writes common/model/model_defaults.h: what Transformers takes where a configuration leaves a field out.

Needs scripts/requirements-goldens.txt. With --check, compares with the file that is there.
"""

import argparse
import importlib
import inspect
import json
import pathlib
import sys
import textwrap
import warnings

import transformers
from transformers import PreTrainedConfig
from transformers.models.auto import modeling_auto as auto

ROOT = pathlib.Path(__file__).resolve().parent.parent
OUTPUT = ROOT / "common" / "model" / "model_defaults.h"
# Fields of a model beside its base and rope_parameters that config_read.c and config_kinds.c read.
FIELDS = (
    "alibi", "attention_chunk_size", "attention_head_dim", "attention_k_eq_v", "attention_window_size",
    "d_model", "head_dim", "hidden_size", "kv_channels", "kv_lora_rank", "kv_n_heads",
    "local_attention", "max_position_embeddings", "max_seq_len", "multi_query", "n_embd", "n_head",
    "n_heads", "n_positions", "new_decoder_architecture", "num_attention_heads", "num_key_value_heads",
    "num_kv_heads", "original_max_position_embeddings", "position_embedding_type",
    "position_embeddings_type", "qk_nope_head_dim", "qk_rope_head_dim", "rms_norm_eps",
    "rope_interleave", "rotary_dim", "sliding_window", "use_mem_rope", "use_sliding_window",
)  # fmt: skip
# Models of text, which are known not to rotate where nothing says so.
OF_TEXT = {
    *auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    *auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    *auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
}
# Fields that give the base of some layers.
BASES = ("rope_theta", "rope_local_base_freq", "global_rope_theta", "local_rope_theta", "swa_rope_theta")
BASES += ("compress_rope_theta", "rotary_emb_base", "rotary_embedding_base")
# Models that rotate with nothing in their configuration that says so.
BY_FUNCTIONS = {"clvp_encoder", "codegen", "gptj", "lightglue", "roformer", "seamless_m4t", "vjepa2"}
BY_FUNCTIONS |= {"wav2vec2-bert", "wav2vec2-conformer"}
# Defaults that a class takes from another place than a field of its own.
MORE = {
    "dbrx": {"kv_n_heads": 1},
    "deepseek_v4": {"qk_rope_head_dim": 64},
    "diffusion_gemma_text": {"global_head_dim": 512},
    "dots3_note_text": {"sliding_window": 512},
    "embedding_gemma2_text": {"global_head_dim": 512, "num_global_key_value_heads": 1},
    "gemma4_text": {"global_head_dim": 512},
    "gemma4_unified_text": {"global_head_dim": 512},
    "mpt": {"alibi": True, "rope": False},  # of attn_config; without both, positions are learned
}
SHARES = {"mimo_v2_flash": 0.334}  # partial_rotary_factor of the model's code, for layers without one
PROBE = 12345.0  # a base that no model has


def kinds():
    """The class of each model_type; of equal ones the first by name."""
    found = {}
    for path in sorted(pathlib.Path(transformers.models.__path__[0]).glob("*/configuration_*.py")):
        module = importlib.import_module(f"transformers.models.{path.parent.name}.{path.stem}")
        for _, kind in inspect.getmembers(module, inspect.isclass):
            if issubclass(kind, PreTrainedConfig) and kind.__module__ == module.__name__ and kind.model_type:
                found.setdefault(kind.model_type, kind)
    return dict(sorted(found.items()))


def made(kind, **fields):
    """A configuration, or None where the class refuses the fields."""
    try:
        return kind(**json.loads(json.dumps(fields)))
    except Exception:  # each class has its own
        return None


def rotates(config):
    return (
        getattr(config, "rope_parameters", None) is not None
        or hasattr(config, "rope_theta")
        or config.model_type in BY_FUNCTIONS
    )


def text_of(config):
    """The name of the text's part in a configuration, with dots, and that part."""
    try:
        text = config.get_text_config(decoder=True)
    except ValueError:
        return "", config
    for name in config.sub_configs_defaults if text is not config else ():
        part = getattr(config, name, None)
        if part is text:
            return name, text
        if isinstance(part, PreTrainedConfig) and getattr(part, "text_config", None) is text:
            return f"{name}.text_config", text
    return "", config


def layers_of(config):
    """The rope_parameters of each kind of layer; of all as "" where they are alike."""
    parameters = getattr(config, "rope_parameters", None) or {}
    if any(isinstance(value, dict) for value in parameters.values()):
        return {name: value for name, value in parameters.items() if value is None or isinstance(value, dict)}
    if not parameters and hasattr(config, "rope_theta"):
        parameters = {"rope_theta": config.rope_theta}
    return {"": parameters}


def base_names(kind, given, layers):
    """The model's field that gives the base of each layer, "" where none does, without scaling."""
    found = dict.fromkeys(layers, "")
    for name in BASES:
        config = made(kind, **(given | {name: PROBE}))
        for layer, parameters in layers_of(config).items() if config else ():
            if parameters and parameters.get("rope_theta") == PROBE:
                found[layer] = found.get(layer) or ("rope_theta" if name.startswith("rotary") else name)
    return found


def layer_rows(kind, given):
    """What a class of configurations takes for each kind of layer."""
    layers = layers_of(made(kind, **given))
    names = base_names(kind, given, layers)
    scaled = made(kind, **given, rope_scaling={"rope_type": "linear", "factor": 3.0})
    scaled = layers_of(scaled) if scaled else {}
    for layer, parameters in sorted(layers.items()):
        if parameters is None:
            yield layer, "", 0, 0, 0, None
            continue
        other = scaled.get(layer) or {}
        takes = layer == "" or other.get("factor") == 3.0
        base = parameters.get("rope_theta", getattr(kind, "default_theta", 10000.0))
        later = other.get("rope_theta", base) if takes else base  # of a rope_scaling without one
        share = other.get("partial_rotary_factor", 0) if takes else 0
        own = {k: v for k, v in parameters.items() if v is not None}
        if own.get("rope_type") == "default":
            del own["rope_type"]
        if names[layer]:
            later = own.pop("rope_theta", later)
        elif layer and own.get("rope_theta") == later:
            del own["rope_theta"]
        if own.get("partial_rotary_factor") == share:
            own.pop("partial_rotary_factor", None)
        name = names[layer] or ("rope_theta" if takes and layer == "" else "")
        yield layer, name, later, share or SHARES.get(kind.model_type, 0), int(takes), own


def fields_of(kind, given):
    values = {name: getattr(kind, name, None) for name in FIELDS}
    attributes = getattr(kind, "attribute_map", {})
    values |= {name: given[name] for name in FIELDS if name in given}
    values |= MORE.get(kind.model_type, {})
    if not hasattr(kind, "layer_types") and not hasattr(kind, "sliding_window"):
        values["use_sliding_window"] = False
    return {
        name: value
        for name, value in values.items()
        if name not in attributes and isinstance(value, (bool, int, float, str))
    }


def kinds_of(config):
    names = dict.fromkeys(getattr(config, "layer_types", None) or ())
    return " ".join(sorted(names))


def text(value):
    return "NULL" if value is None else f'"{value}"'


def object_of(fields):
    return f"JSON({json.dumps(fields)})" if fields else "NULL"


def fills(kind, path, given):
    """Whether a class gives a part that is stated, but for those fields, its own defaults for it."""
    config = made(kind, **{path: {"initializer_range": 0.5}})
    part = getattr(config, path, None)
    names = [name for name in given if name in FIELDS]
    return bool(names) and all(getattr(part, name, None) == given[name] for name in names)


def number(value):
    return repr(int(value) if value == int(value) else value)


def generate():
    models, layers, without = [], [], []
    for model_type, kind in kinds().items():
        config = made(kind)
        if config is None and model_type not in MORE:
            continue
        path, part = text_of(config)
        if not rotates(part) and model_type not in MORE:
            without += [model_type] * (model_type in OF_TEXT)
            continue
        spec = config.sub_configs_defaults.get(path) if path else None
        given = dict(getattr(spec, "init_kwargs", {}))
        given.pop("model_type", None)
        own = type(part)
        row = [text(model_type), "NULL", "NULL", "NULL", "NULL"]
        if path:
            row[1:3] = text(path), text(None if fills(kind, path, given) else part.model_type)
        if not path or given:
            row[3:] = text(kinds_of(part) or None), object_of(fields_of(own, given))
            for layer, name, base, share, takes, parameters in layer_rows(own, given):
                if parameters is None:
                    row_of_layer = [text(model_type), text(layer), "NULL", "0", "0", "0", "NULL"]
                else:
                    numbers = [number(base), number(share), number(takes)]
                    row_of_layer = [text(model_type), text(layer), text(name or None), *numbers]
                    row_of_layer.append(object_of(parameters) if parameters else "JSON({})")
                layers.append(row_of_layer)
        models.append(row)
    return TEMPLATE % (
        transformers.__version__,
        "".join(f"    {{{', '.join(row)}}},\n" for row in models),
        "".join(f"    {{{', '.join(row)}}},\n" for row in layers),
        textwrap.fill(", ".join(f'"{name}"' for name in without), 100, **INDENT),
    )


INDENT = {"initial_indent": "    ", "subsequent_indent": "    ", "break_on_hyphens": False}
TEMPLATE = """\
/* What Transformers %s takes where a configuration leaves a field out; written by
 * scripts/model_defaults.py. Rows are those of config_fields.h. */
#ifndef ROPEKIT_COMMON_MODEL_DEFAULTS_H
#define ROPEKIT_COMMON_MODEL_DEFAULTS_H

#include "common/model/config_fields.h"

#define JSON(...) #__VA_ARGS__

/* clang-format off */
static const model_default model_defaults[] = {
%s};

static const layer_default layer_defaults[] = {
%s};

static const char *const models_without_rotation[] = {
%s,
};
/* clang-format on */

#undef JSON

#endif
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only; exit status 1 where they differ")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    made_now = generate()
    if not options.check:
        OUTPUT.write_text(made_now, encoding="utf-8")
        return 0
    if OUTPUT.read_text(encoding="utf-8") == made_now:
        return 0
    print(f"{OUTPUT.relative_to(ROOT)} differs from what Transformers takes", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
