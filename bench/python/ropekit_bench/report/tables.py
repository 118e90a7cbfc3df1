"""Tables of a suite as rows of text, and as Markdown, which reads well in a terminal too."""

import statistics

from ropekit_bench.report.model import BASELINE, CALL, disagreement

BORROWED = "†"


def seconds(value):
    for unit, scale in (("s", 1), ("ms", 1e3), ("us", 1e6)):
        if value * scale >= 1:
            return f"{value * scale:.3g} {unit}"
    return f"{value * 1e9:.3g} ns"


def above_copy(record):
    """The host's time for a call above that for a copy kernel, as text; None where the run did not look."""
    if "host_seconds" not in record["floor"]:
        return None
    return f"{1e6 * (record['eager']['host_seconds'] - record['floor']['host_seconds']):+.2f} us"


def verdict(cell):
    """Whether ours is first, in words and with a mark of its own."""
    return {
        None: "alone",
        "first": f"▲ first, {cell.lead or 0:.2f}x {cell.rival}",
        "unsettled": f"◇ unsettled, {cell.lead or 0:.2f}x {cell.rival}",
        "level": f"≈ level with {cell.rival}, {cell.lead or 0:.2f}x",
        "lost": f"▼ NOT first, {cell.lead or 0:.2f}x {cell.rival}",
    }[cell.standing]


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
    """Headings and functions of a cell for every column; those of the tool's own run are marked."""
    mark = f" {BORROWED}" if suite.borrowed else ""

    def quartiles(timing):
        ratio = timing["ratio"]
        return f"{100 * ratio['median']:.1f} % ({100 * ratio['low']:.1f}..{100 * ratio['high']:.1f})"

    def a_a(c):
        return f"{100 * c.a_a:.1f} %"

    def of_kernel(text):
        return lambda c: text(*suite.kernel(c)) if suite.kernel(c) else "-"

    found = own_columns(suite)
    if suite.contested:
        found.append(("beside the best peer", verdict))
        if len({c.measure for c in suite.contested}) > 1:
            found.append(("compared by", lambda c: c.measure))
        if suite.borrowed:
            found.append(("A/A", a_a))
    if any(c.speedup(CALL) for c in suite.ours):
        found.append((f"over {BASELINE}", lambda c: f"{c.speedup(CALL):.1f}x" if c.speedup(CALL) else "-"))
    found += [
        ("ropekit" + mark, of_kernel(lambda r, t: seconds(t["seconds"]["median"]))),
        ("GB/s" + mark, of_kernel(lambda r, t: f"{t['gb_per_second']:.4g}")),
        ("floor GB/s" + mark, of_kernel(lambda r, t: f"{r['floor']['gb_per_second']:.4g}")),
        ("of floor" + mark, of_kernel(lambda _, t: quartiles(t))),
        ("A/A" + mark, of_kernel(lambda r, t: f"{100 * disagreement(r):.1f} %") if mark else a_a),
    ]
    if any(c.records[CALL].get("table_bytes") for c in suite.ours):
        found.append(("tables, MiB", lambda c: f"{c.records[CALL]['table_bytes'] / 2**20:.1f}"))
    found += [
        ("eager", lambda c: seconds(c.records[CALL]["eager"]["seconds"]["median"])),
        ("host", lambda c: seconds(c.records[CALL]["eager"]["host_seconds"])),
    ]
    if suite.name == "overhead" and any(above_copy(c.records[CALL]) for c in suite.ours):
        found.append(("above a copy's", lambda c: above_copy(c.records[CALL]) or "-"))
    return found


def rows(suite):
    """Headings, then a row of text for each case."""
    found = columns(suite)
    return [
        [heading for heading, _ in found],
        *([function(cell) for _, function in found] for cell in suite.ours),
    ]


def peer_rows(suite):
    """A row for each implementation of each case: its times with percent of the floor, and the host's."""
    own = own_columns(suite)

    def timing(record, measure):
        if measure not in record:
            return "-"
        t = record[measure]
        return f"{seconds(t['seconds']['median'])}, {100 * t['ratio']['median']:.0f} %"

    return [
        [*(heading for heading, _ in own), "implementation", "replay", "eager", "host"],
        *(
            [*(f(c) for _, f in own), name, timing(r, "replay"), timing(r, "eager"),
             seconds(r["eager"]["host_seconds"])]
            for c in suite.cells
            for name, r in c.records.items()
        ),
    ]  # fmt: skip


