"""Figures of a machine as SVG that takes its text colour from the page."""

import io
import re
from functools import partial
from html import escape

import matplotlib
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

from ropekit_bench.report.model import BASELINE, OURS, bandwidth_lines, stamp
from ropekit_bench.report.tables import error_name, errors

matplotlib.use("svg")
# Stands for the page's text colour until the SVG is written.
INK = "#010203"
# Ours first and strongest; all keep a contrast of 3 on white and on near-black.
COLOURS = (
    "#d9480f",
    "#a65f00",
    "#3b7dd8",
    "#1b8f6b",
    "#9b5fd0",
    "#b8862b",
    "#6f8f1f",
    "#c0568f",
    "#2f8f9d",
    "#8a6d5a",
    "#7b8794",
    "#5c6bc0",
)
MARKERS = "osv^DPX<>ph*"
LONG_NAME = 36  # characters of which two do not go side by side
STYLE = {
    "font.size": 8.5,
    "svg.fonttype": "none",
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "grid.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 7.5,
    "lines.markersize": 4,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
}


def to_svg(draw, title):
    """Runs draw(axes) on a new figure; the SVG, sized to its container, or "" where draw had no data."""
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": title}):
        figure = Figure(figsize=(5.2, 3.4), layout="constrained")
        axes = figure.add_subplot()
        if not draw(axes):
            return ""
        axes.set_title(title, fontsize=9)
        FigureCanvasSVG(figure)  # whose measures of text the layout takes
        figure.get_layout_engine().execute(figure)
        figure.set_layout_engine(None)  # for which savefig would draw the figure once more
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    svg = out.getvalue().replace(INK, "currentColor")
    svg = re.sub(r' (?:width|height)="[0-9.]+pt"', "", svg[svg.index("<svg") :])
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    return svg.replace("<svg ", f'<svg role="img" aria-label="{escape(title)}" ', 1)


def style(names):
    """Colour, marker and width of each name; the same on every figure of a page."""
    others = [n for n in names if n not in OURS]
    order = [n for n in OURS if n in names] + others
    looks = {}
    for name in order:
        index = OURS.index(name) if name in OURS else 2 + others.index(name) % (len(COLOURS) - 2)
        looks[name] = {
            "color": COLOURS[index],
            "marker": MARKERS[index],
            "linewidth": 2.2 if name in OURS else 1.1,
            "zorder": 3 if name in OURS else 2,
        }
    return looks


class Plain(LogFormatter):
    """Labels the ticks that Matplotlib would, by plain numbers: its own are formulas, and to parse them takes
    half of the time of a figure."""

    def __call__(self, x, pos=None):
        return f"{x:.9g}" if super().__call__(x, pos) else ""


def set_plain(axis, base=10):
    axis.set_major_formatter(Plain(base))
    axis.set_minor_formatter(Plain(base))


def finish(axes, label, log_y=False):
    axes.set_xscale("log", base=2)
    set_plain(axes.xaxis, 2)
    if log_y:
        axes.set_yscale("log")
        set_plain(axes.yaxis)
    else:
        axes.set_ylim(bottom=0)
    axes.set_xlabel("tokens")
    axes.set_ylabel(label)
    names = axes.get_legend_handles_labels()[1]
    if names:
        axes.legend(ncols=2 if max(map(len, names)) <= LONG_NAME else 1)


def lines(axes, cells, looks, value):
    """A line for each implementation; whether any was drawn."""
    drawn = False
    for name, look in looks.items():
        points = [(c.shape["tokens"], value(c, name)) for c in cells if name in c.records]
        points = [(x, y) for x, y in points if y is not None]
        if len(points) > 1:
            axes.plot(*zip(*points, strict=True), label=name, **look)
            drawn = True
    return drawn


# What is drawn of each group of cells.
AGAINST_TOKENS = ("bandwidth", "of the floor", "speed-up")


def groups(suite):
    """Cells of a suite, all by replay or all eager, that differ in tokens alone, by title."""
    found = {}
    for c in suite.cells:
        title = ", ".join(
            filter(
                None, (suite.name, c.label, c.shape["dtype"], f"D {c.shape['head_dim']}", c.cache, c.measure)
            )
        )
        found.setdefault(title, []).append(c)
    return {title: cells for title, cells in found.items() if len(cells) > 2}


