"""The goals of append, and how far the runs of each machine come: docs/append.md."""

from collections.abc import Callable
from dataclasses import dataclass

from ropekit_bench.report.model import CALL, OURS, STEPS
from ropekit_bench.report.tables import markdown, span

APART = (STEPS, "ropekit steps")  # chains of our own
NO_CHAIN = (*OURS, "FlashInfer fused", "torch.compile cached", "torch.compile naive")


def of_copy(cell):
    record = cell.records[CALL]
    return record.get("replay", record["eager"])["ratio"]["median"]


def beside_chain(cell):
    """The seconds of the fastest chain of separate kernels over ours."""
    chains = [name for name in cell.records if name in APART or name not in NO_CHAIN]
    return min(map(cell.seconds, chains)) / cell.seconds(CALL) if chains else None


def tokens(cell):
    return cell.shape["tokens"]


def moves(cell):
    return cell.label.startswith("keys moved")


def decodes(cell):
    return "decode" in cell.label and "programmatic" not in cell.label


def is_long(cell):
    return tokens(cell) >= 4096 and not moves(cell)


@dataclass
class Goal:
    """A bound on a value of the cases that it selects; None has no value."""

    words: str
    bound: float
    selects: Callable
    value: Callable
    unit: str = "%"
    at_most: bool = False
    cpu: bool | None = None  # whether it is one of CPUs; None: of both

    def text(self, x):
        return f"{100 * x:.0f} %" if self.unit == "%" else f"{x:.2f}{self.unit}"

    @property
    def limit(self):
        return f"{'≤' if self.at_most else '≥'} {self.text(self.bound)}"

    def is_met(self, x):
        return x <= self.bound if self.at_most else x >= self.bound

    def reached(self, machine):
        """The least and the largest value, and in how many cases the goal is met."""
        if self.cpu not in (None, machine.backend == "cpu"):
            return "-"
        found = [self.value(c) for c in machine.suites["append"].ours if self.selects(c)]
        found = [x for x in found if x is not None]
        met = sum(map(self.is_met, found))
        return f"{span(found, self.text)}, met in {met} of {len(found)}" if found else "-"


def is_cpu_size(cell):
    return tokens(cell) == 1 or tokens(cell) >= 2048


GOALS = (
    Goal("prompts of 4096 tokens and more, Llama-3-8B and Qwen3-8B: of a copy's speed", 0.97,
         lambda c: is_long(c) and "MLA" not in c.label, of_copy, cpu=False),
    Goal("the same of DeepSeek-V3's MLA", 0.95,
         lambda c: is_long(c) and "MLA" in c.label, of_copy, cpu=False),
    Goal("1 to 256 decoded tokens: time in rotations of as many bytes", 1.05,
         decodes, lambda c: c.rotations, "", at_most=True, cpu=False),
    Goal("the same by programmatic launches", 1.05,
         lambda c: "programmatic" in c.label, lambda c: c.rotations, "", at_most=True, cpu=False),
    Goal("up to 256 tokens: speed over that of the fastest chain of separate kernels", 1.5,
         lambda c: tokens(c) <= 256, beside_chain, "x", cpu=False),
    Goal("from 4096 tokens on: the same", 1.2, is_long, beside_chain, "x", cpu=False),
    Goal("131072 keys that move: of a copy's speed", 0.97, moves, of_copy, cpu=False),
    Goal("CPU, 1 token, 2048 and more: of a copy's speed", 0.9, is_cpu_size, of_copy, cpu=True),
    Goal("CPU: speed over that of the fastest peer", 1, lambda c: True, lambda c: c.lead, "x", cpu=True),
)  # fmt: skip


def goals_markdown(machines):
    """A row for each goal, a column for each machine that ran the suite."""
    shown = [m for m in machines if "append" in m.suites]
    if not shown:
        return "No run is in bench/results."
    rows = [[g.words, g.limit, *(g.reached(m) for m in shown)] for g in GOALS]
    return markdown([["goal", "is", *(m.short for m in shown)], *rows])
