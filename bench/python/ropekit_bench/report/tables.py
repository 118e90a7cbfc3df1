"""Tables of a suite as rows of text, and as Markdown, which reads well in a terminal too."""

from itertools import chain

from ropekit_bench.report.model import CALL, OURS, ROTATED, counted, disagreement

BORROWED = "†"
NOT_FIRST = {
    "lost": "▼ NOT first",
    "missing": "▼ NOT measured",
    "level": "≈ level",
    "unsettled": "◇ unsettled",
}
VERDICT = "against the best peer"
MEASURES = {"replay": "kernels alone", "eager": "calls"}
WIDTH = 120  # of a terminal; Markdown divides what is wider


def seconds(value):
    for unit, scale in (("s", 1), ("ms", 1e3), ("us", 1e6)):
        if value * scale >= 1:
            return f"{value * scale:.3g} {unit}"
    return f"{value * 1e9:.3g} ns"


def percent(ratio):
    return f"{100 * ratio:.1f} %"


def size(nbytes):
    for unit, scale in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= scale:
            return f"{nbytes / scale:.3g} {unit}"
    return f"{nbytes} B" if nbytes else "-"


def a_a(cell):
    return percent(cell.a_a)


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


def lead(cell):
    """Our speed as a multiple of the best peer's."""
    return f"{cell.lead:.3f}x" if cell.lead else "-"


def own_columns(suite):
    """What varies within a suite: heading and function of a cell."""
    columns = (
        ("case", lambda c: c.label),
        ("B", lambda c: str(c.shape["batch"])),
        ("T", lambda c: str(c.shape["tokens"])),
        ("D", lambda c: str(c.shape["head_dim"])),
        ("dtype", lambda c: c.shape["dtype"]),
        ("cache", lambda c: c.cache),
    )
    found = [column for column in columns if suite.varies(column[1])] or [columns[2]]
    rest = [text for heading, text in found if heading != "D"]
    names = {tuple(text(c) for text in rest) for c in suite.cells}
    return [c for c in found if c[0] != "D"] if len(names) == len(suite.cells) else found


def cell_name(suite, cell):
    """The cell in words, within its suite."""
    units = {"B": "B ", "T": "T ", "D": "D "}
    return " ".join(units.get(heading, "") + text(cell) for heading, text in own_columns(suite))


def beside_peers(suite):
    """Columns of the calls: heading and function of a cell."""
    found = []
    if suite.contested:
        found.append((VERDICT, verdict))
        if len({c.measure for c in suite.contested}) > 1:
            found.append(("compared by", lambda c: c.measure))
        if suite.borrowed:
            found.append(("A/A", a_a))
    if any(c.speedup(CALL) for c in suite.ours):
        found.append(("over naive", lambda c: f"{c.speedup(CALL):.1f}x" if c.speedup(CALL) else "-"))
    eager = [c.records[CALL]["eager"] for c in suite.ours]
    found.append(("eager", lambda c: seconds(c.records[CALL]["eager"]["seconds"]["median"])))
    if any(e["host_seconds"] != e["seconds"]["median"] for e in eager):  # on a CPU the call is the host's
        found.append(("host", lambda c: seconds(c.records[CALL]["eager"]["host_seconds"])))
    if suite.name == "overhead" and any(above_copy(c.records[CALL]) for c in suite.ours):
        found.append(("above a copy's", lambda c: above_copy(c.records[CALL]) or "-"))
    return found


def teraflops(record, timing):
    return f"{1e-12 * record['flops'] / timing['seconds']['median']:.3g}"


def beside_floor(suite):
    """Columns of the kernel; those of the tool's own run are marked."""
    mark = f" {BORROWED}" if suite.borrowed else ""

    def quartiles(timing):
        ratio = timing["ratio"]
        ends = f" ({100 * ratio['low']:.1f}..{100 * ratio['high']:.1f})" if "low" in ratio else ""
        return percent(ratio["median"]) + ends

    def of_kernel(text):
        return lambda c: text(*suite.kernel(c)) if suite.kernel(c) else "-"

    found = [
        ("ropekit" + mark, of_kernel(lambda r, t: seconds(t["seconds"]["median"]))),
        ("GB/s" + mark, of_kernel(lambda r, t: f"{t['gb_per_second']:.4g}")),
        ("copy GB/s" + mark, of_kernel(lambda r, t: f"{r['floor']['gb_per_second']:.4g}")),
        ("of copy" + mark, of_kernel(lambda _, t: quartiles(t))),
        ("A/A" + mark, of_kernel(lambda r, _: percent(disagreement(r))) if mark else a_a),
    ]
    if suite.attends:
        found.insert(1, ("TFLOP/s" + mark, of_kernel(teraflops)))
        if any(c.tax for c in suite.ours):
            found.append(("tax", lambda c: percent(c.tax - 1) if c.tax else "-"))
    if any(c.rotations for c in suite.ours):
        found.append(("rotations", lambda c: f"{c.rotations:.2f}" if c.rotations else "-"))
    if any("speedup" in r for r, _ in suite.kernels):
        found.append(("over one thread", of_kernel(lambda r, _: f"{r['speedup']['median']:.2f}x")))
    if any(c.records[CALL].get("table_bytes") for c in suite.ours):
        found.append(("tables", lambda c: size(c.records[CALL]["table_bytes"])))
    return found


