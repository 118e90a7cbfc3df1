"""The page: one self-contained HTML file."""

from functools import partial

import jinja2

from ropekit_bench.report import plots, summary, tables


def implementations(machine):
    return [
        ["implementation", "version", "called, or absent because"],
        *(
            [i["implementation"], i["version"] or "absent", i["reason"] or summary.called(machine, i) or "-"]
            for i in machine.implementations
        ),
    ]


def render(machines, drawn=lambda: None):
    """The page of some machines; calls drawn() after each of the figures that plots.count() counts."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__, "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )
    return environment.get_template("page.html.j2").render(
        machines=machines,
        suite_plots=partial(plots.suite_plots, drawn=drawn),
        machine_plots=partial(plots.machine_plots, drawn=drawn),
        rows=tables.rows,
        peer_rows=tables.peer_rows,
        tally=tables.tally,
        measure=tables.measure,
        declined=tables.declined,
        wrong=tables.wrong,
        tables_read=tables.tables_read,
        not_first=summary.not_first,
        error_rows=tables.error_rows,
        implementations=implementations,
    )
