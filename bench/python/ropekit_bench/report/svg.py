"""Line charts as SVG. Standard library alone, so that documents are drawn and checked without a package."""

import math
from html import escape

# Contrast of 3 and more on white and on near-black. A series is told by its colour and its marker.
COLOURS = ("#d9480f", "#a65f00", "#3b7dd8", "#1b8f6b", "#9b5fd0", "#b8862b")
COLOURS += ("#6f8f1f", "#c0568f", "#2f8f9d", "#8a6d5a", "#7b8794", "#5c6bc0")
MARKERS = (
    "M0-3.2A3.2 3.2 0 1 1 0 3.2A3.2 3.2 0 1 1 0-3.2Z",
    "M-3-3H3V3H-3Z",
    "M0-3.8L3.6 2.8H-3.6Z",
    "M0-4L4 0L0 4L-4 0Z",
    "M0 3.8L3.6-2.8H-3.6Z",
    "M-1-4H1V-1H4V1H1V4H-1V1H-4V-1H-1Z",
)


def style(count):
    """CSS of charts with as many series. k0 to kN are the ids of definitions()."""
    rules = [
        ".chart text{font:12px system-ui,sans-serif;fill:currentColor}",
        ".chart .title{font-weight:600;font-size:13px}",
        ".axis,.mesh,.line{fill:none;stroke:currentColor}",
        ".mesh{opacity:.15}",
        ".copy{fill:none;stroke:currentColor;stroke-width:1.5;stroke-dasharray:5 4}",
    ]
    for i in range(count):
        width = 2.6 if i == 0 else 1.4
        rules.append(f".s{i}{{stroke:{COLOURS[i % len(COLOURS)]};stroke-width:{width};marker:url(#k{i})}}")
    return "".join(rules) + ".line.dashed{stroke-width:1.2;stroke-dasharray:4 3;marker:none}"


def definitions(count):
    markers = "".join(
        f'<marker id="k{i}" viewBox="-4 -4 8 8" markerWidth="8" markerHeight="8" '
        'markerUnits="userSpaceOnUse">'
        f'<path d="{MARKERS[i % len(MARKERS)]}" fill="{COLOURS[i % len(COLOURS)]}"/></marker>'
        for i in range(count)
    )
    return f"<defs>{markers}</defs>"


def short(value):
    """A tick's label of a few characters: K and M of tokens are powers of two."""
    if value < 0:
        return f"-{short(-value)}"
    for unit, scale in (("M", 1 << 20), ("K", 1 << 10)):
        if value >= scale and value % scale == 0:
            return f"{value // scale:g}{unit}"
    return f"{value:g}" if value == 0 or value >= 0.01 else f"{value:.0e}".replace("e-0", "e-")


