"""Predicted costs of attention over many devices: python -m ropekit.distributed --help.

No device is used, and nothing is measured. The rates are inputs: `scripts/context_parallel.py`
measures.
"""

from __future__ import annotations

import argparse
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


def _numbers(text: str) -> list[int]:
    return [int(x) for x in text.split(",")]


def main(arguments: list[str] | None = None) -> None:
    summary = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser("python -m ropekit.distributed", description=summary)
    parser.add_argument("--flops", type=float, required=True, help="of attention, of a device")
    parser.add_argument("--bandwidth", type=float, required=True, help="bytes a second each way")
    parser.add_argument("--latency", type=float, default=2e-5, help="seconds of a transfer")
    parser.add_argument("--ranks", type=_numbers, default=[8, 64, 1024])
    parser.add_argument("--tokens", type=_numbers, default=[1 << 17, 1 << 20, 1 << 24])
    parser.add_argument("--heads", type=_numbers, default=[32, 8], help="of q and of k")
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--backward", action="store_true", help="a forward and its backward")
    given = parser.parse_args(arguments)
    rates = Rates(given.flops, given.bandwidth, given.latency)
    heads, k_heads = given.heads
    for ranks in given.ranks:
        for tokens in given.tokens:
            call = Call(tokens, ranks, heads, k_heads, given.head_dim, backward=given.backward)
            print(told(call, rates), end="\n\n")


if __name__ == "__main__":
    main()
