#!/usr/bin/env python3
"""plot.py OUT.svg RESULT.json...  draws the share of the copy floor against the number of tokens, for
bf16 at the Llama-3-8B shape, from `ropekit bench --json` results, one series a file. Needs matplotlib
(docs/dependencies.md)."""

import json
import re
import sys

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams["svg.hashsalt"] = "ropekit"  # the same input gives the same file
from matplotlib import pyplot


SHAPE = re.compile(r"--tokens=(\d+) --dtype=bf16 --q-heads=32 --k-heads=8 --head-dim=128 --cache=cold$")


def series(path):
    with open(path, encoding="utf-8") as file:
        result = json.load(file)
    points = {}
    for record in result["records"]:
        match = SHAPE.match(record["case"])
        if match and record["measure"] == "kernel":
            points[int(match[1])] = 100 * record["ratio"]["median"]
    device = result["device"]
    return f'{device["name"]} ({device["backend"]})', sorted(points.items())


def main(out, *paths):
    figure, axes = pyplot.subplots(figsize=(7, 3), layout="constrained")
    for path in paths:
        device, points = series(path)
        axes.plot(*zip(*points), marker="o", label=device)
    axes.axhline(100, color="0.6", linewidth=1)
    axes.set_xscale("log", base=2)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("tokens, bf16, 32 query and 8 key heads of 128")
    axes.set_ylabel("% of copy bandwidth")
    axes.legend(frameon=False)
    figure.savefig(out, metadata={"Date": None})


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
