"""Bad input raises a clear error and changes no tensor."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import ropekit
import torch

X = torch.randn(2, 5, 4, 16)
INT = torch.arange(5)
TABLE = torch.ones(5, 8)

CASES: list[tuple[str, Callable[[], object]]] = [
    ("q is int64; allowed is float32", lambda: ropekit.apply(X.long())),
    ("q is of another type", lambda: ropekit.apply(X.to(torch.complex64))),
    ("k is float64 and q is float32", lambda: ropekit.apply(X, X.double())),
    ("q and k are None", lambda: ropekit.apply(None)),
    ("k has batch 1 and 5 tokens; allowed is that of q, 2 and 5", lambda: ropekit.apply(X, X[:1])),
    ("k has batch 2 and 4 tokens", lambda: ropekit.apply(X, X[:, :4])),
    ("q has 3 dimensions; allowed is 4, for layout bshd", lambda: ropekit.apply(X[0])),
    ("q has 4 dimensions; allowed is 3, for layout thd", lambda: ropekit.apply(X, layout="thd")),
    ('layout is "bsd"; allowed is bshd', lambda: ropekit.apply(X, layout="bsd")),
    ('rope_type is "ntk"; allowed is default', lambda: ropekit.apply(X, rope_type="ntk")),
    ('there is no field "base=3"', lambda: ropekit.apply(X, base=3)),
    ('rope_theta is "a b"; allowed', lambda: ropekit.apply(X, rope_theta="a b")),
    ('rope_theta is "big"; allowed is a number', lambda: ropekit.apply(X, rope_theta="big")),
    ('rotary_dim is "8.0"; allowed is a whole', lambda: ropekit.apply(X, rotary_dim=8.0)),
    ("rotary_dim is 7", lambda: ropekit.apply(X, rotary_dim=7)),
    ("rotary_dim is 18", lambda: ropekit.apply(X, rotary_dim=18)),
    ("head_dim is 64 in the configuration and 16", lambda: ropekit.apply(X, head_dim=64)),
    ("factor", lambda: ropekit.apply(X, factor=2.0)),
    ('sections is "1,2,3,4,5"', lambda: ropekit.apply(X, sections=[1, 2, 3, 4, 5])),
    ("position_ids is float32; allowed is int32", lambda: ropekit.apply(X, positions=INT.float())),
    ("position_ids does not fit", lambda: ropekit.apply(X, positions=INT[:4])),
    ("position_ids does not fit", lambda: ropekit.apply(X, positions=INT.expand(3, 5))),
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
        lambda: ropekit.apply(X, cos=TABLE.clone().requires_grad_(), sin=TABLE),
    ),
    (
        'direction is "inverse"; allowed with a gradient',
        lambda: ropekit.apply(X.clone().requires_grad_(), direction="inverse"),
    ),
    ("seq_len is 4; allowed is 5", lambda: ropekit.rope(X, X, 4)),
    ("kernel", lambda: ropekit.apply(X, kernel="nothing")),
    ("config is int; allowed is a Config", lambda: ropekit.apply(X, config=3)),
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
    ("position_flag is int64", lambda x: ropekit.apply_(x, position_flag=INT[:1])),
]


@pytest.mark.parametrize(("text", "call"), IN_PLACE)
def test_refuses_in_place(text: str, call: Callable[[torch.Tensor], object]) -> None:
    x = X.clone()
    with pytest.raises(RuntimeError, match=re.escape(text)):
        call(x)
    assert torch.equal(x, X)


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
