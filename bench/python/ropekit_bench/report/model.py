"""What documents say, by machine, suite and case. Standard library alone, for scripts/update_documents."""

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property

from ropekit_bench.compact import case_key

CALL = "ropekit"  # the C call, which stands beside the floor and the peers
STEPS = "ropekit, step after step"  # what append or attention does, each step a call
ROTATED = ", rotated inputs"  # ends the name of what attends alone, without a rotation
ALONE = CALL + ROTATED  # attention's last step
# attention by a backend's first kernel, whatever a table says
BY_CUDA, BY_CUDNN = "ropekit, cuda", "ropekit, cudnn"
IN_TILES = "Triton, keys rotated in tiles"  # what rotates keys again for each tile of queries
ROTATION = "ropekit, rotation of as many bytes"  # rope_apply, beside append of few tokens
OURS = (CALL, "ropekit.apply", "ropekit.append", "ropekit.attention", "ropekit steps", STEPS, ALONE, ROTATION)
OURS += (BY_CUDA, BY_CUDNN, IN_TILES)
BASELINE = "PyTorch naive"
SETTLED = 0.1  # largest A/A within which cases are level


def is_peer(name):
    return name not in OURS and not name.endswith(ROTATED)


def is_deterministic(name):
    return is_peer(name) and name.endswith(" deterministic")


@dataclass
class Cell:
    """One case on one machine, every implementation that one document holds of it."""

    shape: dict
    label: str
    cache: str
    records: dict  # implementation: record
    run: dict  # the document that holds them
    alone: dict | None = None  # our record of the tool's own run, where this run has no kernel alone
    alone_run: dict | None = None  # its document
    own: dict = field(default_factory=dict)  # run of the tool: records, where this run is with peers

    @cached_property
    def measure(self):
        """Graph replay where every implementation has it, else the eager call."""
        return "replay" if all("replay" in r for r in self.records.values()) else "eager"

    def timing(self, name):
        return self.records[name][self.measure]

    def seconds(self, name):
        return self.timing(name)["seconds"]["median"]

    @cached_property
    def peers(self):
        """Those that promise what the call does: where some sum in one order, those, unless any will do."""
        names = [*filter(is_peer, self.records)]
        in_order = [*filter(is_deterministic, names)]
        return names if self.shape.get("attention", {}).get("nondeterministic") else in_order or names

    @cached_property
    def rival(self):
        """The fastest of the peers."""
        return min(self.peers, key=self.seconds, default=None)

    @property
    def lead(self):
        """The rival's seconds over ours. None without a rival."""
        return self.seconds(self.rival) / self.seconds(CALL) if self.rival and CALL in self.records else None

    @property
    def standing(self):
        """level: no farther from the rival than the floor from itself, where that is SETTLED. Else first, our
        quartiles below those of all others, or lost, ours above those of another, or unsettled. missing: ours
        declined or was wrong where a rival ran. None without a rival."""
        if self.lead is None:
            return "missing" if self.rival else None
        if abs(self.lead - 1) <= self.a_a:
            return "level" if self.a_a <= SETTLED else "unsettled"
        ours = self.timing(CALL)["seconds"]
        others = [self.timing(n)["seconds"] for n in self.peers]
        if self.lead > 1:
            return "first" if ours["high"] < min(o["low"] for o in others) else "unsettled"
        return "lost" if ours["low"] > min(o["high"] for o in others) else "unsettled"

    def speedup(self, name):
        """Over the baseline, or None where that was not measured."""
        return self.seconds(BASELINE) / self.seconds(name) if BASELINE in self.records else None

    @property
    def tax(self):
        """Attention's time over that on rotated inputs; None where that was not measured."""
        return self.own_tax(CALL) if CALL in self.records else None

    def own_tax(self, name):
        """An implementation's time over its own on rotated inputs; None where that was not measured."""
        if "tax" in self.records[name]:
            return self.records[name]["tax"]["median"]
        alone = name + ROTATED
        return self.seconds(name) / self.seconds(alone) if alone in self.records else None

    @cached_property
    def attending(self):
        """Seconds of the fastest attention on rotated inputs; None where none was measured."""
        return min((self.seconds(n) for n in self.records if n.endswith(ROTATED)), default=None)

    @property
    def rotations(self):
        """Append's time over that of rope_apply of as many bytes; None where no run of the tool has it."""
        for records in (self.records, *self.own.values()):
            if {CALL, ROTATION} <= set(records):
                ours, beside = (records[n]["replay"]["seconds"]["median"] for n in (CALL, ROTATION))
                return ours / beside
        return None

    @property
    def quick(self):
        return any(run and run["quick"] for run in (self.run, self.alone_run))

    @property
    def a_a(self):
        """How far the floor disagreed with itself, beside our call and the rival: older files have an A/A of
        each record."""
        return max(disagreement(self.records[n]) for n in (CALL, self.rival) if n in self.records)


