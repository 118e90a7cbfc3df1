"""What is asked of the CUDA backend, and whether the tool's run has it. Standard library alone."""

from dataclasses import dataclass

from ropekit_bench.report.model import CALL, run_name
from ropekit_bench.report.tables import markdown


def spread(summary, digits=3):
    return f"{summary['median']:.{digits}f} ({summary['low']:.{digits}f}..{summary['high']:.{digits}f})"


@dataclass(frozen=True)
class OfFloor:
    """A share of the floor's speed."""

    least: float

    def __str__(self):
        return f"at least {self.least:.3g} of the floor"

    def answer(self, record, _):
        ratio = record["replay"]["ratio"]
        return spread(ratio), "yes" if ratio["median"] >= self.least else "no"


@dataclass(frozen=True)
class Within:
    """A time on a device whose copy of the same bytes takes `copy`, which on another device is a share of its
    floor. Without `copy` the time alone."""

    us: float
    copy: float | None = None

    def __str__(self):
        share = f", {self.copy / self.us:.3f} of the floor" if self.copy else ""
        return f"at most {self.us:.2f} us{share}"

    def answer(self, record, _):
        us, ratio = 1e6 * record["replay"]["seconds"]["median"], record["replay"]["ratio"]
        timely = us <= self.us
        near = ratio["median"] >= self.copy / self.us if self.copy else timely
        met = {(True, True): "yes", (False, False): "no", (True, False): "time alone"}
        return f"{us:.2f} us, {spread(ratio)}", met.get((timely, near), "share alone")


@dataclass(frozen=True)
class Beside:
    """The time of another case, which `members` tell from this one, as a multiple of it."""

    members: dict
    name: str
    most: float
    least: float = 0

    def __str__(self):
        ends = f"{self.least:.2f} to" if self.least else "at most"
        return f"{ends} {self.most:.2f} times {self.name}"

    def answer(self, record, find):
        other = find(self.members)
        if other is None:
            return None
        ours, theirs = (r["replay"]["seconds"] for r in (record, other))
        ends = {"low": "high", "high": "low", "median": "median"}
        times = {end: ours[end] / theirs[opposite] for end, opposite in ends.items()}
        return spread(times), "yes" if self.least <= times["median"] <= self.most else "no"


@dataclass(frozen=True)
class HostAbove:
    """The host's time for a call above that for a copy kernel."""

    us: float

    def __str__(self):
        return f"host at most {self.us:.2g} us above a launch"

    def answer(self, record, _):
        if "host_seconds" not in record["floor"]:
            return None
        us = 1e6 * (record["eager"]["host_seconds"] - record["floor"]["host_seconds"])
        return f"{us:+.2f} us", "yes" if us <= self.us else "no"


def llama(suite, tokens, **members):
    label = "whole" if suite == "in-place" else "Llama-3-8B"
    return {"suite": suite, "label": label, "dtype": "bf16", "tokens": tokens, **members}


# Case, members of its record or shape, and what is asked of it: on an H100.
TARGETS = [
    *((f"Llama-3-8B bf16, T {t}", llama("prefill", t), OfFloor(least))
      for t, least in ((8192, 0.985), (32768, 0.99), (131072, 0.99), (2048, 0.94), (128, 0.83))),
    *((f"the same in place, T {t}", llama("in-place", t), OfFloor(least))
      for t, least in ((8192, 0.985), (32768, 0.99), (131072, 0.99))),
    *((f"decode, warm, T {t}", llama("decode", t), Within(us, copy))
      for t, us, copy in ((1, 1.28, 0.98), (8, 1.37, 1.02), (64, 1.66, 1.21), (256, 2.40, 1.69))),
    *((f"decode, warm, early launches, T {t}", llama("programmatic", t), Within(us))
      for t, us in ((1, 0.90), (8, 0.90), (64, 1.15), (256, 1.85))),
    ("f32, one tensor of 128 heads, T 8192", {"suite": "large", "dtype": "f32"}, OfFloor(0.99)),
    *((f"one head of 128, N 63488, {dtype}", {"suite": "tokens", "tokens": 63488, "dtype": dtype},
       OfFloor(least)) for dtype, least in (("f32", 0.97), ("f16", 0.92))),
    *((f"one warm head of {m}, f32, n {n}",
       {"suite": "single-head", "cache": "warm", "head_dim": m, "tokens": n}, OfFloor(0.9))
      for m in (128, 256) for n in (512, 1024, 2048, 4096)),
    *((f"interleaved, B 4, S 2048, H 8, D 64, {dtype}",
       {"suite": "interleaved", "tokens": 2048, "dtype": dtype}, OfFloor(least))
      for dtype, least in (("f32", 0.97), ("f16", 0.9))),
    ("half of a head in place, bf16", {"suite": "in-place", "label": "half"}, OfFloor(0.9)),
    *((f"MLA in place, bf16, T {t}",
       {"suite": "prefill", "label": "DeepSeek MLA", "dtype": "bf16", "tokens": t},
       Beside({"label": "DeepSeek MLA, contiguous"}, "contiguous", 1.1)) for t in (8192, 32768)),
    *((f"backward, {dtype}", {"suite": "backward", "dtype": dtype, "direction": "transpose"},
       Beside({"direction": "forward"}, "forward", 1.01, 0.99)) for dtype in ("f32", "bf16")),
    *((f"rope_apply, heads {label}, {dtype}", {"suite": "overhead", "label": label, "dtype": dtype},
       HostAbove(0.3)) for label in ("1", "32 + 8") for dtype in ("f32", "bf16")),
]  # fmt: skip


def find(document, members):
    """The record of a case of ours, or None."""
    for record in document["records"]:
        known = {**record, **record.get("shape", {})}
        if "replay" in record and matches(known, {"implementation": CALL, **members}):
            return record
    return None


def matches(known, members):
    """Whether all members are as asked: each a value, or a function that says whether a value will do."""
    return all(v(known[k]) if callable(v) else known.get(k) == v for k, v in members.items())


def answer(document, members, target):
    """What was measured and whether it is enough, as text; None where it was not measured."""
    record = find(document, members)
    return record and target.answer(record, lambda other: find(document, {**members, **other}))


def newest(documents):
    """The tool's latest run on an NVIDIA GPU."""
    runs = [d for d in documents if d["command"] == "bench" and d.get("device", {}).get("backend") == "cuda"]
    return max((d for d in runs if not d["quick"]), key=lambda d: d["time"], default=None)


NONE = ("not measured", "-")


def answers(asked, look):
    """Headings, then a row for each of what is asked by what look(members, target) finds."""
    return [
        ["case", "target", "measured", "met"],
        *([case, str(target), *(look(members, target) or NONE)] for case, members, target in asked),
    ]


def rows(document):
    """Headings, then a row for each target."""
    return answers(TARGETS, lambda members, target: answer(document, members, target))


def counted(table):
    """The table below how many of its rows are met."""
    verdicts = [row[-1] for row in table[1:]]
    return (
        f"Met: {verdicts.count('yes')} of {len(verdicts)}; not measured: {verdicts.count('-')}.\n\n"
        + markdown(table)
    )


def section(documents):
    """The table of the newest run, and which that is."""
    document = newest(documents)
    table = rows(document or {"records": []})
    if document is None:
        return f"No run of the tool on an NVIDIA GPU.\n\n{markdown(table)}"
    device, commit = document["device"]["name"], document["build"]["commit"]
    return f"{run_name(document)}: {device}, commit {commit}. {counted(table)}"
