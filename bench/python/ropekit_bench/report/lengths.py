"""Attention against length: its time and what rotation adds to it, of the runs that also timed attention on
rotated inputs. Standard library alone, for scripts/update_documents."""

import statistics
from itertools import chain

from ropekit_bench.report import svg
from ropekit_bench.report.model import (
    ALONE,
    BY_CUDA,
    BY_CUDNN,
    CALL,
    IN_TILES,
    ROTATED,
    is_deterministic,
    is_peer,
)
from ropekit_bench.report.svg import short
from ropekit_bench.report.tables import markdown, seconds

SUITES = {"attention": "forward", "attention-backward": "forward and backward"}
TOTAL, FEWEST = 16384, 3  # tokens in all, lengths that are drawn
TIME = ("tokens of a sequence", "us a token")
TAX = ("tokens of a sequence", "RoPE tax, %; dashed: beyond the same attention")
WORDS = {
    CALL: "ropekit, as it chooses",
    BY_CUDA: "ropekit, its CUDA kernels",
    BY_CUDNN: "ropekit, cuDNN",
    IN_TILES: "keys rotated in each tile",
}
NEVER_SLOWER, LONG = 0.99, 8192
ANY_ORDER = ", any order"  # in labels of cases that allow it
PAGES = " with keys in pages"


def families(suite, order=""):
    """Cells that differ in lengths alone, by title: 16K tokens in all and longer ones, and one sequence."""
    found = {}
    for c in sorted(suite.cells, key=lambda c: c.shape["tokens"]):
        s = c.shape
        if not c.attending or CALL not in c.records or not c.label.endswith(f" heads{order}"):
            continue
        title = f"{c.label.removesuffix(order)} of {s['head_dim']}, {s['dtype']}"
        if s["batch"] * s["tokens"] == TOTAL or (s["batch"] == 1 and s["tokens"] > TOTAL):
            found.setdefault(f"{title}, 16K tokens and more", []).append(c)
        if s["batch"] == 1:
            found.setdefault(f"{title}, one sequence", []).append(c)
    return {title: cells for title, cells in found.items() if len(cells) >= FEWEST}


def measured(cells):
    """Names of what rotates and attends."""
    names = dict.fromkeys(n for c in cells for n in c.records if not n.endswith(ROTATED))
    return [n for n in names if is_peer(n) or n in WORDS]


def chains(cells):
    """The fastest peer at some length, and what is deterministic."""
    fastest = {min(filter(is_peer, c.records), key=c.seconds, default=None) for c in cells}
    return [n for n in measured(cells) if n in fastest or is_deterministic(n)]


def shown(cells):
    return [n for n in WORDS if any(n in c.records for c in cells)] + chains(cells)


def points(cells, name, value):
    found = [(c.shape["tokens"], value(c)) for c in cells if name in c.records]
    return [(tokens, y) for tokens, y in found if y is not None]


def times(cells, known):
    def of(name):
        return lambda c: 1e6 * c.seconds(name) / (c.shape["batch"] * c.shape["tokens"])

    return [(classes, points(cells, n, of(n))) for n, classes in reversed(known.items())]


def tax_of(cell, name):
    """Beyond the fastest attention on rotated inputs, whosever it is."""
    return cell.seconds(name) / cell.attending - 1


def own_tax(cell, name):
    """Beyond the same attention on rotated inputs; None where that was not measured."""
    tax = cell.own_tax(name)
    return None if tax is None else tax - 1


def taxes(cells, known):
    found = []
    for name, classes in reversed(known.items()):
        own = points(cells, name, lambda c, n=name: None if own_tax(c, n) is None else 100 * own_tax(c, n))
        found += [(f"dashed {classes}", own)] * (len(own) > 1)
        found.append((classes, points(cells, name, lambda c, n=name: 100 * tax_of(c, n))))
    return found


def charts(suite, known):
    """Of each family its time and its tax, for the page, whose legend says which line is whose."""
    found = []
    for title, cells in families(suite).items():
        drawn = {n: known[n] for n in known if n in measured(cells)}
        found.append(svg.chart(title, times(cells, drawn), (400, 270), TIME, log_y=True))
        found.append(svg.chart(title, taxes(cells, drawn), (400, 270), TAX))
    return found


def pictured(machines):
    """(machine, title, cells by suite) of the figure: both directions before one, a GPU before a CPU, then
    the most cells."""
    found = []
    for machine in machines:
        by_suite = {name: families(machine.suites[name]) for name in SUITES if name in machine.suites}
        for title in dict.fromkeys(chain(*by_suite.values())):
            cells = {name: of_suite[title] for name, of_suite in by_suite.items() if title in of_suite}
            found.append((machine, title, cells))

    def rank(one):
        machine, _, cells = one
        return len(cells), machine.backend != "cpu", sum(map(len, cells.values()))

    return max(found, key=rank, default=None)