def parts(suite):
    """The columns beside those that name a case: what was called, then what its kernel does, or, without
    peers, the other way round."""
    both = [beside_peers(suite), beside_floor(suite)]
    return both if suite.contested else both[::-1]


def rows(suite, columns=None):
    """Headings, then a row of text for each case, by some columns or all."""
    found = own_columns(suite) + (columns or list(chain(*parts(suite))))
    return [
        [heading for heading, _ in found],
        *([function(cell) for _, function in found] for cell in suite.ours),
    ]


def peer_tables(suite):
    """(title, rows) of what every implementation of each case took: by kernels, by calls, and of the host;
    what attends to rotated inputs stands in tables of its own."""
    own = own_columns(suite)
    known = dict.fromkeys([*OURS, *(name for c in suite.cells for name in c.records)])
    known = [name for name in known if any(name in c.records for c in suite.cells)]

    def table(names, text):
        body = [[*(f(c) for _, f in own), *(text(c.records.get(n, {})) for n in names)] for c in suite.cells]
        return [[*(heading for heading, _ in own), *(n.removesuffix(ROTATED) for n in names)], *body]

    def timing(measure):
        def text(record):
            if measure not in record:
                return "-"
            t = record[measure]
            return f"{seconds(t['seconds']['median'])} {100 * t['ratio']['median']:.0f} %"

        return text

    def host(record):
        return seconds(record["eager"]["host_seconds"]) if record else "-"

    records = [r for c in suite.cells for r in c.records.values()]
    measured = [("Kernels alone", timing("replay"))] * any("replay" in r for r in records)
    measured.append(("Calls", timing("eager")))
    apart = any(r["eager"]["host_seconds"] != r["eager"]["seconds"]["median"] for r in records)
    measured += [("The host's part of a call", host)] * apart
    alone = [name for name in known if name.endswith(ROTATED)]
    kinds = {"": [name for name in known if name not in alone], ROTATED: alone}
    return [
        (title + kind, table(names, text))
        for title, text in measured
        for kind, names in kinds.items()
        if names
    ]


def tables_read(suite):
    """A line that says what tables the calls read; none where none is known to."""
    found = {}
    for implementation, record in (item for c in suite.cells for item in c.records.items()):
        if record["table_bytes"]:
            found.setdefault(implementation, []).append(record["table_bytes"])
    texts = [f"{n} {span(sizes, size)}" for n, sizes in found.items()]
    return [f"tables that a call reads, apart from these bytes: {', '.join(texts)}"] * bool(texts)


def declined(suite):
    """A line for each implementation and reason."""
    return [
        f"{name} declined {counted(count, 'case')}: {' '.join(reason.split())}"
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
    rest = "".join(f", {words} in {suite.count(s)}" for s, words in NOT_FIRST.items() if suite.count(s))
    return f"first in {suite.count('first')}{rest} of {len(suite.contested)}{mark}"


def measure(suite):
    """What is compared, and from which run the rest comes."""
    text = " or ".join(
        MEASURES[m] for m in MEASURES if any(c.measure == m for c in suite.contested or suite.cells)
    )
    return text + f", of the peers' run; {BORROWED} kernels alone, of the tool's own run" * suite.borrowed


def fitting(suite, width):
    """The table of a suite, its columns in two where one line of Markdown would be wider."""
    whole = rows(suite)
    if len(markdown(whole).partition("\n")[0]) <= width:
        return [whole]
    return [rows(suite, columns) for columns in parts(suite)]


def divided(suite):
    return "\n\n".join(map(markdown, fitting(suite, WIDTH)))


def bullets(lines):
    return "".join(f"- {line}\n" for line in lines)


def suite_markdown(name, suite):
    lines = bullets(wrong(suite) + tables_read(suite) + declined(suite))
    table = f"\n\nBy {measure(suite)}.\n\n{divided(suite)}" if suite.ours else ""
    return f"### {name}: {tally(suite)}{table}\n" + f"\n{lines}" * bool(lines)


def error_rows(machines):
    """Largest error of cos and sin below each number of positions, on any of some machines."""
    found = {}
    for machine in machines:
        for key, points in errors(machine).items():
            known = found.setdefault(key, {})
            known |= {p: max(error, known.get(p, 0)) for p, error in points.items()}
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


def span(values, text):
    """The least and the largest of some values in words; - of none."""
    ends = [text(end(values)) for end in (min, max) if values]
    return "..".join(dict.fromkeys(ends)) or "-"
