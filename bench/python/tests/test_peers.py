"""Peers of the CPU: right where they are timed, declined where they are wrong or do not offer a case."""

import json
import os
import subprocess

import pytest
import torch
from conftest import case_of, peer_of, small

from ropekit_bench import clock, harness, results
from ropekit_bench.cases import case_refusal
from ropekit_bench.cases.attention import NAMES
from ropekit_bench.cases.base import Declined
from ropekit_bench.compare import Comparison
from ropekit_bench.peers import PEERS, Peer
from ropekit_bench.tool import Tool

ROTATIONS = {
    "half-split": {},
    "interleaved": {"pairing_in": "interleaved", "pairing_out": "interleaved"},
    "f32": {"dtype": "f32"},
    "f16": {"dtype": "f16"},
    "batch": {"batch": 2, "position_ids": "none"},
    "one tensor": {"k_heads": 0, "position_ids": "random"},
    "in place": {"in_place": True},
    "window": {"in_place": True, "rotary_dim": 8, "rotary_offset": 4, "k_head_dim": 8, "k_rotary_offset": 0},
}
APPENDS = ("Llama-3-8B", "Qwen3-8B, fp8", "DeepSeek-V3 MLA", "Qwen3-8B, decode", "keys moved, fp8")
APPENDS += ("Qwen3-8B, f32 to f16",)
ATTENTIONS = ("32/8 heads", "32/8 heads, rotated before", "all keys", "window 1K", "packed")
ATTENTIONS += ("decode, 1K keys", "decode, window 4K, 32K keys")
DECODES = ("1K keys", "heads of 64, 1K keys", "fp8, 1K keys", "MLA, 1K keys", "MLA, fp8, 1K keys")
BACKWARDS = ("32/8 heads", "32/8 heads, rotated before", "window 1K", "packed")
SMOKE = ("half-split", "Qwen3-8B, fp8", "32/8 heads", "fp8, 1K keys")  # what is compiled takes long
CASES = [
    *(("prefill", name) for name in ROTATIONS),
    *(("append", name) for name in APPENDS),
    *(("attention", name) for name in ATTENTIONS),
    *(("attention-backward", name) for name in BACKWARDS),
    *(("attention-decode", name) for name in DECODES),
]
CPU = [name for name, (_, _, backends) in PEERS.items() if "cpu" in backends]


def shape_of(shapes, suite, name):
    return {**shapes[suite]["Llama-3-8B"], **ROTATIONS[name]} if suite == "prefill" else shapes[suite][name]


def offers(name, suite):
    """Whether a peer has to offer every case of a suite."""
    is_eager = name == "PyTorch cached" and suite != "attention-decode"
    return name == "ropekit" or is_eager or (name, suite) == ("ropekit + SDPA", "attention")


ROTATES = {"PyTorch cached", "torch.compile cached"}  # and have no attention of inputs that have rotated


@pytest.mark.parametrize(("suite", "name"), CASES)
@pytest.mark.parametrize("peer", CPU)
def test_peer_is_right_or_declines(peer, suite, name, shapes, tool):
    made = peer_of(peer, tool)
    if made.compiles and name not in SMOKE:
        pytest.skip("what is compiled is tested where it differs most")
    torch.compiler.reset()
    case = case_of(shape_of(shapes, suite, name))
    try:
        run = made.prepare(case)
    except Declined:
        assert not offers(peer, suite) or (name.endswith("rotated before") and peer in ROTATES)
        return
    checked = case.check(run)
    assert 0 < checked["worst"] < 1 and checked["elements"] > 0


def spoil(how, found):
    """Results of a right run, made wrong."""
    x = found[0] if isinstance(found, tuple | list) else found
    if how == "zero":
        x.zero_()
    elif how == "nan":
        x[-1, -1, -1] = float("nan")
    elif how == "one row":
        x[..., -1, :, :] = x[..., 0, :, :]
    else:
        x.neg_()


@pytest.mark.parametrize("how", ["zero", "nan", "one row", "sign"])
@pytest.mark.parametrize(("suite", "name"), [c for c in CASES if c[1] in SMOKE])
def test_what_is_wrong_is_not_timed(suite, name, how, shapes, tool):
    case = case_of(shape_of(shapes, suite, name))
    right = Peer("ropekit", tool).prepare(case)

    def run(slot):
        found = right(slot)
        spoil(how, found)
        return found

    with pytest.raises(Declined, match="wrong: "):
        case.check(run)
    with pytest.raises(Declined, match="wrong: "):  # of another implementation, which the check takes away
        case.check(lambda slot: left_over(case, slot))