def powers(low, high, base, most):
    """Powers of base between low and high, so few that their labels fit; of 10 also 2 and 5 times a power
    where there are hardly any."""
    ends = [math.floor(math.log(end, base) + 1e-9) for end in (low, high)]
    step = -(-(ends[1] - ends[0] + 1) // most)
    found = [base**e if e >= 0 else 1 / base**-e for e in range(ends[0], ends[1] + 1, step)]
    if base == 10 and ends[1] - ends[0] < 2:
        found = [m * power for power in found for m in (1, 2, 5)]
    return [value for value in found if 0.99 * low <= value <= high]


def even(low, high, most=6):
    """Round values from low, or a fourth of a step above it, and 0 to at least high."""
    low, high = min(low, 0), max(high, 1e-9)
    step = 10 ** math.floor(math.log10((high - low) / most))
    step = next(step * m for m in (1, 2, 2.5, 5, 10) if (high - low) / (step * m) <= most)
    return [step * i for i in range(math.floor(low / step + 0.25), math.ceil(high / step - 1e-9) + 1)]


class Axis:
    """Values to pixels, from start to end."""

    def __init__(self, values, start, end, base=None, most=7):
        self.start, self.end, self.base = start, end, base
        if base:
            self.low, self.high = (math.log(v) for v in (min(values), max(values)))
            self.ticks = powers(min(values), max(values), base, most)
        else:
            self.ticks = even(min(values), max(values))
            self.low, self.high = self.ticks[0], self.ticks[-1]

    def __call__(self, value):
        value = math.log(value) if self.base else value
        share = (value - self.low) / (self.high - self.low or 1)
        return round(self.start + share * (self.end - self.start), 1)


def path(points, x, y):
    return " ".join(f"{x(a):g},{y(b):g}" for a, b in points)


def panel(title, series, box, labels, log_y=False, reference=None):
    """A chart in box = (left, top, width, height): series are (classes, points), labels those of x and y."""
    left, top, width, height = box
    xs = [a for _, points in series for a, _ in points]
    ys = [b for _, points in series for _, b in points] + [reference] * (reference is not None)
    right, bottom = left + width - 18, top + height - 40
    x = Axis(xs, left + 44, right, 2)
    y = Axis(ys, bottom, top + 42, 10 if log_y else None)
    size = min(13, 1.45 * (width - 16) / len(title))  # a letter is about .69 of it wide, bold
    style = f'style="font-size:{size:.3g}px"'
    out = [f'<text class="title" {style} x="{left + 8}" y="{top + 16}">{escape(title)}</text>']
    out.append(f'<text x="{left + 8}" y="{top + 33}">{escape(labels[1])}</text>')
    grid = "".join(f"M{x.start} {y(t):g}H{right}" for t in y.ticks)
    out.append(f'<path class="mesh" d="{grid}"/><path class="axis" d="M{x.start} {bottom}H{right}"/>')
    for t in y.ticks:
        out.append(f'<text x="{x.start - 6}" y="{y(t) + 4:g}" text-anchor="end">{short(t)}</text>')
    for t in x.ticks:
        out.append(f'<text x="{x(t):g}" y="{bottom + 16}" text-anchor="middle">{short(t)}</text>')
    out.append(
        f'<text x="{(x.start + right) / 2:g}" y="{bottom + 33}" text-anchor="middle">{labels[0]}</text>'
    )
    if reference is not None:
        out.append(f'<path class="copy" d="M{x.start} {y(reference):g}H{right}"/>')
    out += [f'<polyline class="line {classes}" points="{path(points, x, y)}"/>' for classes, points in series]
    return "".join(out)


def chart(title, series, size, labels, **more):
    """A figure of its own, sized to its container."""
    width, height = size
    return (
        f'<svg class="chart" role="img" aria-label="{escape(title)}" viewBox="0 0 {width} {height}">'
        f"{panel(title, series, (0, 0, width, height), labels, **more)}</svg>"
    )


def sample(classes, x, y):
    """A line of a legend, 28 wide."""
    if classes == "copy":
        return f'<path class="copy" d="M{x} {y}h28"/>'
    return f'<polyline class="line {classes}" points="{x},{y} {x + 14},{y} {x + 28},{y}"/>'


def key(classes):
    """The sample of a legend's entry in HTML."""
    return f'<svg class="key" viewBox="-2 0 32 12">{sample(classes, 0, 6)}</svg>'


def document(title, panels, entries, height=354, columns=4):
    """A file: panels of 400 by 330, `height` in all, above one legend of (class, name), on a ground of its
    own in light and dark."""
    count = 1 + max((int(classes[1:]) for classes, _ in entries if classes != "copy"), default=0)
    top, pitch = height + 34, 784 // columns
    labels = []
    for i, (classes, name) in enumerate(entries):
        x, y = 12 + pitch * (i % columns), top + 22 * (i // columns)
        labels.append(f'{sample(classes, x, y)}<text x="{x + 38}" y="{y + 4}">{escape(name)}</text>')
    height = top + 22 * ((len(entries) - 1) // columns) + 18
    scheme = "svg{color:#1b1f24;background:#fff}"
    scheme += "@media(prefers-color-scheme:dark){svg{color:#e6e9ed;background:#14171b}}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="0 0 800 {height}" width="800" '
        f'height="{height}"><style>{scheme}{style(count)}</style>{definitions(count)}'
        f'<text class="title" x="8" y="17">{escape(title)}</text>{"".join(panels + labels)}</svg>\n'
    )