def suite_plots(machine, suite, drawn=lambda: None):
    """Bandwidth, percent of the floor and speed-up against tokens; calls drawn() after each."""

    def bandwidth(axes, cells):
        floor = [(c.shape["tokens"], next(iter(c.records.values()))["floor"]["gb_per_second"]) for c in cells]
        axes.plot(*zip(*floor, strict=True), color=INK, linestyle="--", label="copy floor")
        drawn = lines(axes, cells, looks, lambda c, n: c.timing(n)["gb_per_second"])
        finish(axes, "GB/s")
        return drawn

    def percent(axes, cells):
        axes.axhline(100, color=INK, linestyle="--", linewidth=1)
        drawn = lines(axes, cells, looks, lambda c, n: 100 * c.timing(n)["ratio"]["median"])
        finish(axes, "% of this device's copy floor")
        return drawn

    def speedup(axes, cells):
        axes.axhline(1, color=INK, linestyle="--", linewidth=1)
        drawn = lines(axes, [c for c in cells if BASELINE in c.records], looks, lambda c, n: c.speedup(n))
        finish(axes, f"times {BASELINE}", log_y=True)
        return drawn

    looks, found = looks_of(machine), []
    for title, cells in groups(suite).items():
        for what, draw in zip(AGAINST_TOKENS, (bandwidth, percent, speedup), strict=True):
            found.append(to_svg(partial(draw, cells=cells), f"{title}: {what}"))
            drawn()
    return [svg for svg in found if svg]


def error_plot(machine, looks):
    """Error of cos and sin against position; angle modes of one implementation differ in their dashes."""

    def draw(axes):
        found = errors(machine)
        for (name, mode), points in found.items():
            axes.plot(
                *zip(*sorted(points.items()), strict=True),
                label=error_name(name, mode),
                linestyle={"f32": "--", "table": ":"}.get(mode, "-"),
                **looks[name],
            )
        finish(axes, "largest error of cos and sin", log_y=True)
        axes.set_xlabel("positions below")
        return bool(found)

    return to_svg(draw, "error against position")


def host_plot(machine, looks):
    """The host's time for one eager call of the smallest case, the one that most implementations ran."""
    cells = [c for s in machine.suites.values() for c in s.cells]
    cell = min(cells, key=lambda c: (c.shape["tokens"], -len(c.records)), default=None)

    def draw(axes):
        names = sorted(cell.records, key=lambda n: cell.records[n]["eager"]["host_seconds"], reverse=True)
        for name in names:
            value = 1e6 * cell.records[name]["eager"]["host_seconds"]
            axes.plot([value], [name], marker="o", markersize=7, color=looks[name]["color"])
        axes.set_xscale("log")
        set_plain(axes.xaxis)
        axes.set_xlabel(f"us of the host for one eager call, {cell.shape['tokens']} tokens")
        return len(names) > 1

    return to_svg(draw, "host cost") if cell else ""


def looks_of(machine):
    names = [n for s in machine.suites.values() for c in s.cells for n in c.records]
    return style(list(dict.fromkeys(names + [name for name, _ in errors(machine)])))


# What is drawn of each machine.
MACHINE_PLOTS = (error_plot, host_plot)


def machine_plots(machine, drawn=lambda: None):
    """What belongs to no suite; calls drawn() after each."""
    looks, found = looks_of(machine), []
    for plot in MACHINE_PLOTS:
        found.append(plot(machine, looks))
        drawn()
    return [svg for svg in found if svg]


def count(machine):
    """How often suite_plots and machine_plots call drawn()."""
    return sum(len(groups(s)) for s in machine.suites.values()) * len(AGAINST_TOKENS) + len(MACHINE_PLOTS)


def standalone(machines):
    """The figure of the README: percent of the floor against tokens, a line for each machine."""

    def draw(axes):
        axes.axhline(100, color=INK, linestyle="--", linewidth=1)
        for index, (name, points) in enumerate(bandwidth_lines(machines).items()):
            look = {"color": COLOURS[2 * index % len(COLOURS)], "marker": MARKERS[index % len(MARKERS)]}
            axes.plot(*zip(*points, strict=True), label=name, **look)
        finish(axes, "% of copy bandwidth, replay")
        return True

    svg = to_svg(draw, "bf16, 32 query and 8 key heads of 128")
    scheme = "svg{color:#1b1f24}@media(prefers-color-scheme:dark){svg{color:#e6e9ed}}"
    return re.sub(r"(<svg [^>]*>)", rf"\1<!-- {stamp(machines)} --><style>{scheme}</style>", svg, count=1)
