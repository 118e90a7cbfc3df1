"""ropekit-peers: times other packages beside ropekit, in one run on the same tensors."""

import argparse
import os
import re
import shutil
import sys

from tqdm import tqdm

from ropekit_bench import angles, results
from ropekit_bench.case import tensor_bytes
from ropekit_bench.compact import case_key
from ropekit_bench.operations import case_refusal
from ropekit_bench.peers import PARTS, PEERS, Absent, Peer
from ropekit_bench.report.model import CALL, OURS, ROTATED, Machine, counted
from ropekit_bench.report.tables import size, suite_markdown
from ropekit_bench.tool import Tool, ToolError

# Rounds of a run and of a quick one. Tensors above QUICK_BYTES are left out of a quick run on a CPU, where
# every peer takes as long as their bytes.
ROUNDS, QUICK_ROUNDS, QUICK_BYTES = 15, 3, 16 << 20
# What must be the same where a run is resumed.
RESUMED = (
    ("host", "cpu"),
    ("host", "threads"),
    ("host", "settings"),
    ("device", "backend"),
    ("device", "name"),
    ("device", "driver"),
)


def at_least_one(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number}; allowed is 1 and more")
    return number


def pattern(text):
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}; allowed is a regular expression") from error


def parse(arguments):
    parser = argparse.ArgumentParser(prog="ropekit-peers", description=__doc__)
    parser.add_argument("--suite", default="all", help="a suite of `ropekit bench`, or all")
    parser.add_argument("--output", required=True, help="file of results")
    parser.add_argument("--resume", action="store_true", help="keep what --output holds, measure the rest")
    parser.add_argument("--quick", action="store_true", help="fewer rounds and sizes, nothing compiled")
    parser.add_argument(
        "--rounds",
        type=at_least_one,
        help=f"rounds of a measurement [{ROUNDS}, quick {QUICK_ROUNDS}]; of attention what 60 s have, >= 5",
    )
    parser.add_argument(
        "--cases", type=pattern, help="regular expression found in the label or options of a case"
    )
    parser.add_argument(
        "--tax",
        action="store_true",
        help="attention: also backends of ropekit each by itself, and what attends alone on rotated inputs",
    )
    parser.add_argument("--seed", type=int, default=1, help="of the data [1]")
    parser.add_argument("--threads", type=int, default=0, help="threads on the CPU")
    parser.add_argument("--backend", help="ropekit's backend, as ROPE_BACKEND")
    parser.add_argument(
        "--tool", default=shutil.which("ropekit") or "ropekit", help="the ropekit tool [PATH]"
    )
    parser.add_argument("--library", help="libropekit.so [beside the tool]")
    parser.add_argument("--only", help="comma list of implementations beside ropekit")
    return parser.parse_args(arguments)


def is_wanted(name, only):
    """Whether --only leaves an implementation in; parts are of what it names, or ropekit's own."""
    whole = name.removesuffix(ROTATED) if name in PARTS else name
    return not only or whole in (*only, CALL) or (name in PARTS and whole in OURS)


def find_peers(tool, only, quick=False, parts=False):
    """Peers that can run, and a line for each that was looked for."""
    peers, lines = [], []
    unknown = [name for name in only or () if name not in PEERS]
    if unknown:
        raise ToolError(f"--only is {unknown[0]!r}; allowed is any of {', '.join(PEERS)}")
    for name in [*PEERS, *(PARTS if parts else ())]:
        if not is_wanted(name, only):
            continue
        try:
            peer = Peer(name, tool)
            if quick and peer.compiles and not only:
                raise Absent("left out of a quick run: each shape would be compiled; --only includes it")
            peers.append(peer)
            lines.append({"implementation": name, "version": peers[-1].version, "reason": ""})
        except Absent as error:
            lines.append({"implementation": name, "version": "", "reason": str(error)})
    return peers, lines


def begin(options, tool, lines):
    """A document, with the records of --output where --resume is given."""
    document = {
        **tool.header,
        "command": "peers",
        "quick": options.quick,
        "seed": options.seed,
        "rounds": options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS),
        "suites": {},
        **({"cases": options.cases.pattern} if options.cases else {}),
        "implementations": lines,
        "records": [],
    }
    if options.resume and os.path.exists(options.output):
        old = results.read(options.output)
        for member in ("command", "seed", "quick", "rounds", "cases", "build", "implementations"):
            if old.get(member) != document.get(member):
                raise results.ResultsError(f"--resume: {member} of {options.output} is not this run's")
        for part, member in RESUMED:
            was = old[part].get(member)
            if was != document[part].get(member):
                raise results.ResultsError(f"--resume: {member} of {options.output} is {was}")
        # What stands there was measured from then on, by those clocks and processors.
        for member in ("time", "host", "device", "records"):
            document[member] = old[member]
        document["suites"] = old.get("suites", {})
    return document


def save(document, path):
    document["complete"] = all(document["suites"].values())
    results.write(document, path)


def measured(document):
    """Cases with a record of every implementation: one that broke the device may have left the others."""
    present = {line["implementation"] for line in document["implementations"] if not line["reason"]}
    held = {}
    for r in document["records"]:
        held.setdefault(case_key(r), set()).add(r["implementation"])
    return {case for case, names in held.items() if present <= names}


