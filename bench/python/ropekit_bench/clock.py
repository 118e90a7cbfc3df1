"""How a call is timed: by events on a GPU, eagerly and as a replayed graph; by the host's clock on a CPU."""

import ctypes
import itertools
import resource
import statistics
import time

import torch

# Time of one look at the clock, and its runs.
LOOK_SECONDS = 1e-3
RUNS_MOST = 4096
# Of a copy that a GPU replays, twice as long: what lies between an event and a graph takes some 10 us.
# The library's graphs have so many runs at most.
REPLAY_SECONDS = 2e-3
REPLAY_RUNS_MOST = 256
# Calls before the first that counts, on a CPU: until so many in a row, one of each set, fault in few pages.
CALM_CALLS = 8
FAULTS_FEW = 4
SETTLE_SECONDS = 5.0


def summarize(values):
    values = sorted(values)
    edge = (len(values) - 1) // 4
    return {"median": statistics.median(values), "low": values[edge], "high": values[-1 - edge]}


def keep_memory():
    """Lets the C library keep what is freed. It gives large blocks back at once, and an implementation that
    makes its outputs would fault every page of them in anew in every call."""
    mallopt = ctypes.CDLL(None).mallopt
    for parameter, value in ((-4, 0), (-1, -1)):  # M_MMAP_MAX, M_TRIM_THRESHOLD of glibc's malloc.h
        mallopt(parameter, value)


def page_faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


class CpuClock:
    replays = False

    def __init__(self):
        keep_memory()

    def works(self):
        return True

    def settle(self, run, sets, kept):
        """Runs until outputs find their memory mapped, compilers being done. No aligned block fits where one
        of its size was freed (glibc 2.36), so some twenty are made before freed ones have joined."""
        end, calm = time.perf_counter() + SETTLE_SECONDS, 0
        for slot in itertools.cycle(range(sets)):
            faults = page_faults()
            self.look(run, [slot], kept)
            calm = calm + 1 if page_faults() - faults <= FAULTS_FEW else 0
            if calm >= max(CALM_CALLS, sets) or time.perf_counter() > end:
                return

    def look(self, run, slots, kept):
        """Seconds of one run and of the host for it. Results go to `kept` by slot, so that each run writes
        memory of its own."""
        begin = time.perf_counter()
        for slot in slots:
            kept[slot] = run(slot)
        seconds = (time.perf_counter() - begin) / len(slots)
        return seconds, seconds


class CudaClock:
    """Everything runs on one side stream, so that a graph may capture it."""

    replays = True

    def __init__(self):
        self.stream = torch.cuda.Stream()
        torch.cuda.set_stream(self.stream)
        self.events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]

    def works(self):
        """Whether the device still runs anything: an illegal access is the end of it for this process."""
        try:
            torch.cuda.synchronize()
        except RuntimeError:
            return False
        return True

    def _timed(self, work, runs):
        torch.cuda.synchronize()
        self.events[0].record(self.stream)
        begin = time.perf_counter()
        work()
        host = time.perf_counter() - begin
        self.events[1].record(self.stream)
        torch.cuda.synchronize()
        return 1e-3 * self.events[0].elapsed_time(self.events[1]) / runs, host / runs

    def settle(self, run, sets, kept):
        for _ in range(3):  # compilers and allocators
            self.look(run, [0], kept)

    def look(self, run, slots, kept):
        def work():
            for slot in slots:
                kept[slot] = run(slot)

        return self._timed(work, len(slots))

    def capture(self, run, slots):
        """A function that replays the runs and returns the seconds of one; results by slot, to be kept."""
        graph, kept = torch.cuda.CUDAGraph(), {}
        with torch.cuda.graph(graph, stream=self.stream, capture_error_mode="thread_local"):
            for slot in slots:
                kept[slot] = run(slot)

        def replay():
            return self._timed(graph.replay, len(slots))[0]

        return replay, kept


def make(device):
    return CudaClock() if device.type == "cuda" else CpuClock()
