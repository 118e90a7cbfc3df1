"""Attention of sharded tokens beside one device's, by gloo and several processes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import distributed_cases
import pytest
import ranks
import ropekit
import torch
from distributed_cases import Case
from ropekit.distributed import Call, Layout, Rates, _attention, _costs, costs
from ropekit.distributed.__main__ import main
from ropekit.distributed._local import Inputs, Local
from ropekit.distributed._methods import groups_of
from torch import Tensor

pytestmark = pytest.mark.compiles  # its processes take seconds to begin

CASES = {
    "causal": Case(),
    "full": Case(options={"causal": False}, batch=2),
    "rows in bhsd": Case(batch=2, tensor_layout="bhsd"),
    "bf16": Case(tokens=150, dtype=torch.bfloat16),
    "f16": Case(dtype=torch.float16, order="contiguous"),
    "window": Case(options={"window": 9}),
    "window to the right": Case(options={"causal": False, "window": 9, "window_right": 4}, batch=2),
    "chunks": Case(options={"chunk": 8}, order="contiguous"),
    "sinks and soft cap": Case(sinks=True, options={"softcap": 3.0, "scale": 0.3}),
    "packed": Case(cu_seqlens=(0, 9, 9, 30, 51)),
    "packed, full, window": Case(
        cu_seqlens=(0, 20, 53), options={"causal": False, "window": 7, "window_right": 3}
    ),
    "MLA": Case(heads=(4, 4), dims=(192, 128), options={"rotary_dim": 64, "rotary_offset": 128}),
    "dynamic": Case(options={"rope_type": "dynamic", "factor": 2.0, "max_position_embeddings": 32}),
    "longrope": Case(
        cu_seqlens=(0, 40, 53),
        options={
            "rope_type": "longrope",
            "short_factor": [1.0] * 16,
            "long_factor": [4.0] * 16,
            "original_max_position_embeddings": 32,
            "max_position_embeddings": 64,
        },
    ),
    "few tokens": Case(tokens=5),
    "unrotated": Case(options={"rotate": "none"}),
}
METHODS = ("allgather", "ulysses", "ring")
# Heads that the ranks divide, but for 8 ranks, of which four share a key head.
OF_RANKS = {
    1: {
        "causal": Case(),
        "packed": Case(cu_seqlens=(0, 9, 9, 30, 51), sinks=True),
        "bf16": Case(dtype=torch.bfloat16),
        "f16": Case(dtype=torch.float16),
    },
    2: CASES,
    3: {
        "causal": Case(heads=(6, 3)),
        "bf16": Case(heads=(6, 6), dtype=torch.bfloat16),
        "f16": Case(heads=(6, 3), dtype=torch.float16),
    },
    4: CASES,
    8: {
        "causal": Case(heads=(8, 2)),
        "few tokens": Case(tokens=3, heads=(8, 8)),
        "bf16": Case(heads=(8, 8), dtype=torch.bfloat16),
        "f16": Case(heads=(8, 2), dtype=torch.float16),
    },
}


@pytest.mark.parametrize("number", OF_RANKS)
def test_beside_one_device(number: int) -> None:
    cases = OF_RANKS[number]
    asked = [(name, method) for name in cases for method in METHODS]
    found = ranks.run(number, distributed_cases.run, [(cases[n], m) for n, m in asked])
    for rank, each in enumerate(found):
        assert isinstance(each, list), f"rank {rank}: {each}"
    wanted = {name: case.on_one_device() for name, case in cases.items()}
    wrong = []
    for (name, method), of_ranks in zip(asked, zip(*found, strict=True), strict=True):
        exact = _exact_parts(method, cases[name], number)
        for text in _differences(of_ranks, wanted[name], exact, cases[name].dtype):
            wrong.append(f"{name}, {method}: {text}")
    assert not wrong, "\n".join(wrong)


def _exact_parts(method: str, case: Case, number: int) -> set[str]:
    """What has one device's bits."""
    found = set() if method == "ring" else {"out", "lse", "dq"}
    if method == "ulysses" and case.heads[1] % number == 0:
        found |= {"dk", "dv"}
    return found


