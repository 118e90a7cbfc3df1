"""What is asked of the CPU backend, and whether the tool's runs have it. Standard library alone."""

from dataclasses import dataclass

from ropekit_bench.report.model import disagreement, run_name
from ropekit_bench.report.targets import NONE, OfFloor, answers, counted, find, llama, spread


@dataclass(frozen=True)
class TimesCopy:
    """A time as a multiple of the floor's."""

    most: float

    def __str__(self):
        return f"at most {self.most:.3g} times the copy"

    def answer(self, record, _):
        ratio = record["replay"]["ratio"]
        ends = {"low": "high", "high": "low", "median": "median"}
        times = {end: 1 / ratio[opposite] for end, opposite in ends.items()}
        return spread(times, 2), "yes" if times["median"] <= self.most else "no"


@dataclass(frozen=True)
class AboveKernel:
    """What rope_apply takes above the bound kernel alone."""

    ns: float

    def __str__(self):
        return f"at most {self.ns:.0f} ns above the kernel"

    def answer(self, record, _):
        eager, alone = (record[kind]["seconds"]["median"] for kind in ("eager", "replay"))
        return f"{1e9 * (eager - alone):+.0f} ns", "yes" if eager - alone <= 1e-9 * self.ns else "no"


@dataclass(frozen=True)
class ByAvx2:
    """The share of the floor that AVX2 has, over that of the widest instruction set."""

    least: float

    def __str__(self):
        return f"AVX2 at least {self.least:.3g} of it"

    def answer(self, record, by_avx2):
        if by_avx2 is None:
            return None
        wide, narrow = (r["replay"]["ratio"]["median"] for r in (record, by_avx2))
        return f"{narrow / wide:.3f}", "yes" if narrow / wide >= self.least else "no"


def slower(two):
    """A row for a run by two threads: its cases that one thread does faster, by more than the A/A."""
    speedups = [(r["speedup"], disagreement(r)) for r in two["records"] if "speedup" in r]
    lost = sum(s["high"] < 1 and s["median"] < 1 - error for s, error in speedups)
    found = (f"slower in {lost} of {len(speedups)}", "no" if lost else "yes") if speedups else NONE
    return ["all that was measured", "no case slower by two threads", *found]


DTYPES = ("f32", "bf16", "f16")
PROMPTS = {"bf16": (16, 128, 1024, 2048, 4096, 8192, 16384), "f32": (16, 128, 2048, 16384)}
PROMPTS["f16"] = PROMPTS["f32"]


def cold(tokens, dtype):
    return llama("prefill", tokens, dtype=dtype)


def one_token(heads, dtype):
    return {"suite": "overhead", "label": heads, "dtype": dtype}


def column(dtype):
    return {"suite": "tokens", "tokens": 63488, "dtype": dtype}


# Case, members of its record or shape, and what is asked of it.
TARGETS = [
    *((f"one warm token, {dtype}", one_token("32 + 8", dtype), TimesCopy(most))
      for dtype, most in (("f32", 1.35), ("bf16", 5), ("f16", 5.5))),
    *((f"cold, T {t}, {dtype}", cold(t, dtype), OfFloor(0.95))
      for dtype in DTYPES for t in PROMPTS[dtype]),
    *((f"warm, T {t}, f32", llama("decode", t, dtype="f32"), OfFloor(0.95)) for t in (64, 256)),
    *((f"one head of 128, N 63488, {dtype}", column(dtype), OfFloor(0.95))
      for dtype in ("f32", "bf16")),
    *((f"in place, T 16384, {dtype}", llama("in-place", 16384, dtype=dtype), OfFloor(0.95))
      for dtype in DTYPES),
    *((f"rope_apply, heads {label}, {dtype}", one_token(label, dtype), AboveKernel(40))
      for label in ("1", "32 + 8") for dtype in ("f32", "bf16")),
    *((f"cold, T 16384, {dtype}", cold(16384, dtype), ByAvx2(0.8)) for dtype in DTYPES),
    *((f"one head of 128, N 63488, {dtype}", column(dtype), ByAvx2(0.8)) for dtype in ("f32", "bf16")),
]  # fmt: skip


# Stores go around the cache at any size.
AROUND = {"ROPE_CPU_STREAM": "0"}


def runs_of(documents):
    """By CPU the newest full-length runs of the tool: by one thread, by two, by one with AVX2 at most, by one
    that stores around the cache at any size."""
    found = {}
    for document in sorted(documents, key=lambda d: d["time"]):
        device, threads = document.get("device") or {}, document["host"]["threads"]
        if document["command"] != "bench" or device.get("backend") != "cpu" or document["quick"]:
            continue
        sets, settings = device["features"].split(), document["host"].get("settings", {})
        told = {k: v for k, v in settings.items() if k != "ROPE_CPU_ISA"}  # of which the features tell
        if "avx512" in sets and threads <= 2 and not told:
            found.setdefault(device["name"], {})["one" if threads == 1 else "two"] = document
        elif "avx512" in sets and threads == 1 and told == AROUND:
            found.setdefault(device["name"], {})["around"] = document
        elif sets[0] == "avx2" and threads == 1 and not told:
            found.setdefault(device["name"], {})["avx2"] = document
    return {name: runs for name, runs in found.items() if "one" in runs}


def rows(runs):
    """Headings, then a row for each target."""
    one, two, avx2, around = (runs.get(run, {"records": []}) for run in ("one", "two", "avx2", "around"))

    def look(members, target):
        record, apart = find(one, members), find(around, members)
        answer = record and target.answer(record, find(avx2, members))
        held = apart and apart["bytes"] <= one["device"]["cache_bytes"]  # else it always goes around
        if answer and held and isinstance(target, OfFloor):
            share = apart["replay"]["ratio"]["median"]
            return f"{answer[0]}; {share:.3f} around the cache", answer[1]
        return answer

    return [*answers(TARGETS, look), slower(two)]


def section(documents):
    """A table for each CPU with AVX-512 that was measured by one thread."""
    found = [
        f"**{name}**. {run_name(runs['one'])}, commit {runs['one']['build']['commit']}. {counted(rows(runs))}"
        for name, runs in sorted(runs_of(documents).items())
    ]
    return "\n\n".join(found) or "No run of the tool on a CPU with AVX-512."
