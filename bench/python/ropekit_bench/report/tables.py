"""Tables of a suite as rows of text, and as Markdown, which reads well in a terminal too."""

from ropekit_bench.report.model import BASELINE, CALL, counted

MARKS = {
    "first": "▲ first",
    "lost": "▼ NOT first",
    "missing": "▼ NOT measured",
    "level": "≈ level",
    "unsettled": "◇ unsettled",
}
MEASURES = {"kernel": "kernels alone", "call": "calls"}


def duration(ns):
    for unit, scale in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if ns >= 0.9995 * scale:  # which three digits round to it
            return f"{ns / scale:.3g} {unit}"
    return f"{ns:.3g} ns"


def percent(ratio, digits=0):
    return f"{100 * ratio:.{digits}f} %"


def size(nbytes):
    for unit, scale in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= scale:
            return f"{nbytes / scale:.3g} {unit}"
    return f"{nbytes} B"


def span(values, text):
    """The least and the largest of some values in words; - of none."""
    ends = [text(end(values)) for end in (min, max) if values]
    return " to ".join(dict.fromkeys(ends)) or "-"


def factor(value):
    """A ratio of speeds, to a thousandth where it is near 1."""
    return f"{value:.3f}x" if 0.95 < value < 1.05 else f"{value:.2f}x"


def verdict(cell):
    """Whether ours is first, by how much, and who is the fastest peer."""
    if not cell.standing:
        return "alone"
    times = f", {factor(cell.lead)}" if cell.lead else ","
    return f"{MARKS[cell.standing]}{times} {cell.rival}"


def reached(cell):
    """What our kernel reaches: products where a call has many tokens, else bytes."""
    ns = cell.ours.get("kernel", cell.ours["call"])[0]
    if "flops" in cell.case and cell.shape["tokens"] > 1:
        return f"{1e-3 * cell.case['flops'] / ns:.3g} TFLOP/s"
    return f"{cell.rate(ns):.4g} GB/s"


def own_columns(suite):
    """What varies within a suite: heading and function of a cell."""
    columns = (
        ("case", lambda c: c.label),
        ("B", lambda c: str(c.shape["batch"])),
        ("T", lambda c: str(c.shape["tokens"])),
        ("D", lambda c: str(c.shape["head_dim"])),
        ("dtype", lambda c: c.shape["dtype"]),
        ("cache", lambda c: c.case["cache"]),
    )
    return [column for column in columns if suite.varies(column[1])] or [columns[2]]


def cell_name(suite, cell):
    """The cell in words, within its suite."""
    return " ".join(f"{heading} {text(cell)}" if heading in "BTD" else text(cell)
                    for heading, text in own_columns(suite))  # fmt: skip


def columns(suite):
    """Heading and function of a cell, of all that some cell has."""

    def of_ours(member, text):
        return lambda c: text(c.ours[member]) if member in c.ours else "-"

    def times(value):
        return factor(value) if value else "-"

    found = [("against the best peer", verdict)] * bool(suite.contested) + [
        ("ropekit", lambda c: duration(c.ours.get("kernel", c.ours["call"])[0])),
        ("reaches", reached),
        ("of copy", lambda c: percent(c.share, 1) if c.share else "-"),
        ("A/A", of_ours("a_a", lambda a_a: percent(abs(a_a - 1), 1))),
        ("call", lambda c: duration((c.rows.get(CALL) or c.ours)["call"][0])),
        ("over naive", lambda c: times(naive(c))),
        ("over steps", lambda c: times(c.over_steps)),
        ("runs", of_ours("runs", str)),
    ]
    cells = [c for c in suite.cells if c.ours]
    return [(heading, text) for heading, text in found if any(text(c) != "-" for c in cells)]


def naive(cell):
    return cell.seconds(BASELINE) / cell.seconds(CALL) if {BASELINE, CALL} <= cell.rows.keys() else None


def suite_rows(suite):
    """Headings, then a row of text for each case that ours ran."""
    found = own_columns(suite) + columns(suite)
    cells = [c for c in suite.cells if c.ours]
    return [[h for h, _ in found], *([text(c) for _, text in found] for c in cells)]


def peer_rows(suite):
    """What every implementation of each case took, by kernels alone where all have them."""
    own, names = own_columns(suite), list(dict.fromkeys(n for c in suite.cells for n in c.rows))
    rows = [
        [*(text(c) for _, text in own), *(duration(c.time(n)[0]) if n in c.rows else "-" for n in names)]
        for c in suite.cells
    ]
    return [[*(h for h, _ in own), *names], *rows]


def tables_read(suite):
    """A line that says what tables of cos and sin the calls read; none where none is known to."""
    found = {}
    for row in (row for c in suite.cells for row in c.rows.values() if "tables" in row):
        found.setdefault(row["name"], []).append(row["tables"])
    texts = [f"{name} {span(sizes, size)}" for name, sizes in found.items()]
    return [f"tables that a call reads beside these bytes: {', '.join(texts)}"] * bool(texts)


def declined(suite):
    """A line for each implementation and reason."""
    return [
        f"{name} declined {counted(count, 'case')}: {' '.join(reason.split())}"
        for (name, reason), count in sorted(suite.declined.items())
    ]


def tally(cells):
    """How many contested cases stand how; that there was no rival."""
    contested = [c for c in cells if c.standing]
    if not contested:
        return "no peer was measured"
    counts = [(words, sum(c.standing == s for c in contested)) for s, words in MARKS.items()]
    rest = "".join(f", {words} in {n}" for words, n in counts[1:] if n)
    return f"first in {counts[0][1]} of {len(contested)}{rest}"


def measure(suite):
    return " or ".join(MEASURES[m] for m in MEASURES if any(c.measure == m for c in suite.cells))


def markdown(table):
    """A Markdown table with aligned columns; columns that hold text stay left."""
    table = [[text.replace("|", "\\|") for text in row] for row in table]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    columns = zip(*table[1:], strict=True) if table[1:] else ()
    left = [any(text[:1].isalpha() or text[:1] in "▲≈◇▼" for text in c if text) for c in columns]
    left = [True, *left[1:]] if left else [True] * len(widths)

    def line(cells):
        found = zip(cells, widths, left, strict=True)
        return f"| {' | '.join(t.ljust(w) if is_left else t.rjust(w) for t, w, is_left in found)} |"

    rule = "|".join(
        "-" * (w + 1) + ("-" if is_left else ":") for w, is_left in zip(widths, left, strict=True)
    )
    return "\n".join([line(table[0]), f"|{rule}|", *map(line, table[1:])])


def suite_markdown(name, suite):
    lines = [f"- {line}" for line in tables_read(suite) + declined(suite)]
    table = [f"By {measure(suite)}.", markdown(suite_rows(suite))] if any(c.ours for c in suite.cells) else []
    return "\n\n".join([f"### {name}: {tally(suite.cells)}", *table, *(["\n".join(lines)] * bool(lines))])
