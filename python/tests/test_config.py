"""Config: its fields, what it reads of Transformers, its frequencies."""

from __future__ import annotations

import importlib
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import time
from fractions import Fraction
from pathlib import Path
from typing import Any, get_args, get_type_hints

import models
import numpy
import pytest
import ropekit
import torch
import transformers
from ropekit._library import library
from ropekit.config import SECONDS, Fields, _of_file, merge

ROOT = Path(__file__).parents[2]
HEADER = ROOT / "include" / "ropekit" / "rope.h"
CONFIGS = sorted((ROOT / "examples" / "configs").glob("*.json"))
# Of rope_desc: what the tensors of a call tell.
TOLD = {
    "struct_size",
    "dtype",
    "factor_count",
    "position_dtype",
    "table_dtype",
    "device",
    "backend",
}


def test_fields_are_those_of_the_descriptor() -> None:
    text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(encoding="utf-8"), flags=re.S)
    body = re.search(r"typedef struct rope_desc \{(.*?)\} rope_desc;", text, re.S)
    assert body
    members = set(re.findall(r"(\w+)(?:\[\w+\])?;", body[1]))
    assert members - TOLD == set(Fields.__annotations__) - {"layout"}


def test_every_field_may_be_none() -> None:
    hints = get_type_hints(ropekit.LayerFields)
    assert all(get_args(kind)[1:] == (type(None),) for kind in hints.values())
    assert ropekit.Config(**dict.fromkeys(hints)) == ropekit.Config()


def test_an_argument_of_a_call_is_no_field() -> None:
    with pytest.raises(TypeError, match="causal is given; allowed is that for ropekit"):
        ropekit.Config(causal=True)  # type: ignore[call-arg]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: str(path.stem))
def test_what_is_shown_makes_the_same(path: Path) -> None:
    config = ropekit.Config.from_transformers(path).replace(kernel="scalar")
    assert repr(eval(repr(config), vars(ropekit))) == repr(config)
    assert "'half_split'" in repr(config.replace(pairing_in="half_split"))


HINTS = {name: get_args(kind)[0] for name, kind in get_type_hints(Fields).items()}
LISTS = {"sections": [4, 4], "pair_axis": [0, 1] * 4}


def values(name: str) -> list[object]:
    """Values that the field's type allows."""
    kind = HINTS[name]
    if get_args(kind) and get_args(kind)[0] not in (int, float):
        return list(get_args(kind))
    return {int: [2], float: [1.5], str: ["scalar"]}.get(kind, [LISTS.get(name, [1.0] * 8)])


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name in HINTS for value in values(name)]
)
def test_every_field_is_read(name: str, value: object) -> None:
    error = (library.ropekit_check_text(merge("", {name: value}).encode()) or b"").decode()
    assert "no field" not in error  # refused for what it says, not for how it is written
    assert f'{name} is "' not in error


def test_text_of_a_configuration() -> None:
    config = ropekit.Config(rope_theta=500000.0, rotary_dim=64)
    assert config.text == "rope_theta=500000.0 rotary_dim=64"
    assert config.replace(rotary_dim=32) == ropekit.Config(rope_theta=500000.0, rotary_dim=32)
    assert hash(config) == hash(ropekit.Config.from_text(config.text))
    assert pickle.loads(pickle.dumps(config)) == config
    with pytest.raises(AttributeError):
        config.text = ""  # type: ignore[misc]


class Whole:
    """Is a whole number to Python and nothing else."""

    def __index__(self) -> int:
        return 8


@pytest.mark.parametrize("whole", [numpy.int64(8), numpy.uint8(8), numpy.array(8), Whole()])
def test_a_whole_number_is_what_has_an_index(whole: Any) -> None:
    x = torch.randn(1, 3, 2, 16)
    assert ropekit.Config(rotary_dim=whole).text == "rotary_dim=8"
    assert torch.equal(ropekit.apply(x, rotary_dim=whole), ropekit.apply(x, rotary_dim=8))
    axes = ropekit.Config(axes=2, axis_layout="chunked", sections=[whole, 4])
    assert axes.text.endswith(" sections=8,4")


@pytest.mark.parametrize("real", [numpy.float32(0.25), numpy.float64(0.25), Fraction(1, 4)])
def test_a_number_is_what_is_real(real: Any) -> None:
    config = ropekit.Config(rope_type="inv_freq", attention_factor=real, inv_freq=[real, 2])
    assert config.text == "rope_type=inv_freq attention_factor=0.25 inv_freq=0.25,2"
    with pytest.raises(TypeError, match="allowed is a whole number"):
        ropekit.apply(torch.randn(1, 3, 2, 16), rotary_dim=real)