def left_over(case, slot):
    if case.operation == "rotation":
        return case.whole(case.target, slot)
    if case.operation == "append":
        return case.q_out(slot)
    return case.out(slot) if case.operation in ("attention", "decode") else case.results(slot)


@pytest.mark.parametrize("part", range(4))
def test_each_gradient_is_checked(part, shapes, tool):
    case = case_of(shapes["attention-backward"]["32/8 heads"])
    right = Peer("ropekit", tool).prepare(case)

    def run(slot):
        found = right(slot)
        found[part][5, 0] = found[part][6, 0]
        return found

    with pytest.raises(Declined, match=f"wrong: {NAMES[part]} is off by"):
        case.check(run)


@pytest.mark.parametrize("part", ["k", "v", "scale", "one slot"])
def test_what_append_stores_is_checked(part, shapes, tool):
    case = case_of(shapes["append"]["Qwen3-8B, fp8"])
    right = Peer("ropekit", tool).prepare(case)

    def run(slot):
        q, (k, v) = right(slot), case.caches(slot)
        if part == "k":
            k.zero_()
        elif part == "v":
            v.view(torch.uint8).copy_(v.view(torch.uint8).flip(-1))
        elif part == "scale":
            v.copy_((v.float() / 2).to(v.dtype))
        else:
            k.flatten(0, 1)[int(case.slots[-1])] = k.flatten(0, 1)[int(case.slots[0])].clone()
        return q

    with pytest.raises(Declined, match="wrong: off by"):
        case.check(run)


def test_what_peers_do_not_offer_is_refused(shapes):
    refused = {
        "prefill": (
            {"rope_type": "yarn"},
            {"dtype": "f64"},
            {"direction": "transpose"},
            {"rotary_dim": 8},
            {"pairing_out": "interleaved"},
        ),
        "append": ({"kv_cache": "table"}, {"q_norm_type": "layer"}, {"k_scale": "head"}, {"q_factor": 2.0}),
        "attention": ({"mask": "tree"}, {"rotate": "qk"}, {"soft_cap": 2.0}, {"kv_cache": "sequence"}),
        "attention-decode": ({"mask": "tree"}, {"chunk": 4}, {"k_store_dtype": "i8"}, {"v_scale": "head"}),
    }
    labels = {"prefill": "Llama-3-8B", "append": "Qwen3-8B", "attention": "decode, 1K keys"}
    for suite, label in {**labels, "attention-decode": "MLA, 1K keys"}.items():
        shape, own = shapes[suite][label], suite.partition("-")[0]
        assert not case_refusal(shape)
        for more in refused[suite]:
            inner = {own: {**shape[own], **more}} if own in shape else more
            assert case_refusal({**shape, **inner})
            with pytest.raises(Declined):
                case_of({**shape, **inner})


@pytest.mark.parametrize("suite", ["prefill", "append", "attention"])
def test_sets_exceed_the_cache_where_data_are_cold(suite, shapes):
    cache, shape = 1 << 20, next(iter(shapes[suite].values()))
    case = case_of(shape, cache, cold=True)
    assert case.source.nbytes + case.target.nbytes > 2 * cache and case.floor_bytes <= case.pitch
    first, last = case.tensors(0)[0], case.tensors(case.sets - 1)[0]
    assert torch.equal(first, last) and first.data_ptr() != last.data_ptr()


@pytest.mark.parametrize("suite", ["append", "attention", "attention-backward", "attention-decode"])
def test_bytes_and_products_are_those_of_the_tool(suite, tool, tool_path):
    listed = tool.list(suite, True)["records"]
    for c in {c["label"]: c for c in listed if not case_refusal(c["shape"])}.values():
        shape = small(c["shape"], batch=1, tokens=19)
        words = [w for w in c["case"].split() if not w.startswith(("--cache", "--max-position"))]
        changed = {f"--{n.replace('_', '-')}": shape[n] for n in ("batch", "tokens", "q_heads", "k_heads")}
        inner = shape[suite.partition("-")[0]]
        changed |= {f"--{n.replace('_', '-')}": inner[n] for n in ("keys", "window", "v_heads") if n in inner}
        words = [w for w in words if w.partition("=")[0] not in changed]
        if "cu_seqlens" in shape:
            words = [w for w in words if not w.startswith("--cu-seqlens")] + ["--cu-seqlens=0,3,12,19"]
        words += [f"{name}={value}" for name, value in changed.items()]
        answer = subprocess.run([tool_path, "bench", *words, "--rounds=1", "--threads=1", "--json"],
                                check=True, capture_output=True, text=True)  # fmt: skip
        record, case = json.loads(answer.stdout)["records"][0], case_of(shape)
        assert record.get("flops", 0) == case.flops, c["label"]
        assert 0 <= 2 * case.floor_bytes - record["bytes"] <= 64, c["label"]


