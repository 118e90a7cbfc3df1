"""Peers of attention and its backward that run on a CPU: right where they are timed, declined where wrong."""

import itertools
import json
import subprocess

import pytest
import torch
from conftest import check_others_decline, peer_of

from ropekit_bench import results
from ropekit_bench.attention_backward_case import NAMES as RESULTS
from ropekit_bench.case import Declined
from ropekit_bench.compare import Comparison
from ropekit_bench.operations import make_case
from ropekit_bench.peers import Peer
from ropekit_bench.report.model import machines

PARTS = ("ropekit, rotated inputs", "ropekit + SDPA, rotated inputs")
COMPILED = ("torch.compile cached", "torch.compile ropekit.apply + SDPA")
NAMES = ("ropekit", "ropekit + SDPA", "ropekit.apply + SDPA", "ropekit.attention", "PyTorch cached")
SMALL = {"q_heads": 4, "k_heads": 2, "head_dim": 64, "rotary_dim": 64, "k_head_dim": 64}
KINDS = {
    "32/8 heads": {"batch": 2, "tokens": 19},
    "window 1K": {"tokens": 19, "window": 5},
    "packed": {"tokens": 19, "cu_seqlens": [0, 3, 12, 19]},
}


@pytest.fixture(scope="module")
def shapes(tool):
    """The suite's shapes, each kind once, with fewer tokens and heads."""
    listed = {c["label"]: c["shape"] for c in tool.list("attention-backward", False)["records"]}
    found = {}
    for label, small in KINDS.items():
        own = {k: v for k, v in small.items() if k != "window"}
        shape = {**listed[label], **SMALL, **own}
        attention = {**shape["attention"], "keys": shape["tokens"]}
        found[label] = {**shape, "attention": attention | {k: v for k, v in small.items() if k == "window"}}
    return found


def case_of(shape):
    return make_case(shape, torch.device("cpu"), 0, 1, False)


@pytest.mark.parametrize(
    ("name", "label", "dtype"),
    [*itertools.product(NAMES, KINDS, ["f32", "bf16"]), *((n, "32/8 heads", "f32") for n in COMPILED)],
)
def test_peer_is_right(name, label, dtype, shapes, tool):
    case = case_of({**shapes[label], "dtype": dtype})
    checked = case.check(peer_of(name, tool).prepare(case))
    sequences = min(2, len(case.q_lengths))
    assert 0 < checked["worst"] < 0.5 and checked["elements"] >= sequences * 2 * 3 * 64 * 6


@pytest.mark.parametrize("name", NAMES)
def test_a_kernel_keeps_its_name(name, shapes, tool):
    peer, names = peer_of(name, tool), set()
    for _ in range(2):
        peer.prepare(case_of(shapes["32/8 heads"]))
        names.add(peer.adapter.kernel)
    assert len(names) == 1


def test_the_order_of_sums_reaches_the_library(shapes, tool):
    shape = shapes["32/8 heads"]
    any_order, bad = (
        case_of({**shape, "attention": {**shape["attention"], "nondeterministic": n}}) for n in (1, 2)
    )
    peer = peer_of("ropekit", tool)
    assert any_order.check(peer.prepare(any_order))["worst"] < 0.5
    with pytest.raises(Declined, match="nondeterministic is 2; allowed is 0 or 1"):
        peer.prepare(bad)


@pytest.mark.parametrize(("name", "label"), [*itertools.product(PARTS, KINDS)])
def test_gradients_of_rotated_inputs_are_right(name, label, shapes, tool):
    case = case_of(shapes[label])
    run = Peer(name, tool).prepare(case)
    assert case.check(lambda slot: case.turned_back(run(slot)))["worst"] < 0.5
    with pytest.raises(Declined, match=r"wrong: d[qk] is off by"):  # they are of rotated tensors
        case.check(run)


def test_the_truth_is_that_of_one_pass(shapes, monkeypatch):
    """Gradients of keys are sums over parts of the queries."""
    case = case_of(shapes["32/8 heads"])
    whole = case.truth(1, 1)
    monkeypatch.setattr("ropekit_bench.attention_backward_case.PAIRS_MOST", 19 * 2 * 4)
    for a, b in zip(whole, case.truth(1, 1), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("how", "wrong"),
    [*itertools.product(["zero", "nan", "one row"], range(4)), ("not rotated", 1), ("not rotated", 2)],
)
def test_wrong_peer_is_not_timed(how, wrong, shapes, tool):
    case = case_of(shapes["32/8 heads"])
    right = Peer("ropekit", tool).prepare(case)

    def run(slot):
        found = right(slot)
        x = found[wrong]
        if how == "zero":
            x.zero_()
        elif how == "nan":
            x[-1, 0, 0] = float("nan")
        elif how == "one row":
            x[5, 0] = x[6, 0]
        else:
            x.copy_(case.angles(x.double(), 0))
        return found

    with pytest.raises(Declined, match=f"wrong: {RESULTS[wrong]} is off by"):
        case.check(run)


def test_others_decline(shapes, tool):
    reasons = r"has no attention and its backward|attends"
    check_others_decline(case_of(shapes["32/8 heads"]), tool, NAMES + COMPILED, reasons)


def test_bytes_and_products_are_those_of_the_tool(shapes, tool_path):
    for label in KINDS:
        s, a = shapes[label], shapes[label]["attention"]
        command = [tool_path, "bench", "--attention", "--backward", "--rounds=1", "--threads=1", "--json"]
        command += [f"--{n.replace('_', '-')}={s[n]}" for n in ("batch", "tokens", "q_heads", "k_heads")]
        command += ["--backend=cpu", "--head-dim=64", f"--dtype={s['dtype']}"]
        command += [f"--window={a['window']}"] if "window" in a else []
        if "cu_seqlens" in s:
            command.append("--cu-seqlens=" + ",".join(map(str, s["cu_seqlens"])))
        answer = subprocess.run(command, check=True, capture_output=True, text=True)
        record, case = json.loads(answer.stdout)["records"][0], case_of(s)
        assert record["flops"] == case.flops
        assert 0 <= 2 * case.floor_bytes - record["bytes"] <= 64


def test_records_are_those_of_the_schema(shapes, tool):
    listed = {"case": "c", "suite": "attention-backward", "label": "", "cache": "warm"}
    listed["shape"] = shapes["packed"]
    names = ["ropekit", "ropekit + SDPA"]
    records = Comparison(tool, [Peer(name, tool) for name in names], 1, 2).run(listed)
    assert [r["implementation"] for r in records] == names
    assert all(r["flops"] == case_of(shapes["packed"]).flops for r in records)
    document = {**tool.header, "command": "peers", "records": records}
    results.check(document, "records")
    (cell,) = machines([document])[0].suites["attention-backward"].cells
    assert cell.rival == "ropekit + SDPA"
