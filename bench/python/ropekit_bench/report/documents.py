"""What runs come to, as Markdown: regions of README.md and docs/benchmarks.md, and docs/figures.md."""

from statistics import geometric_mean, median

from ropekit_bench.report.model import CALL, is_peer, machines
from ropekit_bench.report.tables import (
    MARKS,
    cell_name,
    duration,
    factor,
    markdown,
    percent,
    reached,
    span,
    suite_rows,
    tally,
    verdict,
)

NONE = "No run is in bench/results."
WORK = {"append": "append", "attention": "attention", "attention-backward": "attention and its backward"}
DECODED = "attention-decode"  # a suite, whose table is decode_rows
WORK[DECODED] = "append and attention"
OF_THE_PAGE = ("A/A", "call", "over naive", "runs")  # columns that figures.md goes without
SIZES = ("batch", "tokens", "q_heads", "k_heads", "head_dim", "dtype")
ROTATED = ", rotated before"  # ends the label of a case whose q and k had rotated
# Heading: name of the row.
ALONE = {"FA3 alone": "ropekit + FA3", "cuDNN alone": "ropekit + cuDNN"}
BESIDE_DECODE = {
    "FA3, appends too": "FlashAttention 3",
    "FA3, keys in a row": "ropekit + FA3",
    "cuDNN, keys in a row": "ropekit + cuDNN",
}
MOST_BEHIND = 4  # of a suite, the largest losses


def listed(names):
    """Alternatives in a sentence."""
    *ahead, last = sorted(names, key=str.lower)
    return f"{', '.join(ahead)} or {last}" if ahead else last


def overview(found):
    """README's figures: a prompt's rotation beside a copy on a GPU, and how often an append and a prompt's
    attention are first."""
    lines = []
    for machine in [m for m in found if m.backend != "cpu" and m.has_peers]:
        if prefill := machine.suites.get("prefill"):
            said = f"is what rotating a prompt reaches on an {machine.short}"
            count = len(prefill.shares)
            share = percent(median(prefill.shares))
            lines.append(f"- **{share}** of a copy's speed {said}, the median of {count} cases.")
        append = machine.suites.get("append")
        if append and append.contested:
            names = {n.split()[0] for c in append.contested for n in c.rows if is_peer(n)}
            first = f"**{append.count('first')} of {len(append.contested)}** KV-cache writes"
            others = f"than {listed(names)}"
            lines.append(f"- {first}, norm and rotation included, are faster on an {machine.short} {others}.")
        if prompts := contested_prompts(machine):
            first = f"**{sum(c.standing == 'first' for c in prompts)} of {len(prompts)}** prompts' attentions"
            names = {peer_name(n) for c in prompts for n in c.peers}
            others = f"than a rotation and then {listed(names)}"
            behind = sum(c.standing in ("lost", "missing") for c in prompts)
            lines.append(
                f"- {first}, rotation included, are faster on an {machine.short} {others}, {behind} slower."
            )
    return "\n".join(lines) or NONE


def peer_name(name):
    """Of a package in full, without what runs ahead of it."""
    short = name.removeprefix("ropekit + ").split()[0]
    return "FlashAttention 3" if short == "FA3" else short


def what(cell):
    """What is rotated, kept and seen in a case of attention."""
    return cell.shape.get("attention", {})


def contested_prompts(machine):
    """Cases of attention of prompts, or parts of them, that rotate and have a peer."""
    suite = machine.suites.get("attention")
    cells = suite.contested if suite else []
    return [c for c in cells if what(c).get("rotate") in ("qk", "q") and c.shape["tokens"] > 1]


def kind(suite):
    return WORK.get(suite.name, "rotation")


def kinds(machine):
    """Cells of each kind of work, by what is called."""
    found = {}
    for suite in machine.suites.values():
        found.setdefault(kind(suite), []).extend(suite.cells)
    return found


def lead(cells):
    """The mean of our speed over the fastest peer's."""
    leads = [c.lead for c in cells if c.lead]
    return factor(geometric_mean(leads)) if leads else "-"


def device_rows(found):
    """A row for each device and kind of work."""
    rows = [["device", "work", "cases", "of a copy's speed", "first", "mean speed over the best peer"]]
    for machine in found:
        for name, cells in kinds(machine).items():
            shares, contested = [c.share for c in cells if c.share], [c for c in cells if c.standing]
            first = (
                f"{sum(c.standing == 'first' for c in contested)} of {len(contested)}" if contested else "-"
            )
            share = percent(median(shares)) if shares else "-"
            rows.append([machine.short, name, str(len(cells)), share, first, lead(contested)])
    return rows


def devices(found):
    """The first table of benchmarks.md."""
    return markdown(device_rows(found)) if found else NONE


def lost(machine):
    """(suite, cell) of every case in which ours is behind, the largest loss first."""
    cells = [(s, c) for s in machine.suites.values() for c in s.cells if c.standing in ("lost", "missing")]
    return sorted(cells, key=lambda pair: pair[1].lead or 0)