def test_numbers_of_numpy_in_a_dictionary() -> None:
    sections = [numpy.int64(count) for count in (2, 3, 3)]
    config = ropekit.Config.from_transformers(
        {
            "head_dim": numpy.int64(16),
            "rope_theta": numpy.float32(500.0),
            "rope_scaling": {"rope_type": "default", "mrope_section": sections},
        }
    )
    for part in ("head_dim=16", "rope_theta=500", "sections=2,3,3"):
        assert part in config.text.split()


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_published_configurations(path: Path) -> None:
    config = ropekit.Config.from_transformers(path)
    assert config == ropekit.Config.from_transformers(json.loads(path.read_text()))
    fields = dict(part.partition("=")[::2] for part in config.text.split())
    head_dim = int(fields["head_dim"])
    lengths = torch.full((1,), 3) if fields["rope_type"] == "longrope" else None
    shape = (1, 3, 2, head_dim)
    positions = torch.arange(3).expand(3, 1, 3) if "axes" in fields else None
    y = ropekit.apply(
        torch.randn(shape), config=path, positions=positions, sequence_lengths=lengths
    )
    assert y.shape == shape


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_each_kind_of_layer_of_published_configurations(path: Path) -> None:
    fields = json.loads(path.read_text(encoding="utf-8"))
    config = transformers.AutoConfig.for_model(**fields).get_text_config()
    module = importlib.import_module(type(config).__module__.replace("configuration", "modeling"))
    names = [name for name in vars(module) if re.fullmatch(r"\w+RotaryEmbedding", name)]
    if not names:  # GPT-J rotates by functions
        pytest.skip("no rotary embedding of its own")
    rotary = getattr(module, min(names, key=lambda name: "Vision" in name))(config)
    kinds = list(rotary.rope_type) if isinstance(rotary.rope_type, dict) else [None]
    for kind in kinds:
        prefix = f"{kind}_" if kind else ""
        expected = getattr(rotary, f"{prefix}original_inv_freq", None)
        if expected is None:  # Llama 4 has no copy of it
            expected = getattr(rotary, f"{prefix}inv_freq")
        read = ropekit.Config.from_transformers(path, kind)
        found, factor = read.frequencies(2 * len(expected))
        torch.testing.assert_close(torch.tensor(found), expected.float(), rtol=1e-5, atol=0)
        assert factor == pytest.approx(getattr(rotary, f"{prefix}attention_scaling"))


def test_layer_types() -> None:
    gemma = ROOT / "examples" / "configs" / "gemma-3-4b.json"
    full = ropekit.Config.from_transformers(gemma, "full_attention")
    sliding = ropekit.Config.from_transformers(gemma, "sliding_attention")
    assert "rope_type=linear" in full.text
    assert "rope_theta=1000000 " in full.text
    assert "rope_theta=10000 " in sliding.text + " "
    by_layer = models.build("gemma3").config
    assert "factor=8" in ropekit.Config.from_transformers(by_layer, "full_attention").text
    with pytest.raises(ValueError, match='layer_type is "other"; allowed is sliding_attention'):
        ropekit.Config.from_transformers(by_layer, "other")
    with pytest.raises(ValueError, match='layer_type is "other"; allowed is full_attention, '):
        ropekit.Config.from_transformers(gemma, "other")
    with pytest.raises(ValueError, match='layer_type is "full_attention"; allowed is none'):
        ropekit.Config.from_transformers(models.build("llama").config, "full_attention")


def test_layer_kinds() -> None:
    gemma = ROOT / "examples" / "configs" / "gemma-3-4b-shipped.json"
    full, sliding = ropekit.layer_kinds(gemma)
    assert full == ("full_attention", True, 0, 0, None, None)
    assert sliding == ropekit.LayerKind("sliding_attention", True, 0, 0, 1024, None)
    chunked, still = ropekit.layer_kinds(transformers.Llama4TextConfig(attention_chunk_size=64))
    assert (chunked.name, chunked.chunk, chunked.rotates) == ("chunked_attention", 64, True)
    assert (still.name, still.layers, still.unrotated, still.rotates) == (
        *("full_attention", 12, 12, False),
    )
    with pytest.raises(ValueError, match="sliding_window is the string"):
        ropekit.layer_kinds({"model_type": "mistral", "sliding_window": "9"})