def _differences(
    of_ranks: Sequence[dict[str, Tensor]], wanted: dict[str, Tensor], exact: set[str], dtype: Any
) -> Iterator[str]:
    for part, own in wanted.items():
        for rank, found in enumerate(of_ranks):
            if not torch.equal(found[part], of_ranks[0][part]):
                yield f"{part} differs on rank {rank}"
        first, seen = of_ranks[0][part], own.isfinite()
        if part in exact and not torch.equal(first, own):
            yield f"{part} is not one device's"
        off = (first[seen].double() - own[seen].double()).norm() / own[seen].double().norm()
        if not torch.equal(first[~seen], own[~seen]) or off > 4 * torch.finfo(dtype).eps:
            yield f"{part} is off by {off:.3g} of its norm"


@pytest.mark.parametrize("method", [*METHODS, "auto"])
def test_every_run_has_the_same_bits(method: str) -> None:
    for found in ranks.run(3, distributed_cases.repeats, method):
        for name in ("again", "checkpoint"):
            assert all(map(torch.equal, found["first"], found[name])), name


def test_a_compiled_function_has_the_bits_of_an_eager_one() -> None:
    for found in ranks.run(2, distributed_cases.compiled):
        assert isinstance(found, list), found
        assert all(map(torch.equal, found[:3], found[3:]))


# ---- layouts ----


@pytest.mark.parametrize("order", ["zigzag", "contiguous"])
@pytest.mark.parametrize("tokens", [1, 5, 8, 53, 64])
@pytest.mark.parametrize("number", [1, 3, 4])
def test_every_token_is_on_one_rank(number: int, tokens: int, order: Any) -> None:
    x = torch.arange(2 * tokens).reshape(2, tokens, 1)
    layouts = [Layout(tokens, rank, number, order) for rank in range(number)]
    parts = [layout.shard(x) for layout in layouts]
    assert [part.shape[1] for part in parts] == list(layouts[0].counts)
    assert torch.equal(layouts[0].join(parts, 1), x)
    for layout, part in zip(layouts, parts, strict=True):
        assert torch.equal(layout.positions(), part[0, :, 0])
    if order == "contiguous":
        chunks = x.chunk(number, 1)
        assert all(torch.equal(a, b) for a, b in zip(parts, chunks, strict=False))