def losses(found):
    """The table of benchmarks.md: where a peer is ahead, and by how much."""
    rows = [["device", "suite", "behind in", "speed over the peer's", "peers"]]
    for machine in found:
        for name, suite in machine.suites.items():
            cells = [c for s, c in lost(machine) if s is suite]
            if cells:
                peers = ", ".join(sorted({c.rival for c in cells}))
                leads = span([c.lead for c in cells if c.lead], factor)
                rows.append([machine.short, name, f"{len(cells)} of {len(suite.contested)}", leads, peers])
    return markdown(rows) if len(rows) > 1 else "In no case."


def grid(found):
    """A row for each suite of what moves bytes, a column for each machine."""
    names = dict.fromkeys(n for m in found for n, s in m.suites.items() if s.shares)
    share = lambda s: percent(median(s.shares)) if s and s.shares else "-"  # noqa: E731
    return [
        ["suite", *(m.short for m in found)],
        *([n, *(share(m.suites.get(n)) for m in found)] for n in names),
    ]


def rates(machine):
    """GB/s against tokens, of the rotation that most models share."""
    suite = machine.suites.get("prefill")
    cells = (
        [c for c in suite.cells if c.label == "Llama-3-8B" and c.shape["dtype"] == "bf16"] if suite else []
    )
    rows = [
        [str(c.shape["tokens"]), reached(c), f"{c.rate(c.ours['copy']):.4g} GB/s", verdict(c)]
        for c in cells
        if c.ours
    ]
    return [["tokens", "ropekit", "copy", "against the best peer"], *rows]


def cases(suite):
    """Each case of a suite of append or of attention, but for those that length_rows has."""
    rows = [row for row in suite_rows(suite) if not row[0].endswith(ROTATED)]
    kept = [i for i, heading in enumerate(rows[0]) if heading not in OF_THE_PAGE]
    return [[row[i] for i in kept] for row in rows]


def alone(cell, name):
    """What a peer takes for inputs that had rotated before."""
    return duration(cell.time(name)[0]) if name in cell.rows else "-"


def length_rows(machine):
    """Prompts against length, then with gradients, beside the same whose q and k had rotated before."""
    rows = [["", "B", "T", "ropekit", "reaches", "over the best chain", "tax", "rotated before", *ALONE]]
    for name in [n for n in ("attention", "attention-backward") if n in machine.suites]:
        cells = {(c.label, *(c.shape[n] for n in SIZES)): c for c in machine.suites[name].cells}
        for key, own in sorted(cells.items(), key=lambda x: (x[1].shape["tokens"], x[1].shape["batch"])):
            c = cells.get((key[0].removesuffix(ROTATED), *key[1:]))
            if key[0].endswith(ROTATED) and c and CALL in c.rows and CALL in own.rows:
                tax = percent(c.seconds(CALL) / own.seconds(CALL) - 1, 1)
                first = [WORK[name], str(c.shape["batch"]), str(c.shape["tokens"])]
                others = [duration(own.time(CALL)[0]), *(alone(own, peer) for peer in ALONE.values())]
                rows.append([*first, duration(c.time(CALL)[0]), reached(c), verdict(c), tax, *others])
    return rows


def of_keys(cell):
    """The order of cases of decode: what is alike by keys and sequences."""
    others = cell.label.split(" keys")[0].rpartition(", ")[0]
    return others, what(cell).get("keys", 0), cell.shape["batch"]


def decode_rows(machine):
    """Tokens decoded by a call that rotates, appends and attends, beside what does the same or less."""
    cells = [c for c in machine.suites[DECODED].cells if CALL in c.rows] if DECODED in machine.suites else []
    rows = [["case", "B", "ropekit", "of copy", "beside who appends too", *BESIDE_DECODE]]
    for c in sorted(cells, key=of_keys):
        own = [duration(c.time(CALL)[0]), percent(c.ours["share"], 1)]
        others = [alone(c, name) for name in BESIDE_DECODE.values()]
        rows.append([c.label, str(c.shape["batch"]), *own, verdict(c), *others])
    return rows


def behind_rows(machine):
    """Of suites that have no table of their own."""
    rows, shown = [["suite", "case", "", "ropekit", "peer"]], {}
    for suite, c in (pair for pair in lost(machine) if pair[0].name not in WORK):
        shown[suite.name] = shown.get(suite.name, 0) + 1
        if shown[suite.name] <= MOST_BEHIND:
            ours = duration(c.time("ropekit")[0]) if c.lead else "-"
            rows.append([suite.name, cell_name(suite, c), verdict(c), ours, duration(c.time(c.rival)[0])])
    return rows


def models(runs):
    """Tokens per second of Transformers' models, as scripts/model_speed.py found them."""
    parts = []
    for run in (r for r in runs if r["command"] == "models"):
        kinds = dict.fromkeys(kind for case in run["cases"] for kind in case["speed"])
        rows = [["model", "task", *kinds]]
        for case in run["cases"]:
            speed = [f"{case['speed'][k]:.0f}" if k in case["speed"] else "-" for k in kinds]
            rows.append([case["model"], case["task"], *speed])
        parts.append(f"{run['device']['name']}:\n\n{markdown(rows)}")
    return "\n\n".join(parts)


