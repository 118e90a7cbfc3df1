"""What reports say, by machine, suite and case. Standard library alone, for scripts/update_documents."""

import re
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property

CALL = "ropekit"  # the C call, which stands beside the copy and the peers
CHAIN = "ropekit + "  # begins the name of a peer's attention behind our rotation
STEPS = "ropekit, step after step"  # of stored runs of the tool; "ropekit steps" is that of ropekit-peers
BASELINE = "PyTorch naive"
SETTLED = 0.1  # largest A/A within which cases are level


def is_peer(name):
    """Whether it is of another package; "ropekit + X" attends by one."""
    return not name.startswith("ropekit") or " + " in name


@dataclass
class Cell:
    """One case on one machine: every implementation of one run, beside our kernel of the tool's own run."""

    case: dict
    run: dict
    own: dict | None = None

    @property
    def shape(self):
        return self.case["shape"]

    @property
    def label(self):
        return self.case["label"]

    @cached_property
    def rows(self):
        return {row["name"]: row for row in self.case["rows"]}

    @cached_property
    def measure(self):
        """Kernels where every implementation has one, else calls."""
        return "kernel" if all("kernel" in row for row in self.rows.values()) else "call"

    def time(self, name):
        """[median, low, high] in ns."""
        return self.rows[name][self.measure]

    def seconds(self, name):
        return 1e-9 * self.time(name)[0]

    @cached_property
    def peers(self):
        """Those that do and promise what the call does: where some sum in one order, those, unless any will
        do; where the call decodes, those that append, which a rotation and another's attention do not."""
        names = [*filter(is_peer, self.rows)]
        in_order = [name for name in names if name.endswith(" deterministic")]
        attention = self.shape.get("attention", {})
        if attention.get("decode"):
            return [name for name in names if not name.startswith(CHAIN)]
        return names if attention.get("nondeterministic") else in_order or names

    @cached_property
    def rival(self):
        """The fastest of the peers."""
        return min(self.peers, key=self.seconds, default=None)

    @property
    def lead(self):
        """Our speed as a multiple of the rival's; None without either."""
        return self.seconds(self.rival) / self.seconds(CALL) if self.rival and CALL in self.rows else None

    @property
    def a_a(self):
        """How far the copy disagreed with itself."""
        return abs(self.rows[CALL]["a_a"] - 1)

    @property
    def standing(self):
        """level: no farther from the rival than the copy from itself, where that is SETTLED. Else first, our
        quartiles below those of all peers, or lost, ours above those of one, or unsettled. missing: ours
        declined. None: no rival."""
        if not self.rival:
            return None
        if CALL not in self.rows:
            return "missing"
        if abs(self.lead - 1) <= self.a_a <= SETTLED:
            return "level"
        _, low, high = self.time(CALL)
        if all(high < self.time(n)[1] for n in self.peers):
            return "first"
        return "lost" if any(low > self.time(n)[2] for n in self.peers) else "unsettled"

    @property
    def ours(self):
        """Our row that stands beside the copy: with the kernel alone where a run has it."""
        alone = next((r for r in self.own["rows"] if r["name"] == CALL), None) if self.own else None
        row = self.rows.get(CALL)
        return alone if row is None or ("kernel" not in row and alone) else row

    @property
    def share(self):
        """Of the copy's speed; None where the case computes more than it moves."""
        return None if "flops" in self.case or not self.ours else self.ours["share"]

    def rate(self, nanoseconds):
        """GB/s."""
        return self.case["bytes"] / nanoseconds

    @property
    def over_steps(self):
        """Our speed over that of the steps apart, from whichever run has both."""
        for rows in (self.rows, {r["name"]: r for r in self.own["rows"]} if self.own else {}):
            for steps in (STEPS, "ropekit steps"):
                if {CALL, steps} <= rows.keys():
                    ours, theirs = (rows[n].get("kernel", rows[n]["call"])[0] for n in (CALL, steps))
                    return theirs / ours
        return None


@dataclass
class Suite:
    name: str
    cells: list = field(default_factory=list)
    declined: Counter = field(default_factory=Counter)  # (implementation, reason): cases

    @property
    def contested(self):
        return [c for c in self.cells if c.standing]

    def count(self, standing):
        return sum(c.standing == standing for c in self.cells)

    @property
    def shares(self):
        return [c.share for c in self.cells if c.share]

    def varies(self, key):
        return len({key(c) for c in self.cells}) > 1


def counted(number, noun):
    return f"{number} {noun}{'s'[: number != 1]}"


@dataclass
class Machine:
    """A device with a number of threads, and its runs: a later one replaces the cases of an earlier one, and
    a quick one replaces none."""

    name: str
    runs: list

    @property
    def backend(self):
        return self.runs[0]["device"]["backend"]

    @property
    def short(self):
        """Without the maker, where the microarchitecture says which it is."""
        known = re.search(r"\((?!family)(.*)\)(.*)", self.name)
        return (known[1] + known[2] if known else self.name.removeprefix("NVIDIA ")).replace(" 80GB HBM3", "")

    @cached_property
    def suites(self):
        peers, own, suites = {}, {}, {}
        for run in sorted(self.runs, key=lambda r: (not r["quick"], r["time"])):
            for case in run["cases"]:
                of = peers if run["command"] == "peers" else own
                of[case["suite"], case["case"]] = case, run
            for name, declined in run["declined"].items():
                suite = suites.setdefault(name, Suite(name))
                for who, reasons in declined.items():
                    suite.declined |= {(who, reason): count for reason, count in reasons.items()}
        for key in dict.fromkeys([*peers, *own]):
            case, run = peers.get(key) or own[key]
            cell = Cell(case, run, own.get(key, [None])[0])
            suites.setdefault(key[0], Suite(key[0])).cells.append(cell)
        for suite in suites.values():
            order = lambda c: (c.label, c.shape["dtype"], c.case["cache"], c.shape["head_dim"])  # noqa: E731
            suite.cells.sort(key=lambda c: (*order(c), c.shape["tokens"], c.shape["batch"]))
        late = ("append", "attention", "attention-backward")
        return dict(sorted(suites.items(), key=lambda found: found[0] in late and 1 + late.index(found[0])))

    @property
    def has_peers(self):
        return any(suite.contested for suite in self.suites.values())

    @property
    def wrong(self):
        """Cases that the tool's check refused."""
        return [line for run in self.runs for line in run.get("wrong", ())]


def device_name(run):
    return re.sub(r"\((R|TM)\)| Processor", "", run["device"]["name"])


def title(run):
    """A machine's name: the device, on a CPU with its threads; what was set and whether it was quick."""
    settings = ", ".join(f"{n}={v}" for n, v in run["host"].get("settings", {}).items())
    threads = counted(run["host"]["threads"], "thread") if run["device"]["backend"] == "cpu" else ""
    return ", ".join(filter(None, (device_name(run), threads, settings, "quick" * run["quick"])))


def machines(runs):
    """Runs by machine, in an order that does not depend on theirs: GPUs, then CPUs."""
    found = {}
    for run in runs:
        if run.get("device") and run["command"] in ("bench", "peers"):
            found.setdefault(title(run), []).append(run)
    made = [Machine(name, sorted(same, key=lambda r: r["time"])) for name, same in found.items()]
    return sorted(made, key=lambda m: (m.backend == "cpu", m.name))
