"""Every rotary embedding of the pinned Transformers, in model_types.tsv: which fields of its
configuration reach it, and whether ropekit reads them to the same frequencies or says why not.

`python python/tests/test_models.py` writes the table anew.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import re
import runpy
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
import transformers.models
from models import IS_PINNED
from ropekit import Config
from transformers import PreTrainedConfig

TABLE = Path(__file__).parent / "model_types.tsv"
ROTARY = re.compile(r"\w*(Rotary|Rope)\w*Embedding\w*")
HEADING = "model_type\tclass\tfields\tropekit"


# What a class's own values leave out, or leave without a rotation that is one.
VALUES: dict[str, dict[str, Any]] = {
    "blt": {"hidden_size": 2048, "num_attention_heads": 16},
    "esm": {"position_embedding_type": "rotary"},
    "glm4_moe": {"num_attention_heads": 32},
    "glm4v_moe_text": {"num_attention_heads": 32},
    "seamless_m4t": {"position_embeddings_type": "rotary"},
    "wav2vec2-bert": {"position_embeddings_type": "rotary"},
    "wav2vec2-conformer": {"position_embeddings_type": "rotary"},
    "zamba2": {"use_mem_rope": True},
}


# The configuration of a class that does not say it.
CLASSES = {
    "ClvpRotaryPositionalEmbedding": "ClvpEncoderConfig",
    "SeamlessM4TConformerRotaryPositionalEmbedding": "SeamlessM4TConfig",
    "Wav2Vec2BertRotaryPositionalEmbedding": "Wav2Vec2BertConfig",
    "Wav2Vec2ConformerRotaryPositionalEmbedding": "Wav2Vec2ConformerConfig",
}


def note_fields(config: PreTrainedConfig, names: set[str]) -> PreTrainedConfig:
    """The configuration, which from now on notes the fields that are read."""
    own = type(config)

    def read(self: PreTrainedConfig, name: str) -> Any:
        get: Any = own.__getattribute__
        if name in get(self, "__dict__") and not name.startswith("_"):
            names.add(name)
        return get(self, name)

    config.__class__ = type(own.__name__, (own,), {"__getattribute__": read})
    return config


@cache
def embeddings() -> list[tuple[type, type[PreTrainedConfig]]]:
    """Rotary embeddings that are made of a configuration, with its class."""
    made = []
    root = Path(transformers.models.__path__[0])
    for path in sorted(root.glob("*/modeling_*.py")):
        if not ROTARY.search(path.read_text(encoding="utf-8")):
            continue
        try:
            module = importlib.import_module(f"transformers.models.{path.parent.name}.{path.stem}")
        except ImportError:  # of a package that is not here
            continue
        for name, found in inspect.getmembers(module, inspect.isclass):
            if not ROTARY.fullmatch(name) or found.__module__ != module.__name__:
                continue
            hint = inspect.signature(found.__init__).parameters.get("config")
            kind: Any = getattr(module, CLASSES.get(name, ""), hint and hint.annotation)
            if hasattr(kind, "model_type"):
                made.append((found, kind))
    return made


def judge(config: PreTrainedConfig | dict[str, Any], rotary: Any) -> str:
    """read, or why not: a refusal in the library's words."""
    if not any(name.endswith("inv_freq") for name in vars(rotary) | dict(rotary.named_buffers())):
        return "no frequencies of its own"
    kinds = getattr(rotary, "rope_type", None)
    for layer in kinds if kinds and isinstance(kinds, dict) else [None]:
        prefix = f"{layer}_" if layer else ""
        known = getattr(rotary, f"{prefix}inv_freq").double().flatten()
        try:
            read = Config.from_transformers(config, layer)
            found, factor = read.frequencies(2 * known.numel())
        except (RuntimeError, ValueError) as error:
            return f"refused: {error}"
        texts = dict(part.partition("=")[::2] for part in read.text.split())
        if int(texts.get("rotary_dim", texts["head_dim"])) != 2 * known.numel():
            return "DIFFERS"
        mine = torch.tensor(found, dtype=torch.float64)
        if "axis_layout=alternating" in read.text:  # whose pairs Transformers orders by axis
            mine, known = mine.sort().values, known.sort().values
        scaling = getattr(rotary, f"{prefix}attention_scaling", 1.0)
        same = torch.allclose(mine, known, rtol=1e-5, atol=0) and abs(factor / scaling - 1) < 1e-6
        if not same:
            return "DIFFERS"
    return "read"


def rows() -> list[str]:
    found = {HEADING: None}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for embedding, kind in embeddings():
            names: set[str] = set()
            try:
                values = VALUES.get(kind.model_type, {})
                config = kind(**values).get_text_config(decoder=True)
                made = kind(**values).get_text_config(decoder=True)
                rotary = embedding(note_fields(made, names))
                verdict = judge(config, rotary)
            except (AttributeError, KeyError) as error:
                verdict = f"not made of a default configuration: {error}"
            verdict = re.sub(r"\s+", " ", verdict)
            fields = " ".join(sorted(names))
            found[f"{kind.model_type}\t{embedding.__name__}\t{fields}\t{verdict}"] = None
    return list(found)


