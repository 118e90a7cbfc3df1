"""Peers that run on a CPU: right where they are timed, declined where they are wrong or do not offer it."""

import itertools
import os
import resource
from types import SimpleNamespace

import pytest
import torch
from torch._dynamo.exc import FailOnRecompileLimitHit
from torch._dynamo.utils import counters

from ropekit_bench import angles, clock, compiled, harness, peers, results
from ropekit_bench.case import Case, Declined
from ropekit_bench.compare import Comparison, Floor
from ropekit_bench.peers import PARTS, PEERS, Absent, Peer, capi, eager
from ropekit_bench.tool import Tool, ToolError

SHAPE = {**angles.SHAPE, "tokens": 5, "q_heads": 3, "k_heads": 2, "head_dim": 16, "max_position": 100}
LISTED = {"case": "c", "suite": "s", "label": "", "cache": "warm", "shape": SHAPE}
VARIANTS = {
    "half-split": {},
    "interleaved": {"pairing_in": "interleaved", "pairing_out": "interleaved"},
    "bf16": {"dtype": "bf16"},
    "f16": {"dtype": "f16"},
    "batch": {"batch": 2, "position_ids": "none"},
    "one tensor": {"k_heads": 0},
    "in place": {"in_place": True},
    "window": {"in_place": True, "rotary_dim": 8, "rotary_offset": 4, "k_head_dim": 8, "k_rotary_offset": 0},
    "backward": {"direction": "transpose"},
}
CPU = [name for name, (_, _, backends) in PEERS.items() if "cpu" in backends]


@pytest.fixture(autouse=True)
def forget_compiled():
    torch.compiler.reset()


def make_case(**changes):
    return Case({**SHAPE, **changes}, torch.device("cpu"), 0, 1, False)


def make_peer(name, tool):
    try:
        return Peer(name, tool)
    except Absent as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", CPU)
def test_peer_is_right_or_declines(name, variant, tool):
    case = make_case(**VARIANTS[variant])
    try:
        run = make_peer(name, tool).prepare(case)
    except Declined:
        assert name not in ("ropekit", "PyTorch naive", "PyTorch cached"), "offers everything"
        return
    assert case.check(run)["elements"] == sum(x.numel() for x in case.inputs[0] if x is not None)


def test_what_is_compiled_is_known_by_one_name(tool, monkeypatch):
    made = []
    monkeypatch.setattr(torch, "compile", lambda function, **_: made.append(function) or function)
    monkeypatch.setattr(peers, "COMPILED", "PyTorch")
    assert [Peer(name, tool).compiles for name in ("PyTorch cached", "torch.compile naive")] == [True, False]
    assert made == [eager.cached]


def test_torch_compile_makes_code_for_each_shape_alone(tool):
    adapter, graphs = Peer("torch.compile cached", tool).adapter, []
    for tokens in (11, 12, 13):
        adapter.prepare(make_case(tokens=tokens))(0)
        graphs.append(counters["stats"]["unique_graphs"])
    assert [b - a for a, b in itertools.pairwise(graphs)] == [1, 1]
    assert adapter.kernel == "torch.compile(cached, dynamic=False)"


def test_torch_compile_does_not_run_eagerly_beyond_its_limit(tool):
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=False, recompile_limit=1):
        adapter = Peer("torch.compile cached", tool).adapter
        adapter.prepare(make_case(tokens=15))(0)
        with pytest.raises(FailOnRecompileLimitHit):
            adapter.prepare(make_case(tokens=16))(0)


def test_a_case_finds_no_code_of_an_earlier_one(tool):
    comparison, graphs = Comparison(tool, [Peer("torch.compile cached", tool)], 1, 1), []
    for _ in range(2):
        comparison.run(LISTED)
        graphs.append(counters["stats"]["unique_graphs"])
    assert graphs[1] - graphs[0] == 1


