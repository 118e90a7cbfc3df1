"""Peers of attention that run on a CPU: right where they are timed, declined where they are wrong."""

import itertools
import json
import subprocess

import pytest
import torch
from conftest import check_others_decline, peer_of

from ropekit_bench import results
from ropekit_bench.attention_case import attention_refusal
from ropekit_bench.case import Case, Declined
from ropekit_bench.compare import Comparison
from ropekit_bench.library import RopeError
from ropekit_bench.operations import make_case
from ropekit_bench.peers import Peer, capi, prepare

PARTS = ("ropekit, rotated inputs", "ropekit + SDPA, rotated inputs")
COMPILED = ("torch.compile cached", "torch.compile ropekit.apply + SDPA")
TENSORS = ("ropekit.attention", "ropekit.apply + SDPA")  # have no pages
NAMES = ("ropekit", "ropekit + SDPA", "PyTorch cached", *TENSORS)
SMALL = {"q_heads": 4, "k_heads": 2, "head_dim": 64, "rotary_dim": 64, "k_head_dim": 64}
# tokens, keys and boundaries of each kind of case
KINDS = {
    "32/8 heads": {"batch": 2, "tokens": 19},
    "window 1K": {"tokens": 19, "window": 5},
    "packed": {"tokens": 19, "cu_seqlens": [0, 3, 12, 19]},
    "chunk of a prompt, 4K keys": {"batch": 2, "tokens": 7, "keys": 50},
    "decode, 1K keys": {"batch": 3, "tokens": 1, "keys": 50},
    "decode, window 4K, 32K keys": {"batch": 3, "tokens": 1, "keys": 50, "window": 9},
}


@pytest.fixture(scope="module")
def shapes(tool):
    """The suite's shapes, each kind once, with fewer tokens and heads."""
    listed = {c["label"]: c["shape"] for c in tool.list("attention", False)["records"]}
    found = {}
    for label, small in KINDS.items():
        own = {k: v for k, v in small.items() if k not in ("keys", "window")}
        shape = {**listed[label], **SMALL, **own}
        own = {k: v for k, v in small.items() if k in ("keys", "window")}
        attention = {**shape["attention"], "keys": shape["tokens"], **own}
        found[label] = {**shape, "attention": attention}
    return found


def case_of(shape):
    return make_case(shape, torch.device("cpu"), 0, 1, False)


@pytest.mark.parametrize(
    ("name", "label", "dtype"),
    [*itertools.product(NAMES, KINDS, ["f32", "bf16"]), *((n, "32/8 heads", "f32") for n in COMPILED)],
)
def test_peer_is_right(name, label, dtype, shapes, tool):
    case = case_of({**shapes[label], "dtype": dtype})
    if name in TENSORS and case.cached:
        with pytest.raises(Declined, match="attention of tensors alone"):
            peer_of(name, tool).prepare(case)
        return
    checked = case.check(peer_of(name, tool).prepare(case))
    assert 0 < checked["worst"] < 0.5 and checked["elements"] >= 2 * 4 * 64


@pytest.mark.parametrize(("name", "label"), [*itertools.product(PARTS, KINDS)])
def test_attention_of_rotated_inputs_is_right(name, label, shapes, tool):
    case, peer = case_of(shapes[label]), Peer(name, tool)
    run = peer.prepare(case)
    assert case.check(lambda slot: case.turned_back(run(slot)))["worst"] < 0.5


TABLE = """{"backend":"cpu","device":"any","features":"any","points":[
{"operation":"%s","bits":32,"head_dim":64,"mask":"causal","cache":"none","batch":2,"tokens":19,"q_heads":4,"k_heads":2,"kernel":"cpu:scalar"}
]}"""


@pytest.mark.parametrize("backward", [False, True])
def test_a_backend_by_itself_does_not_read_the_table(backward, shapes, tool, tmp_path, monkeypatch):
    shape = {**shapes["32/8 heads"], "dtype": "f32"}
    shape["attention"] = {**shape["attention"], **({"backward": True} if backward else {})}
    case, name = case_of(shape), "attention_backward" if backward else "attention"
    (tmp_path / "table.json").write_text(TABLE % name)
    monkeypatch.setenv("ROPE_TUNING", str(tmp_path / "table.json"))
    chosen, alone = Peer("ropekit", tool).adapter, capi.adapter("ropekit, cpu", tool)
    for adapter in (chosen, alone):
        case.check(prepare(adapter, case))
    assert chosen.kernel.endswith("cpu:scalar") and "scalar" not in alone.kernel
    with pytest.raises(RopeError, match="nonesuch"):
        capi.adapter("ropekit, nonesuch", tool)
    with pytest.raises(Declined, match="is of attention alone"):
        alone.prepare(Case({**shape, "in_place": True}, torch.device("cpu"), 0, 1, False))


