"""How a case is compared: what is checked before the clock starts, in which order, and what records say."""

from types import SimpleNamespace

import pytest
import torch
from test_peers import LISTED, SHAPE

from ropekit_bench.case import Case
from ropekit_bench.compare import Comparison
from ropekit_bench.peers import Peer

SECONDS = 1e-4  # of every run
COPIES = {"slow": 4e-6, "fast": 2e-6, "slower": 8e-6}


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

    def run(self):
        return self.comparison.run(LISTED)

    def order(self):
        """Those that were timed, look by look."""
        return [e[0] for e in self.events if e.endswith(" 10")][::2]


def test_each_is_checked_before_the_clock_and_stands_between_copies(tool):
    stage = Stage(tool, 2, "a", "b")
    stage.run()
    begun = [[f"{name} checked", f"{name} settles", f"{name} 2"] for name in "ab"]
    copy = ["copy"] * 2  # warm, then timed
    a, b = ([*copy, *[f"{name} 10"] * 2] for name in "ab")
    assert stage.events == [*begun[0], *begun[1], *copy, *a, *b, *copy, *copy, *b, *a, *copy]


def test_of_two_each_is_ahead_as_often_and_neighbours_differ(tool):
    stage = Stage(tool, 20, "a", "b", "c")
    stage.run()
    rounds = ["".join(stage.order()[i : i + 3]) for i in range(0, 60, 3)]
    assert rounds[1::2] == [drawn[::-1] for drawn in rounds[::2]]
    assert {between for _, between, _ in rounds} == {"a", "b", "c"}


def test_what_is_wrong_is_not_timed_and_the_others_are(tool):
    stage = Stage(tool, 2, "wrong", "right")
    right, wrong = stage.run()
    assert [e for e in stage.events if e.startswith("wrong")] == ["wrong checked"]
    assert wrong["implementation"] == "wrong" and wrong["reason"].startswith("wrong: off by")
    assert right["implementation"] == "right" and right["checked"]["elements"] == 5 * 5 * 16


def test_a_record_stands_beside_the_fastest_copy_of_its_own_round(tool):
    stage = Stage(tool, 1, "a")
    # The control, before and after, each behind one that does not count.
    stage.planned = [1e-6, 5e-6, 1e-6, 4e-6, 1e-6, 2e-6]
    (record,) = stage.run()
    assert record["floor"]["kernel"] == "fast" and record["bytes"] == 2 * 5 * 5 * 16 * 4
    assert record["self_ratio"]["median"] == pytest.approx(5 / 4)
    assert record["eager"]["ratio"]["median"] == pytest.approx(3e-6 / SECONDS)
    assert record["eager"]["gb_per_second"] == pytest.approx(1e-9 * record["bytes"] / SECONDS)
    assert record["floor"]["seconds"]["median"] == pytest.approx(3e-6)
    assert record["floor"]["gb_per_second"] == pytest.approx(1e-9 * record["bytes"] / 3e-6)


def test_data_are_random_and_the_seed_tells_which():
    first, again, other = (Case(SHAPE, torch.device("cpu"), 0, seed, False).data for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert len(first.unique()) > 0.99 * len(first)
    assert first.min() < -0.9 and first.max() > 0.9 and abs(first.mean()) < 0.1