def disagreement(record):
    return abs(record["self_ratio"]["median"] - 1)


@dataclass
class Suite:
    name: str
    cells: list = field(default_factory=list)
    declined: Counter = field(default_factory=Counter)  # (implementation, reason): cases
    wrong: list = field(default_factory=list)  # checks that refused a case

    @property
    def ours(self):
        return [c for c in self.cells if CALL in c.records]

    @property
    def contested(self):
        return [c for c in self.cells if c.standing]

    def count(self, standing):
        return sum(c.standing == standing for c in self.cells)

    @property
    def borrowed(self):
        """Whether the kernel's figures come from the tool's own run: that with peers has calls alone."""
        return any(c.alone for c in self.cells)

    def kernel(self, cell):
        """Our record that stands beside the floor, and its timing: replay, where a run has it. None where
        the tool's own run, from which the suite has these, lacks the case."""
        record = cell.alone or cell.records[CALL]
        if "replay" in record:
            return record, record["replay"]
        return None if self.borrowed else (record, record["eager"])

    @property
    def kernels(self):
        return [k for k in map(self.kernel, self.ours) if k]

    @property
    def attends(self):
        """Whether its cases are of attention, whose products count beside its bytes."""
        return any("flops" in r for c in self.cells for r in c.records.values())

    def varies(self, key):
        return len({key(c) for c in self.cells}) > 1


def counted(number, noun):
    return f"{number} {noun}{'s'[: number > 1]}"


def run_name(document):
    return f"{document['command']}, {document['time']}"


@dataclass
class Machine:
    """What title() distinguishes, and the documents that come from it."""

    name: str
    documents: list

    @property
    def backend(self):
        return self.documents[0]["device"]["backend"]

    @property
    def threads(self):
        return self.documents[0]["host"]["threads"]

    @property
    def device(self):
        return device_name(self.documents[0])

    @property
    def model(self):
        """The device without its maker, where the microarchitecture says which it is."""
        known = re.search(r"\((?!family)(.*)\)", self.device)
        return known[1] if known else self.device

    @property
    def rest(self):
        """What the name says beside the device; whether a run is quick, and so not for comparison."""
        quick = any(c.quick for suite in self.suites.values() for c in suite.cells)
        said = self.name.removeprefix(self.device).strip(", ")
        return ", ".join(filter(None, (said, "quick" * quick)))

    @property
    def short(self):
        return ", ".join(filter(None, (self.model, self.rest)))

    @property
    def has_peers(self):
        return any(suite.contested for suite in self.suites.values())

    @cached_property
    def runs(self):
        """In the order in which they count, whatever that of the files: not quick, with peers, complete, then
        the latest."""

        def rank(d):
            ended = d.get("complete", True)
            return not d["quick"], d["command"] == "peers", ended, d["time"], json.dumps(d)

        return sorted(self.documents, key=rank, reverse=True)

    @cached_property
    def merged(self):
        """Suites by name, and (run, run that it replaced): records. A case is taken whole from one document,
        since implementations are compared within one run alone."""
        suites, seen, wrong, refusals, replaced = {}, {}, {}, {}, Counter()
        for document in self.runs:
            cells, declined = {}, {}
            for record in document["records"]:
                key = case_key(record)
                if "reason" in record:
                    declined.setdefault(key, {})[record["implementation"]] = record["reason"]
                elif record.get("refused"):
                    wrong.setdefault(key, record)
                elif "eager" not in record:
                    continue
                elif key not in seen:
                    cells.setdefault(key, {})[record["implementation"]] = record
                else:
                    cell = seen[key]
                    winner = cell.run
                    if document["command"] == "bench" and winner["command"] != "bench":
                        of_run = cell.own.setdefault(run_name(document), {})
                        of_run[record["implementation"]] = record
                    ours = cell.records.get(CALL, {}) if record["implementation"] == CALL else {}
                    if ours and document["command"] == "bench" and "replay" in record:
                        if not cell.alone and "replay" not in ours:
                            cell.alone, cell.alone_run = record, document
                            continue
                        winner = cell.alone_run or winner
                    replaced[run_name(winner), run_name(document)] += 1
            for key, records in cells.items():
                first = next(iter(records.values()))
                cell = Cell(first["shape"], first["label"], first["cache"], records, document)
                seen[key] = cell
                suites.setdefault(key[0] or "as given", Suite(key[0])).cells.append(cell)
            for key, reasons in declined.items():
                if key in cells or key not in {**seen, **refusals}:
                    same = key not in cells and len(set(reasons.values())) == 1
                    refusals[key] = {"every implementation": reasons.popitem()[1]} if same else reasons
        for key, reasons in refusals.items():
            suites.setdefault(key[0] or "as given", Suite(key[0])).declined.update(reasons.items())
        for key, record in wrong.items():
            suites.setdefault(key[0] or "as given", Suite(key[0])).wrong.append(record)
        for suite in suites.values():
            suite.cells.sort(
                key=lambda c: (c.label, c.shape["dtype"], c.cache, c.shape["head_dim"], c.shape["tokens"])
            )
        return suites, replaced

    @property
    def suites(self):
        """Those of the rotation alone first, whatever the order of runs."""
        last = ("append", "attention")
        return dict(sorted(self.merged[0].items(), key=lambda found: found[0] in last))

    @property
    def replaced(self):
        """A sentence for each run that gave way to another."""
        return [
            f"{winner} replaces {counted(count, 'record')} of {loser}."
            for (winner, loser), count in self.merged[1].items()
        ]

    def records(self, *members):
        """Records that hold every one of some members, those that count last."""
        return [r for d in reversed(self.runs) for r in d["records"] if all(m in r for m in members)]

    @property
    def implementations(self):
        """Those looked for, each once."""
        return {
            i["implementation"]: i for d in reversed(self.runs) for i in d.get("implementations", ())
        }.values()

    @property
    def facts(self):
        """Name and text of everything recorded of the machine, document by document."""
        for d in self.runs:
            host, build, device = d["host"], d["build"], d["device"]
            clocks = ", ".join(
                f"{c['core_mhz']:.0f} MHz at its {c['moment']}" for c in device.get("clocks", ())
            )
            placement = host["placement"]
            flaws = ["quick: not for comparison"] * d["quick"]
            left = ", ".join(name or "as given" for name, ended in d.get("suites", {}).items() if not ended)
            flaws += ["not complete" + f": {left}" * bool(left)] * (not d.get("complete", True))
            yield (
                run_name(d) + (f" ({'; '.join(flaws)})" if flaws else ""),
                {
                    "ropekit": f"{build['library']}, commit {build['commit']}",
                    "compiler": build["compiler"],
                    "toolkit": build["toolkit"],
                    "driver": device.get("driver", ""),
                    "features": device["features"],
                    "clocks": clocks,
                    "CPU": host.get("cpu", ""),
                    "system": host["system"],
                    "threads": f"{host['threads']} on processors {placement['used']}"
                    + (f", bound {placement['bind']}" if placement["bind"] else ""),
                },
            )


