"""One case in every implementation: rounds of looks at the clock, a copy between any two of them."""

import itertools
import math

import torch

from ropekit_bench import clock as clocks
from ropekit_bench.case import Case, Declined
from ropekit_bench.clock import LOOK_SECONDS, RUNS_MOST, summarize
from ropekit_bench.library import COPY, UPDATE


class DeviceLost(Exception):
    """A peer broke the device for the rest of the process; record says on which case."""

    def __init__(self, record):
        super().__init__(f"{record['implementation']} broke the device: {record['reason']}")
        self.record = record


class Subject:
    """An implementation on a case, its timings so far."""

    def __init__(self, peer, case, clock):
        self.peer, self.clock, self.kept = peer, clock, {}
        self.run = peer.prepare(case)
        self.checked = case.check(self.run)
        self.kernel = peer.adapter.kernel
        self.sets, self.samples = case.sets, {"eager": [], "host": [], "replay": []}
        self.calibrate()

    def calibrate(self):
        for _ in range(3):  # compilers and allocators settle
            self.clock.look(self.run, [0], self.kept)
        seconds = max(self.clock.look(self.run, [0, 0], self.kept)[0], 1e-9)
        self.runs = min(max(math.ceil(LOOK_SECONDS / seconds), 1), RUNS_MOST)
        if self.clock.replays:
            # A replay visits every set, so that it finds none of its own in the cache.
            slots = [i % self.sets for i in range(max(self.runs, self.sets))]
            self.replay = self.clock.capture(self.run, slots)

    def look(self, cursor):
        slots = [next(cursor) for _ in range(self.runs)]
        self.clock.look(self.run, slots[:1], self.kept)
        seconds, host = self.clock.look(self.run, slots, self.kept)
        self.samples["eager"].append(seconds)
        self.samples["host"].append(host)
        if self.clock.replays:
            self.samples["replay"].append(self.replay())


class Floor:
    """The fastest copy of the library over the same bytes, or update where the case is in place."""

    def __init__(self, device, case):
        self.device, self.case = device, case
        self.kind = UPDATE if case.shape["in_place"] else COPY
        self.runs = 1
        self.candidate = 0
        self.runs = min(max(math.ceil(LOOK_SECONDS / self.look()), 1), RUNS_MOST)
        self.names = device.kernels(self.kind)
        self.candidate = min(range(len(self.names)), key=self.measure)

    def measure(self, candidate):
        self.candidate = candidate
        return min(self.look() for _ in range(3))

    def look(self):
        case = self.case
        source = None if self.kind == UPDATE else case.source.data_ptr()
        return self.device.traffic(
            self.candidate, self.runs, case.target.data_ptr(), source, case.floor_bytes, case.pitch, case.sets
        )


class Comparison:
    """What all cases share. Peers decline cases; `record` gets a record for each of both."""

    def __init__(self, tool, peers, seed, rounds):
        self.tool, self.peers, self.seed, self.rounds = tool, peers, seed, rounds
        device = tool.header["device"]
        self.torch_device = torch.device("cpu" if tool.backend == "cpu" else f"cuda:{device['index']}")
        self.device = tool.library.device(tool.backend, device["index"])
        self.clock = clocks.make(self.torch_device)

    def prepare(self, case, listed, declined):
        subjects = []
        for peer in self.peers:
            if any(record["implementation"] == peer.name for record in declined):
                continue
            try:
                subjects.append(Subject(peer, case, self.clock))
            except Exception as error:  # one peer that breaks must not end the run of the others
                reason = str(error) if isinstance(error, Declined) else f"{type(error).__name__}: {error}"
                declined.append({**listed, "implementation": peer.name, "reason": reason[:300]})
                if not self.clock.works():
                    raise DeviceLost(declined[-1]) from error
        return subjects

    def run(self, listed, broken=()):
        """Records of one listed case; `broken` has those of peers that broke the device on it."""
        declined = list(broken)
        try:
            case = Case(
                listed["shape"],
                self.torch_device,
                self.tool.header["device"]["cache_bytes"],
                self.seed,
                listed["cache"] == "cold",
            )
        except Declined as error:
            return [{**listed, "implementation": peer.name, "reason": str(error)} for peer in self.peers]
        subjects = self.prepare(case, listed, declined)
        floor, floors = Floor(self.device, case), {}
        cursor = itertools.cycle(range(case.sets))
        for turn in range(self.rounds if subjects else 0):
            first = turn % len(subjects)
            before = floor.look()
            for subject in subjects[first:] + subjects[:first]:  # nobody is always first
                subject.look(cursor)
                after = floor.look()
                floors.setdefault(subject, []).append((before, after))
                before = after
        return [self.record(listed, case, s, floor, floors[s]) for s in subjects] + declined

    def record(self, listed, case, subject, floor, pairs):
        nbytes = 2 * case.floor_bytes

        def timing(samples):
            ratios = [(a + b) / 2 / s for (a, b), s in zip(pairs, samples, strict=True)]
            seconds = summarize(samples)
            return {
                "seconds": seconds,
                "gb_per_second": 1e-9 * nbytes / seconds["median"],
                "ratio": summarize(ratios),
            }

        samples = subject.samples
        floor_seconds = summarize([(a + b) / 2 for a, b in pairs])
        record = {
            **listed,
            "implementation": subject.peer.name,
            "kernel": subject.kernel,
            "bytes": nbytes,
            "table_bytes": 0,
            "sets": case.sets,
            "rounds": self.rounds,
            "iterations": subject.runs,
            "eager": {**timing(samples["eager"]), "host_seconds": summarize(samples["host"])["median"]},
            "floor": {
                "seconds": floor_seconds,
                "gb_per_second": 1e-9 * nbytes / floor_seconds["median"],
                "kernel": floor.names[floor.candidate],
            },
            "self_ratio": summarize([a / b for a, b in pairs]),
            "checked": subject.checked,
        }
        if samples["replay"]:
            record["replay"] = timing(samples["replay"])
        return record