# Models that rotate by functions, without a class of their own for the frequencies.
BY_FUNCTIONS = {
    "codegen": "",
    "gptj": "",
    "lightglue": "coordinates of keypoints",
    "roformer": "",
    "vjepa2": "coordinates of patches",
}
# Those whose function nothing calls.
NO_ROTATION = {"jamba", "nemotron_asr_streaming", "nemotron_h", "parakeet"}


# Fields of a config.json whose model_type's class knows the rest, and classes that pass over them.
SPARSE: list[tuple[dict[str, Any], set[str]]] = [
    ({}, set()),
    (
        {"rope_theta": 700000.0},
        {"gpt_neox", "gpt_neox_japanese", "wav2vec2-bert", "wav2vec2-conformer"},
    ),
    (
        {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
        {
            "cohere2_moe",
            "dots3_note_text",
            "esm",
            "mistral4",
            "wav2vec2-bert",
            "wav2vec2-conformer",
        },
    ),
]


def without_defaults(fields: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What becomes of a config.json with these fields, for each model_type."""
    for embedding, kind in embeddings():
        given = VALUES.get(kind.model_type, {}) | fields
        try:
            config = kind(**copy.deepcopy(given))
            text = config.get_text_config(decoder=True)
            rotary = embedding(text)
        except Exception:  # of fields that the class does not allow
            continue
        if fields and text is not config:  # whose text has fields of its own
            continue
        yield kind.model_type, judge({"model_type": kind.model_type, **given}, rotary)


@pytest.mark.skipif(not IS_PINNED, reason="the table is that of the pinned Transformers")
def test_the_table_is_that_of_transformers() -> None:
    found = rows()
    assert found == TABLE.read_text(encoding="utf-8").splitlines()
    assert not [row for row in found if "DIFFERS" in row]
    assert sum(row.endswith("\tread") for row in found) > 150


@pytest.mark.skipif(not IS_PINNED, reason="defaults are those of the pinned Transformers")
@pytest.mark.parametrize(("fields", "passed_over"), SPARSE)
def test_what_a_configuration_leaves_out_is_that_of_transformers(
    fields: dict[str, Any], passed_over: set[str]
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = list(without_defaults(fields))
    assert {name for name, verdict in found if verdict == "DIFFERS"} == passed_over
    assert sum(verdict == "read" for _, verdict in found) > 130


@pytest.mark.skipif(not IS_PINNED, reason="defaults are those of the pinned Transformers")
def test_what_the_text_of_several_models_leaves_out_is_that_of_transformers() -> None:
    """Some classes, as Voxtral's, fill it from defaults of their own."""
    compared = 0
    for name, kind in transformers.models.auto.configuration_auto.CONFIG_MAPPING.items():
        try:
            part = kind().text_config.model_type
        except Exception:  # it has no such part, or none that is a configuration
            continue
        for text in ({"num_hidden_layers": 2}, {"num_hidden_layers": 2, "model_type": part}):
            try:
                known = kind(text_config=dict(text)).get_text_config(decoder=True).rope_parameters
                found = Config.from_transformers({"model_type": name, "text_config": text}).text
            except Exception:  # it does not rotate, or one of both refuses it
                continue
            base = (known.get("full_attention") or known).get("rope_theta")
            if base is not None:
                compared += 1
                read = re.search(r" rope_theta=(\S+)", found)
                assert read and float(read[1]) == base, (name, text)
    assert compared > 100


@pytest.mark.skipif(not IS_PINNED, reason="defaults are those of the pinned Transformers")
def test_the_table_of_defaults_is_that_of_transformers() -> None:
    script = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "model_defaults.py"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert script["generate"]() == script["OUTPUT"].read_text(encoding="utf-8")


@pytest.mark.skipif(not IS_PINNED, reason="the table is that of the pinned Transformers")
def test_models_that_rotate_by_functions_are_read_or_refused() -> None:
    root, found = Path(transformers.models.__path__[0]), set()
    for path in root.glob("*/modeling_*.py"):
        text = path.read_text(encoding="utf-8")
        has_class = re.search(rf"\nclass {ROTARY.pattern}", text)
        if re.search(r"\n *def \w*(rotary|rotate)_\w*", text) and not has_class:
            found.add(path.stem.removeprefix("modeling_"))
    assert found == BY_FUNCTIONS.keys() | NO_ROTATION
    for name, refusal in BY_FUNCTIONS.items():
        config = transformers.AutoConfig.for_model(name)
        if refusal:
            with pytest.raises(ValueError, match=refusal):
                Config.from_transformers(config)
        else:
            Config.from_transformers(config)  # without a warning, which is an error here


if __name__ == "__main__":
    TABLE.write_text("\n".join(rows()) + "\n", encoding="utf-8")