def test_code_is_made_before_the_run_once_for_each_shape(tool, tmp_path, monkeypatch):
    peer, plain = Peer("torch.compile naive", tool), Peer("PyTorch naive", tool)
    shapes = [{**SHAPE, "tokens": 14, "max_position": most} for most in (50, 100)]
    listed = [{"shape": shape} for shape in shapes]
    assert compiled.distinct([peer, plain], listed) == [("torch.compile naive", shapes[1])]
    assert compiled.distinct([plain], listed) == []
    assert compiled.distinct([peer], [{"shape": {**SHAPE, "dtype": "f64"}}]) == []
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch.set_num_threads(1)
    compiled.fill_cache([peer], listed, "cpu", 1)
    before = counters["inductor"]["fxgraph_cache_hit"]
    peer.prepare(make_case(tokens=14))(0)
    assert counters["inductor"]["fxgraph_cache_hit"] == before + 1


def test_a_quick_run_compiles_nothing_unless_asked_to(tool):
    quick, asked = (harness.find_peers(tool, only, True)[0] for only in (None, ["torch.compile naive"]))
    assert "PyTorch naive" in {p.name for p in quick} and not any(p.compiles for p in quick)
    assert [p.name for p in asked] == ["ropekit", "torch.compile naive"]


@pytest.mark.parametrize(("name", "rows"), [
    ("ropekit", 0), ("PyTorch naive", 0), ("PyTorch cached", 2 * 10), ("ONNX Runtime", 9)])  # fmt: skip
def test_tables_that_a_call_reads_are_counted(name, rows, tool):
    """rows: of half a head's width. Ten tokens have nine positions, of a table of 52."""
    peer, case = make_peer(name, tool), make_case(batch=2, position_ids="random")
    case.positions.copy_(torch.tensor([[10, 20, 30, 40, 50], [10, 21, 31, 41, 51]]))
    peer.prepare(case)
    assert peer.adapter.table_bytes == 2 * rows * 8 * 4


def test_ropekit_is_far_inside_the_bound_of_peers(tool):
    case = make_case()
    assert case.check(Peer("ropekit", tool).prepare(case))["max_error"] < 2e-7


@pytest.mark.parametrize("defect", ["pairing", "sign", "nothing", "one token", "nan"])
def test_wrong_peer_is_not_timed(defect, tool):
    case = make_case()
    right = Peer("PyTorch cached", tool).prepare(case)

    def run(slot):
        q, k = (x.clone() for x in right(slot))
        if defect == "pairing":
            q = q.view(*q.shape[:3], 2, -1).transpose(-1, -2).reshape(q.shape)
        elif defect == "sign":
            k = -k
        elif defect == "nothing":
            q, k = case.inputs[slot]
        else:
            q[:, -1] = float("nan") if defect == "nan" else 0
        return q, k

    with pytest.raises(Declined, match="wrong: off by"):
        case.check(run)


def test_result_of_another_peer_does_not_pass(tool):
    case = make_case()
    case.check(Peer("ropekit", tool).prepare(case))
    with pytest.raises(Declined, match="wrong: off by inf"):
        case.check(lambda slot: case.whole(case.target, slot))


@pytest.mark.parametrize("part", [{"rotary_dim": 8}, {"rotary_dim": 16, "k_head_dim": 32}])
def test_parts_of_heads_are_compared_in_place_alone(part):
    make_case(**part, in_place=True)
    with pytest.raises(Declined, match="the window alone"):
        make_case(**part)


def test_sets_exceed_the_cache_where_data_are_cold():
    cache = 1 << 20
    case = Case({**SHAPE, "tokens": 64}, torch.device("cpu"), cache, 1, True)
    assert case.source.nbytes + case.target.nbytes > 2 * cache
    assert len({x[0].data_ptr() for x in case.inputs}) == case.sets > 1


def test_outputs_find_their_memory_mapped():
    """Pages that the C library gave back would be faulted in, and counted as rotation, in every call."""
    clocks, kept, size = clock.CpuClock(), {}, 40 << 20

    def run(slot):
        return torch.empty(size, dtype=torch.uint8).zero_()

    clocks.settle(run, 1, kept)
    before = clock.page_faults()
    clocks.look(run, [0] * 8, kept)
    assert clock.page_faults() - before < size // resource.getpagesize()


