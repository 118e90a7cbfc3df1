"""Results: documents of the tool and of the comparison, and the shorter form that reports and git hold.

A document is what one run writes, in JSON of results.schema.json. A file of runs (.jsonl) has a line that
says what each run is, then a line for each of its cases:

    {"command": "bench", "time": ..., "build": {...}, "host": {...}, "device": {...}, "declined": {...}}
    {"suite": "prefill", "label": "Llama-3-8B", "cache": "cold", "shape": {...}, "bytes": ..., "rows": [...]}

A row is one implementation. Times are ns, as [median, first quartile, third]: `call` of the public function,
the median alone where `kernel` has the device's work apart. Of ropekit `share` is the time of the copy over
that of the kernel, or of the call without one, and `a_a` that of the copy over itself. Standard library
alone, but for check()."""

import json
import os
from functools import cache
from importlib import resources

HEAD = ("command", "time", "quick", "build", "host", "device", "implementations")
SHAPE = ("batch", "tokens", "q_heads", "k_heads", "head_dim", "dtype", "attention")
CASE = ("suite", "label", "cache", "case")
DIGITS = 5


class ResultsError(Exception):
    """A file that holds no results, with the reason."""


@cache
def validator():
    import jsonschema

    text = resources.files(__package__).joinpath("results.schema.json").read_text(encoding="utf-8")
    return jsonschema.Draft202012Validator(json.loads(text))


def check(document, name):
    """Raises ResultsError, naming the member that the schema refuses."""
    import jsonschema

    error = jsonschema.exceptions.best_match(validator().iter_errors(document))
    if error is not None:
        place = "/".join(str(step) for step in error.absolute_path) or "the document"
        raise ResultsError(f"{name}: {place}: {error.message[:300]}")


def rounded(value):
    short = float(f"{value:.{DIGITS}g}")
    return int(short) if short == int(short) else short


def times(timing, ends=("median", "low", "high")):
    return [rounded(1e9 * timing["seconds"][end]) for end in ends]


def row(record):
    """What reports show of a measurement."""
    found = {"name": record["implementation"]}
    if "replay" in record:
        found |= {"call": times(record["eager"], ["median"]), "kernel": times(record["replay"])}
    else:
        found["call"] = times(record["eager"])
    if record.get("table_bytes"):
        found["tables"] = record["table_bytes"]
    if record["implementation"] != "ropekit":
        return found
    found |= {"runs": record["kernel"], "host": rounded(1e9 * record["eager"]["host_seconds"])}
    found |= {"copy": times(record["floor"], ["median"])[0], "a_a": rounded(record["self_ratio"]["median"])}
    found["share"] = rounded(record.get("replay", record["eager"])["ratio"]["median"])
    return found


def short(document):
    """A document as a run: its head, with cases."""
    run = {name: document[name] for name in HEAD if name in document}
    run |= {"declined": {}, "cases": []}
    cases, declined = {}, run["declined"]
    for record in document["records"]:
        if "reason" in record and "implementation" in record:
            why = declined.setdefault(record["suite"], {}).setdefault(record["implementation"], {})
            why[record["reason"]] = why.get(record["reason"], 0) + 1
        elif "eager" in record:
            case = cases.setdefault((record["suite"], record["case"]), {})
            case |= {name: record[name] for name in CASE}
            case["shape"] = {n: record["shape"][n] for n in SHAPE if n in record["shape"]}
            case |= {name: record[name] for name in ("bytes", "flops") if name in record}
            case.setdefault("rows", []).append(row(record))
        elif record.get("refused"):
            said = f"{record['refused']} of {record['elements']} outputs outside their bound"
            run.setdefault("wrong", []).append(f"{record['case']}, {record['kernel']}: {said}")
    run["cases"] = list(cases.values())
    return run


def read(path):
    """The runs of a file: of one document, or of lines."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        if str(path).endswith(".jsonl"):
            return of_lines(map(json.loads, text.splitlines()))
        document = json.loads(text)
    except (OSError, ValueError) as error:
        raise ResultsError(f"{path}: {error}") from error
    check(document, path)
    return [short(document)]


def of_lines(lines):
    runs = []
    for line in lines:
        if "command" in line:
            runs.append({**line, "cases": []})
        else:
            runs[-1]["cases"].append(line)
    return runs


def write_runs(runs, path):
    lines = []
    for run in runs:
        lines.append({name: value for name, value in run.items() if name != "cases"})
        lines += run["cases"]
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    replace(path, text)


def write(document, path):
    """Writes one record a line, and replaces the file at once. ResultsError where a number is not finite,
    which JSON cannot say."""
    head = {k: v for k, v in document.items() if k != "records"}
    try:
        head = json.dumps(head, indent=1, allow_nan=False)
        lines = [json.dumps(r, allow_nan=False) for r in document["records"]]
    except ValueError as error:
        raise ResultsError(f"{path}: {error}") from error
    records = ",\n".join(lines)
    replace(path, f'{head[:-2]},\n "records": [\n{records}\n]}}\n')


def replace(path, text):
    with open(f"{path}.part", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(f"{path}.part", path)
