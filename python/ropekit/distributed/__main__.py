"""Predicted costs of attention over many devices: python -m ropekit.distributed --help.

No device is used, and nothing is measured. The rates are inputs: `scripts/context_parallel.py`
measures.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace

from ropekit.distributed import Call, Rates, costs

HIDDEN = 0.05  # of a call's computing, which what is exposed of the exchange stays below


def hidden_from(call: Call, rates: Rates, method: str) -> int | None:
    """The first power of two of tokens of which the exchange hides behind computing."""
    for power in range(10, 31):
        longer = replace(call, tokens=1 << power)
        row = next(row for row in costs(longer, rates).rows if row.method == method)
        if row.exposed_s <= HIDDEN * row.compute_s:
            return longer.tokens
    return None


def told(call: Call, rates: Rates) -> str:
    found = costs(call, rates)
    lines = [f"{call.tokens} tokens on {call.ranks} devices, predicted:", str(found)]
    for row in found.rows:
        first = hidden_from(call, rates, row.method)
        sent = row.sent_bytes / call.tokens
        lines.append(f"{row.method}: {sent:.4g} bytes a token, exchange hidden from {first} tokens")
    return "\n".join(lines)


def table(calls: Sequence[Call], rates: Sequence[Rates]) -> str:
    """The same of several calls and links as Markdown."""
    links = [f"{x.bandwidth / 1e9:g} GB/s" for x in rates]
    heads = ["GPUs", "tokens", "method", "KB a token", "MB held", "compute, ms"]
    heads += [f"exposed by {link}, ms" for link in links] + [f"hidden by {link}" for link in links]
    lines = [heads, [":--" if x == "method" else "--:" for x in heads]]
    for call in calls:
        of_links = [costs(call, each).rows for each in rates]
        for rows in zip(*of_links, strict=True):
            first = rows[0]
            sizes = first.sent_bytes / call.tokens / 1e3, first.memory_bytes / 1e6
            times = first.compute_s, *(row.exposed_s for row in rows)
            hidden = [hidden_from(call, each, first.method) for each in rates]
            line = [str(call.ranks), _short(call.tokens), first.method]
            line += [_rounded(x) for x in (*sizes, *(1e3 * x for x in times))]
            lines.append(line + ["never" if x is None else f"from {_short(x)}" for x in hidden])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _short(tokens: int) -> str:
    for power, letter in ((20, "M"), (10, "K")):
        if tokens % (1 << power) == 0:
            return f"{tokens >> power}{letter}"
    return str(tokens)


def _rounded(x: float) -> str:
    return f"{x:.0f}" if x >= 100 else f"{x:.2g}"


def _numbers(text: str) -> list[int]:
    return [int(x) for x in text.split(",")]


def main(arguments: list[str] | None = None) -> None:
    summary = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser("python -m ropekit.distributed", description=summary)
    parser.add_argument("--flops", type=float, required=True, help="of attention, of a device")
    parser.add_argument("--bandwidth", required=True, help="bytes a second each way, of each link")
    parser.add_argument("--latency", type=float, default=2e-5, help="seconds of a transfer")
    parser.add_argument("--ranks", type=_numbers, default=[8, 64, 1024])
    parser.add_argument("--tokens", type=_numbers, default=[1 << 17, 1 << 20, 1 << 24])
    parser.add_argument("--heads", type=_numbers, default=[32, 8], help="of q and of k")
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--backward", action="store_true", help="a forward and its backward")
    parser.add_argument("--table", action="store_true", help="Markdown, all links side by side")
    given = parser.parse_args(arguments)
    links = [Rates(given.flops, float(x), given.latency) for x in given.bandwidth.split(",")]
    heads, k_heads = given.heads
    calls = [
        Call(tokens, ranks, heads, k_heads, given.head_dim, backward=given.backward)
        for ranks in given.ranks
        for tokens in given.tokens
    ]
    if given.table:
        print(table(calls, links))
        return
    for rates in links:
        for call in calls:
            print(told(call, rates), end="\n\n")


if __name__ == "__main__":
    main()
