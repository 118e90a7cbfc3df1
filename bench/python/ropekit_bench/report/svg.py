"""Line charts as SVG. Standard library alone."""

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
WIDTH, HEIGHT = 400, 270


def style(count):
    """CSS of charts with as many series."""
    rules = [
        ".chart text{font:12px system-ui,sans-serif;fill:currentColor}",
        ".chart .title{font-weight:600;font-size:13px}",
        ".axis,.mesh,.line{fill:none;stroke:currentColor}.mesh{opacity:.15}",
        ".copy{fill:none;stroke:currentColor;stroke-width:1.5;stroke-dasharray:5 4}",
    ]
    for i in range(count):
        width = 2.6 if i == 0 else 1.4
        rules.append(f".s{i}{{stroke:{COLOURS[i % len(COLOURS)]};stroke-width:{width};marker:url(#k{i})}}")
    return "".join(rules)


def definitions(count):
    """Markers k0 to kN of the series."""
    markers = "".join(
        f'<marker id="k{i}" viewBox="-4 -4 8 8" markerWidth="8" markerHeight="8" '
        'markerUnits="userSpaceOnUse">'
        f'<path d="{MARKERS[i % len(MARKERS)]}" fill="{COLOURS[i % len(COLOURS)]}"/></marker>'
        for i in range(count)
    )
    return f"<defs>{markers}</defs>"


def short(value):
    """A tick's label of a few characters: K and M of tokens are powers of two."""
    for unit, scale in (("M", 1 << 20), ("K", 1 << 10)):
        if value >= scale and value % scale == 0:
            return f"{value // scale:g}{unit}"
    return f"{value:g}"


def even(high, most=6):
    """Round values from 0 to at least high."""
    step = 10 ** math.floor(math.log10(high / most))
    step = next(step * m for m in (1, 2, 2.5, 5, 10) if high / (step * m) <= most)
    return [step * i for i in range(math.ceil(high / step - 1e-9) + 1)]


def chart(title, series, labels, reference):
    """A figure sized to its container: series are (class, points), x is logarithmic, labels those of x and y,
    reference a dashed line at a y."""
    xs = [math.log2(a) for _, points in series for a, _ in points]
    ticks = even(max([b for _, points in series for _, b in points] + [reference]))
    left, right, top, bottom = 44, WIDTH - 18, 42, HEIGHT - 40

    def x(value):
        return round(left + (math.log2(value) - min(xs)) / (max(xs) - min(xs) or 1) * (right - left), 1)

    def y(value):
        return round(bottom + value / ticks[-1] * (top - bottom), 1)

    size = min(13, 1.45 * (WIDTH - 16) / len(title))  # a letter is about .69 of it wide, bold
    out = [
        f'<svg class="chart" role="img" aria-label="{escape(title)}" viewBox="0 0 {WIDTH} {HEIGHT}">',
        f'<text class="title" style="font-size:{size:.3g}px" x="8" y="16">{escape(title)}</text>',
        f'<text x="8" y="33">{escape(labels[1])}</text>',
        f'<path class="mesh" d="{"".join(f"M{left} {y(t)}H{right}" for t in ticks)}"/>',
        f'<path class="axis" d="M{left} {bottom}H{right}"/>',
        f'<path class="copy" d="M{left} {y(reference)}H{right}"/>',
    ]
    out += [f'<text x="{left - 6}" y="{y(t) + 4:g}" text-anchor="end">{short(t)}</text>' for t in ticks]
    first, last = math.ceil(min(xs) - 1e-9), math.floor(max(xs) + 1e-9)
    for power in range(first, last + 1, max(1, (last - first + 6) // 7)):
        out.append(f'<text x="{x(2**power)}" y="{bottom + 16}" text-anchor="middle">{short(2**power)}</text>')
    out.append(
        f'<text x="{(left + right) / 2}" y="{bottom + 33}" text-anchor="middle">{escape(labels[0])}</text>'
    )
    for name, points in series:
        found = " ".join(f"{x(a):g},{y(b):g}" for a, b in points)
        out.append(f'<polyline class="line {name}" points="{found}"/>')
    return "".join([*out, "</svg>"])


def key(name):
    """The sample of a legend's entry."""
    line = '<path class="copy" d="M0 6h28"/>'
    if name != "copy":
        line = f'<polyline class="line {name}" points="0,6 14,6 28,6"/>'
    return f'<svg class="key" viewBox="-2 0 32 12">{line}</svg>'
