"""The page: one self-contained HTML file, its opening screen first, all else folded."""

from collections import Counter
from itertools import groupby
from statistics import median

import jinja2

from ropekit_bench.report import lengths, plots, summary, svg, tables
from ropekit_bench.report.model import counted

# Least share of the floor's speed for a shade of the grid, and the shade.
SHADES = ((0.95, "a"), (0.85, "b"), (0.7, "c"), (0.5, "d"), (0, "e"))


def shade(ratios):
    return next(name for least, name in SHADES if median(ratios) >= least)


def devices(machines):
    """(device, machines) of each device: they follow each other."""
    return [(name, len(list(same))) for name, same in groupby(machines, key=lambda m: m.model)]


def spread(ratios):
    return f"{100 * min(ratios):.0f} to {100 * max(ratios):.0f} % in {counted(len(ratios), 'case')}"


def bar(machine):
    """(class, cases) of how the call stands beside the peers."""
    count = Counter(c.standing for s in machine.suites.values() for c in s.contested)
    look = {"first": "won", "level": "level", "unsettled": "unsettled", "lost": "lost", "missing": "lost"}
    return [(look[standing], count[standing]) for standing in look if count[standing]]


def lost(machine):
    return [found for found in summary.behind(machine) if found[0] in ("lost", "missing")]


def undecided(machine):
    return [found for found in summary.behind(machine) if found[0] in ("level", "unsettled")]


def implementations(machine):
    return [
        ["implementation", "version", "called, or absent because"],
        *(
            [i["implementation"], i["version"] or "absent", i["reason"] or summary.called(machine, i) or "-"]
            for i in machine.implementations
        ),
    ]


def render(machines):
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__, "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    known = plots.looks(machines)
    chart, entries = plots.devices(machines)
    count = max(len(known), len(entries))
    return environment.get_template("page.html.j2").render(
        machines=machines,
        chart=chart,
        entries=entries,
        known=known,
        style=svg.style(count),
        definitions=svg.definitions(count),
        key=svg.key,
        devices=devices(machines),
        shade=shade,
        spread=spread,
        bar=bar,
        lost=lost,
        undecided=undecided,
        implementations=implementations,
        lengths=lengths,
        plots=plots,
        summary=summary,
        tables=tables,
    )