def test_rounds_interleave_a_copy_with_every_implementation(tool, monkeypatch):
    comparison = Comparison(tool, [Peer("ropekit", tool), Peer("PyTorch cached", tool)], 1, 3)
    ours, torch_ = comparison.run(LISTED)
    for record in (ours, torch_):
        assert record["rounds"] == 3
        assert record["floor"]["kernel"] in comparison.device.kernels("copy")
        low, high = record["eager"]["ratio"]["low"], record["eager"]["ratio"]["high"]
        assert 0 < low <= record["eager"]["ratio"]["median"] <= high
    assert [r["table_bytes"] for r in (ours, torch_)] == [0, 2 * 5 * 16 * 4]
    results.check({**tool.header, "command": "peers", "records": [ours, torch_]}, "records")


class GraphClock(clock.CpuClock):
    """A clock that replays runs, and needs as long again as a hundred of them before it begins."""

    replays, misses = True, False

    def capture(self, run, slots):
        kept = {slot: tuple(x if x is None else x.clone() * 0 for x in run(slot)) for slot in slots}

        def replay():
            for slot in slots if not self.misses else ():
                kept[slot] = run(slot)
            return 1e-6 * (1 + 100 / len(slots))

        return replay, kept


def test_every_implementation_has_as_many_runs_in_a_graph(tool):
    comparison = Comparison(tool, [Peer("ropekit", tool), Peer("PyTorch naive", tool)], 1, 2)
    comparison.clock = GraphClock()
    ours, torch_ = comparison.run(LISTED)
    assert ours["iterations"] > torch_["iterations"]
    assert ours["replay"]["iterations"] == torch_["replay"]["iterations"] > 1
    assert ours["replay"]["seconds"] == torch_["replay"]["seconds"]


class LongClock(GraphClock):
    """A clock by which each run is long."""

    def look(self, run, slots, kept):
        super().look(run, slots, kept)
        return 0.2, 0.2


def test_a_long_run_is_replayed_once_and_called_in_the_least_rounds(tool, monkeypatch):
    monkeypatch.setattr("ropekit_bench.compare.ROUNDS_LEAST", 2)
    comparison = Comparison(tool, [Peer("ropekit", tool)], 1, 4)
    comparison.clock, looks = LongClock(), []
    monkeypatch.setattr(
        "ropekit_bench.compare.summarize", lambda x: looks.append(len(x)) or clock.summarize(x)
    )
    (record,) = comparison.run(LISTED)
    assert record["replay"]["iterations"] == 1 and record["rounds"] == 4
    assert sorted(looks) == [2, 2, 2, 4, 4, 4, 4]  # calls: time, share of the copy, host; then graphs, copies


def test_a_long_case_of_attention_has_the_least_rounds(tool, monkeypatch):
    monkeypatch.setattr("ropekit_bench.compare.ROUNDS_LEAST", 2)
    monkeypatch.setattr("ropekit_bench.compare.CASE_SECONDS", 0)
    monkeypatch.setattr(Case, "flops", 1)
    (record,) = Comparison(tool, [Peer("ropekit", tool)], 1, 4).run(LISTED)
    assert record["rounds"] == 2


def test_cases_are_selected_by_a_pattern(tool, capsys):
    def listed(pattern, *more):
        options = harness.parse(["--output=none", "--suite=attention", f"--cases={pattern}", *more])
        document = harness.begin(options, tool, [])
        return harness.cases(options, tool, document), document

    found, document = listed("32/8 heads.*bf16")
    assert {(c["label"], c["shape"]["dtype"]) for c in found} == {("32/8 heads", "bf16")} and len(found) > 3
    assert document["cases"] == "32/8 heads.*bf16" and document["suites"] == {"attention": False}
    with pytest.raises(ToolError, match="--cases is 'nothing'; allowed is what finds a case of --suite"):
        listed("nothing")
    with pytest.raises(SystemExit):
        harness.parse(["--output=none", "--cases=("])
    assert "allowed is a regular expression" in capsys.readouterr().err


