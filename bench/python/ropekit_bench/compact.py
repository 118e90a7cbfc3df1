"""Compact documents: medians and quartiles that reports show of a run. Standard library alone."""

# What a row holds of one implementation: ns of a run, shares of the floor; kernel is an index into the
# document's kernels, pairs of implementation and kernel. null, and absent at the end: not measured; of host:
# as eager; of eager's quartiles: every implementation has replay, by which they are compared. Who declined a
# case is an index into the document's reasons, pairs of implementation and reason.
COLUMNS = (
    *("kernel", "table_bytes", "floor", "self_ratio"),
    *("eager", "eager_ratio", "eager_low", "eager_high", "host"),
    *("replay", "replay_ratio", "replay_low", "replay_high", "ratio_low", "ratio_high"),
    *("floor_host", "speedup"),
    *("tax", "beside", "beside_low", "beside_high"),
)
# What all implementations of a case have in common.
CASE, MEASURED = ("suite", "label", "cache", "case", "shape"), ("bytes", "flops", "sets", "rounds")
TABLES = ("columns", "kernels", "reasons")  # of a compact document alone
DIGITS = 5


def case_key(record):
    """What tells a case from all others of a document."""
    return record.get("suite"), record.get("case")


def rounded(value):
    short = float(f"{value:.{DIGITS}g}")
    return int(short) if short == int(short) else short


def ns(seconds):
    return rounded(1e9 * seconds)


def index(known, pair):
    """Where a pair is among those known, to which it is added."""
    if pair not in known:
        known.append(pair)
    return known.index(pair)


def row(record, kernels, compared):
    """The columns of a measurement that is compared by `compared`; adds its kernel to kernels."""
    found = {
        "kernel": index(kernels, [record["implementation"], record["kernel"]]),
        "table_bytes": record["table_bytes"],
        "floor": ns(record["floor"]["seconds"]["median"]),
        "self_ratio": rounded(record["self_ratio"]["median"]),
    }
    for name in {"eager", "replay"} & set(record):
        seconds = record[name]["seconds"]
        found |= {name: ns(seconds["median"]), f"{name}_ratio": rounded(record[name]["ratio"]["median"])}
        if name in ("replay", compared):
            found |= {f"{name}_{end}": ns(seconds[end]) for end in ("low", "high")}
    if record["eager"]["host_seconds"] != record["eager"]["seconds"]["median"]:
        found["host"] = ns(record["eager"]["host_seconds"])
    if record["implementation"] == "ropekit" and "replay" in record:
        found |= {f"ratio_{end}": rounded(record["replay"]["ratio"][end]) for end in ("low", "high")}
    if "host_seconds" in record["floor"]:
        found["floor_host"] = ns(record["floor"]["host_seconds"])
    for name in ("speedup", "tax"):
        if name in record:
            found[name] = rounded(record[name]["median"])
    for name, value in record.get("beside_ropekit", {}).items():
        found["beside" if name == "median" else f"beside_{name}"] = rounded(value)
    values = [found.get(column) for column in COLUMNS]
    while values[-1] is None:
        values.pop()
    return values


def timing(known, name, nbytes):
    seconds, ratio = {"median": known[name] / 1e9}, {"median": known[f"{name}_ratio"]}
    for end in ("low", "high"):
        if f"{name}_{end}" in known:
            seconds[end] = known[f"{name}_{end}"] / 1e9
        if name == "replay" and f"ratio_{end}" in known:
            ratio[end] = known[f"ratio_{end}"]
    return {"seconds": seconds, "gb_per_second": 1e-9 * nbytes / seconds["median"], "ratio": ratio}


def measurement(case, values, kernels):
    """The record of a row, without what compact() leaves out."""
    known = {k: v for k, v in zip(COLUMNS, values, strict=False) if v is not None}
    implementation, kernel = kernels[known["kernel"]]
    nbytes, floor = case["bytes"], known["floor"] / 1e9
    record = {
        **case,
        "implementation": implementation,
        "kernel": kernel,
        "table_bytes": known["table_bytes"],
        "floor": {"seconds": {"median": floor}, "gb_per_second": 1e-9 * nbytes / floor},
        "self_ratio": {"median": known["self_ratio"]},
        "eager": {
            **timing(known, "eager", nbytes),
            "host_seconds": known.get("host", known["eager"]) / 1e9,
        },
    }
    if "replay" in known:
        record["replay"] = timing(known, "replay", nbytes)
    if "floor_host" in known:
        record["floor"]["host_seconds"] = known["floor_host"] / 1e9
    for name in ("speedup", "tax"):
        if name in known:
            record[name] = {"median": known[name]}
    if "beside" in known:
        ends = {end: known[f"beside_{end}"] for end in ("low", "high") if f"beside_{end}" in known}
        record["beside_ropekit"] = {"median": known["beside"], **ends}
    return record


def difference(new, old):
    """What makes new of old: members that differ, None for one that new lacks."""
    return {k: new.get(k) for k in {**old, **new} if new.get(k) != old.get(k)}


def changed(old, change):
    return {k: v for k, v in {**old, **change}.items() if v is not None}


def compact_case(records, kernels, reasons):
    """A case, of all records that a document holds of it."""
    timed = [r for r in records if "eager" in r]
    compared = "replay" if all("replay" in r for r in timed) else "eager"
    return {
        **{m: r[m] for r in records for m in CASE + MEASURED if m in r},
        "rows": [row(r, kernels, compared) for r in timed],
        "declined": [index(reasons, [r["implementation"], r["reason"]]) for r in records if "reason" in r],
    }


def compact(document):
    """The compact form of a document of `ropekit bench` or ropekit-peers. A case says what differs from the
    one before; records of other kinds stay as they are."""
    if "columns" in document:
        return document
    cases, rest = {}, []
    for record in document["records"]:
        if "eager" in record or {"implementation", "reason"} <= set(record):
            cases.setdefault(case_key(record), []).append(record)
        else:
            rest.append(record)
    found, kernels, reasons, last = [], [], [], {"shape": {}}
    for records in cases.values():
        case = compact_case(records, kernels, reasons)
        change = difference(case, {**last, "rows": [], "declined": []})
        found.append(change | {"shape": difference(case["shape"], last["shape"])})
        last = case
    tables = dict(zip(TABLES, (list(COLUMNS), kernels, reasons), strict=True))
    return {**document, **tables, "records": found + rest}


def expand(document):
    """The document of a compact one; any other as it is."""
    if "columns" not in document:
        return document
    found, last = [], {"shape": {}}
    for record in document["records"]:
        if "rows" not in record and "declined" not in record:
            found.append(record)
            continue
        own = {k: v for k, v in record.items() if k not in ("rows", "declined")}
        last = changed(last, own) | {"shape": changed(last["shape"], record["shape"])}
        found += [measurement(last, values, document["kernels"]) for values in record.get("rows", ())]
        found += [
            {**{m: last[m] for m in CASE}, "implementation": implementation, "reason": reason}
            for implementation, reason in (document["reasons"][i] for i in record.get("declined", ()))
        ]
    return {k: v for k, v in document.items() if k not in TABLES} | {"records": found}
