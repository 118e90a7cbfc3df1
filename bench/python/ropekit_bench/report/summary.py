"""What the runs of some machines come to, as Markdown: docs/figures.md, and README's figures."""

import statistics
from collections import Counter

from ropekit_bench.report import plots
from ropekit_bench.report.model import BASELINE, CALL, STEPS, is_peer, newest
from ropekit_bench.report.tables import (
    NOT_FIRST,
    cell_name,
    error_rows,
    lead,
    markdown,
    percent,
    seconds,
    span,
    teraflops,
    wrong,
)

SHARE = """Percent of the speed at which a copy moves the same bytes in the same round: the median of the
cases of a suite, for the kernel alone."""
MARKS = f"""▼ not first: slower than the peer by more than the copy differs from itself. ◇ unsettled: samples
scatter too far to say. ≈ level: no farther apart than the copy from itself. Over naive: times the speed of
{BASELINE}."""


def of_floor(suite):
    """Ratios to the floor of our kernel, a case each; none of attention, which does more than move bytes."""
    return [] if suite.attends else [timing["ratio"]["median"] for _, timing in suite.kernels]


def grid(machines):
    """A row for each suite, a column for each machine: (ratios to the floor, cases that are not first)."""
    names = list(dict.fromkeys(name for m in machines for name in m.suites))
    found = [(name, [m.suites.get(name) for m in machines]) for name in names]
    return [(name, [of_floor(s) if s else [] for s in suites]) for name, suites in found if any(suites)]


def share(ratios):
    return f"{100 * statistics.median(ratios):.0f} %" if ratios else "-"


def grid_rows(machines):
    return [
        ["suite", *(m.short for m in machines)],
        *([name, *map(share, columns)] for name, columns in grid(machines) if any(columns)),
    ]


def gains(suite):
    return span([c.speedup(CALL) for c in suite.ours if c.speedup(CALL)], lambda gain: f"{gain:.1f}x")


def over_naive(machine):
    found = [c.speedup(CALL) for s in machine.suites.values() for c in s.ours if c.speedup(CALL)]
    return f"{span(found, lambda gain: f'{gain:.1f}x')} {BASELINE}" if found else f"{BASELINE} not measured"


def peers_rows(machine):
    """A row for each suite that a peer runs."""
    standings = ("first", *NOT_FIRST)
    found = [["suite", "cases", "of copy", *("first", *(w.replace("NOT", "not") for w in NOT_FIRST.values())),
              "over naive"]]  # fmt: skip
    for name, suite in machine.suites.items():
        if suite.contested:
            counts = [str(suite.count(s) or "-") for s in standings]
            found.append([name, str(len(suite.contested)), share(of_floor(suite)), *counts, gains(suite)])
    return found


def behind(machine):
    """(standing, suite, cell) of every cell in which ours is not first, the largest loss first."""
    cells = [(s, c) for s in machine.suites.values() for c in s.cells if c.standing in NOT_FIRST]
    order = list(NOT_FIRST)
    return sorted(
        ((c.standing, s, c) for s, c in cells), key=lambda found: (order.index(found[0]), found[2].lead or 0)
    )


def behind_row(standing, suite, cell):
    ours = seconds(cell.seconds(CALL)) if cell.lead else "-"
    theirs = seconds(cell.seconds(cell.rival))
    return [NOT_FIRST[standing], suite.name, cell_name(suite, cell), lead(cell), cell.rival, ours, theirs]


MOST_BEHIND = 5  # of a suite, the largest losses


def behind_rows(machine):
    heading = ["", "suite", "case", "speed", "of the best peer", "ropekit", "peer"]
    rows, shown = [heading], Counter()
    for standing, suite, cell in behind(machine):
        shown[suite.name] += 1
        if shown[suite.name] <= MOST_BEHIND:
            rows.append(behind_row(standing, suite, cell))
    return rows


def standing_words(machine):
    """How often ours is what beside the peers."""
    cells = [c for s in machine.suites.values() for c in s.contested]
    counts = Counter(c.standing for c in cells)
    rest = [f"{words} in {counts[s]}" for s, words in NOT_FIRST.items() if counts[s]]
    return ", ".join([f"first in {counts['first']} of {len(cells)} cases", *rest])


def called(machine, implementation):
    """How an implementation was called, where its records say so by one name that is not its own."""
    name = implementation["implementation"]
    kernels = {r["kernel"] for r in machine.records("kernel", "eager") if r["implementation"] == name}
    return "".join(kernels - {name}) if len(kernels) == 1 else ""


def peers_of(machine):
    present = [f"{i['implementation']} {i['version']}" for i in machine.implementations if not i["reason"]]
    absent = [f"{i['implementation']} ({i['reason']})" for i in machine.implementations if i["reason"]]
    lines = [f"Measured: {', '.join(present)}."] * bool(present)
    return lines + [f"Absent: {', '.join(absent)}."] * bool(absent)


def overview_markdown(machines):
    """README's figures: on the GPU with the most peers, a prompt's rotation beside a copy, and how often
    an append is first."""
    lines = []
    for machine in (m for m in newest(machines) if m.backend != "cpu"):
        if prefill := machine.suites.get("prefill"):
            floors = of_floor(prefill)
            reached = f"is what rotating a prompt reaches on an {machine.name}"
            lines.append(
                f"- **{share(floors)}** of a copy's speed {reached}, the median of {len(floors)} cases."
            )
        append = machine.suites.get("append")
        if append and append.contested:
            names = {n.split()[0] for c in append.contested for n in c.records if is_peer(n)}
            first = f"**{append.count('first')} of {len(append.contested)}** cases of `rope_append`"
            lines.append(f"- {first} are faster there than {listed(names)}.")
    return "\n".join(lines) or "No run on a GPU with peers is in bench/results."


