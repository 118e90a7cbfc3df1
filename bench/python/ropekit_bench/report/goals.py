"""What is asked of ropekit beside its peers, and whether runs with peers have it. Standard library alone."""

from dataclasses import dataclass

from ropekit_bench.report.model import BASELINE, CALL, Suite
from ropekit_bench.report.tables import span, tally
from ropekit_bench.report.targets import answers, counted, matches


def verdict(cells, text, met):
    """No goal is met by a run that is quick or lacks cases of the suite."""
    quick, ended = any(c.run["quick"] for c in cells), all(c.ended for c in cells)
    flaws = "; quick" * (quick and "quick" not in text) + "; not complete" * (not ended)
    return text + flaws, "yes" if met and ended and not quick else "no"


@dataclass(frozen=True)
class First:
    """In every cell that a peer runs; level is not first. Each suite named has such a cell."""

    suites: tuple = ()

    def __str__(self):
        return "first in every cell"

    def answer(self, cells):
        contested = Suite("", [c for c in cells if c.standing])
        if not contested.cells:
            return None
        held = {c.suite for c in contested.cells}
        absent = [suite for suite in self.suites if suite not in held]
        text = tally(contested) + f"; without {', '.join(absent)}" * bool(absent)
        first = contested.count("first") == len(contested.cells)
        return verdict(contested.cells, text, first and not absent)


@dataclass(frozen=True)
class OverBaseline:
    """As many times as fast in every cell."""

    least: float

    def __str__(self):
        return f"at least {self.least:g}x {BASELINE}"

    def answer(self, cells):
        cells = [c for c in cells if BASELINE in c.records]
        gains = [c.speedup(CALL) for c in cells if CALL in c.records]
        if not cells:
            return None
        missing = len(cells) - len(gains)
        text = span(gains, lambda gain: f"{gain:.1f}x") + f", {CALL} missing in {missing}" * (missing > 0)
        return verdict(cells, text, not missing and min(gains) >= self.least)


def from_tokens(least):
    return lambda tokens: tokens >= least


SPEED = [
    ("single-head", {"suite": "single-head"}, OverBaseline(10)),
    ("tokens, N 63488", {"suite": "tokens", "tokens": 63488}, OverBaseline(4)),
]
# Case, members of its suite or shape, and what is asked of it: on a GPU, where an H100 was meant, and a CPU.
GPU = [
    ("prefill, T 2048 and more", {"suite": "prefill", "tokens": from_tokens(2048)}, First()),
    ("decode", {"suite": "decode"}, First()),
    ("single-head", {"suite": "single-head"}, First()),
    ("tokens, N 10240 and more", {"suite": "tokens", "tokens": from_tokens(10240)}, First()),
    *((suite, {"suite": suite}, First()) for suite in ("large", "interleaved", "backward")),
    *SPEED,
]
# The suites in which a CPU has cells, but heads, which is newer than the goal.
EVERY = ("single-head", "tokens", "interleaved", "large", "prefill", "decode", "backward", "in-place")
EVERY += ("rules", "overhead")
CPU = [("every suite", {}, First(EVERY)), *SPEED]


def rows(machine):
    """Headings, then a row for each goal."""
    cells = [({"suite": s.name, **c.shape}, c) for s in machine.suites.values() for c in s.cells]

    def look(members, goal):
        return goal.answer([cell for known, cell in cells if matches(known, members)])

    return answers(CPU if machine.backend == "cpu" else GPU, look)


def section(machines):
    """A table for each machine that has peers beside ropekit."""
    found = [
        f"**{machine.name}**. {counted(rows(machine))}"
        for machine in machines
        if any(suite.contested for suite in machine.suites.values())
    ]
    return "\n\n".join(found) or "No run with peers."
