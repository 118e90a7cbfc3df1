#!/usr/bin/env python3
"""plot.py OUT.svg RESULT.json...  draws each record's share of its copy floor, from `ropekit bench
--json` results, one series a file. Needs matplotlib (docs/dependencies.md)."""

import json
import sys

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams["svg.hashsalt"] = "ropekit"  # the same input gives the same file
from matplotlib import pyplot


def series(path):
    with open(path, encoding="utf-8") as file:
        result = json.load(file)
    records = [r for r in result["records"] if r["measure"] == "kernel"]
    device = f'{result["device"]["name"]} ({records[0]["kernel"]})'
    return device, [r["case"] for r in records], [100 * r["ratio"]["median"] for r in records]


def main(out, *paths):
    figure, axes = pyplot.subplots(figsize=(9, 4.5), layout="constrained")
    for path in paths:
        device, cases, shares = series(path)
        axes.plot(range(len(cases)), shares, marker="o", label=device)
        axes.set_xticks(range(len(cases)), cases, rotation=60, ha="right", fontsize=8)
    axes.axhline(100, color="0.6", linewidth=1)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("% of the copy bandwidth of the same bytes")
    axes.legend(frameon=False)
    figure.savefig(out, metadata={"Date": None})


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