# Kinds of layers whose mask has a window, by masking_utils of Transformers and its models.
SLIDING = {
    *("sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"),
    *("hybrid_sliding", "reference_sliding_attention"),
}


@pytest.mark.skipif(not models.IS_PINNED, reason="defaults are those of the pinned Transformers")
def test_windows_are_those_of_transformers() -> None:
    """Of every model that has some: of what its class leaves to defaults, and of what it saves."""
    compared = 0
    for model_type, kind in transformers.models.auto.configuration_auto.CONFIG_MAPPING.items():
        try:
            config = kind().get_text_config(decoder=True)
            window, chunk = config.sliding_window, getattr(config, "attention_chunk_size", None)
        except Exception:  # none, or several; each class has its own
            continue
        types = getattr(config, "layer_types", None) or [""]
        for given in ({"model_type": model_type}, config):
            try:
                ropekit.Config.from_transformers(given)  # which knows it, and rotates
                found = {kind.name: kind for kind in ropekit.layer_kinds(given)}
            except ValueError:
                continue
            for name in set(types) & set(found):
                of_all = name == ""
                expected = window if of_all or name in SLIDING else None
                assert found[name].window == expected, (model_type, name)
                of_kind = of_all or name == "chunked_attention"
                assert found[name].chunk == (chunk if of_kind else None), (model_type, name)
                compared += 1
    assert compared > 100


@pytest.mark.parametrize("name", ["llama", "qwen3", "phi3", "deepseek_v3", "gpt_oss", "qwen2_vl"])
def test_frequencies_are_those_of_transformers(name: str) -> None:
    model = models.build(name)
    rotary = next(m for n, m in model.named_modules() if n.endswith("rotary_emb"))
    config = ropekit.Config.from_transformers(rotary.config)
    found, factor = config.frequencies(2 * len(rotary.inv_freq))
    expected = rotary.original_inv_freq.double()
    torch.testing.assert_close(
        torch.tensor(found, dtype=torch.float64), expected, rtol=1e-6, atol=0
    )
    assert factor == pytest.approx(rotary.attention_scaling)


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"rope_scaling": {"rope_type": "ntk"}}, 'rope_type is "ntk"; allowed is default'),
        (
            {"rope_parameters": {"rope_type": "linear"}, "rope_scaling": {"rope_type": "ntk"}},
            "rope_scaling and rope_parameters are given; allowed is one of them, or the same",
        ),
        ({"rope_scaling": {}, "rope_parameters": {"rope_type": "ntk"}}, 'rope_type is "ntk"'),
        ({"rope_scaling": {"rope_type": ["yarn"]}}, 'rope_type[0] is "yarn"; allowed is a number'),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": ["8"]}},
            'factor[0] is "8"; allowed is a number',
        ),
        ({"rope_scaling": "yarn"}, 'rope_scaling is "yarn"; allowed is an object or null'),
        (
            {"rope_scaling": {"rope_type": None, "type": {}}},
            "type is an object; allowed is a number",
        ),
        ({"rope_parameters": [1]}, "rope_parameters is a list; allowed is an object or null"),
        ({"rope_theta": ["1e4"]}, "rope_theta is a list"),
        ({"rope_theta": 10**400}, "rope_theta is inf"),
        ({"rope_theta": -(10**400)}, "rope_theta is -inf"),
        ({"model_type": "lla\0ma"}, "for Unicode other than U+0000"),
        ({"model_type": "\ud800"}, "byte 31 of 39 is"),
        (
            {"rope_scaling": {"mrope_section": [True]}},
            "mrope_section[0] is true; allowed is a number",
        ),
        ({"alibi": True}, "alibi is true; allowed is false"),
        ({"rope_theta": float("nan")}, 'rope_theta is the string "nan"; allowed is a number'),
        ({"rope_theta": float("inf")}, 'rope_theta is the string "inf"'),
        ({"rope_scaling": {"mrope_section": {8}}}, 'mrope_section is the string "{8}"'),
        ({"rope_theta": {"full": 1e4}}, "rope_theta is a list"),
        ({"rope_theta": None, "model_type": "no_model"}, 'model_type "no_model" is not known'),
    ],
)
def test_refused_configurations(config: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        ropekit.apply(torch.randn(1, 1, 1, 8), config={"head_dim": 8, **config})


def test_what_rope_has_no_field_for_is_passed_over() -> None:
    plain = {"head_dim": 8, "rope_theta": 5e5}
    other = {"text_config": 5, 1: 2, "architectures": ["A"], "id2label": {0: "a"}, "dtype": None}
    other |= {"time_step_limit": (0.0, float("inf")), "note": {"a": float("nan"), "b": object()}}
    for scaling in ({}, {"rope_type": None}, {"rope_type": "default", "type": None}):
        config = {**plain, **other, "rope_scaling": scaling, "torch_dtype": torch.float16}
        assert ropekit.Config.from_transformers(config) == ropekit.Config.from_transformers(plain)


WIDTHLESS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"rope_theta": 500.0, "head_dim": None}, {"rope_theta": 500.0}),
    ({"text_config": {"partial_rotary_factor": 0.5}}, {"rotary_dim": 8}),
]