def without_large(listed):
    """Those whose tensors are small enough for a quick run on a CPU."""
    small = [c for c in listed if tensor_bytes(c["shape"]) <= QUICK_BYTES]
    count = len(listed) - len(small)
    if count:
        what = f"{counted(count, 'case')} whose tensors exceed {size(QUICK_BYTES)}"
        print(f"ropekit-peers: left out {what}", file=sys.stderr)
    return small


def of_tool_alone(shape):
    return shape.get("launch") == "programmatic"


def cases(options, tool, document):
    """What is left to measure; states which suites it belongs to."""
    done = measured(document)
    if options.suite == "accuracy":
        return []
    listed = tool.list(options.suite, options.quick)["records"]
    listed = [c for c in listed if not of_tool_alone(c["shape"])]
    if options.cases:
        listed = [c for c in listed if options.cases.search(f"{c['label']} {c['case']}")]
        if not listed:
            raise ToolError(f"--cases is {options.cases.pattern!r}; allowed is what finds a case of --suite")
    if options.quick and tool.backend == "cpu":
        listed = without_large(listed)
    left = [c for c in listed if case_key(c) not in done]
    document["suites"] |= {c["suite"]: True for c in listed} | {c["suite"]: False for c in left}
    return left


def ranges(options, document):
    """Positions whose errors are left to measure; states whether the suite has any left."""
    if options.suite not in ("all", "accuracy"):
        return []
    held = {r["positions"] for r in document["records"] if r.get("suite") == "accuracy"}
    left = [positions for positions in angles.RANGES if positions not in held]
    document["suites"]["accuracy"] = not left
    return left


def take_broken(document, case):
    """Takes the records of peers that broke the device on this case, in an earlier process."""
    mine = [r for r in document["records"] if case_key(r) == case_key(case)]
    document["records"] = [r for r in document["records"] if r not in mine]
    return mine


def go_on(options, document, lost):
    """Goes on in a fresh process, whose device works; the peer that broke it is left out of the case."""
    document["records"].append(lost.record)
    save(document, options.output)
    print(f"{lost}; going on without it", file=sys.stderr)
    arguments = [a for a in sys.argv[1:] if a != "--resume"]
    os.execv(sys.executable, [sys.executable, "-m", "ropekit_bench.harness", *arguments, "--resume"])


def progress(total):
    """A bar with the time left, by what share of the work took how long."""
    layout = "{percentage:3.0f}%|{bar:28}| {elapsed}, {remaining} left{postfix}"
    return tqdm(total=total, bar_format=layout, smoothing=0, disable=None)


def weight(tool, case):
    """Of a case in the progress bar: its set-up and looks, and the bytes that take as long as these."""
    if case_refusal(case["shape"]):
        return 0
    alike = 16 << 20 if tool.backend == "cpu" else 2 << 30
    return 1 + tensor_bytes(case["shape"]) / alike


def measure(options, tool, peers, document):
    listed, left = cases(options, tool, document), ranges(options, document)
    save(document, options.output)  # a file that cannot be written is known before anything takes time
    import torch

    from ropekit_bench.compare import Comparison, DeviceLost
    from ropekit_bench.compiled import fill_cache

    torch.set_num_threads(tool.threads)
    comparison = Comparison(tool, peers, options.seed, document["rounds"])
    fill_cache(peers, listed, comparison.torch_device, tool.threads)
    with progress(sum(weight(tool, c) for c in listed) + len(left)) as bar:
        for index, case in enumerate(listed):
            bar.set_postfix_str(f"{case['suite']} {case['shape']['tokens']}")
            broken = take_broken(document, case)
            try:
                document["records"] += comparison.run(case, broken)
            except DeviceLost as lost:
                document["records"] += broken
                go_on(options, document, lost)
            document["suites"][case["suite"]] = all(c["suite"] != case["suite"] for c in listed[index + 1 :])
            save(document, options.output)
            bar.update(weight(tool, case))
        for positions in left:
            document["records"] += angles.measure(peers, comparison.torch_device, options.seed, positions)
            document["suites"]["accuracy"] = positions == left[-1]
            save(document, options.output)
            bar.update()


def print_tables(document):
    for name, suite in Machine("", [document]).suites.items():
        print(f"\n{suite_markdown(name, suite)}")
    for line in document["implementations"]:
        if line["reason"]:
            print(f"absent: {line['implementation']}: {line['reason']}")


def main(arguments=None):
    options = parse(arguments)
    try:
        tool = Tool(options.tool, options.library, options.threads, options.backend)
        only = options.only and options.only.split(",")
        peers, lines = find_peers(tool, only, options.quick, options.tax)
        document = begin(options, tool, lines)
        ended = False
        try:
            measure(options, tool, peers, document)
            ended = True
        except KeyboardInterrupt:
            print("interrupted; what was measured is kept, --resume measures the rest", file=sys.stderr)
        clocks = tool.list("overhead", False)["device"].get("clocks", [])
        for sample in clocks[:1]:
            document["device"].setdefault("clocks", [])[1:] = [{**sample, "moment": "end"}]
        save(document, options.output)
        results.check(document, options.output)
    except (ToolError, results.ResultsError, OSError) as error:
        print(f"ropekit-peers: {error}", file=sys.stderr)
        return 2
    print_tables(document)
    return 0 if ended else 1


if __name__ == "__main__":
    sys.exit(main())