def test_parts_are_those_of_what_is_compared(tool):
    def names(only, parts):
        return [line["implementation"] for line in harness.find_peers(tool, only, False, parts)[1]]

    assert not set(names(None, False)) & set(PARTS) and set(names(None, True)) == {*PEERS, *PARTS}
    of_ours = {n for n in PARTS if "+" not in n}
    assert set(names(["ropekit + SDPA"], True)) == {
        "ropekit",
        "ropekit + SDPA",
        "ropekit + SDPA, rotated inputs",
        *of_ours,
    }


def test_graph_without_the_work_is_declined(tool, monkeypatch):
    monkeypatch.setattr(GraphClock, "misses", True)
    comparison = Comparison(tool, [Peer("PyTorch cached", tool)], 1, 2)
    comparison.clock = GraphClock()
    (record,) = comparison.run(LISTED)
    assert record["reason"].startswith("wrong: off by")


def test_a_peer_that_fails_between_rounds_is_declined(tool, monkeypatch):
    breaking = Peer("PyTorch cached", tool)
    prepare, calls = breaking.adapter.prepare, []

    def fail_later(case):
        run = prepare(case)

        def count(slot):
            calls.append(slot)
            if len(calls) > 40:
                raise RuntimeError("out of memory")
            return run(slot)

        return count

    monkeypatch.setattr(breaking.adapter, "prepare", fail_later)
    records = Comparison(tool, [breaking, Peer("ropekit", tool)], 1, 60).run(LISTED)
    assert [(r["implementation"], r.get("reason")) for r in records] == [
        ("ropekit", None),
        ("PyTorch cached", "RuntimeError: out of memory"),
    ]


def test_cold_floor_goes_round_the_sets(tool):
    case = Case({**SHAPE, "tokens": 512}, torch.device("cpu"), 1 << 20, 1, True)
    starts = []
    device = SimpleNamespace(
        kernels=lambda kind: ["copy"],
        traffic=lambda c, runs, target, source, size, pitch, sets: starts.append((source, sets)) or 1e-3,
    )
    floor = Floor(device, case, False)
    starts.clear()
    for _ in range(case.sets):
        floor.look()
    assert len({start for start, _ in starts}) == case.sets > 1
    assert all(start + n * case.pitch <= case.source.data_ptr() + case.source.nbytes for start, n in starts)


def test_a_peer_that_breaks_is_declined_and_the_others_run(tool):
    broken = Peer("PyTorch cached", tool)
    broken.adapter.prepare = lambda case: 1 / 0
    comparison = Comparison(tool, [broken, Peer("ropekit", tool)], 1, 2)
    records = comparison.run({"case": "c", "suite": "s", "label": "", "cache": "warm", "shape": SHAPE})
    assert [(r["implementation"], r.get("reason")) for r in records] == [
        ("ropekit", None),
        ("PyTorch cached", "ZeroDivisionError: division by zero"),
    ]


def test_angles_of_ropekit_do_not_fade(tool):
    near, far = (
        angles.measure([Peer("ropekit", tool)], torch.device("cpu"), 1, p)[0] for p in (1 << 10, 1 << 20)
    )
    assert max(near["cos_sin_error"], far["cos_sin_error"]) < 1e-7
    torch_ = angles.measure([Peer("PyTorch naive", tool)], torch.device("cpu"), 1, 1 << 20)[0]
    assert torch_["cos_sin_error"] > 1e-3


