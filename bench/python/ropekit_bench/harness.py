"""ropekit-peers: times other packages beside ropekit, in one run on the same tensors."""

import argparse
import re
import shutil
import sys

from tqdm import tqdm

from ropekit_bench import results
from ropekit_bench.cases.base import tensor_bytes
from ropekit_bench.peers import PEERS, Absent, Peer
from ropekit_bench.report.model import CALL, Machine, counted
from ropekit_bench.report.tables import size, suite_markdown
from ropekit_bench.tool import Tool, ToolError

# Rounds of a run and of a quick one. Tensors above QUICK_BYTES are left out of a quick run on a CPU, where
# every peer takes as long as their bytes.
ROUNDS, QUICK_ROUNDS, QUICK_BYTES = 15, 3, 16 << 20


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
    parser.add_argument("--output", required=True, help="file of results")
    parser.add_argument("--suite", default="all", help="a suite of `ropekit bench`, or all")
    parser.add_argument("--cases", type=pattern, help="regular expression in the label or options of a case")
    parser.add_argument("--only", help="comma list of implementations beside ropekit")
    parser.add_argument("--quick", action="store_true", help="fewer rounds and sizes, nothing compiled")
    parser.add_argument(
        "--rounds",
        type=at_least_one,
        help=f"rounds of a measurement [{ROUNDS}, quick {QUICK_ROUNDS}]; of attention what 60 s have, >= 5",
    )
    parser.add_argument("--seed", type=int, default=1, help="of the data [1]")
    parser.add_argument("--threads", type=int, default=0, help="threads on the CPU")
    parser.add_argument("--backend", help="ropekit's backend, as ROPE_BACKEND")
    parser.add_argument(
        "--tool", default=shutil.which("ropekit") or "ropekit", help="the ropekit tool [PATH]"
    )
    parser.add_argument("--library", help="libropekit.so [beside the tool]")
    return parser.parse_args(arguments)


def find_peers(tool, only, quick=False):
    """Peers that can run, and a line for each that was looked for."""
    peers, lines = [], []
    unknown = [name for name in only or () if name not in PEERS]
    if unknown:
        raise ToolError(f"--only is {unknown[0]!r}; allowed is any of {', '.join(PEERS)}")
    for name in (name for name in PEERS if not only or name in (*only, CALL)):
        try:
            peer = Peer(name, tool)
            if quick and peer.compiles and not only:
                raise Absent("left out of a quick run: each shape would be compiled; --only includes it")
            peers.append(peer)
            lines.append({"implementation": name, "version": peer.version, "reason": ""})
        except Absent as error:
            lines.append({"implementation": name, "version": "", "reason": str(error)})
    return peers, lines


def begin(options, tool, lines):
    """A document without records."""
    return {
        **tool.header,
        "command": "peers",
        "quick": options.quick,
        "seed": options.seed,
        "rounds": options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS),
        **({"cases": options.cases.pattern} if options.cases else {}),
        "implementations": lines,
        "records": [],
    }


def without_large(listed):
    """Those whose tensors are small enough for a quick run on a CPU."""
    small = [c for c in listed if tensor_bytes(c["shape"]) <= QUICK_BYTES]
    count = len(listed) - len(small)
    if count:
        what = f"{counted(count, 'case')} whose tensors exceed {size(QUICK_BYTES)}"
        print(f"ropekit-peers: left out {what}", file=sys.stderr)
    return small


def cases(options, tool):
    """What is to be measured: launches that start early are the tool's alone."""
    listed = tool.list(options.suite, options.quick)["records"]
    listed = [c for c in listed if c["shape"].get("launch") != "programmatic"]
    if options.cases:
        listed = [c for c in listed if options.cases.search(f"{c['label']} {c['case']}")]
        if not listed:
            raise ToolError(f"--cases is {options.cases.pattern!r}; allowed is what finds a case of --suite")
    return without_large(listed) if options.quick and tool.backend == "cpu" else listed


def measure(options, tool, peers, document):
    listed = cases(options, tool)
    results.write(
        document, options.output
    )  # a file that cannot be written is known before anything takes time
    import torch

    from ropekit_bench.compare import Comparison

    torch.set_num_threads(tool.threads)
    comparison = Comparison(tool, peers, options.seed, document["rounds"])
    for case in tqdm(listed, disable=None):
        document["records"] += comparison.run(case)
        results.write(document, options.output)


def print_tables(document):
    for name, suite in Machine("", [results.short(document)]).suites.items():
        print(f"\n{suite_markdown(name, suite)}")
    for line in document["implementations"]:
        if line["reason"]:
            print(f"absent: {line['implementation']}: {line['reason']}")


def main(arguments=None):
    options = parse(arguments)
    try:
        tool = Tool(options.tool, options.library, options.threads, options.backend)
        peers, lines = find_peers(tool, options.only and options.only.split(","), options.quick)
        document, ended = begin(options, tool, lines), False
        try:
            measure(options, tool, peers, document)
            ended = True
        except KeyboardInterrupt:
            print("interrupted; what was measured is kept", file=sys.stderr)
        except RuntimeError as error:  # a peer broke the device
            print(f"{error}; what was measured is kept", file=sys.stderr)
        results.write(document, options.output)
        results.check(document, options.output)
    except (ToolError, results.ResultsError, OSError) as error:
        print(f"ropekit-peers: {error}", file=sys.stderr)
        return 2
    print_tables(document)
    return 0 if ended else 1


if __name__ == "__main__":
    sys.exit(main())
