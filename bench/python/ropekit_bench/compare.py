"""One case in every implementation: rounds of looks at the clock, a copy between any two of them."""

import itertools
import math
import random
import time

import torch

from ropekit_bench import clock as clocks
from ropekit_bench.cases import make_case
from ropekit_bench.cases.base import Declined
from ropekit_bench.clock import LOOK_SECONDS, REPLAY_RUNS_MOST, REPLAY_SECONDS, RUNS_MOST, summarize
from ropekit_bench.library import RopeError

# After so long a case of attention ends, once it has the least rounds.
CASE_SECONDS, ROUNDS_LEAST = 60.0, 5
# A run as long finds of the caches what it would find anyway; as a graph it hides what lies before it.
LONG_SECONDS, LONG_REPLAY_SECONDS = 0.1, 0.01
# A graph of attention takes so long on a GPU that has so many operations a second; others take longer.
PRODUCT_SECONDS, FLOPS_MOST = 5e-3, 1e15


def refused(listed, peer, reason):
    return {**listed, "implementation": peer.name, "reason": reason[:300]}


def speed(samples, nbytes):
    seconds = summarize(samples)
    return {"seconds": seconds, "gb_per_second": 1e-9 * nbytes / seconds["median"]}


class DeviceLost(RuntimeError):
    """A peer broke the device for the rest of the process."""


class Subject:
    """An implementation on a case, its timings so far."""

    def __init__(self, peer, case, clock, replays):
        self.peer, self.clock, self.kept = peer, clock, {}
        self.run = peer.prepare(case)
        self.checked = case.check(self.run)
        self.kernel, self.table_bytes = peer.adapter.kernel, peer.adapter.table_bytes
        self.sets, self.samples = case.sets, {"eager": [], "host": [], "replay": []}
        self.calibrate()
        if clock.replays:
            self.capture(case, replays)

    def calibrate(self):
        self.clock.settle(self.run, self.sets, self.kept)
        seconds = max(self.clock.look(self.run, [0, 0], self.kept)[0], 1e-9)
        self.is_long = seconds > (LONG_REPLAY_SECONDS if self.clock.replays else LONG_SECONDS)
        self.runs = min(max(math.ceil(LOOK_SECONDS / seconds), 1), RUNS_MOST)

    def capture(self, case, runs):
        """A graph of as many runs as every implementation has: each replay waits as long before it begins. It
        visits every set, so that it finds none of its own in the cache."""
        once, results = self.clock.capture(self.run, [0])

        def replayed(slot):
            once()
            return results[slot]

        case.check(replayed)  # a graph has only what was launched on the stream that it captures
        slots = [i % self.sets for i in range(1 if self.is_long else max(runs, self.sets))]
        self.replay, self.results = self.clock.capture(self.run, slots)
        self.replays = len(slots)

    def look(self, cursor):
        # Of a long run a graph says the same: calls have the least rounds.
        if not (self.is_long and self.clock.replays and len(self.samples["eager"]) >= ROUNDS_LEAST):
            self.look_at_calls(cursor)
        if self.clock.replays:
            self.samples["replay"].append(self.replay())

    def look_at_calls(self, cursor):
        # What ran before left a cache of its own behind: the first does not count. A long run finds its own.
        for _ in range(1 if self.is_long else 2):
            slots = [next(cursor) for _ in range(self.runs)]
            seconds, host = self.clock.look(self.run, slots, self.kept)
        self.samples["eager"].append(seconds)
        self.samples["host"].append(host)


class Floor:
    """The fastest copy of the library over the same bytes, or update where the case is in place."""

    def __init__(self, device, case, replays):
        self.device, self.case = device, case
        self.names = device.kernels("update" if case.in_place else "copy")
        self.runs, self.candidate, self.first = 1, 0, 0
        self.looks = 1 if replays else 2  # a graph has so many runs that what precedes them does not matter
        seconds, most = (REPLAY_SECONDS, REPLAY_RUNS_MOST) if replays else (LOOK_SECONDS, RUNS_MOST)
        if replays and case.flops:  # every implementation's graph has as many
            most = min(most, max(1, math.ceil(PRODUCT_SECONDS * FLOPS_MOST / case.flops)))
        for _ in range(3):  # the fewer the runs, the more of a look is its beginning
            self.runs = min(max(math.ceil(seconds / self.look()), self.runs), most)
        self.candidate = min(range(len(self.names)), key=self.measure)

    def measure(self, candidate):
        self.candidate = candidate
        return min(self.look() for _ in range(3))

    def look(self):
        """Seconds of one copy, by the last of its looks."""
        for _ in range(self.looks):
            seconds = self.copy()
        return seconds

    def copy(self):
        """From the set on that follows those of the last."""
        case, count = self.case, min(self.runs, self.case.sets)
        if self.first + count > case.sets:
            self.first = 0
        start = self.first * case.pitch
        self.first += count
        source = None if case.in_place else case.source.data_ptr() + start
        return self.device.traffic(
            self.candidate,
            self.runs,
            case.target.data_ptr() + start,
            source,
            case.floor_bytes,
            case.pitch,
            count,
        )