def test_harness_resumes_and_lists_the_absent(tool_path, tmp_path, capsys):
    path = str(tmp_path / "peers.json")
    common = ["--tool", tool_path, "--backend=cpu", "--threads=1", "--only=PyTorch cached,vLLM", "--rounds=2"]
    assert harness.main([*common, "--output", path, "--suite=overhead"]) == 0
    first = results.read(path)
    assert "absent: vLLM: does not run on cpu" in capsys.readouterr().out
    assert {r["implementation"] for r in first["records"]} == {"ropekit", "PyTorch cached"}
    kept = first["records"][:2]
    results.write({**first, "records": kept}, path)
    assert harness.main([*common, "--output", path, "--suite=overhead", "--resume"]) == 0
    again = results.read(path)
    assert again["records"][:2] == kept
    assert [(r["implementation"], r["case"]) for r in again["records"]] == [
        (r["implementation"], r["case"]) for r in first["records"]
    ]
    for member, value in (("seed", 2), ("rounds", 3), ("threads", 2)):
        other = [f"--{member}={value}", "--output", path, "--suite=overhead", "--resume"]
        assert harness.main([*common, *other]) == 2
        assert member in capsys.readouterr().err
    assert again["seed"] == 1 and again["complete"]


def test_what_peers_do_not_do_is_left_to_the_tool(tool):
    member = {"launch": "programmatic"}
    options = harness.parse(["--output=none"])
    listed = tool.list("overhead", False)["records"]
    early = {**listed[0], "shape": {**listed[0]["shape"], **member}, "suite": "another"}
    document = {"records": [], "suites": {}, "implementations": []}
    lists = SimpleNamespace(header=tool.header, list=lambda *_: {"records": [*listed, early]})
    assert harness.cases(options, lists, document) == listed
    assert document["suites"] == {"overhead": False}


def test_cases_that_are_left_out_are_counted(tool, capsys):
    for quick, said in ((["--quick"], "ropekit: left out 1 case whose tensors exceed 64.0 MiB\n"), ([], "")):
        options = harness.parse(["--output=none", "--suite=large", *quick])
        harness.cases(options, tool, {"records": [], "suites": {}, "implementations": []})
        assert capsys.readouterr().err == said


def test_a_quick_run_leaves_out_what_takes_long_on_a_cpu(tool, capsys):
    def listed(backend, *quick):
        options = harness.parse(["--output=none", "--suite=prefill", *quick])
        lists = SimpleNamespace(header=tool.header, backend=backend, list=tool.list)
        found = harness.cases(options, lists, {"records": [], "suites": {}, "implementations": []})
        return {harness.tensor_bytes(c["shape"]) for c in found}, harness.begin(options, tool, [])["rounds"]

    whole, quick, gpu = listed("cpu"), listed("cpu", "--quick"), listed("cuda", "--quick")
    assert "ropekit-peers: left out 2 cases whose tensors exceed 16 MiB\n" in capsys.readouterr().err
    assert max(quick[0]) <= 16 << 20 < max(gpu[0]) and quick[0] < gpu[0] < whole[0]
    assert whole[1] > 2 * quick[1] > 2


def test_a_later_suite_does_not_hide_one_that_was_interrupted(tool_path, tmp_path, monkeypatch):
    path, compare, begun = str(tmp_path / "peers.json"), Comparison.run, []

    def harness_of(suite, status=0):
        common = ["--tool", tool_path, "--backend=cpu", "--threads=1", "--only=ropekit", "--rounds=2"]
        assert harness.main([*common, "--output", path, f"--suite={suite}", "--resume"]) == status
        document = results.read(path)
        return document, document["suites"], document["complete"]

    def end_in_the_second(self, *arguments):
        begun.append(arguments)
        if len(begun) > 1:
            raise KeyboardInterrupt
        return compare(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Comparison, "run", end_in_the_second)
        assert harness_of("overhead", 1)[1:] == ({"overhead": False}, False)
    document, *state = harness_of("accuracy")
    assert state == [{"overhead": False, "accuracy": True}, False]
    far = [r for r in document["records"] if r.get("positions") == angles.RANGES[-1]]
    results.write({**document, "records": [r for r in document["records"] if r not in far]}, path)
    assert harness_of("accuracy")[0]["records"][-len(far) :] == far
    assert harness_of("overhead")[1:] == ({"overhead": True, "accuracy": True}, True)


