"""How a case is compared: what is checked before the clock starts, in which order, and what records say."""

from types import SimpleNamespace

import pytest
from conftest import case_of

from ropekit_bench import clock, results
from ropekit_bench.compare import Comparison, Floor
from ropekit_bench.peers import Peer

SECONDS = 1e-4  # of every run
COPIES = {"slow": 4e-6, "fast": 2e-6, "slower": 8e-6}


@pytest.fixture
def listed(shapes):
    return {"case": "c", "suite": "s", "label": "", "cache": "warm", "shape": shapes["prefill"]["Llama-3-8B"]}


class Stage:
    """A comparison whose clock, copies and implementations write down what happens to them."""

    def __init__(self, tool, rounds, *names):
        self.right = Peer("PyTorch cached", tool)
        self.events, self.planned, self.script = [], [], []  # planned: seconds of copies, from the rounds on
        self.comparison = Comparison(tool, [self.peer(name) for name in names], 1, rounds)
        self.comparison.clock = SimpleNamespace(
            replays=False, works=lambda: True, settle=self.settle, look=self.look
        )
        self.comparison.device = SimpleNamespace(kernels=lambda kind: list(COPIES), traffic=self.copy)

    def peer(self, name):
        def prepare(case):
            right = self.right.prepare(case)
            self.events, self.script = [e for e in self.events if e != "copy"], self.planned

            def run(slot):
                self.events.append(f"{name} checked")
                return case.inputs[slot] if name == "wrong" else right(slot)

            run.name = name
            return run

        adapter = SimpleNamespace(kernel=f"kernel of {name}", table_bytes=0)
        return SimpleNamespace(name=name, adapter=adapter, prepare=prepare)

    def settle(self, run, sets, kept):
        self.events.append(f"{run.name} settles")

    def look(self, run, slots, kept):
        self.events.append(f"{run.name} {len(slots)}")
        return SECONDS, SECONDS

    def copy(self, candidate, *_):
        self.events.append("copy")
        name = list(COPIES)[candidate]
        return self.script.pop(0) if self.script and name == "fast" else COPIES[name]


def test_each_is_checked_before_the_clock_and_stands_between_copies(tool, listed):
    stage = Stage(tool, 2, "a", "b")
    stage.comparison.run(listed)
    begun = [[f"{name} checked", f"{name} settles", f"{name} 2"] for name in "ab"]
    copy = ["copy"] * 2  # warm, then timed
    a, b = ([*copy, *[f"{name} 10"] * 2] for name in "ab")
    assert stage.events == [*begun[0], *begun[1], *copy, *a, *b, *copy, *copy, *b, *a, *copy]


def test_of_two_each_is_ahead_as_often_and_neighbours_differ(tool, listed):
    stage = Stage(tool, 20, "a", "b", "c")
    stage.comparison.run(listed)
    order = [e[0] for e in stage.events if e.endswith(" 10")][::2]
    rounds = ["".join(order[i : i + 3]) for i in range(0, 60, 3)]
    assert rounds[1::2] == [drawn[::-1] for drawn in rounds[::2]]
    assert {between for _, between, _ in rounds} == {"a", "b", "c"}


def test_what_is_wrong_is_not_timed_and_the_others_are(tool, listed):
    stage = Stage(tool, 2, "wrong", "right")
    right, wrong = stage.comparison.run(listed)
    assert [e for e in stage.events if e.startswith("wrong")] == ["wrong checked"]
    assert wrong["implementation"] == "wrong" and wrong["reason"].startswith("wrong: off by")
    assert right["implementation"] == "right" and right["checked"]["elements"] > 0


def test_a_record_stands_beside_the_fastest_copy_of_its_own_round(tool, listed):
    stage = Stage(tool, 1, "a")
    # The control, before and after, each behind one that does not count.
    stage.planned = [1e-6, 5e-6, 1e-6, 4e-6, 1e-6, 2e-6]
    (record,) = stage.comparison.run(listed)
    assert record["floor"]["kernel"] == "fast" and record["bytes"] == 2 * 19 * 6 * 128 * 2
    assert record["self_ratio"]["median"] == pytest.approx(5 / 4)
    assert record["eager"]["ratio"]["median"] == pytest.approx(3e-6 / SECONDS)
    assert record["floor"]["seconds"]["median"] == pytest.approx(3e-6)