def run_rows(runs):
    """Runs of one device, command, day and build in one row, beside whom any of them was."""
    found = {}
    for run in (r for r in runs if r.get("device")):
        build = run["build"]
        built = ", ".join(
            filter(None, (build["compiler"], build["toolkit"], run["device"].get("driver", "")))
        )
        key = run["device"]["name"], f"{run['command']}, {run['time'][:10]}", build["library"], built
        beside = [i for i in run.get("implementations", ()) if i["version"] and is_peer(i["implementation"])]
        named = found.setdefault(key, {})  # in order
        named |= {f"{i['implementation']} {i['version']}": None for i in beside}
    rows = [[*key, ", ".join(named)] for key, named in found.items()]
    return [["device", "run", "ropekit", "built by", "beside"], *rows]


def figures(runs):
    """docs/figures.md; ropekit-report --html has the rest."""
    found = machines(runs)
    if not found:
        return NONE
    parts = ["## Share of a copy's speed", markdown(grid(found))]
    for machine in found:
        parts += [f"## {machine.name}: {tally([c for s in machine.suites.values() for c in s.cells])}"]
        if len(rates(machine)) > 1:
            parts += ["### Rotation of Llama-3-8B's heads, bf16", markdown(rates(machine))]
        if len(length_rows(machine)) > 1:
            parts += [
                "### Attention's time and its rotation's tax against length",
                markdown(length_rows(machine)),
            ]
        if len(decode_rows(machine)) > 1:
            parts += ["### A token decoded in one call", markdown(decode_rows(machine))]
        for name in WORK:
            if name in machine.suites and name != DECODED:
                parts += [
                    f"### {name}: {tally(machine.suites[name].cells)}",
                    markdown(cases(machine.suites[name])),
                ]
        if len(behind_rows(machine)) > 1:
            parts += [
                f"### Where a peer is ahead: at most {MOST_BEHIND} cases of a suite",
                markdown(behind_rows(machine)),
            ]
    if models(runs):
        parts += ["## Tokens per second of models", models(runs)]
    return "\n\n".join([*parts, "## Runs", markdown(run_rows(runs))])


def parallel(found):
    """Of results of scripts/context_parallel.py: each method beside one device and its prediction."""
    parts = []
    for run in found:
        device = f"{run['ranks']} x {run['device']}, {run['backend'].upper()}"
        heads = "/".join(map(str, run["heads"]))
        heading = f"### {device}: {heads} heads of {run['head_dim']}, {run['dtype'].removeprefix('torch.')}"
        tokens = [length["tokens"] for length in run["lengths"]]
        if tokens:
            heading += f", {min(tokens)} to {max(tokens)} tokens"
        timed = ["measured", "of one device's speed", "exposed", "predicted", "predicted exposed"]
        rows = [["tokens", "pass", "", *timed, "in a graph", "of one device's"]]
        for length in run["lengths"]:
            for name in ("forward", "forward and backward"):
                times = length.get(name, {})
                rows += parallel_rows([str(length["tokens"]), name], times)
        parts += [heading, markdown(rows)]
    return "\n\n".join(parts) or NONE


def parallel_rows(case, times):
    one = times.get("one device", {})
    for method, row in times.items():
        if "refused" in row:
            yield [*case, method, row["refused"], *"------"]
            continue
        keys = ("exposed_s", "predicted_s", "predicted_exposed_s")
        told = (duration(row[k] * 1e9) if row.get(k, 0) > 0 else "0" if k in row else "-" for k in keys)
        captured = ["-", "-"]
        if "captured_s" in row:
            captured = [duration(row["captured_s"] * 1e9), speed(one, row, "captured_s")]
        yield [*case, method, duration(row["s"] * 1e9), speed(one, row, "s"), *told, *captured]


def speed(one, row, key):
    return f"{one[key] / row[key]:.2f}x"


def served(found):
    """Of results of scripts/vllm_speed.py: tokens per second of prompts, and of what is made of them."""
    parts = []
    for run in found:
        rows = [
            ["dtype", "prompts", "prompt: vLLM's own", "ropekit", "", "decoded: vLLM's own", "ropekit", ""]
        ]
        for case in run["cases"]:
            row = [case["dtype"], f"{case['batch']} x {case['prompt']}"]
            for part in (case["first"], case["rest"]):
                speeds = (f"{part[f'{name}_tokens_per_s']:.0f}" for name in ("own", "ropekit"))
                row += [*speeds, f"{part['ratio']:.2f}x"]
            rows.append(row)
        threads = f"{run['threads']} thread{'s' if run['threads'] > 1 else ''}"
        parts += [f"### {run['device']}, {threads}, vLLM {run['vllm']}", markdown(rows)]
    return "\n\n".join(parts) or NONE


def summary(runs):
    """The Markdown summary of some runs."""
    marks = ", ".join(MARKS.values())
    return f"# ropekit against copies and peers\n\nMarks: {marks}.\n\n{figures(runs)}\n"