def figure(machines):
    """docs/attention.svg: a column for each direction, time above tax; "" where nothing was measured."""
    found = pictured(machines)
    if not found:
        return ""
    machine, title, by_suite = found
    names = shown([c for cells in by_suite.values() for c in cells])
    known = {name: f"s{i}" for i, name in enumerate(names)}
    panels = []
    for column, (name, cells) in enumerate(by_suite.items()):
        place = (400 * column, 24, 400, 330)
        panels.append(svg.panel(SUITES[name], times(cells, known), place, TIME, log_y=True))
        panels.append(svg.panel(SUITES[name], taxes(cells, known), (place[0], 364, 400, 330), TAX))
    entries = [(classes, WORDS.get(n, n)) for n, classes in known.items()]
    return svg.document(f"{machine.model}: {title}", panels, entries, height=704, columns=3)


def percent(value):
    return f"{100 * value:.1f} %"


def row(direction, cell, names):
    s = cell.shape
    texts = [
        f"{seconds(cell.seconds(n))}, {percent(tax_of(cell, n))}" if n in cell.records else "-" for n in names
    ]
    return [direction, f"{s['batch']} x {s['tokens']}", *texts]


def table(by_direction):
    names = shown([c for cells in by_direction.values() for c in cells])
    heading = ["", "B x T", *(WORDS.get(n, n) for n in names)]
    return markdown([heading, *(row(n, c, names) for n, cells in by_direction.items() for c in cells)])


def pairs(cell):
    """How the fastest of the peers compares with ours round by round; None where that was not measured."""
    rivals = [n for n in cell.peers if "low" in cell.records[n].get("beside_ropekit", {})]
    return cell.records[min(rivals, key=cell.seconds)]["beside_ropekit"] if rivals else None


def never_slower(suite):
    """A line for each kind of case: prompts, keys in pages, and sums that may have any order."""
    of = {ANY_ORDER: [c for c in suite.ours if c.label.endswith(ANY_ORDER)]}
    of[PAGES] = [c for c in suite.ours if "kv_cache" in c.shape.get("attention", {})]
    of[""] = [c for c in suite.ours if c not in of[ANY_ORDER] + of[PAGES]]
    found = []
    for kind in ("", PAGES, ANY_ORDER):
        ordered = not kind and any(is_deterministic(n) for c in of[kind] for n in c.peers)
        ratios = [r for c in of[kind] if (r := pairs(c))]
        if ratios:
            met = sum(r["low"] >= NEVER_SLOWER for r in ratios)
            mean = statistics.geometric_mean(r["median"] for r in ratios)
            found.append(
                f"Never slower than the fastest {'deterministic ' * ordered}peer in {met} of {len(ratios)} "
                f"cases{kind}: its time over ours, at the lower end of its 95 % interval, is at least "
                f"{NEVER_SLOWER}. Medians are {min(r['median'] for r in ratios):.3f} to "
                f"{max(r['median'] for r in ratios):.3f}, their geometric mean {mean:.3f}."
            )
    return found


def same_kernel(suite):
    """How far the times of one kernel are apart, chosen and named; none where that was not measured."""
    both = [c for c in suite.ours if BY_CUDNN in c.records and CALL in c.records]
    both = [c for c in both if c.records[CALL]["kernel"] == c.records[BY_CUDNN]["kernel"]]
    if not both:
        return []
    ratios = [c.seconds(BY_CUDNN) / c.seconds(CALL) for c in both]
    return [
        "The same kernel, named, takes "
        f"{min(ratios):.3f} to {max(ratios):.3f} of the time that it takes as the library's choice."
    ]


def rotated_again(cells):
    """What keys cost that each tile of queries rotates; none where that was not measured."""
    long = [c for c in cells if c.shape["tokens"] >= LONG and {IN_TILES, ALONE, CALL} <= set(c.records)]
    if not long:
        return []
    factors = [c.own_tax(IN_TILES) / c.own_tax(CALL) for c in long]
    ends = [
        f"{short(c.shape['tokens'])} its rotation adds {percent(own_tax(c, IN_TILES))} to the same "
        f"attention, once ahead {percent(own_tax(c, CALL))}"
        for c in (long[0], *long[1:][-1:])
    ]
    span = " to ".join(dict.fromkeys(f"{x:.2f}x" for x in (min(factors), max(factors))))
    return [
        f"A kernel that rotates keys again in each tile of 128 queries loses from {short(LONG)} tokens on by "
        f"{span}: at {', at '.join(ends)}."
    ]


def remarks(suite):
    """What the figures of a suite come to."""
    longest = max(families(suite).values(), key=lambda cells: cells[-1].shape["tokens"], default=[])
    return (never_slower(suite) + same_kernel(suite) + rotated_again(longest)) if longest else []


def document(machines):
    """The region of docs/attention.md."""
    found = pictured(machines)
    if not found:
        return "No run is in bench/results."
    machine, title, by_suite = found
    lines = [f"{SUITES[n].capitalize()}. {line}" for n in by_suite for line in remarks(machine.suites[n])]
    directions = {SUITES[n]: cells for n, cells in by_suite.items()}
    for n in by_suite:
        directions[f"{SUITES[n]}{ANY_ORDER}"] = families(machine.suites[n], ANY_ORDER).get(title, [])
    rounds = min(r["rounds"] for cells in directions.values() for c in cells for r in c.records.values())
    caption = f"{machine.name}, {title}, at least {rounds} rounds: time of a call and its RoPE tax."
    return "\n\n".join(
        ["![Time and RoPE tax against length](attention.svg)", caption, table(directions), *lines]
    )
