"""What is drawn of machines: every figure against tokens, beside the copy of the same bytes."""

from ropekit_bench.report import lengths, svg
from ropekit_bench.report.model import CALL, OURS, ROTATED, is_peer, newest
from ropekit_bench.report.tables import MEASURES, errors

SHAPE = "Llama-3-8B: 32 query and 8 key heads of 128"
PERCENT = ("tokens", "% of the copy's speed")
COPY = "dashed: a copy of the same bytes"


def looks(machines):
    """The class of every implementation of some machines, on every figure: ours first."""
    found = {c for m in machines for s in m.suites.values() for cell in s.cells for c in cell.records}
    found |= {name for m in machines for name, _ in errors(m)}
    others = [i["implementation"] for m in machines for i in m.implementations]
    order = dict.fromkeys([*OURS, *others, *sorted(found)])
    return {name: f"s{i}" for i, name in enumerate(name for name in order if name in found)}


def legend(known, machine):
    """(class, name) of the implementations of a machine."""
    present = looks([machine])
    drawn = [name for name in known if name in present and not name.endswith(ROTATED)]
    return [(known[name], name) for name in drawn]


def prefill(machine):
    """Cells of the shape at which devices are compared, and our kernel's timing of each."""
    suite = machine.suites.get("prefill")
    cells = [c for c in suite.ours if c.label == "Llama-3-8B" and c.shape["dtype"] == "bf16"] if suite else []
    found = [(c, suite.kernel(c)) for c in cells]
    return [(c, *kernel) for c, kernel in found if kernel and "replay" in kernel[0]]


def widest(machines):
    """Of each device the run with the most threads, without settings, that has the shape of prefill()."""
    found = {}
    for machine in sorted(machines, key=lambda m: m.threads):
        if prefill(machine) and not machine.documents[0]["host"].get("settings"):
            found[machine.device] = machine
    return [m for m in machines if found.get(m.device) is m]


def speed_rows(machines):
    """The chart of devices() as a table: GB/s of the kernel, and of the copy."""
    shown = widest(machines)
    found = {}
    for i, machine in enumerate(shown):
        for cell, record, timing in prefill(machine):
            text = f"{timing['gb_per_second']:.4g} ({record['floor']['gb_per_second']:.4g})"
            found.setdefault(cell.shape["tokens"], ["-"] * len(shown))[i] = text
    return [["T", *(m.short for m in shown)], *([str(t), *found[t]] for t in sorted(found))]


def devices(machines, size=(590, 375)):
    """GB/s of every device at one shape, and the legend; "" where fewer than two cells were measured."""
    series, names = [], []
    for i, machine in enumerate(widest(machines)):
        cells = prefill(machine)
        lines = (("dashed ", [(c.shape["tokens"], r["floor"]["gb_per_second"]) for c, r, _ in cells]),
                 ("", [(c.shape["tokens"], t["gb_per_second"]) for c, _, t in cells]))  # fmt: skip
        series += [(f"{dashes}s{i}", points) for dashes, points in lines]
        names.append((f"s{i}", machine.short))
    if not any(len(points) > 1 for _, points in series):
        return "", []
    return svg.chart(f"{SHAPE}, bf16", series, size, ("tokens", f"GB/s; {COPY}"), log_y=True), names


def of_copy(cells, known):
    """A line for each implementation, ours on top: percent of the floor."""
    found = []
    for name, classes in reversed(known.items()):
        if name.endswith(ROTATED):
            continue
        held = [c for c in cells if name in c.records]
        if len(held) > 1:
            points = [(c.shape["tokens"], 100 * c.timing(name)["ratio"]["median"]) for c in held]
            found.append((classes, points))
    return found


def groups(suite):
    """Cells of a suite, compared alike, that differ in tokens alone, by title."""
    found = {}
    for c in suite.cells:
        parts = (c.label, c.shape["dtype"], f"D {c.shape['head_dim']}", c.cache, MEASURES[c.measure])
        found.setdefault(", ".join(filter(None, parts)), []).append(c)
    return {title: cells for title, cells in found.items() if len(cells) > 2}


def suite_plots(suite, known):
    found = [
        svg.chart(title, of_copy(cells, known), (400, 270), PERCENT, reference=100)
        for title, cells in groups(suite).items()
    ]
    return found + lengths.charts(suite, known)


def error_plot(machine, known):
    """Error of cos and sin against position; angle modes of one implementation differ in their dashes."""
    series = [
        ("dashed " * (mode in ("f32", "table")) + known[name], sorted(points.items()))
        for (name, mode), points in errors(machine).items()
        if len(points) > 1 and all(points.values())
    ]
    labels = ("positions below", "dashed: f32 angles and tables of them")
    return svg.chart("largest error of cos and sin", series, (400, 270), labels, log_y=True) if series else ""


def beside_peers(machine):
    """Cells of the compared shape in the type that most implementations take."""
    by_dtype = {}
    for c in machine.suites["prefill"].cells if "prefill" in machine.suites else ():
        if c.label == "Llama-3-8B":
            by_dtype.setdefault(c.shape["dtype"], []).append(c)
    kept = [by_dtype[dtype] for dtype in ("bf16", "f32", "f16") if dtype in by_dtype]
    return max(kept, key=lambda cells: len({n for c in cells for n in c.records}), default=[])


def standalone(machines):
    """The figure of the README: a machine of each backend beside its peers."""
    known = {name: c for name, c in looks(machines).items() if name == CALL or is_peer(name)}
    panels, shown = [], set()
    for machine in newest(machines):
        cells = beside_peers(machine)
        if len(cells) > 1:
            said = f"{PERCENT[1]}, {cells[0].shape['dtype']}, {MEASURES[cells[0].measure]}"
            place = (400 * len(panels), 24, 400, 330)
            labels = (PERCENT[0], said)
            panels.append(svg.panel(machine.short, of_copy(cells, known), place, labels, reference=100))
            shown |= {name for c in cells for name in c.records}
    entries = [(c, name) for name, c in known.items() if name in shown]
    return svg.document(SHAPE, panels, [("copy", "copy"), *entries])
