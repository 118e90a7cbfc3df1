"""The page: one self-contained HTML file, what matters first, all else folded."""

from html import escape

from ropekit_bench.report import documents, svg, tables
from ropekit_bench.report.model import CALL, counted, machines

STYLE = """
:root { color-scheme: light dark; --page: #fff; --ink: #1b1f24; --quiet: #59636e; --line: #d5dae0;
  --won: #0b6b3a; --lost: #a4161a; --level: #4a4f55; }
@media (prefers-color-scheme: dark) { :root { --page: #14171b; --ink: #e6e9ed; --quiet: #9aa4b0;
  --line: #343b44; --won: #6fdc9c; --lost: #ff9a94; --level: #c3cad2; } }
body { margin: 0 auto; max-width: 78rem; padding: .8rem 1rem; background: var(--page); color: var(--ink);
  font: 1rem/1.45 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { margin: 0; font-size: 1.5rem; } h2 { font-size: 1.1rem; } h3 { font-size: 1rem; }
summary { cursor: pointer; } summary :is(h2, h3) { display: inline; }
.quiet { color: var(--quiet); font-size: .8125rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .8125rem; font-variant-numeric: tabular-nums;
  overflow-wrap: normal; }
th, td { padding: .2rem .5rem; border-bottom: 1px solid var(--line); text-align: left; white-space: nowrap; }
.won, .level, .lost { font-weight: 600; }
.won { color: var(--won); } .level { color: var(--level); } .lost { color: var(--lost); }
.legend { display: flex; flex-wrap: wrap; gap: .1rem 1.2rem; padding: 0; list-style: none;
  font-size: .8125rem; }
.legend svg { width: 32px; height: 12px; margin-right: .4rem; }
.plots { display: grid; gap: 1rem;
  grid-template-columns: repeat(auto-fill, minmax(min(22rem, 100%), 1fr)); }
.chart { width: 100%; height: auto; display: block; max-width: 40rem; }
details { border-top: 1px solid var(--line); padding: .35rem 0; }
"""
TITLE = "ropekit against copies and peers"
INTRODUCTION = """A figure is compared with a copy of the same bytes on the same device in the same round. A
case counts as first where quartiles and the copy's difference from itself leave no doubt."""
LOOK = {"▲": "won", "▼": "lost", "≈": "level", "◇": "level"}


def table(rows):
    head = "".join(f'<th scope="col">{escape(text)}' for text in rows[0])
    body = ""
    for row in rows[1:]:
        look = [f' class="{LOOK[text[0]]}"' if text[:1] in LOOK else "" for text in row]
        body += "<tr>" + "".join(f"<td{c}>{escape(t)}" for c, t in zip(look, row, strict=True))
    return f'<div class="scroll" tabindex="0"><table><thead><tr>{head}</thead><tbody>{body}</table></div>'


def folded(title, *parts):
    return f"<details><summary>{title}</summary>{''.join(parts)}</details>" if any(parts) else ""


def bullets(lines):
    return f"<ul>{''.join(f'<li>{escape(line)}' for line in lines)}</ul>" if lines else ""


def looks(machine):
    """The class of every implementation, on every figure of a machine: ours first."""
    names = dict.fromkeys([CALL, *(n for s in machine.suites.values() for c in s.cells for n in c.rows)])
    return {name: f"s{i}" for i, name in enumerate(names)}


def shares(cell):
    """Percent of the copy's speed by implementation."""
    if not cell.ours:
        return {}
    found = {name: 100 * cell.ours["copy"] / cell.time(name)[0] for name in cell.rows}
    return found | {CALL: 100 * cell.ours["share"]}


def charts(suite, known):
    """Percent of the copy's speed against tokens, of cells that differ in tokens alone."""
    groups = {}
    for c in suite.cells:
        title = ", ".join(
            filter(None, (c.label, c.shape["dtype"], f"D {c.shape['head_dim']}", c.case["cache"]))
        )
        groups.setdefault((title, c.measure), []).append(c)
    found = []
    for (title, measure), cells in groups.items():
        series = []
        for name, look in reversed(known.items()):
            points = [(c.shape["tokens"], s[name]) for c in cells if name in (s := shares(c))]
            if len({tokens for tokens, _ in points}) > 2:
                series.append((look, points))
        labels = ("tokens", f"% of the copy's speed, {tables.MEASURES[measure]}; dashed: the copy")
        found += [svg.chart(title, series, labels, 100)] if series else []
    return f'<div class="plots">{"".join(found)}</div>' if found else ""


def suite_section(name, suite, known):
    rows = tables.suite_rows(suite)
    return folded(
        f"<h3>{escape(name or 'as given')}</h3>: {escape(tables.tally(suite.cells))}",
        charts(suite, known),
        f'<p class="quiet">Times of {tables.measure(suite)}.</p>{table(rows)}' if len(rows) > 1 else "",
        folded("Every implementation", table(tables.peer_rows(suite))) if suite.contested else "",
        bullets(tables.tables_read(suite)),
        folded("Declined", bullets(tables.declined(suite))) if suite.declined else "",
    )


def section(machine):
    known = looks(machine)
    entries = [*known.items(), ("a copy of the same bytes", "copy")]
    legend = "".join(f"<li>{svg.key(look)}{escape(name)}" for name, look in entries)
    absent = [i for run in machine.runs for i in run.get("implementations", ()) if i["reason"]]
    return folded(
        f"<h2>{escape(machine.name)}</h2>",
        f'<ul class="legend">{legend}</ul>',
        *(suite_section(name, suite, known) for name, suite in machine.suites.items()),
        folded("Absent", bullets([f"{i['implementation']}: {i['reason']}" for i in absent]))
        if absent
        else "",
    )


def render(runs):
    found = machines(runs)
    count = max(len(looks(m)) for m in found)
    behind = [table([["device", *documents.behind_rows(m)[0]], *([m.short, *row] for row in rows)])
              for m in found if (rows := documents.behind_rows(m)[1:])]  # fmt: skip
    wrong = [
        f'<p class="lost">{escape(f"{m.name}: WRONG, not timed: {line}")}</p>'
        for m in found
        for line in m.wrong
    ]
    cells = {m.short: [c for s in m.suites.values() for c in s.cells] for m in found}
    standing = [f"{name}: {tables.tally(of)} ({counted(len(of), 'case')})" for name, of in cells.items()]
    return "".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{TITLE}</title><style>{STYLE}{svg.style(count)}</style></head><body>",
            '<svg width="0" height="0" style="position:absolute" aria-hidden="true">',
            f"{svg.definitions(count)}</svg>",
            f'<h1>{TITLE}</h1><p class="quiet">{INTRODUCTION}</p>{"".join(wrong)}',
            f"<h2>How do devices compare?</h2>{table(documents.device_rows(found))}",
            f"<h2>How close to a copy is each suite?</h2>{table(documents.grid(found))}",
            f"<h2>Where is a peer ahead?</h2>{bullets(standing)}{''.join(behind)}",
            "<h2>Everything else</h2>",
            *map(section, found),
            folded("Runs", table(documents.run_rows(runs))),
            "</body></html>\n",
        ]
    )