def declined(suite):
    """A line for each implementation and reason."""
    return [
        f"{name} declined {count} case{'s'[: count > 1]}: {' '.join(reason.split())}"
        for (name, reason), count in sorted(suite.declined.items())
    ]


def wrong(suite):
    """A line for each case that the tool's check refused."""
    return [
        f"WRONG, not timed: {r['case']}, {r['kernel']}: "
        f"{r['refused']} of {r['elements']} outputs outside their bound"
        for r in suite.wrong
    ]


def markdown(table):
    """A Markdown table with aligned columns; the first column that holds text stays left."""
    table = [[text.replace("|", "\\|") for text in row] for row in table]
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    left = [
        any(c.isalpha() for c in table[-1][i][:1]) or table[-1][i][:1] in "▲≈◇▼" for i in range(len(widths))
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
    """How many contested cases are won, lost, level or unsettled, or that there was no rival; how many cases
    are wrong or of a quick run."""
    quick = sum(c.quick for c in suite.ours)
    mark = f"; {len(suite.wrong)} WRONG, not timed" * bool(suite.wrong)
    mark += f"; {quick} quick: not for comparison" * bool(quick)
    if not suite.contested:
        return "no peer was measured" + mark
    names = {"lost": "▼ NOT first", "level": "level", "unsettled": "unsettled"}
    rest = "".join(f", {name} in {suite.count(s)}" for s, name in names.items() if suite.count(s))
    return f"first in {suite.count('first')}{rest} of {len(suite.contested)} cases{mark}"


def measure(suite):
    """What is compared, and from which run the rest comes."""
    names = {"replay": "kernels alone", "eager": "eager calls"}
    text = " or ".join(names[m] for m in names if any(c.measure == m for c in suite.contested or suite.cells))
    return text + f", of the peers' run; {BORROWED} kernels alone, of the tool's own run" * suite.borrowed


def suite_markdown(name, suite):
    refusals = "".join(f"- {line}\n" for line in wrong(suite) + declined(suite))
    table = f" ({measure(suite)})\n\n{markdown(rows(suite))}" if suite.ours else ""
    return f"### {name}: {tally(suite)}{table}\n" + f"\n{refusals}" * bool(refusals)


def error_rows(machine):
    """Largest error of cos and sin below each number of positions."""
    found = errors(machine)
    positions = sorted({p for points in found.values() for p in points})
    return [
        ["angles", *(f"below {p}" for p in positions)],
        *(
            [error_name(*key), *(f"{points[p]:.1e}" if p in points else "-" for p in positions)]
            for key, points in found.items()
        ),
    ]


def error_name(name, mode):
    return name if mode == "its own" else f"{name}, {mode} angles"


def errors(machine):
    """(implementation, angle mode): positions: error."""
    found = {}
    for r in machine.records("cos_sin_error"):
        key = r["implementation"], r["angle_mode"]
        found.setdefault(key, {})[r["positions"]] = r["cos_sin_error"]
    return found


def overview(machines):
    """A row for each suite of each machine."""
    found = [["device", "suite", "cases", "of the floor, median", "beside peers", f"over {BASELINE}"]]
    for machine in machines:
        for name, suite in machine.suites.items():
            ratios = [timing["ratio"]["median"] for _, timing in suite.kernels]
            ratio = f"{100 * statistics.median(ratios):.0f} %" if ratios else "-"
            ratio += f" {BORROWED}" * suite.borrowed
            speedups = [c.speedup(CALL) for c in suite.ours if c.speedup(CALL)]
            ends = [f"{end(speedups):.1f}x" for end in (min, max) if speedups]
            gain = " to ".join(dict.fromkeys(ends)) or "-"
            found.append([machine.name, name, str(len(suite.ours)), ratio, tally(suite), gain])
    return found


def overview_markdown(machines):
    """The overview, with what its mark means where a row has it."""
    text = markdown(overview(machines))
    note = f"{BORROWED} kernels alone, of the tool's own run; the rest of the row eager calls, of the peers'."
    return text + f"\n\n{note}" * (BORROWED in text)


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
    return f"# ropekit beside copies and peers\n\n{overview_markdown(machines)}\n\n{document(machines)}\n"