class Comparison:
    """What all cases share. Peers decline cases; `record` gets a record for each of both."""

    def __init__(self, tool, peers, seed, rounds):
        self.tool, self.peers, self.seed, self.rounds = tool, peers, seed, rounds
        device = tool.header["device"]
        self.torch_device = torch.device("cpu" if tool.backend == "cpu" else f"cuda:{device['index']}")
        self.device = tool.library.device(tool.backend, device["index"])
        self.clock = clocks.make(self.torch_device)

    def decline(self, peer, listed, declined, error):
        reason = str(error) if isinstance(error, Declined) else f"{type(error).__name__}: {error}"
        declined.append(refused(listed, peer, reason))
        if not self.clock.works():
            raise DeviceLost(f"{peer.name} broke the device: {reason}") from error

    def prepare(self, case, listed, declined, replays):
        subjects = []
        for peer in self.peers:
            try:
                subjects.append(Subject(peer, case, self.clock, replays))
            except Exception as error:  # one peer that breaks must not end the run of the others
                self.decline(peer, listed, declined, error)
        return subjects

    def make(self, listed):
        """The case and its floor."""
        device = self.tool.header["device"]
        torch.compiler.reset()  # as in a new process: code of other shapes would be tried in every call
        case = make_case(
            listed["shape"], self.torch_device, device["cache_bytes"], self.seed, listed["cache"] == "cold"
        )
        return case, Floor(self.device, case, self.clock.replays)

    def run(self, listed):
        """Records of one listed case."""
        declined = []
        try:
            case, floor = self.make(listed)
        except (Declined, RopeError, torch.OutOfMemoryError) as error:
            return [refused(listed, peer, str(error)) for peer in self.peers]
        subjects = self.prepare(case, listed, declined, floor.runs)
        floors, controls, order, drawn = {}, [], [], random.Random(self.seed)
        cursor = itertools.cycle(range(case.sets))
        end = time.perf_counter() + CASE_SECONDS
        for turn in range(self.rounds):
            if case.flops and turn >= ROUNDS_LEAST and time.perf_counter() > end:
                break
            if turn % 2:
                order.reverse()  # nobody is ahead of another more often
            else:  # what runs before takes power and heat from the next: neighbours differ
                order = drawn.sample(subjects, len(subjects))
            control, before = floor.look(), floor.look()
            controls.append(control / before)
            for subject in [s for s in order if s in subjects]:
                try:
                    subject.look(cursor)
                except Exception as error:
                    self.decline(subject.peer, listed, declined, error)
                    subjects.remove(subject)
                    continue
                after = floor.look()
                floors.setdefault(subject, []).append((before, after))
                before = after
        return [self.record(listed, case, s, floor, floors[s], controls) for s in subjects] + declined

    def record(self, listed, case, subject, floor, pairs, controls):
        nbytes = 2 * case.floor_bytes

        def timing(samples):
            ratios = [copy / s for copy, s in zip(copies, samples, strict=False)]  # long calls have fewer
            return {**speed(samples, nbytes), "ratio": summarize(ratios)}

        samples, copies = subject.samples, [(a + b) / 2 for a, b in pairs]
        record = {
            **listed,
            "implementation": subject.peer.name,
            "kernel": subject.kernel,
            "bytes": nbytes,
            "table_bytes": subject.table_bytes,
            "sets": case.sets,
            "rounds": len(copies),
            "iterations": subject.runs,
            "eager": {**timing(samples["eager"]), "host_seconds": summarize(samples["host"])["median"]},
            "floor": {**speed(copies, nbytes), "kernel": floor.names[floor.candidate]},
            "self_ratio": summarize(controls),
            "checked": subject.checked,
        }
        if case.flops:
            record["flops"] = case.flops
        if samples["replay"]:
            record["replay"] = {**timing(samples["replay"]), "iterations": subject.replays}
        return record
