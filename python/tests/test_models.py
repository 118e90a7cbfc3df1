"""Every rotary embedding of the pinned Transformers, in model_types.tsv: which fields of its
configuration reach it, and whether ropekit reads them to the same frequencies or says why not.

`python python/tests/test_models.py` writes the table anew, and the library's list of models.
"""

from __future__ import annotations

import importlib
import inspect
import re
import warnings
from collections.abc import Iterator
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
KNOWN = Path(__file__).parents[2] / "common" / "model" / "known_models.h"
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


def embeddings() -> Iterator[tuple[type, type[PreTrainedConfig]]]:
    """Rotary embeddings that are made of a configuration, with its class."""
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
                yield found, kind


def judge(config: PreTrainedConfig, rotary: Any) -> str:
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


def header(table: list[str]) -> str:
    """The models that are read, as the library's list of those it knows."""
    read = {row.split("\t")[0] for row in table if row.endswith("\tread")}
    names = sorted({re.sub(r"_text(_model)?$", "", name) for name in read})
    lines = "".join(f'    "{name}",\n' for name in names)
    return (
        "/* Models whose configurations are read as Transformers does; written by\n"
        " * python/tests/test_models.py. */\n"
        "#ifndef ROPEKIT_COMMON_KNOWN_MODELS_H\n#define ROPEKIT_COMMON_KNOWN_MODELS_H\n\n"
        f"static const char *const known_models[] = {{\n{lines}}};\n\n#endif\n"
    )


@pytest.mark.skipif(not IS_PINNED, reason="the table is that of the pinned Transformers")
def test_the_table_is_that_of_transformers() -> None:
    found = rows()
    assert header(found) == KNOWN.read_text(encoding="utf-8")
    assert found == TABLE.read_text(encoding="utf-8").splitlines()
    assert not [row for row in found if "DIFFERS" in row]
    assert sum(row.endswith("\tread") for row in found) > 150


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
    made = rows()
    TABLE.write_text("\n".join(made) + "\n", encoding="utf-8")
    KNOWN.write_text(header(made), encoding="utf-8")