def test_rotated_inputs_are_not_rotated_again(shapes, tool):
    """Such a run is right of rotated inputs alone."""
    case, peer = case_of(shapes["32/8 heads"]), Peer("ropekit, rotated inputs", tool)
    case.rotated_tensors = lambda: [case.tensors(0)]
    with pytest.raises(Declined, match="wrong: off by"):
        case.check(peer.prepare(case))


@pytest.mark.parametrize("wrong", ["unrotated", "a key more", "a key less", "zero", "nan", "one head"])
def test_wrong_peer_is_not_timed(wrong, shapes, tool):
    case = case_of(shapes["32/8 heads"])
    right = Peer("ropekit", tool).prepare(case)

    def run(slot):
        q, k, v = (x.float() for x in case.sequences(slot)[0])
        if wrong in ("unrotated", "a key more", "a key less"):
            pairs = torch.arange(q.shape[1])[:, None] - torch.arange(q.shape[1])
            least = {"unrotated": 0, "a key more": -1, "a key less": 1}[wrong]
            mask = (pairs >= least) | ((pairs == 0) & (torch.arange(q.shape[1]) == 0))
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
            call = torch.nn.functional.scaled_dot_product_attention
            return call(q, k, v, mask, enable_gqa=True).transpose(1, 2)
        out = right(slot)
        if wrong == "zero":
            out.zero_()
        elif wrong == "nan":
            out[-1, 0, 0] = float("nan")
        else:
            out[-1, 3] = out[-1, 2]
        return out

    with pytest.raises(Declined, match="wrong: off by"):
        case.check(run)


def test_others_decline(shapes, tool):
    check_others_decline(case_of(shapes["32/8 heads"]), tool, NAMES + COMPILED, r"attention|attends")


def test_bytes_and_products_are_those_of_the_tool(shapes, tool, tool_path):
    for label in KINDS:
        s, a = shapes[label], shapes[label]["attention"]
        command = [tool_path, "bench", "--attention", "--rounds=1", "--threads=1", "--json", "--backend=cpu"]
        command += [f"--{n.replace('_', '-')}={s[n]}" for n in ("batch", "tokens", "q_heads", "k_heads")]
        command += ["--head-dim=64", f"--dtype={s['dtype']}"]
        command += [f"--{n.replace('_', '-')}={a[n]}" for n in ("keys", "window", "kv_cache") if n in a]
        if "cu_seqlens" in s:
            command.append("--cu-seqlens=" + ",".join(map(str, s["cu_seqlens"])))
        answer = subprocess.run(command, check=True, capture_output=True, text=True)
        record, case = json.loads(answer.stdout)["records"][0], case_of(s)
        assert record["flops"] == case.flops
        assert 0 <= 2 * case.floor_bytes - record["bytes"] <= 32


def test_what_peers_do_not_offer_is_refused(shapes):
    shape = shapes["decode, 1K keys"]
    assert not attention_refusal(shape)
    for more in ({"kv_cache": "sequence"}, {"mask": "full"}, {"rotate": "none"}, {"soft_cap": 2.0}):
        assert attention_refusal({**shape, "attention": {**shape["attention"], **more}})


def test_records_are_those_of_the_schema(shapes, tool):
    listed = {"case": "c", "suite": "attention", "label": "", "cache": "warm", "shape": shapes["packed"]}
    names = ["ropekit", "ropekit + SDPA", *PARTS]
    records = Comparison(tool, [Peer(name, tool) for name in names], 1, 2).run(listed)
    assert [r["implementation"] for r in records] == names
    assert [("tax" in r, "beside_ropekit" in r) for r in records] == [(1, 0), (1, 1), (0, 0), (0, 0)]
    assert all(r["flops"] == case_of(shapes["packed"]).flops for r in records)
    results.check({**tool.header, "command": "peers", "records": records}, "records")
