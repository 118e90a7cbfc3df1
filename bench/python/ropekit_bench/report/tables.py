"""Tables of a suite as rows of text, and as Markdown, which reads well in a terminal too."""

import statistics


def seconds(value):
    for unit, scale in (("s", 1), ("ms", 1e3), ("us", 1e6)):
        if value * scale >= 1:
            return f"{value * scale:.3g} {unit}"
    return f"{value * 1e9:.3g} ns"


def verdict(cell):
    """Whether ours is first, in words and with a mark of its own."""
    if cell.lead is None:
        return "alone"
    if cell.lead >= 1:
        return f"▲ first, {cell.lead:.2f}x {cell.rival}"
    return f"▼ NOT first, {cell.lead:.2f}x {cell.rival}"


def own_columns(suite):
    """What varies within a suite: heading and function of a cell."""
    columns = (
        ("case", lambda c: c.label),
        ("T", lambda c: str(c.shape["tokens"])),
        ("D", lambda c: str(c.shape["head_dim"])),
        ("dtype", lambda c: c.shape["dtype"]),
        ("cache", lambda c: c.cache),
    )
    return [column for column in columns if suite.varies(column[1])] or [columns[1]]


def columns(suite):
    """Headings and functions of a cell for every column."""

    def quartiles(c):
        ratio = c.kernel[1]["ratio"]
        return f"{100 * ratio['median']:.1f} % ({100 * ratio['low']:.1f}..{100 * ratio['high']:.1f})"

    found = [
        *own_columns(suite),
        ("ropekit", lambda c: seconds(c.kernel[1]["seconds"]["median"])),
        ("GB/s", lambda c: f"{c.kernel[1]['gb_per_second']:.4g}"),
        ("floor GB/s", lambda c: f"{c.kernel[0]['floor']['gb_per_second']:.4g}"),
        ("of floor", quartiles),
        ("A/A", lambda c: f"{100 * c.a_a:.1f} %"),
    ]
    if any(c.records[c.best].get("table_bytes") for c in suite.cells):
        found.append(("tables, MiB", lambda c: f"{c.records[c.best]['table_bytes'] / 2**20:.1f}"))
    if suite.contested:
        found.append(("beside the best peer", verdict))
    if any(c.speedup(c.best) for c in suite.cells):
        found.append(("over PyTorch", lambda c: f"{c.speedup(c.best):.1f}x" if c.speedup(c.best) else "-"))
    return [
        *found,
        ("eager", lambda c: seconds(c.records[c.best]["eager"]["seconds"]["median"])),
        ("host", lambda c: seconds(c.records[c.best]["eager"]["host_seconds"])),
    ]


def rows(suite):
    """Headings, then a row of text for each case."""
    found = columns(suite)
    return [
        [heading for heading, _ in found],
        *([function(cell) for _, function in found] for cell in suite.cells if cell.best),
    ]


def peer_rows(suite):
    """Every implementation's seconds, then its fraction of the floor."""
    names = list(dict.fromkeys(n for c in suite.cells for n in c.records))
    own = own_columns(suite)
    found = [[heading for heading, _ in own] + names]
    for cell in suite.cells:
        found.append(
            [function(cell) for _, function in own]
            + [
                f"{seconds(cell.seconds(n))}, {100 * cell.timing(n)['ratio']['median']:.0f} %"
                if n in cell.records
                else "-"
                for n in names
            ]
        )
    return found


def markdown(table):
    """A Markdown table with aligned columns; the first column that holds text stays left."""
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    left = [
        any(c.isalpha() for c in table[-1][i][:1]) or table[-1][i][:1] in "▲▼" for i in range(len(widths))
    ]

    def line(cells):
        return (
            "| "
            + " | ".join(
                text.ljust(width) if is_left else text.rjust(width)
                for text, width, is_left in zip(cells, widths, left, strict=True)
            )
            + " |"
        )

    rule = "|" + "|".join(
        "-" * (w + 1) + ("-" if is_left else ":") for w, is_left in zip(widths, left, strict=True)
    )
    return "\n".join([line(table[0]), rule + "|", *map(line, table[1:])])


def tally(suite):
    """How many contested cases are won, or that there was no rival."""
    if not suite.contested:
        return "no peer was measured"
    return f"first in {len(suite.won)} of {len(suite.contested)} cases"


def measure(suite):
    return "kernels alone" if suite.cells[0].measure == "replay" else "eager calls"


def suite_markdown(name, suite):
    return f"### {name}: {tally(suite)} ({measure(suite)})\n\n{markdown(rows(suite))}\n"


def error_rows(machine):
    """Largest error of cos and sin below each number of positions."""
    found = errors(machine)
    positions = sorted({p for points in found.values() for p in points})
    return [
        ["angles", *(f"below {p}" for p in positions)],
        *(
            [name, *(f"{points[p]:.1e}" if p in points else "-" for p in positions)]
            for name, points in found.items()
        ),
    ]


def errors(machine):
    """Implementation and angle mode: positions: error."""
    found = {}
    for r in machine.records("cos_sin_error"):
        name = r["implementation"]
        if r["angle_mode"] != "its own":
            name += f", {r['angle_mode']} angles"
        found.setdefault(name, {})[r["positions"]] = r["cos_sin_error"]
    return found


def overview(machines):
    """A row for each suite of each machine."""
    found = [["device", "suite", "cases", "of the floor, median", "beside peers", "over PyTorch"]]
    for machine in machines:
        for name, suite in machine.suites.items():
            cells = [c for c in suite.cells if c.best]
            ratio = statistics.median(c.kernel[1]["ratio"]["median"] for c in cells)
            speedups = [c.speedup(c.best) for c in cells if c.speedup(c.best)]
            gain = f"{min(speedups):.1f}x to {max(speedups):.1f}x" if speedups else "-"
            found.append([machine.name, name, str(len(cells)), f"{100 * ratio:.0f} %", tally(suite), gain])
    return found


def document(machines):
    """Every suite of every machine, as Markdown."""
    parts = []
    for machine in machines:
        parts.append(f"## {machine.name}\n")
        for title, facts in machine.facts:
            parts.append(f"{title}: " + "; ".join(f"{k} {v}" for k, v in facts.items() if v) + "\n")
        absent = [f"{i['implementation']} ({i['reason']})" for i in machine.implementations if i["reason"]]
        present = [
            f"{i['implementation']} {i['version']}" for i in machine.implementations if not i["reason"]
        ]
        if present:
            parts.append("Measured: " + ", ".join(present) + ".\n")
        if absent:
            parts.append("Absent: " + ", ".join(absent) + ".\n")
        parts += [suite_markdown(name, suite) for name, suite in machine.suites.items()]
        if len(error_rows(machine)) > 1:
            parts.append(
                "### accuracy: largest error of cos and sin\n\n" + markdown(error_rows(machine)) + "\n"
            )
    return "\n".join(parts).strip()


def summary(machines):
    """The Markdown summary of some machines."""
    return f"# ropekit beside copies and peers\n\n{markdown(overview(machines))}\n\n{document(machines)}\n"
