"""Bad input raises a clear error and changes no tensor."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any, get_type_hints

import numpy
import pytest
import ropekit
import torch

X = torch.randn(2, 5, 4, 16)
INT = torch.arange(5)
TABLE = torch.ones(5, 8)
LEAF_TABLE = TABLE.clone().requires_grad_()
PART = numpy.float32(3.5)
META, META_BOUNDS, LEAF = X.to("meta"), INT[:2].to("meta"), X.clone().requires_grad_()

YARN = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64}
LONG = {
    "rope_type": "longrope",
    "short_factor": [1.0] * 8,
    "long_factor": [2.0] * 8,
    "original_max_position_embeddings": 16,
    "max_position_embeddings": 32,
}
NAMES = "'default', 'linear', 'dynamic', 'yarn', 'longrope', 'llama3', 'proportional' or 'inv_freq'"
FLOATS = "torch.float32, torch.float16, torch.bfloat16 or torch.float64"

# Fields of a configuration: what is wrong with them is said whole, also when a Config is made.
FIELDS: list[tuple[type[Exception], str, dict[str, object]]] = [
    (TypeError, "there is no field 'bass'; allowed are those of ropekit.LayerFields", {"bass": 3}),
    (TypeError, "allowed are those of ropekit.LayerFields: rope_theta?", {"ropetheta": 3}),
    (TypeError, "there is no field 'base'; allowed is rope_theta", {"base": 3}),
    (TypeError, "there is no field 'position_ids'; allowed is positions", {"position_ids": INT}),
    (
        TypeError,
        "1, 1, 1, ...; allowed is a whole number",
        {"rotary_dim": torch.ones(99, dtype=torch.int64)},
    ),
    (ValueError, "layout is 'bsd'; allowed is 'bshd', 'bhsd', 'sbhd' or 'thd'", {"layout": "bsd"}),
    (ValueError, f"rope_type is 'ntk'; allowed is {NAMES}", {"rope_type": "ntk"}),
    (TypeError, f"rope_type is 4; allowed is {NAMES}", {"rope_type": 4}),
    (ValueError, "pairing_in is ''; allowed is 'half_split' or 'interleaved'", {"pairing_in": ""}),
    (TypeError, "rope_theta is 'a b'; allowed is a number", {"rope_theta": "a b"}),
    (TypeError, "rope_theta is '500'; allowed is a number", {"rope_theta": "500"}),
    (TypeError, "rope_theta is True; allowed is a number", {"rope_theta": True}),
    (TypeError, "rotary_dim is 8.0; allowed is a whole number", {"rotary_dim": 8.0}),
    (TypeError, "rotary_dim is tensor(8); allowed", {"rotary_dim": torch.tensor(8)}),
    (TypeError, "axes is np.True_; allowed is a whole", {"axes": numpy.True_}),
    (TypeError, "sections is 8; allowed is a list of numbers", {"sections": 8}),
    (ValueError, "sections is []; allowed is a list of numbers", {"sections": []}),
    (TypeError, "sections[1] is 4.5; allowed is a whole number", {"sections": [4, 4.5]}),
    (TypeError, "inv_freq[0] is 'a'; allowed is a number", {"inv_freq": ["a"]}),
    (TypeError, "kernel is 3; allowed is the name of a kernel", {"kernel": 3}),
    (ValueError, "kernel is 'a b'; allowed is the name of a kernel", {"kernel": "a b"}),
    (
        ValueError,
        "rotary_dim is 4294967296; allowed is a whole number of 32 bits",
        {"rotary_dim": 2**32},
    ),
    (ValueError, "rotary_dim is 7; allowed is an even number in 2..", {"rotary_dim": 7}),
    (
        ValueError,
        "rotary_dim is 18; allowed is an even number in 2..16 (head_dim is 16)",
        {"rotary_dim": 18, "head_dim": 16},
    ),
    (
        ValueError,
        "rotary_offset is 3; allowed is an even number",
        {"rotary_offset": 3, "rotary_dim": 8},
    ),
    (
        ValueError,
        "k_head_dim is 4; allowed is None or 8 (rotary_dim)",
        {"k_head_dim": 4, "rotary_dim": 8},
    ),
    (ValueError, "k_rotary_offset is 2; allowed is None while k_head_dim", {"k_rotary_offset": 2}),
    (ValueError, "rope_theta is -1; allowed is > 0 and finite", {"rope_theta": -1.0}),
    (ValueError, "rope_theta is nan; allowed is > 0 and finite", {"rope_theta": float("nan")}),
    (ValueError, "rope_theta is inf; allowed is > 0 and finite", {"rope_theta": 1e400}),
    (
        ValueError,
        "rope_theta is 1; allowed is > 1 with rope_type 'yarn'",
        {"rope_theta": 1, **YARN},
    ),
    (ValueError, "factor is 2; allowed is None with rope_type 'default'", {"factor": 2.0}),
    (
        ValueError,
        "factor is not given; allowed is > 0 with rope_type 'yarn'",
        {"rope_type": "yarn"},
    ),
    (
        ValueError,
        "rope_type is 'yarn'; allowed is None with angle_mode 'table'",
        {"angle_mode": "table", **YARN},
    ),
    (ValueError, "truncate is 'on'; allowed is None with rope_type 'default'", {"truncate": "on"}),
    (ValueError, "longrope_select is 'short'; allowed is None with", {"longrope_select": "short"}),
    (
        ValueError,
        "mscale is 1 and mscale_all_dim is not given; allowed is both",
        {"mscale": 1.0, **YARN},
    ),
    (
        ValueError,
        "high_freq_factor is 1; allowed is >= low_freq_factor (4)",
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 4.0,
            "high_freq_factor": 1.0,
            "original_max_position_embeddings": 64,
        },
    ),
    (
        ValueError,
        "partial_rotary_factor is 2; allowed is at most 1",
        {"rope_type": "proportional", "partial_rotary_factor": 2.0},
    ),
    (ValueError, "xpos_scale_base is 1; allowed is None or >= 2", {"xpos_scale_base": 1.0}),
    (ValueError, "xpos_center is 3; allowed is None without xpos_scale_base", {"xpos_center": 3}),
    (ValueError, "inv_freq is not given; allowed is a list of numbers", {"rope_type": "inv_freq"}),
    (
        ValueError,
        "inv_freq has 7 entries; allowed is 8 (rotary_dim / 2)",
        {"rope_type": "inv_freq", "inv_freq": [1.0] * 7, "rotary_dim": 16},
    ),
    (
        ValueError,
        "inv_freq is given; allowed is None with rope_type 'default'",
        {"inv_freq": [1.0] * 8},
    ),
    (
        ValueError,
        "short_factor and long_factor have 7 entries; allowed is 8",
        {**LONG, "short_factor": [1.0] * 7, "long_factor": [1.0] * 7, "rotary_dim": 16},
    ),
    (
        ValueError,
        "long_factor is 2.0; allowed is as many numbers in each list",
        {**LONG, "long_factor": [2.0]},
    ),
    (
        ValueError,
        "short_factor and long_factor are not given; allowed with rope_type 'longrope' is both",
        {
            "rope_type": "longrope",
            "original_max_position_embeddings": 16,
            "max_position_embeddings": 32,
        },
    ),
    (
        ValueError,
        "long_factor is not given; allowed with rope_type 'longrope' is a list",
        {**LONG, "long_factor": None},
    ),
    (
        ValueError,
        "short_factor[2] is 0; allowed is > 0",
        {**LONG, "short_factor": [1, 1, 0, 1, 1, 1, 1, 1]},
    ),
    (ValueError, "axes is 9; allowed is 1..4", {"axes": 9}),
    (
        ValueError,
        "axis_layout is not given; allowed is 'chunked', 'interleaved', 'alternating' or 'custom' "
        "with 3 axes",
        {"axes": 3},
    ),
    (ValueError, "sections[0] is 4; allowed is None without an axis_layout", {"sections": [4, 4]}),
    (
        ValueError,
        "sections is 1,2,3,4,5; allowed is at most 4 whole",
        {"sections": [1, 2, 3, 4, 5]},
    ),
    (
        ValueError,
        "sections sum to 7; allowed is rotary_dim / 2 = 8",
        {"axes": 2, "axis_layout": "chunked", "sections": [3, 4], "rotary_dim": 16},
    ),
    (
        ValueError,
        "axis_frequency is 'restart'; allowed is 'shared' unless axis_layout is 'chunked'",
        {"axis_frequency": "restart"},
    ),
    (
        ValueError,
        "pair_axis is given; allowed is None unless axis_layout is 'custom'",
        {"pair_axis": [0] * 8},
    ),
    (
        ValueError,
        "pair_axis is not given; allowed with axis_layout 'custom'",
        {"axes": 2, "axis_layout": "custom"},
    ),
    (
        ValueError,
        "pair_axis has 2 entries; allowed is 8 (rotary_dim / 2)",
        {"axes": 2, "axis_layout": "custom", "pair_axis": [0, 1], "rotary_dim": 16},
    ),
    (
        ValueError,
        "pair_axis is 0,4; allowed is an axis 0..3",
        {"axis_layout": "custom", "pair_axis": [0, 4]},
    ),
    (ValueError, "shard_size is not given; allowed is > 0", {"shard": "zigzag"}),
    (
        ValueError,
        "shard_rank is 2; allowed is 0..1",
        {"shard": "zigzag", "shard_size": 2, "shard_rank": 2},
    ),
    (ValueError, "shard_size is 2; allowed is None without shard", {"shard_size": 2}),
    (
        ValueError,
        "table_width is 'full'; allowed is None unless angle_mode is 'table'",
        {"table_width": "full"},
    ),
    (
        ValueError,
        "out_of_range is 'clamp'; allowed is None unless angle_mode",
        {"out_of_range": "clamp"},
    ),
]


@pytest.mark.parametrize(("kind", "text", "fields"), FIELDS)
def test_refuses_a_config(kind: type[Exception], text: str, fields: dict[str, Any]) -> None:
    of_apply = text.replace("ropekit.LayerFields", "ropekit.Fields")
    calls = (
        (text, lambda: ropekit.Config(**fields)),
        (text, lambda: ropekit.Config().replace(**fields)),
        (of_apply, lambda: ropekit.apply(X, **fields)),
        (of_apply, lambda: ropekit.apply_(X, **fields)),
    )
    kept = X.clone()
    for words, call in calls:
        with pytest.raises(kind, match=re.escape(words)) as caught:
            call()
        assert caught.type is kind
    assert torch.equal(X, kept)


HAS_ZERO = {"rotary_offset", "k_rotary_offset", "shard_rank", "xpos_center", "sequence_length"}
HINTS = get_type_hints(ropekit.Fields)
NUMBERS = [name for name, hint in HINTS.items() if hint in (int, float)]


@pytest.mark.parametrize("name", NUMBERS)
def test_zero_is_no_default(name: str) -> None:
    if name in HAS_ZERO:
        assert ropekit.Config.from_text(f"{name}=0") == ropekit.Config(**{name: 0})
        return
    for zero in (0, 0.0, -0.0) if HINTS[name] is float else (0,):
        for make in (ropekit.Config, partial(ropekit.apply, X)):
            with pytest.raises(
                ValueError, match=rf"^{name} is -?0(\.0)?; allowed is .* other than 0"
            ):
                make(**{name: zero})


CASES: list[tuple[type[Exception], str, Callable[[], object]]] = [
    (TypeError, f"q is torch.int64; allowed is {FLOATS}", lambda: ropekit.apply(X.long())),
    (
        TypeError,
        f"q is torch.complex64; allowed is {FLOATS}",
        lambda: ropekit.apply(X.to(torch.complex64)),
    ),
    (
        TypeError,
        "k is torch.float64; allowed is torch.float32, the type of q",
        lambda: ropekit.apply(X, X.double()),
    ),
    (
        TypeError,
        "q is torch.sparse_coo; allowed is torch.strided",
        lambda: ropekit.apply(X.to_sparse()),
    ),
    (ValueError, "q and k are None; allowed is one", lambda: ropekit.apply(None)),
    (
        ValueError,
        "k has batch 1 and 5 tokens; allowed is that of q, 2 and 5",
        lambda: ropekit.apply(X, X[:1]),
    ),
    (ValueError, "k has batch 2 and 4 tokens", lambda: ropekit.apply(X, X[:, :4])),
    (
        ValueError,
        "q has 3 dimensions; allowed is 4, for layout 'bshd', or 3 with layout='thd'",
        lambda: ropekit.apply(X[0]),
    ),
    (
        ValueError,
        "q has 3 dimensions; allowed is 4, for layout 'bshd', or 3 with layout='thd'",
        lambda: ropekit.apply(X[0], cu_seqlens=INT[:2]),
    ),
    (
        ValueError,
        "q has 4 dimensions; allowed is 3, for layout 'thd'",
        lambda: ropekit.apply(X, layout="thd"),
    ),
    (
        ValueError,
        "q has 0 dimensions; allowed is 4, or 3 for layout 'thd'",
        lambda: ropekit.apply(X.sum()),
    ),
    (ValueError, "k has 3 dimensions; allowed is 4", lambda: ropekit.apply(None, X[0])),
    (ValueError, "q has 0 dimensions; allowed is 4", lambda: ropekit.apply(X.sum(), config={})),
    (ValueError, "q has head_dim 0; allowed is 2..65536", lambda: ropekit.apply(X[..., :0])),
    (ValueError, "k has head_dim 1; allowed is 2..65536", lambda: ropekit.apply(X, X[..., :1])),
    (
        ValueError,
        "q has head_dim 100000; allowed is 2..65536",
        lambda: ropekit.apply(X[:1, :1, :1, :1].expand(1, 1, 1, 100000)),
    ),
    (
        ValueError,
        "rotary_dim is 18; allowed is an even number in 2..16",
        lambda: ropekit.apply(X, rotary_dim=18),
    ),
    (ValueError, "head_dim is 64 and the tensor has 16", lambda: ropekit.apply(X, head_dim=64)),
    (
        ValueError,
        "inv_freq has 7 entries; allowed is 8",
        lambda: ropekit.apply(X, rope_type="inv_freq", inv_freq=[1.0] * 7),
    ),
    (
        ValueError,
        "pair_axis has 2 entries; allowed is 8",
        lambda: ropekit.apply(X, axes=2, axis_layout="custom", pair_axis=[0, 1]),
    ),
    *(
        (
            TypeError,
            f"positions is {dtype}; allowed is torch.int32 or torch.int64",
            partial(ropekit.apply, X, positions=INT.to(dtype)),
        )
        for dtype in (torch.float32, torch.int16, torch.uint8, torch.uint32, torch.bool)
    ),
    (
        TypeError,
        "cu_seqlens is torch.int16; allowed",
        lambda: ropekit.apply(X[0], layout="thd", cu_seqlens=INT[:2].short()),
    ),
    (
        ValueError,
        "positions has the shape [4]; allowed is [tokens] or [batch, tokens] with axes 1, batch 2 "
        "and tokens 5",
        lambda: ropekit.apply(X, positions=INT[:4]),
    ),
    (
        ValueError,
        "positions has the shape [3, 5]",
        lambda: ropekit.apply(X, positions=INT.expand(3, 5)),
    ),
    (
        ValueError,
        "positions has the shape [4]",
        lambda: ropekit.apply(X[:, :0], positions=INT[:4]),
    ),
    (
        ValueError,
        "positions has 4 dimensions; allowed is at most 3",
        lambda: ropekit.apply(X, positions=INT.view(1, 1, 1, 5)),
    ),
    (
        ValueError,
        "positions is given; allowed is None where the config has a shard",
        lambda: ropekit.apply(X, positions=INT, shard="contiguous", shard_size=2),
    ),
    (
        ValueError,
        "tokens is 5; allowed is an even number",
        lambda: ropekit.apply(X, shard="zigzag", shard_size=2),
    ),
    (
        ValueError,
        "sequence_lengths is not given; allowed with positions and longrope",
        lambda: ropekit.apply(X, positions=INT, **LONG),
    ),
    (
        ValueError,
        "sequence_lengths is given; allowed is None unless rope_type is 'longrope'",
        lambda: ropekit.apply(X, sequence_lengths=INT[:2]),
    ),
    (
        ValueError,
        "sequence_offsets has 5 entries; allowed is 2",
        lambda: ropekit.apply(X, sequence_offsets=INT),
    ),
    (
        ValueError,
        "sequence_offsets has 2 dim",
        lambda: ropekit.apply(X, sequence_offsets=INT[None]),
    ),
    (ValueError, "sequence_offsets has 1 dim", lambda: ropekit.apply(X, sequence_offsets=INT[::3])),
    (
        ValueError,
        "cu_seqlens has 0 entries; allowed is one more than",
        lambda: ropekit.apply(X[0], layout="thd", cu_seqlens=INT[:0]),
    ),
    (
        ValueError,
        "batch is 2; allowed is 0 or 1 with cu_seqlens",
        lambda: ropekit.apply(X, cu_seqlens=INT),
    ),
    (
        ValueError,
        "cu_seqlens[0] is 4 and cu_seqlens[1] is 3; allowed is boundaries that do not fall",
        lambda: ropekit.apply(X[0], layout="thd", cu_seqlens=INT.flip(0)),
    ),
    (ValueError, "cos is given alone", lambda: ropekit.apply(X, cos=TABLE)),
    (ValueError, "cos and sin differ", lambda: ropekit.apply(X, cos=TABLE, sin=TABLE[:4])),
    (
        TypeError,
        "cos is torch.float64; allowed is torch.float32",
        lambda: ropekit.apply(X, cos=TABLE.double(), sin=TABLE.double()),
    ),
    (
        TypeError,
        "cos is torch.float16; allowed is torch.float32 or torch.bfloat16",
        lambda: ropekit.apply(X.bfloat16(), cos=TABLE.half(), sin=TABLE.half()),
    ),
    (ValueError, "cos has rows of 6", lambda: ropekit.apply(X, cos=TABLE[:, :6], sin=TABLE[:, :6])),
    (
        ValueError,
        "cos has 0 rows; allowed is one for each position",
        lambda: ropekit.apply(X, cos=TABLE[:0], sin=TABLE[:0]),
    ),
    (ValueError, "cos has 1 dimensions", lambda: ropekit.apply(X, cos=TABLE[0], sin=TABLE[0])),
    (
        ValueError,
        "cos repeats one element",
        lambda: ropekit.apply(X, cos=X[0, 0, 0, 0].expand(5, 8), sin=X[0, 0, 0, 0].expand(5, 8)),
    ),
    (
        ValueError,
        "cos and sin are not given; allowed with angle_mode 'table' is both",
        lambda: ropekit.apply(X, angle_mode="table"),
    ),
    (
        ValueError,
        "cos and sin are given; allowed is neither unless angle_mode is 'table'",
        lambda: ropekit.apply(X, angle_mode="f32", cos=TABLE, sin=TABLE),
    ),
    (
        ValueError,
        "token 4 is 5; allowed is 0..4",
        lambda: ropekit.apply(X, position_offset=1, cos=TABLE, sin=TABLE),
    ),
    (
        RuntimeError,
        "cos or sin requires a gradient",
        lambda: ropekit.apply(X, cos=LEAF_TABLE, sin=TABLE),
    ),
    (
        RuntimeError,
        "cos or sin requires a gradient",
        lambda: torch.ops.ropekit.rotate(X, "", cos=LEAF_TABLE, sin=TABLE),
    ),
    (
        RuntimeError,
        "direction is 'inverse'; allowed with a gradient is 'forward' or",
        lambda: ropekit.apply(LEAF, direction="inverse"),
    ),
    (ValueError, "seq_len is 4; allowed is 5", lambda: ropekit.rope(X, X, 4)),
    (ValueError, "q has 1 dimensions; allowed is 4", lambda: ropekit.rope(TABLE[0], X, 5)),
    (ValueError, "k has 3 dimensions; allowed is 4", lambda: ropekit.rope(X, X[0], 5)),
    (
        ValueError,
        "position_offset is 9223372036854775808; allowed is a whole number of 64 bits",
        lambda: ropekit.apply(X, position_offset=2**63),
    ),
    (
        ValueError,
        "position_offset is -92",
        lambda: ropekit.apply(LEAF, position_offset=-(2**63) - 1),
    ),
    (ValueError, "position_offset is 92", lambda: ropekit.apply(META, position_offset=2**63)),
    (
        ValueError,
        "kernel is 'nothing'; allowed with backend cpu is None or any of",
        lambda: ropekit.apply(X, kernel="nothing"),
    ),
    (TypeError, "config is int; allowed is a Config", lambda: ropekit.apply(X, config=3)),
    (
        FileNotFoundError,
        "config cannot be read (No such file or directory); allowed is the path of a config.json: "
        "'/none.json'",
        lambda: ropekit.apply(X, config="/none.json"),
    ),
    (
        FileNotFoundError,
        "allowed is the path of a config.json, a dict, or what transformers' "
        "AutoConfig.from_pretrained(...) returns: 'org/name'",
        lambda: ropekit.apply(X, config="org/name"),
    ),
    (
        TypeError,
        "k_lengths is given; allowed is that for ropekit.attention",
        lambda: ropekit.apply(X, k_lengths=INT),
    ),
    (
        TypeError,
        "there is no field 'scaling'; allowed is scale, for ropekit.attention or",
        lambda: ropekit.apply(X, scaling=2.0),
    ),
    (IsADirectoryError, "config cannot be read", lambda: ropekit.Config.from_transformers("/")),
    (
        ValueError,
        f"config is '{__file__}': byte 2 of",
        lambda: ropekit.apply(X, config=__file__),
    ),
    (
        ValueError,
        "k is on meta and q on cpu; allowed is one device",
        lambda: ropekit.apply(X, META),
    ),
    (ValueError, "k is on cpu and q on meta", lambda: ropekit.apply(META, X)),
    (ValueError, "k is on meta and q on cpu", lambda: ropekit.apply(LEAF, META)),
    (
        ValueError,
        "positions is on meta and k on cpu",
        lambda: ropekit.apply(None, X, positions=INT.to("meta")),
    ),
    (ValueError, "positions is on cpu", lambda: ropekit.apply(META, positions=INT)),
    (
        ValueError,
        "sequence_offsets is on meta",
        lambda: ropekit.apply(X, sequence_offsets=INT[:2].to("meta")),
    ),
    (
        ValueError,
        "cu_seqlens is on meta",
        lambda: ropekit.apply(X[0], layout="thd", cu_seqlens=META_BOUNDS),
    ),
    (
        ValueError,
        "sequence_lengths is on meta",
        lambda: ropekit.apply(X, sequence_lengths=META_BOUNDS),
    ),
    (ValueError, "cos is on meta", lambda: ropekit.apply(X, cos=TABLE.to("meta"), sin=TABLE)),
    (ValueError, "sin is on meta", lambda: ropekit.apply(X, cos=TABLE, sin=TABLE.to("meta"))),
    (TypeError, f"q is torch.int64; allowed is {FLOATS}", lambda: ropekit.apply(META.long())),
    (
        TypeError,
        "k is torch.float64; allowed is torch.float32",
        lambda: ropekit.apply(META, META.double()),
    ),
    (ValueError, "k has another batch", lambda: ropekit.apply(META, META[:1])),
    (ValueError, "k has another batch or other tokens", lambda: ropekit.apply(META, META[:, :4])),
    (
        ValueError,
        "q has 3 dimensions; allowed is 4, for layout 'bshd', or 3 with layout='thd'",
        lambda: ropekit.apply(META[0]),
    ),
    (
        TypeError,
        "positions is torch.float32",
        lambda: ropekit.apply(META, positions=META[0, :, 0, 0]),
    ),
]


@pytest.mark.parametrize(("kind", "text", "call"), CASES)
def test_refuses(kind: type[Exception], text: str, call: Callable[[], object]) -> None:
    kept = X.clone()
    with pytest.raises(kind, match=re.escape(text)) as caught:
        call()
    assert caught.type is kind
    assert torch.equal(X, kept)


def test_an_operator_raises_what_pytorch_makes_of_an_error() -> None:
    with pytest.raises(
        RuntimeError, match=r"factor is not given; allowed is > 0 with rope_type yarn"
    ):
        torch.ops.ropekit.rotate(X, "rope_type=yarn")


IN_PLACE: list[tuple[str, Callable[[torch.Tensor], object]]] = [
    ("q is a leaf that requires a gradient", lambda x: ropekit.apply_(x.requires_grad_())),
    ("q is a leaf", lambda x: ropekit.apply_(x.requires_grad_().view(x.shape))),
    (
        "q is a view made by a function of several results",
        lambda x: ropekit.apply_((x.requires_grad_() * 1).chunk(2)[0]),
    ),
    ("a tensor requires a gradient", lambda x: torch.ops.ropekit.rotate_(x.requires_grad_(), "")),
    ("cos or sin requires", lambda x: ropekit.apply_(x, cos=TABLE, sin=LEAF_TABLE)),
    (
        "cos or sin requires",
        lambda x: torch.ops.ropekit.rotate_pair_(x, x.clone(), "", cos=LEAF_TABLE, sin=TABLE),
    ),
    ("q has the negative bit", lambda x: ropekit.apply_(torch._neg_view(x))),
    ("k has the negative bit", lambda x: ropekit.apply_(None, torch._neg_view(x))),
    ("q has the negative bit", lambda x: torch.ops.ropekit.rotate_(torch._neg_view(x), "")),
]


@pytest.mark.parametrize(("text", "call"), IN_PLACE)
def test_refuses_in_place(text: str, call: Callable[[torch.Tensor], object]) -> None:
    x = X.clone()
    with pytest.raises(RuntimeError, match=re.escape(text)):
        call(x)
    assert torch.equal(x, X)


BAD_IN_PLACE: list[tuple[type[Exception], str, Callable[[torch.Tensor], object]]] = [
    (
        ValueError,
        "q repeats one element and is written; allowed is a tensor with a stride",
        lambda x: ropekit.apply_(x[:1, :1, :1, :1].expand(2, 5, 4, 16)),
    ),
    (ValueError, "q and k overlap; allowed is tensors", lambda x: ropekit.apply_(x, x)),
    (
        ValueError,
        "q has the strides [0, 64, 16, 1] over batch, token, head and element",
        lambda x: ropekit.apply_(x[:1].expand(2, -1, -1, -1)),
    ),
    (
        ValueError,
        "token 4 is 5; allowed is 0..4",
        lambda x: ropekit.apply_(x, position_offset=1, cos=TABLE, sin=TABLE),
    ),
    (
        ValueError,
        "cu_seqlens[0] is 4 and cu_seqlens[1] is 3",
        lambda x: ropekit.apply_(x[0], layout="thd", cu_seqlens=INT.flip(0)),
    ),
    (ValueError, "position_offset is 92", lambda x: ropekit.apply_(x, position_offset=2**63)),
    (
        TypeError,
        "position_flag is torch.int64; allowed is torch.int32",
        lambda x: ropekit.apply_(x, position_flag=INT[:1]),
    ),
    (
        ValueError,
        "position_flag is int32 of 2 dimensions; allowed is one int32",
        lambda x: ropekit.apply_(x, position_flag=INT[:1, None].int()),
    ),
    (
        ValueError,
        "position_flag is on meta and q on cpu",
        lambda x: ropekit.apply_(x, position_flag=META_BOUNDS[:1].int()),
    ),
    (ValueError, "k is on meta and q on cpu", lambda x: ropekit.apply_(x, META)),
]


@pytest.mark.parametrize(("kind", "text", "call"), BAD_IN_PLACE)
def test_refuses_what_does_not_fit_in_place(
    kind: type[Exception], text: str, call: Callable[[torch.Tensor], object]
) -> None:
    x = X.clone()
    with pytest.raises(kind, match=re.escape(text)) as caught:
        call(x)
    assert caught.type is kind
    assert torch.equal(x, X)


INFERRED: dict[str, Callable[[torch.Tensor], object]] = {
    "q": ropekit.apply_,
    "k": lambda x: ropekit.apply_(X.clone(), x),
    "k alone": lambda x: ropekit.apply_(None, x),
    "tables": lambda x: ropekit.apply_(x, cos=TABLE, sin=TABLE),
    "operator": lambda x: torch.ops.ropekit.rotate_(x, ""),
}


@pytest.mark.parametrize("name", INFERRED)
def test_refuses_to_write_an_inference_tensor_outside_inference_mode(name: str) -> None:
    with torch.inference_mode():
        x = X.clone()
    before = x.clone()
    with pytest.raises(RuntimeError, match="is an inference tensor; allowed in place outside"):
        INFERRED[name](x)
    assert torch.equal(x, before)
    with torch.inference_mode():
        INFERRED[name](x)
    assert not torch.equal(x, before)


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("q is list; allowed is a tensor", lambda: ropekit.apply([1, 2])),
        ("k is float; allowed is a tensor", lambda: ropekit.apply(X, 1.0)),
        ("positions is list; allowed is a tensor", lambda: ropekit.apply(X, positions=[0, 1])),
        ("cos is list; allowed is a tensor", lambda: ropekit.apply_(X.clone(), cos=[1], sin=TABLE)),
        ("position_flag is int; allowed", lambda: ropekit.apply_(X.clone(), position_flag=1)),
        ("position_offset is '1'; allowed", lambda: ropekit.apply(X, position_offset="1")),
        ("position_offset is 1.5; allowed", lambda: ropekit.apply(X, position_offset=1.5)),
        ("position_offset is np.float32(3.5)", lambda: ropekit.apply(X, position_offset=PART)),
        ("position_offset is np.float32(3.5)", lambda: ropekit.apply_(X, position_offset=PART)),
        ("position_offset is tensor([0, 1", lambda: ropekit.apply(X, position_offset=INT)),
        ("q is NoneType; allowed is a tensor", lambda: ropekit.rope(None, None, 5)),
        ("seq_len is tensor([0, 1, 2, 3, 4]); allowed", lambda: ropekit.rope(X, X, INT)),
        ("k is NoneType; allowed is a tensor", lambda: ropekit.rope(X, None, 5)),
    ],
)
def test_refuses_what_is_no_tensor(text: str, call: Callable[[], object]) -> None:
    with pytest.raises(TypeError, match=re.escape(text)):
        call()


def test_equal_numbers_of_two_types_are_two_fields() -> None:
    axes = {"axes": 3, "axis_layout": "chunked", "positions": INT.expand(3, 1, 5)}
    for good, bad in (
        ({"rotary_dim": 8}, {"rotary_dim": 8.0}),
        ({"axes": 1}, {"axes": True}),
        ({"sections": (1, 3, 4), **axes}, {"sections": (True, 3, 4), **axes}),
    ):
        for _ in range(2):
            ropekit.apply(X, **good)
            with pytest.raises(TypeError, match="allowed is"):
                ropekit.apply(X, **bad)


def test_a_compiled_function_takes_a_config_made_outside() -> None:
    compiled = torch.compile(ropekit.apply, fullgraph=True, backend="eager")
    with pytest.raises(torch._dynamo.exc.Unsupported, match="allowed there is a ropekit"):
        compiled(X, config={"head_dim": 16})


def test_refuses_two_devices() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no second device")
    x = X.cuda()
    for call in (
        lambda: ropekit.apply(x, X),
        lambda: ropekit.apply(X, x),
        lambda: ropekit.apply(x, positions=INT),
        lambda: ropekit.apply(x, cos=TABLE, sin=TABLE),
    ):
        with pytest.raises(ValueError, match="allowed is one device"):
            call()
