"""What documents say, by machine, suite and case. Standard library alone, for scripts/update_documents."""

from dataclasses import dataclass, field
from functools import cached_property

OURS = ("ropekit", "ropekit.apply")
BASELINE = "PyTorch naive"


@dataclass
class Cell:
    """One case on one machine, every implementation that one document holds of it."""

    shape: dict
    label: str
    cache: str
    records: dict  # implementation: record
    alone: dict | None = None  # our record of a document without peers, where there is one too

    @cached_property
    def measure(self):
        """Graph replay where every implementation has it, else the eager call."""
        return "replay" if all("replay" in r for r in self.records.values()) else "eager"

    def timing(self, name):
        return self.records[name][self.measure]

    def seconds(self, name):
        return self.timing(name)["seconds"]["median"]

    @cached_property
    def best(self):
        """Our fastest implementation."""
        return min((n for n in OURS if n in self.records), key=self.seconds, default=None)

    @cached_property
    def rival(self):
        """The fastest of the others."""
        return min((n for n in self.records if n not in OURS), key=self.seconds, default=None)

    @property
    def kernel(self):
        """Our record that stands beside the floor, and its timing: replay, where any document has it."""
        record = self.records[self.best]
        if self.measure == "eager" and self.alone and "replay" in self.alone:
            return self.alone, self.alone["replay"]
        return record, record[self.measure]

    @property
    def lead(self):
        """The rival's seconds over ours: 1 or more is first. None without a rival."""
        return self.seconds(self.rival) / self.seconds(self.best) if self.rival and self.best else None

    def speedup(self, name):
        """Over the baseline, or None where that was not measured."""
        return self.seconds(BASELINE) / self.seconds(name) if BASELINE in self.records else None

    @property
    def a_a(self):
        """How far the floor disagreed with itself."""
        return max(abs(r["self_ratio"]["median"] - 1) for r in self.records.values())


@dataclass
class Suite:
    name: str
    cells: list = field(default_factory=list)

    @property
    def contested(self):
        return [c for c in self.cells if c.lead is not None]

    @property
    def won(self):
        return [c for c in self.contested if c.lead >= 1]

    def varies(self, key):
        return len({key(c) for c in self.cells}) > 1


@dataclass
class Machine:
    """A device with a number of host threads, and the documents that come from it."""

    name: str
    documents: list

    @property
    def device(self):
        return self.documents[0]["device"]

    @cached_property
    def suites(self):
        """By name. Documents with peers come first: a case is taken whole from one document, since
        implementations are compared within one run alone."""
        order = sorted(self.documents, key=lambda d: d["command"] != "peers")
        suites, seen = {}, {}
        for document in order:
            cells = {}
            for record in document["records"]:
                key = (record.get("suite"), record.get("case"))
                if "eager" in record and key not in seen:
                    cells.setdefault(key, {})[record["implementation"]] = record
                elif "eager" in record and record["implementation"] in OURS:
                    seen[key].alone = seen[key].alone or record
            for (suite, case), records in cells.items():
                first = next(iter(records.values()))
                seen[suite, case] = Cell(first["shape"], first["label"], first["cache"], records)
                suites.setdefault(suite or "as given", Suite(suite)).cells.append(seen[suite, case])
        for suite in suites.values():
            suite.cells.sort(
                key=lambda c: (c.label, c.shape["dtype"], c.cache, c.shape["head_dim"], c.shape["tokens"])
            )
        return suites

    def records(self, *members):
        """Records that hold every one of some members."""
        return [r for d in self.documents for r in d["records"] if all(m in r for m in members)]

    @property
    def implementations(self):
        """Those looked for, each once."""
        return {i["implementation"]: i for d in self.documents for i in d.get("implementations", ())}.values()

    @property
    def facts(self):
        """Name and text of everything recorded of the machine, document by document."""
        for d in self.documents:
            host, build, device = d["host"], d["build"], d["device"]
            clocks = ", ".join(
                f"{c['core_mhz']:.0f} MHz at its {c['moment']}" for c in device.get("clocks", ())
            )
            placement = host["placement"]
            yield (
                f"{d['command']}, {d['time']}" + (" (quick: not for comparison)" if d["quick"] else ""),
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


def machines(documents):
    """Documents by machine, in the order in which they came."""
    found = {}
    for document in documents:
        device = document.get("device")
        if device is None:
            continue
        threads = document["host"]["threads"]
        where = device["backend"] + f", {threads} thread{'s'[: threads > 1]}" * (device["backend"] == "cpu")
        name = f"{device['name']} ({where})"
        found.setdefault(name, Machine(name, [])).documents.append(document)
    return list(found.values())