def test_positions_count_in_each_sequence() -> None:
    layout = Layout(16, 1, 2, "zigzag", (0, 3, 3, 10, 14))
    assert layout.pieces() == (range(4, 8), range(8, 12))
    assert layout.positions().tolist() == [1, 2, 3, 4, 5, 6, 0, 1]
    assert layout.local_boundaries() == [0, 0, 0, 6, 8]
    assert layout.longest == 7


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((8, 0, 2, "stripes"), "order is 'stripes'; allowed is 'zigzag' or 'contiguous'"),
        ((8, 2, 2), "rank is 2; allowed is 0..1"),
        ((0, 0, 1), "tokens is 0; allowed is > 0"),
        ((8, 0, 2, "zigzag", (0, 9)), "cu_seqlens goes from 0 to 9; allowed is from 0 to at most"),
        ((8, 0, 2, "zigzag", (0, 5, 4)), "cu_seqlens falls"),
    ],
)
def test_no_other_layout(arguments: Any, text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        Layout(*arguments)


# ---- what is refused ----


def test_every_rank_learns_what_differs() -> None:
    named = {
        "theta": "config is  on rank 0 and rope_theta=500000.0 on rank 1",
        "window": "config is  on rank 0 and window=4 on rank 1",
        "type": "type of q is torch.float32 on rank 0 and torch.bfloat16 on rank 1",
        "heads": "k's batch, heads and head_dim is (1, 2, 32) on rank 0 and (1, 4, 32) on rank 1",
        "batch": "q's batch, heads and head_dim",
        "order": "layout.order is zigzag on rank 0 and contiguous on rank 1",
        "sequences": "layout.cu_seqlens is None on rank 0 and (0, 5, 12) on rank 1",
        "method": "method is allgather on rank 0 and ring on rank 1",
        "refused": "soft_cap",
        "positions": "positions is given",
        "ulysses": "q has 4 heads; allowed with method 'ulysses' is a multiple of the ranks, 3",
        "sdpa": "kernel is 'sdpa'",
    }
    for rank, found in enumerate(ranks.run(3, distributed_cases.refusals)):
        assert isinstance(found, dict), found
        for name, text in named.items():
            error = found[name]
            if name in ("refused", "positions") and rank != 1:
                assert error.startswith("RuntimeError: rank 1 refuses the call: "), error
            assert text in error, error


def test_every_rank_learns_of_a_later_call() -> None:
    named = {
        "window": "config is  on rank 0 and window=4 on rank 1",
        "misspelt": "windows",
        "no tensor": "sinks is float; allowed is a tensor",
        "no file": "/no/such/config.json",
        "grads": "what requires a gradient is [] on rank 0 and ['q'] on rank 1",
        "few rows": "cos has 10 rows; allowed is at least 12",
        "many sinks": "sinks has the shape [8]; allowed is [4]",
        "kernel": 'kernel is "nonsense"',
    }
    for found in ranks.run(4, distributed_cases.later_refusals, seconds=60):
        assert isinstance(found, dict), found
        for name, text in named.items():
            assert text in found[name], (name, found[name])


def test_a_gradient_after_inference_mode() -> None:
    assert ranks.run(2, distributed_cases.inference_first) == [True, True]


@pytest.mark.parametrize("method", METHODS)
def test_a_killed_rank_is_an_error_of_the_others(method: str) -> None:
    found = ranks.run(3, distributed_cases.killed, method, seconds=20)
    assert found[1] is None
    assert all("Error" in found[rank] for rank in (0, 2)), found


# ---- costs ----


def test_costs_follow_from_sizes_and_rates() -> None:
    call = Call(tokens=1000, ranks=4, heads=8, k_heads=4, head_dim=64, device="cpu")
    rates = Rates(flops=1e12, bandwidth=1e6, latency=0.0)
    found = {row.method: row for row in costs(call, rates).rows}
    keys = 250 * 4 * (64 + 64) * 2  # bytes of a rank's keys and values
    assert found["allgather"].sent_bytes == found["ring"].sent_bytes == 3 * keys
    assert found["ulysses"].sent_bytes == 3 / 4 * (keys + 2 * keys)
    products = 2 * (64 + 64) * 8 * 1000 * 1000 / 2 / 4
    assert {row.compute_s for row in found.values()} == {products / 1e12}
    assert found["ring"].exposed_s == pytest.approx(3 * keys / 1e6 - products / 1e12 * 3 / 4)
    assert costs(call, rates).best == "ulysses"
    of_others = costs(replace(call, heads=6, k_heads=3), rates).rows
    assert [row.method for row in of_others] == ["allgather", "ring"]
    fast = replace(rates, bandwidth=1e12)
    assert costs(call, fast).best == "allgather"  # the ring would save less than a third
    assert str(costs(call, fast)).split()[0] == "predicted"
    with pytest.raises(ValueError, match="ranks is 0; allowed is > 0"):
        costs(replace(call, ranks=0), rates)


def test_rates_of_auto_are_those_of_long_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call of few tokens does not fill a device; this one takes 100 us whatever is computed."""
    local = Local(Layout(20000, 0, 1), _attention._checked("", Layout(20000, 0, 1)))
    call = Call(tokens=20000, ranks=1, heads=2, k_heads=1, head_dim=16)
    x = Inputs(*(torch.zeros(1, 1, heads, 16) for heads in (2, 1, 1)), None)
    floor, peak = 1e-4, 1e11
    lengths: list[int] = []

    def timed(function: Any, _: Any) -> float:
        lengths.append(function.args[0].q.shape[1])
        return floor + replace(call, tokens=lengths[-1]).flops / peak

    monkeypatch.setattr(_costs, "_time", timed)
    found = 1 / _costs._attend(local, x, call)
    assert lengths == [256, 1024, 4096] and found == pytest.approx(peak, rel=0.02)
    few = Local(Layout(300, 0, 2), local.settings)
    lengths.clear()
    _costs._attend(few, x, replace(call, tokens=300))
    assert lengths == [256]  # not more than a rank holds


@pytest.mark.parametrize(
    ("options", "bounds", "keys"),
    [
        ("", None, 50),
        ("mask=full", None, 100),
        ("window=10", None, 10),
        ("chunk=20", None, 10),
        ("", (0, 20, 100), (20 * 10 + 80 * 40) / 100),
    ],
)
def test_costs_count_keys_that_are_seen(options: str, bounds: Any, keys: float) -> None:
    layout = Layout(100, 0, 2, "zigzag", bounds)
    assert _costs._keys(Local(layout, _attention._checked(options, layout))) == keys


def test_a_group_of_keys_is_worth_its_calls() -> None:
    assert groups_of(1 << 10, 9, "cpu") == groups_of(1 << 31, 9, "cuda") == 8
    assert groups_of(1 << 26, 8, "cuda") == 2 and groups_of(1 << 31, 1, "cuda") == 1
    assert groups_of(1 << 20, 8, "cuda") == groups_of(0, 8, "cpu") == 1


def test_the_plan_in_the_page_is_the_model_s(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs/figures.md").read_text()
    found = re.search(
        r"<!-- begin: plan -->\n    python -m ropekit.distributed (.*)\n\n(.*)\n<!--", page, re.S
    )
    assert found
    main(found[1].split("\n")[0].split())
    assert capsys.readouterr().out.strip() == found[2].strip(), "run scripts/update_documents --run"


def test_costs_of_many_devices_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--flops=5e14", "--bandwidth=50e9", "--ranks=8,1024", "--tokens=131072"])
    few, many = capsys.readouterr().out.strip().split("\n\n")
    assert few.startswith("131072 tokens on 8 devices, predicted:")
    # of 7 other ranks' keys and values of 8 heads of 128, in 2 bytes, an eighth of the tokens
    assert f"allgather: {7 / 8 * 8 * 256 * 2:.4g} bytes a token" in few
    assert "ulysses" in few and "ulysses" not in many


# ---- DTensor ----


def test_batch_and_heads_of_dtensors_may_be_sharded() -> None:
    case = Case(batch=2, sinks=True)
    given, one = case.tensors(), case.on_one_device()
    turned = ropekit.apply(given["q"], given["k"], rope_theta=5e5)
    wanted = [*turned, one["out"], one["out"], *(one[n] for n in ("dq", "dk", "dv", "dsinks"))]
    for found in ranks.run(2, distributed_cases.of_dtensors):
        assert isinstance(found, dict), found
        for name in ("batch", "heads"):
            assert isinstance(found[name], list), found[name]
            for x, own in zip(found[name][:-1], wanted[:-1], strict=True):
                assert torch.equal(x, own), name
            torch.testing.assert_close(found[name][-1], wanted[-1])
        assert "q is sharded in dim 1, its tokens" in found["tokens"], found["tokens"]
        assert "ropekit.distributed" in found["tokens"]


def test_append_of_dtensors_has_shards_of_heads() -> None:
    for found in ranks.run(2, distributed_cases.append_of_dtensors):
        assert isinstance(found, dict), found
        assert isinstance(found["heads"], list), found["heads"]
        for x, own in zip(found["heads"], found["one"], strict=True):
            assert torch.equal(x, own)
        for name in ("tokens", "whole cache"):
            assert "ropekit.distributed" in found[name], found[name]


def test_heads_stay_sharded_beside_a_batch() -> None:
    wanted = Case(batch=2).on_one_device()["out"]
    for found in ranks.run(4, distributed_cases.of_a_mesh):
        assert isinstance(found, tuple), found
        assert found[0] and torch.equal(found[1], wanted)
