"""Bad input raises a clear error and changes no tensor."""

from __future__ import annotations

import re
from collections.abc import Callable

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

CASES: list[tuple[str, Callable[[], object]]] = [
    ("q is int64; allowed is float32", lambda: ropekit.apply(X.long())),
    ("q is of another type", lambda: ropekit.apply(X.to(torch.complex64))),
    ("k is float64 and q is float32", lambda: ropekit.apply(X, X.double())),
    ("q and k are None; allowed is one", lambda: ropekit.apply(None)),
    ("k has batch 1 and 5 tokens; allowed is that of q, 2 and 5", lambda: ropekit.apply(X, X[:1])),
    ("k has batch 2 and 4 tokens", lambda: ropekit.apply(X, X[:, :4])),
    ("q has 3 dimensions; allowed is 4, for layout bshd", lambda: ropekit.apply(X[0])),
    ("q has 4 dimensions; allowed is 3, for layout thd", lambda: ropekit.apply(X, layout="thd")),
    ('layout is "bsd"; allowed is bshd', lambda: ropekit.apply(X, layout="bsd")),
    ('rope_type is "ntk"; allowed is default', lambda: ropekit.apply(X, rope_type="ntk")),
    ('there is no field "base=3"', lambda: ropekit.apply(X, base=3)),
    ('there is no field "position_ids"; allowed', lambda: ropekit.apply(X, position_ids=INT)),
    ('rope_theta is "a b"; allowed', lambda: ropekit.apply(X, rope_theta="a b")),
    ('rope_theta is "big"; allowed is a number', lambda: ropekit.apply(X, rope_theta="big")),
    ('rotary_dim is "8.0"; allowed is a whole', lambda: ropekit.apply(X, rotary_dim=8.0)),
    ('rotary_dim is "tensor(8)"', lambda: ropekit.apply(X, rotary_dim=torch.tensor(8))),
    ('axes is "np.True_"', lambda: ropekit.apply(X, axes=numpy.True_)),
    ("rotary_dim is 7", lambda: ropekit.apply(X, rotary_dim=7)),
    ("rotary_dim is 18", lambda: ropekit.apply(X, rotary_dim=18)),
    ("head_dim is 64 in the configuration and 16", lambda: ropekit.apply(X, head_dim=64)),
    ("factor", lambda: ropekit.apply(X, factor=2.0)),
    ('sections is "1,2,3,4,5"', lambda: ropekit.apply(X, sections=[1, 2, 3, 4, 5])),
    ("positions is float32; allowed is int32", lambda: ropekit.apply(X, positions=INT.float())),
    ("positions does not fit", lambda: ropekit.apply(X, positions=INT[:4])),
    ("positions does not fit", lambda: ropekit.apply(X, positions=INT.expand(3, 5))),
    (
        "sequence_offsets is int64; allowed is one type",
        lambda: ropekit.apply(X, positions=INT.int(), sequence_offsets=INT[:2]),
    ),
    (
        "sequence_offsets has 5 entries; allowed is 2",
        lambda: ropekit.apply(X, sequence_offsets=INT),
    ),
    ("sequence_offsets has 2 dim", lambda: ropekit.apply(X, sequence_offsets=INT[None])),
    ("sequence_offsets has 1 dim", lambda: ropekit.apply(X, sequence_offsets=INT[::3])),
    ("cos is given alone", lambda: ropekit.apply(X, cos=TABLE)),
    ("cos and sin differ", lambda: ropekit.apply(X, cos=TABLE, sin=TABLE[:4])),
    ("cos is float64; allowed", lambda: ropekit.apply(X, cos=TABLE.double(), sin=TABLE.double())),
    ("cos has rows of 6", lambda: ropekit.apply(X, cos=TABLE[:, :6], sin=TABLE[:, :6])),
    ("cos has 1 dimensions", lambda: ropekit.apply(X, cos=TABLE[0], sin=TABLE[0])),
    (
        "cos repeats one element",
        lambda: ropekit.apply(X, cos=X[0, 0, 0, 0].expand(5, 8), sin=X[0, 0, 0, 0].expand(5, 8)),
    ),
    (
        "token 4 is 5; allowed is 0..4",
        lambda: ropekit.apply(X, position_offset=1, cos=TABLE, sin=TABLE),
    ),
    (
        "cos or sin requires a gradient",
        lambda: ropekit.apply(X, cos=LEAF_TABLE, sin=TABLE),
    ),
    (
        "cos or sin requires a gradient",
        lambda: torch.ops.ropekit.rotate(X, "", cos=LEAF_TABLE, sin=TABLE),
    ),
    (
        'direction is "inverse"; allowed with a gradient',
        lambda: ropekit.apply(X.clone().requires_grad_(), direction="inverse"),
    ),
    ("seq_len is 4; allowed is 5", lambda: ropekit.rope(X, X, 4)),
    ("q has 1 dimensions; allowed is 4", lambda: ropekit.rope(TABLE[0], X, 5)),
    ("k has 3 dimensions; allowed is 4", lambda: ropekit.rope(X, X[0], 5)),
    (
        "position_offset is 9223372036854775808; allowed is a whole number of 64 bits",
        lambda: ropekit.apply(X, position_offset=2**63),
    ),
    ("position_offset is -92", lambda: ropekit.apply(LEAF, position_offset=-(2**63) - 1)),
    ("position_offset is 92", lambda: ropekit.apply(META, position_offset=2**63)),
    ("kernel", lambda: ropekit.apply(X, kernel="nothing")),
    ("config is int; allowed is a Config", lambda: ropekit.apply(X, config=3)),
    ('config is "/none.json", which', lambda: ropekit.apply(X, config="/none.json")),
    (f'config is "{__file__}", which', lambda: ropekit.apply(X, config=__file__)),
    ("k is on meta and q on cpu", lambda: ropekit.apply(X, META)),
    ("k is on cpu and q on meta", lambda: ropekit.apply(META, X)),
    ("k is on meta and q on cpu", lambda: ropekit.apply(LEAF, META)),
    ("positions is on meta", lambda: ropekit.apply(X, positions=INT.to("meta"))),
    ("positions is on cpu", lambda: ropekit.apply(META, positions=INT)),
    (
        "sequence_offsets is on meta",
        lambda: ropekit.apply(X, sequence_offsets=INT[:2].to("meta")),
    ),
    ("cu_seqlens is on meta", lambda: ropekit.apply(X[0], layout="thd", cu_seqlens=META_BOUNDS)),
    ("sequence_lengths is on meta", lambda: ropekit.apply(X, sequence_lengths=META_BOUNDS)),
    ("cos is on meta", lambda: ropekit.apply(X, cos=TABLE.to("meta"), sin=TABLE)),
    ("sin is on meta", lambda: ropekit.apply(X, cos=TABLE, sin=TABLE.to("meta"))),
    ("q is torch.int64; allowed is float32", lambda: ropekit.apply(META.long())),
    ("k is torch.float64; allowed", lambda: ropekit.apply(META, META.double())),
    ("k has another batch", lambda: ropekit.apply(META, META[:1])),
    ("k has another batch or other tokens", lambda: ropekit.apply(META, META[:, :4])),
    ("q has 3 dimensions; allowed is 4", lambda: ropekit.apply(META[0])),
    ("positions is torch.float32", lambda: ropekit.apply(META, positions=META[0, :, 0, 0])),
]


