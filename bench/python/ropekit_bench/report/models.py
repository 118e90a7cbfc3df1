"""Tokens per second of whole models, as scripts/model_speed.py found them. Standard library alone."""

from itertools import groupby

SIZES = {"whole": " shape", "half": " shape, half its layers"}
NAMES = {"llama": "Llama 3.2 1B", "qwen3": "Qwen3 0.6B"}
OTHERS, OURS = ("eager", "sdpa", "liger"), ("ropekit", "ropekit, patched")
HEADS = ("eager", "sdpa", "Liger", "ropekit", "patched", "over sdpa", "over the best")


def case(record):
    return record["task"], record["batch"], record["compiled"], record["tokens"], record["prompt"]


def label(record):
    if record["task"] == "train":
        what = f"training, {record['batch']} x {record['tokens']} tokens"
    else:
        what = f"{record['tokens']} tokens behind {record['prompt']}, batch {record['batch']}"
    return what + (", compiled" if record["compiled"] else "")


def row(records):
    """The cells of a case: tokens per second of each kind, and ours over the others'."""
    speed = {r["attention"]: r["tokens_per_second"] for r in records if "tokens_per_second" in r}
    cells = [f"{speed[kind]:.0f}" if kind in speed else "-" for kind in OTHERS + OURS]
    ours = max((speed[kind] for kind in OURS if kind in speed), default=None)
    best = max((speed[kind] for kind in OTHERS if kind in speed), default=None)
    for other in (speed.get("sdpa"), best):
        cells.append(f"{ours / other:.2f}" if ours and other else "-")
    return [label(records[0]), *cells]


def place(document):
    device = document["records"][0]
    versions = {i["implementation"]: i["version"] for i in document["implementations"]}
    told = f"PyTorch {versions['torch']}, Transformers {versions['transformers']}"
    if versions.get("liger-kernel"):
        told += f", Liger {versions['liger-kernel']}"
    return f"{device['name']}, {told}, commit {document['build']['commit']}, {document['time'][:10]}"


def table(name, records):
    size = SIZES.get(records[0]["size"], " shape, smaller")
    lines = [f"| {NAMES.get(name, name)}{size} | {' | '.join(HEADS)} |", "|---" * (1 + len(HEADS)) + "|"]
    for _, same in groupby(sorted(records, key=case), key=case):
        lines.append(f"| {' | '.join(row(list(same)))} |")
    return "\n".join(lines)


def models_markdown(documents):
    parts = []
    for document in documents:
        if document["command"] != "models":
            continue
        found = [r for r in document["records"] if "attention" in r]
        parts.append(f"{place(document)}:")
        for name in dict.fromkeys(r["model"] for r in found):
            parts.append(table(name, [r for r in found if r["model"] == name]))
    return "\n\n".join(parts) or "No run is in bench/results."