class GraphClock(clock.CpuClock):
    """A clock that replays runs, and needs as long again as a hundred of them before it begins."""

    replays, misses, seconds = True, False, None

    def capture(self, run, slots):
        kept = {slot: tuple(x if x is None else x.clone() * 0 for x in run(slot)) for slot in slots}

        def replay():
            for slot in slots if not self.misses else ():
                kept[slot] = run(slot)
            return 1e-6 * (1 + 100 / len(slots))

        return replay, kept

    def look(self, run, slots, kept):
        found = super().look(run, slots, kept)
        return (self.seconds, self.seconds) if self.seconds else found


def test_every_implementation_has_as_many_runs_in_a_graph(tool, listed):
    comparison = Comparison(tool, [Peer("ropekit", tool), Peer("PyTorch naive", tool)], 1, 2)
    comparison.clock = GraphClock()
    comparison.clock.seconds = 1e-4
    ours, torch_ = comparison.run(listed)
    assert ours["replay"]["iterations"] == torch_["replay"]["iterations"] > 1
    results.check({**tool.header, "command": "peers", "records": [ours, torch_]}, "records")


def test_a_long_run_is_replayed_once(tool, listed):
    comparison = Comparison(tool, [Peer("ropekit", tool)], 1, 2)
    comparison.clock = GraphClock()
    comparison.clock.seconds = 0.2
    (record,) = comparison.run(listed)
    assert record["replay"]["iterations"] == 1 and record["rounds"] == 2


def test_a_graph_without_the_work_is_declined(tool, listed):
    comparison = Comparison(tool, [Peer("PyTorch cached", tool)], 1, 2)
    comparison.clock = GraphClock()
    comparison.clock.misses = True
    (record,) = comparison.run(listed)
    assert record["reason"].startswith("wrong: off by")


@pytest.mark.parametrize("late", [False, True])
def test_a_peer_that_fails_is_declined_and_the_others_run(late, tool, listed, monkeypatch):
    breaking, calls = Peer("PyTorch cached", tool), []
    prepare = breaking.adapter.prepare

    def fail(case):
        run = prepare(case)

        def count(slot):
            calls.append(slot)
            if len(calls) > 40 * late:
                raise RuntimeError("out of memory")
            return run(slot)

        return count

    monkeypatch.setattr(breaking.adapter, "prepare", fail)
    records = Comparison(tool, [breaking, Peer("ropekit", tool)], 1, 60 if late else 2).run(listed)
    assert [(r["implementation"], r.get("reason")) for r in records] == [
        ("ropekit", None),
        ("PyTorch cached", "RuntimeError: out of memory"),
    ]


def test_a_peer_that_breaks_the_device_ends_the_run(tool, listed):
    broken = Peer("PyTorch cached", tool)
    broken.adapter.prepare = lambda case: 1 / 0
    comparison = Comparison(tool, [broken], 1, 2)
    comparison.clock.works = lambda: False
    with pytest.raises(RuntimeError, match="PyTorch cached broke the device: ZeroDivisionError"):
        comparison.run(listed)


def test_a_long_case_of_attention_has_the_least_rounds(tool, shapes, monkeypatch):
    monkeypatch.setattr("ropekit_bench.compare.ROUNDS_LEAST", 2)
    monkeypatch.setattr("ropekit_bench.compare.CASE_SECONDS", 0)
    shape = shapes["attention"]["32/8 heads"]
    listed = {"case": "c", "suite": "attention", "label": "", "cache": "warm", "shape": shape}
    (record,) = Comparison(tool, [Peer("ropekit", tool)], 1, 4).run(listed)
    assert record["rounds"] == 2 and record["flops"] > 0


def test_a_cold_copy_goes_round_the_sets(shapes):
    case, starts = case_of(shapes["prefill"]["Llama-3-8B"], 1 << 20, cold=True), []
    device = SimpleNamespace(
        kernels=lambda kind: ["copy"],
        traffic=lambda c, runs, target, source, size, pitch, sets: starts.append((source, sets)) or 1e-3,
    )
    floor = Floor(device, case, False)
    starts.clear()
    for _ in range(case.sets):
        floor.look()
    end = case.source.data_ptr() + case.source.nbytes
    assert len({start for start, _ in starts}) == case.sets > 1
    assert all(start + n * case.pitch <= end for start, n in starts)