def test_outputs_find_their_memory_mapped():
    """Pages that the C library gave back would be faulted in, and counted as rotation, in every call."""
    clocks, kept, size = clock.CpuClock(), {}, 40 << 20

    def run(slot):
        return torch.empty(size, dtype=torch.uint8).zero_()

    clocks.settle(run, 1, kept)
    before = clock.page_faults()
    clocks.look(run, [0] * 8, kept)
    assert clock.page_faults() - before < size // 4096


def harness_on(tool_path, path, *more):
    common = ["--tool", tool_path, "--backend=cpu", "--threads=1", "--rounds=2", "--output", str(path)]
    return harness.main([*common, *more])


def test_harness_writes_what_it_measures_and_lists_the_absent(tool_path, tmp_path, capsys):
    path = tmp_path / "peers.json"
    assert harness_on(tool_path, path, "--suite=overhead", "--only=PyTorch cached,vLLM", "--cases=bf16") == 0
    (run,) = results.read(path)
    assert {row["name"] for case in run["cases"] for row in case["rows"]} == {"ropekit", "PyTorch cached"}
    assert {case["shape"]["dtype"] for case in run["cases"]} == {"bf16"}
    said = capsys.readouterr().out
    assert "absent: vLLM: does not run on cpu" in said and "### overhead: " in said


def test_a_run_that_ends_early_keeps_what_it_measured(tool_path, tmp_path, monkeypatch, capsys):
    compare, begun = Comparison.run, []

    def end_in_the_second(self, *arguments):
        begun.append(arguments)
        if len(begun) > 1:
            raise KeyboardInterrupt
        return compare(self, *arguments)

    monkeypatch.setattr(Comparison, "run", end_in_the_second)
    path = tmp_path / "peers.json"
    assert harness_on(tool_path, path, "--suite=overhead", "--only=PyTorch cached") == 1
    assert len(results.read(path)[0]["cases"]) == 1 and "what was measured is kept" in capsys.readouterr().err


def test_harness_says_what_is_wrong_with_its_options(tool_path, tmp_path, capsys):
    for options, said in (
        (["--tool=/nowhere"], "--tool is /nowhere, which is no program"),
        (["--only=nobody"], "--only is 'nobody'; allowed is any of ropekit, "),
        (["--cases=nothing"], "--cases is 'nothing'; allowed is what finds a case of --suite"),
        (["--output=/nowhere/o.json", "--only=ropekit"], "/nowhere/o.json"),
    ):
        assert harness_on(tool_path, tmp_path / "o.json", *options) == 2
        assert said in capsys.readouterr().err
    for options in (["--cases=("], ["--rounds=0"]):
        with pytest.raises(SystemExit):
            harness_on(tool_path, tmp_path / "o.json", *options)
        assert "allowed is" in capsys.readouterr().err


def test_a_quick_run_is_small_and_compiles_nothing_unless_asked_to(tool):
    quick, asked = (harness.find_peers(tool, only, True)[0] for only in (None, ["torch.compile naive"]))
    assert "PyTorch naive" in {p.name for p in quick} and not any(p.compiles for p in quick)
    assert [p.name for p in asked] == ["ropekit", "torch.compile naive"]
    listed = harness.cases(harness.parse(["--output=none", "--suite=prefill", "--quick"]), tool)
    assert listed and max(harness.tensor_bytes(c["shape"]) for c in listed) <= 16 << 20


@pytest.mark.parametrize("given, expected", [(None, "passive"), ("active", "active")])
def test_threads_of_several_libraries_do_not_spin(given, expected, tool_path, monkeypatch):
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    if given:
        monkeypatch.setenv("OMP_WAIT_POLICY", given)
    Tool(tool_path)
    assert os.environ["OMP_WAIT_POLICY"] == expected