@pytest.mark.parametrize(("config", "fields"), WIDTHLESS)
def test_a_configuration_without_a_width_takes_that_of_the_heads(
    config: dict[str, Any], fields: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    q, k = torch.randn(1, 3, 2, 16), torch.randn(1, 3, 2, 16)
    expected = ropekit.apply(q, k, **fields)
    for given in (config, path, str(path)):
        for x, y in zip(ropekit.apply(q, k, config=given), expected, strict=True):
            assert torch.equal(x, y)
        assert torch.equal(ropekit.apply(None, k, config=given), expected[1])
        x = q.clone()
        ropekit.apply_(x, config=given)
        assert torch.equal(x, expected[0])
        wide = torch.randn(1, 3, 2, 32)
        share = {"rotary_dim": 16} if "rotary_dim" in fields else fields
        assert torch.equal(ropekit.apply(wide, config=given), ropekit.apply(wide, **share))
    made = ropekit.Config.from_transformers(config, head_dim=16)
    assert torch.equal(ropekit.apply(q, config=made), expected[0])
    with pytest.raises(ValueError, match="head_dim is not given; allowed is"):
        ropekit.Config.from_transformers(config)


def test_a_file_is_read_once_for_each_of_its_states(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []
    read_bytes = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: [read.append(path), read_bytes(path)][1])
    q = torch.randn(1, 3, 2, 8)
    for folder, theta in (("a", 500), ("b", 700)):
        (tmp_path / folder).mkdir()
        path = tmp_path / folder / "config.json"
        path.write_text(json.dumps({"head_dim": 8, "rope_theta": theta}), encoding="utf-8")
        os.utime(path, (1, 1))  # as of archives
    for folder, theta in (("a", 500.0), ("b", 700.0)):
        monkeypatch.chdir(tmp_path / folder)
        for _ in range(3):
            y = ropekit.apply(q, config="config.json")
            assert torch.equal(y, ropekit.apply(q, rope_theta=theta))
    assert len(read) == 2
    Path("config.json").write_text('{"head_dim": 8, "rope_theta": 900}', encoding="utf-8")
    time.sleep(SECONDS)
    for _ in range(3):
        y = ropekit.apply(q, config="config.json")
        assert torch.equal(y, ropekit.apply(q, rope_theta=900.0))
    assert len(read) == 3
    Path("config.json").unlink()
    time.sleep(SECONDS)
    with pytest.raises(FileNotFoundError, match=r"allowed is the path of a config.json"):
        ropekit.apply(q, config="config.json")
    assert _of_file.cache_info().maxsize


def test_a_file_is_looked_at_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, q = tmp_path / "config.json", torch.randn(1, 3, 2, 8)
    path.write_text('{"head_dim": 8}', encoding="utf-8")
    looks: list[object] = []
    monkeypatch.setattr("ropekit.config.stat", lambda path: [looks.append(path), os.stat(path)][1])
    for now in (1.0, 1.0 + SECONDS / 2, 1.0 + SECONDS):
        monkeypatch.setattr("ropekit.config.monotonic", lambda now=now: now)
        for _ in range(9):
            ropekit.apply(q, config=path)
    assert len(looks) == 2


def test_version() -> None:
    text = HEADER.read_text(encoding="utf-8")
    numbers = [re.search(rf"_{part} (\d+)", text) for part in ("MAJOR", "MINOR", "PATCH")]
    assert ropekit.__version__ == ".".join(number[1] for number in numbers if number)


def test_fields_that_nothing_reads() -> None:
    config = {"head_dim": 64, "compress_rope_theta": 160000.0}
    with pytest.raises(ValueError, match=r"nothing reads compress_rope_theta.*allow_unread=True"):
        ropekit.Config.from_transformers(config)
    with pytest.warns(UserWarning, match="nothing reads compress_rope_theta"):
        found = ropekit.Config.from_transformers(config, allow_unread=True)
    assert "head_dim=64" in found.text


def test_a_warning_is_of_the_line_that_called() -> None:
    q = torch.zeros(1, 1, 1, 64)
    config = {"head_dim": 64, "model_type": "no_model", "rope_theta": 1e4}
    with pytest.warns(UserWarning, match="no_model") as warned:
        ropekit.apply(q, config=config)
        ropekit.Config.from_transformers(config)
    assert [x.filename for x in warned] == [__file__] * 2


def test_older_configurations_of_layers_that_differ() -> None:
    bert = {"head_dim": 64, "global_rope_theta": 160000.0, "local_rope_theta": 10000.0}
    assert "rope_theta=160000" in ropekit.Config.from_transformers(bert).text
    assert "rope_theta=10000" in ropekit.Config.from_transformers(bert, "sliding_attention").text
    scaling = {"rope_type": "linear", "factor": 8.0}
    olmo = {"model_type": "olmo3", "head_dim": 64, "rope_theta": 5e5, "rope_scaling": scaling}
    assert "factor=8" in ropekit.Config.from_transformers(olmo).text
    assert "factor" not in ropekit.Config.from_transformers(olmo, "sliding_attention").text


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (b"", "byte 0 of 0 is the end; allowed is a JSON value"),
        (b'{"head_dim": NaN}', "byte 13 of 17 is 'N'; allowed is a JSON value"),
        (b'{"head_dim":\0 64}', "byte 12 of 17 is 0x00"),
        (b'\xef\xbb\xbf{"head_dim": 64}', "byte 0 of 19 is 0xef"),
        (b'{"head_dim": 64, "a": "\xff"}', "byte 23 of 26 is 0xff"),
        (b'{"head_dim": 64} ]', "byte 17 of 18 is ']'; allowed is nothing behind the value"),
        (b"[" * 100000, "byte 100 of 100000 is '['; allowed is at most 100"),
        (b'["head_dim"]', "the config is a list; allowed is an object"),
        (b'{"head_dim": "\xc3\xa9"}', 'head_dim is the string "\xe9"; allowed is a number'),
    ],
    ids=lambda text: repr(text[:40]),
)
def test_errors_name_the_file_and_the_byte(text: bytes, error: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(text)
    with pytest.raises(ValueError, match=re.escape(f"config is {str(path)!r}: {error}")):
        ropekit.Config.from_transformers(path)


def test_a_dictionary_that_holds_itself() -> None:
    config: dict[str, Any] = {"head_dim": 64}
    config["self"] = config
    with pytest.raises(ValueError, match="config holds itself"):
        ropekit.Config.from_transformers(config)


@pytest.mark.parametrize(
    "text",
    [
        '{"head_dim": 64, "a": "\\\\u0000", "b": ' + "9" * 5000 + "}",
        '{"head_dim": 0, "\\u0068ead_dim": 6.4e1}',
    ],
)
def test_json_is_read(text: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    assert ropekit.Config.from_transformers(path).text.startswith("head_dim=64 ")
    assert ropekit.Config.from_transformers({"head_dim": 64}).text.startswith("head_dim=64 ")


# Run where numbers have a comma.
COMMA = """
import locale, sys, ropekit
locale.setlocale(locale.LC_NUMERIC, "comma")
assert locale.localeconv()["decimal_point"] == ","
fields = {"rope_type": "inv_freq", "inv_freq": [0.5, 0.25], "attention_factor": 1.5}
config = ropekit.Config.from_transformers(
    {"head_dim": 64, "partial_rotary_factor": 0.5, "rope_theta": 2.5,
     "rope_scaling": {"type": "linear", "factor": 1.5}})
print(config.text, *config.frequencies(32)[0][:2], ropekit.Config(**fields).frequencies(4))
"""


def test_numbers_have_a_point_in_every_locale(tmp_path: Path) -> None:
    made = ["localedef", "-i", "de_DE", "-f", "UTF-8", str(tmp_path / "comma")]
    if not shutil.which("localedef") or subprocess.run(made, check=False).returncode:
        pytest.skip("no locale with a comma")
    done = subprocess.run(
        [sys.executable, "-c", COMMA],
        env={**os.environ, "LOCPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    words = done.stdout.split()
    assert "rotary_dim=32" in words
    assert "rope_theta=2.5" in words
    assert done.stdout.endswith("([0.5, 0.25], 1.5)\n")
