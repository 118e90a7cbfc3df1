"""What a run of every machine comes to, and all its tables, as Markdown."""

import statistics

from ropekit_bench.report.model import BASELINE, CALL
from ropekit_bench.report.tables import (
    BORROWED,
    NOT_FIRST,
    bullets,
    cell_name,
    error_rows,
    markdown,
    span,
    suite_markdown,
    tally,
)


def beside_rival(cell):
    return f"{cell.lead:.2f}x {cell.rival}" if cell.lead else f"{cell.rival} was"


def not_first(machine):
    """A line for each suite and standing of cells in which ours is not first."""
    found = []
    for suite in machine.suites.values():
        for standing, words in NOT_FIRST.items():
            cells = [c for c in suite.cells if c.standing == standing]
            texts = [f"{cell_name(suite, c)} ({beside_rival(c)})" for c in cells]
            found += [f"{suite.name}, {words} in {len(cells)}: {', '.join(texts)}"] * bool(cells)
    return found


def overview(machine):
    """A row for each suite."""
    found = [["suite", "cases", "of floor", "beside peers", "over naive"]]
    for name, suite in machine.suites.items():
        ratios = [timing["ratio"]["median"] for _, timing in suite.kernels]
        ratio = f"{100 * statistics.median(ratios):.0f} %" if ratios else "-"
        ratio += f" {BORROWED}" * suite.borrowed
        gains = span([c.speedup(CALL) for c in suite.ours if c.speedup(CALL)], lambda gain: f"{gain:.1f}x")
        found.append([name, str(len(suite.ours)), ratio, tally(suite), gains])
    return found


def overview_markdown(machines):
    """A table for each machine, then what headings and marks mean. One without peers is left to document()
    where the same device was measured with them."""
    compared = {m.device for m in machines if m.has_peers}
    shown = [m for m in machines if m.has_peers or m.device not in compared]
    text = "\n\n".join(f"**{m.name}**\n\n{markdown(overview(m))}" for m in shown)
    text += f"\n\nOf floor: the median of a suite's cases. Over naive: beside {BASELINE}."
    note = f"{BORROWED} kernels alone, of the tool's own run; the rest of the row eager calls, of the peers'."
    return text + f" {note}" * (BORROWED in text)


def called(machine, implementation):
    """How an implementation was called, where its records say so by one name that is not its own."""
    name = implementation["implementation"]
    kernels = {r["kernel"] for r in machine.records("kernel", "eager") if r["implementation"] == name}
    return "".join(kernels - {name}) if len(kernels) == 1 else ""


def document(machines):
    """Every suite of every machine, as Markdown."""
    parts = []
    for machine in machines:
        parts.append(f"## {machine.name}\n")
        for title, facts in machine.facts:
            parts.append(f"{title}: " + "; ".join(f"{k} {v}" for k, v in facts.items() if v) + "\n")
        parts += [f"{sentence}\n" for sentence in machine.replaced]
        absent = [f"{i['implementation']} ({i['reason']})" for i in machine.implementations if i["reason"]]
        present = [
            f"{i['implementation']} {i['version']}" + f" ({called(machine, i)})" * bool(called(machine, i))
            for i in machine.implementations
            if not i["reason"]
        ]
        if present:
            parts.append("Measured: " + ", ".join(present) + ".\n")
        if absent:
            parts.append("Absent: " + ", ".join(absent) + ".\n")
        behind = not_first(machine)
        parts += [f"Where the call is not first:\n\n{bullets(behind)}"] * bool(behind)
        parts += [suite_markdown(name, suite) for name, suite in machine.suites.items()]
        if len(error_rows(machine)) > 1:
            parts.append(
                "### accuracy: largest error of cos and sin\n\n" + markdown(error_rows(machine)) + "\n"
            )
    return "\n".join(parts).strip()


def summary(machines):
    """The Markdown summary of some machines."""
    return f"# ropekit beside copies and peers\n\n{overview_markdown(machines)}\n\n{document(machines)}\n"