@pytest.mark.parametrize(("text", "call"), CASES)
def test_refuses(text: str, call: Callable[[], object]) -> None:
    kept = X.clone()
    with pytest.raises(RuntimeError, match=re.escape(text)):
        call()
    assert torch.equal(X, kept)


IN_PLACE: list[tuple[str, Callable[[torch.Tensor], object]]] = [
    ("q requires a gradient", lambda x: ropekit.apply_(x.requires_grad_())),
    (
        "q repeats one element and is written",
        lambda x: ropekit.apply_(x[:1, :1, :1, :1].expand(2, 5, 4, 16)),
    ),
    ("overlap", lambda x: ropekit.apply_(x, x)),
    ("stride", lambda x: ropekit.apply_(x[:1].expand(2, -1, -1, -1))),
    (
        "token 4 is 5; allowed is 0..4",
        lambda x: ropekit.apply_(x, position_offset=1, cos=TABLE, sin=TABLE),
    ),
    ("position_offset is 92", lambda x: ropekit.apply_(x, position_offset=2**63)),
    ("position_flag is int64", lambda x: ropekit.apply_(x, position_flag=INT[:1])),
    ("position_flag is on meta", lambda x: ropekit.apply_(x, position_flag=META_BOUNDS[:1])),
    ("k is on meta and q on cpu", lambda x: ropekit.apply_(x, META)),
    ("q requires a gradient", lambda x: torch.ops.ropekit.rotate_(x.requires_grad_(), "")),
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
        ("position_offset is 1.5; allowed", lambda: ropekit.apply(X, position_offset=1.5)),
        ("position_offset is 3.5; allowed", lambda: ropekit.apply(X, position_offset=PART)),
        ("position_offset is 3.5; allowed", lambda: ropekit.apply_(X, position_offset=PART)),
        ("position_offset is tensor([0, 1", lambda: ropekit.apply(X, position_offset=INT)),
        ("q is NoneType; allowed is a tensor", lambda: ropekit.rope(None, None, 5)),
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
            with pytest.raises(RuntimeError, match="allowed is"):
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
        with pytest.raises(RuntimeError, match="another device"):
            call()