def device_name(document):
    return re.sub(r"\((R|TM)\)| Processor", "", document["device"]["name"])


def title(document):
    """Name of a machine, then what else makes it another one: said where names are the same."""
    device, host = document["device"], document["host"]
    threads = counted(host["threads"], "thread")
    rest = (
        device["backend"],
        threads,
        f"host {host.get('cpu', 'unknown')}",
        f"driver {device.get('driver', 'unknown')}",
        device.get("features", "").split(" ")[0],
        ", ".join(f"{name}={value}" for name, value in host.get("settings", {}).items() if "ISA" not in name),
    )
    return device_name(document) + f", {threads}" * (device["backend"] == "cpu"), rest


def machines(documents):
    """Documents by machine, in an order that does not depend on theirs: GPUs, then CPUs."""
    found = {}
    for document in documents:
        if document.get("device") is not None:
            same = found.setdefault(title(document), [])
            if document not in same:
                same.append(document)
    names = {name: [rest for other, rest in found if other == name] for name, _ in found}

    def full_name(name, rest):
        differs = [part for part, all_of_it in zip(rest, zip(*names[name], strict=True), strict=True)
                   if part and len(set(all_of_it)) > 1]  # fmt: skip
        return ", ".join([name, *differs])

    def order(item):
        (name, rest), same = item
        device, threads = device_name(same[0]), same[0]["host"]["threads"]
        return rest[0] == "cpu", device, threads, max(d["time"] for d in same), name, rest

    return [Machine(full_name(*key), same) for key, same in sorted(found.items(), key=order)]


def newest(machines):
    """Of each backend the machine with peers in the most suites, the latest of several."""

    def rank(machine):
        return sum(bool(s.contested) for s in machine.suites.values()), machine.runs[0]["time"]

    compared = sorted((m for m in machines if m.has_peers), key=rank)
    chosen = {m.backend: m for m in compared}.values()
    return [m for m in machines if m in chosen]