def listed(names):
    """Alternatives in a sentence."""
    *ahead, last = sorted(names, key=str.lower)
    return f"{', '.join(ahead)} or {last}" if ahead else last


def of_one_pass(cell):
    """How near to a copy one call is, how many rotations of as many bytes it takes, how much faster it is
    than the steps apart and than the fastest peer."""
    record = cell.records[CALL]
    timing = record.get("replay", record["eager"])
    beside = [name for name in (STEPS, "ropekit steps") if name in cell.records][:1]
    beside += [cell.rival] if cell.rival else []
    faster = [f", {cell.seconds(n) / cell.seconds(CALL):.2f}x {n.removeprefix('ropekit, ')}" for n in beside]
    rotations = f", {cell.rotations:.2f} rotations" if cell.rotations else ""
    return f"{100 * timing['ratio']['median']:.0f} %{rotations}{''.join(faster)}"


def by_machine(machines, suite, headings, key, text):
    """A row for each case of a suite, by its key, a column for each machine."""
    shown = [m for m in machines if suite in m.suites]
    if not shown:
        return "No run is in bench/results."
    cells = [{key(c): text(c) for c in m.suites[suite].ours} for m in shown]
    keys = list(dict.fromkeys(key for of_machine in cells for key in of_machine))
    rows = [[*key, *(of_machine.get(key, "-") for of_machine in cells)] for key in keys]
    return markdown([[*headings, *(m.short for m in shown)], *rows])


def append_markdown(machines):
    """docs/append.md's table: a row for each case of the suite, a column for each machine."""

    def key(cell):
        return cell.label, str(cell.shape["tokens"]), cell.cache

    return by_machine(machines, "append", ["case", "tokens", "cache"], key, of_one_pass)


def ahead_markdown(machines):
    """docs/cuda.md's table: the cases of append in which a peer is not behind, on any GPU."""
    shown = [m for m in machines if "append" in m.suites and m.backend != "cpu"]
    if not any(m.suites["append"].contested for m in shown):
        return "No run of append with peers is in bench/results."
    heading, *_ = behind_rows(shown[0])
    found = [[m.short, *behind_row(*b)] for m in shown for b in behind(m) if b[1].name == "append"]
    table = [row[:2] + row[3:] for row in (["device", *heading], *found)]  # the suite is one
    return markdown(table) if found else "In no case."


def of_attention(cell):
    """What one call reaches, how much longer it takes than on rotated inputs, and its speed beside the
    fastest peer."""
    record = cell.records[CALL]
    timing = record.get("replay", record["eager"])
    reached = f"{timing['gb_per_second']:.4g} GB/s"
    if cell.shape["tokens"] > 1:
        reached = f"{teraflops(record, timing)} TFLOP/s"
    beside = f", {cell.seconds(cell.rival) / cell.seconds(CALL):.2f}x {cell.rival}" if cell.rival else ""
    return reached + (f", {percent(cell.tax - 1)}" if cell.tax else "") + beside


def attention_markdown(machines, suite="attention"):
    """docs/attention.md's tables: a row for each case of the suite, a column for each machine."""

    def key(cell):
        s = cell.shape
        return cell.label, f"{s['batch']} x {s['tokens']}", str(s["head_dim"]), s["dtype"]

    return by_machine(machines, suite, ["case", "B x T", "D", "dtype"], key, of_attention)


def remarks(machine):
    """Which runs gave way to which, and what was wrong."""
    return [*machine.replaced, *(line for suite in machine.suites.values() for line in wrong(suite))]


def run_rows(machines):
    heading = ["device", "run", "ropekit", "built by", "driver"]
    found = []
    for machine in machines:
        for title, facts in machine.facts:
            built = ", ".join(filter(None, (facts["compiler"], facts["toolkit"])))
            found.append([machine.name, title, facts["ropekit"], built, facts["driver"] or "-"])
    return [heading, *found]


def document(machines):
    """Every figure that a reader looks for first; ropekit-report --html has the rest."""
    compared = [m for m in machines if m.has_peers]
    parts = [f"## How close to a copy\n\n{SHARE}\n\n{markdown(grid_rows(machines))}"]
    if plots.widest(machines):
        text = f"{plots.SHAPE}, bf16, by the kernel alone, in brackets the copy; the most threads measured."
        parts.append(f"## GB/s by device\n\n{text}\n\n{markdown(plots.speed_rows(machines))}")
    if compared:
        parts.append(f"## Compared with peers\n\n{MARKS}")
    for machine in compared:
        parts.append(f"### {machine.name}: {standing_words(machine)}")
        parts += peers_of(machine)
        parts.append(markdown(peers_rows(machine)))
        if behind(machine):
            rows = behind_rows(machine)
            left = len(behind(machine)) - (len(rows) - 1)
            more = f", the {MOST_BEHIND} largest losses of a suite; {left} more in the report" if left else ""
            parts.append(f"Where the call is not first{more}:\n\n{markdown(rows)}")
    if len(error_rows(machines)) > 1:
        parts.append(f"## Largest error of cos and sin\n\n{markdown(error_rows(machines))}")
    parts.append(f"## Runs\n\n{markdown(run_rows(machines))}")
    parts += [f"{m.name}: {line}" for m in machines for line in remarks(m)]
    return "\n\n".join(parts)


def summary(machines):
    """The Markdown summary of some machines."""
    return f"# ropekit against copies and peers\n\n{document(machines)}\n"