def test_a_run_interrupted_while_code_is_made_keeps_its_file(tool_path, tmp_path, monkeypatch, capsys):
    path = str(tmp_path / "peers.json")

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(compiled, "fill_cache", interrupt)
    common = ["--tool", tool_path, "--backend=cpu", "--threads=1", "--only=ropekit", "--suite=overhead"]
    assert harness.main([*common, "--output", path]) == 1
    assert not results.read(path)["complete"] and "--resume measures the rest" in capsys.readouterr().err
    monkeypatch.undo()
    assert harness.main([*common, "--output", path, "--resume", "--rounds=15"]) == 0
    assert results.read(path)["complete"]


@pytest.mark.parametrize(("module", "broken"), [(eager, "PyTorch cached"), (capi, "ropekit")])
def test_harness_goes_on_without_what_broke_the_device(
    module, broken, tool_path, tmp_path, monkeypatch, capsys
):
    path = str(tmp_path / "peers.json")
    common = ["--tool", tool_path, "--backend=cpu", "--threads=1", "--only=PyTorch cached", "--rounds=2"]
    common += ["--output", path, "--suite=overhead"]
    prepare, fresh = module.adapter.prepare, []

    def break_device(adapter, case):
        if case.shape["k_heads"]:
            monkeypatch.setattr(clock.CpuClock, "works", lambda self: False)
            raise RuntimeError("illegal memory access")
        return prepare(adapter, case)

    def start(program, arguments):
        monkeypatch.setattr(clock.CpuClock, "works", lambda self: True)
        fresh.append(arguments)
        assert harness.main(arguments[3:]) == 0
        raise SystemExit(0)

    monkeypatch.setattr(module.adapter, "prepare", break_device)
    monkeypatch.setattr(harness.os, "execv", start)
    monkeypatch.setattr(harness.sys, "argv", ["harness", *common])
    with pytest.raises(SystemExit):
        harness.main(common)
    records = results.read(path)["records"]
    outcomes = [(r["shape"]["k_heads"] > 0, r["implementation"], "reason" in r) for r in records]
    assert len(fresh) == 3 and all("--resume" in arguments for arguments in fresh)
    names, cases = ("PyTorch cached", "ropekit"), {False: 2, True: 3}
    wanted = [(keys, n, keys and n == broken) for keys in cases for n in names for _ in range(cases[keys])]
    assert sorted(outcomes) == wanted
    assert f"{broken} broke the device" in capsys.readouterr().err


@pytest.mark.parametrize("rounds", ["0", "-1", "many"])
def test_a_run_has_a_round_at_least(rounds, tmp_path, capsys):
    with pytest.raises(SystemExit):
        harness.main([f"--rounds={rounds}", "--output", str(tmp_path / "o.json")])
    assert "argument --rounds: " in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_known_before_anything_is_measured(tool_path, monkeypatch, capsys):
    monkeypatch.setattr(Comparison, "run", lambda *_: pytest.fail("measured"))
    monkeypatch.setattr(compiled, "fill_cache", lambda *_: pytest.fail("compiled"))
    common = ["--tool", tool_path, "--backend=cpu", "--threads=1", "--only=ropekit", "--suite=overhead"]
    assert harness.main([*common, "--output=/nowhere/o.json"]) == 2
    assert "/nowhere/o.json" in capsys.readouterr().err


def test_harness_says_what_is_wrong_with_its_tool(tmp_path, capsys):
    for tool in ("/nowhere", "nonesuch", str(tmp_path)):
        assert harness.main([f"--tool={tool}", "--output", str(tmp_path / "o.json")]) == 2
        assert f"--tool is {tool}, which is no program" in capsys.readouterr().err


def test_a_tool_on_the_path_finds_its_library(tool, tool_path, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", os.path.dirname(tool_path), prepend=os.pathsep)
    monkeypatch.chdir(tmp_path)
    assert Tool("ropekit", threads=1, backend="cpu").version == tool.version
