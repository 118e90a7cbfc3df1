"""Compact files: what the report shows of them is what it shows of the raw ones."""

import copy
import json
import subprocess

import pytest
from conftest import measurement, refused

from ropekit_bench import results
from ropekit_bench.compact import COLUMNS, DIGITS, compact, expand
from ropekit_bench.report import command, summary
from ropekit_bench.report.model import machines


@pytest.fixture
def raw(make):
    """Cases of several suites and shapes, by replay and by eager alone, with what only some records hold."""
    records = []
    for suite, tokens in (("prefill", 16), ("prefill", 4096), ("overhead", 1)):
        records += [measurement(n, s, tokens, suite) for n, s in (("ropekit", 1e-6), ("vLLM", 1.234567e-6))]
    del records[3]["replay"]
    records[2]["shape"] |= {"rotary_dim": 64, "rule": {"factor": 8.0}}
    records[3]["shape"] = records[2]["shape"]
    records[3]["table_bytes"] = 4096
    for record in records:
        record["eager"]["ratio"] = {"median": 0.5, "low": 0.4, "high": 0.6}
    records[4]["floor"]["host_seconds"] = 0.75e-6
    records[4]["eager"]["host_seconds"] = records[4]["eager"]["seconds"]["median"]
    records[4]["speedup"] = {"median": 1.9, "low": 1.8, "high": 2.0}
    records += [refused(n, "no", t) for n, t in (("Liger-Kernel", 16), ("ropekit", 99), ("vLLM", 99))]
    records += [
        {"case": "", "suite": "accuracy", "implementation": "ropekit", "kernel": "k", "dtype": "f32",
         "angle_mode": "exact", "positions": p, "cos_sin_error": 6e-8, "output_ulp": 1, "samples": 1}
        for p in (1024, 8192)]  # fmt: skip
    return make(records)


def name(record):
    members = ("suite", "case", "implementation", "positions", "reason")
    return tuple(record.get(member) for member in members)


def test_a_compact_file_follows_the_schema_and_gives_the_same_summary(raw, tmp_path):
    results.check(raw, "raw")
    path = tmp_path / "a.json"
    results.write(raw, path)
    (tmp_path / "kept").mkdir()
    assert command.main([str(path), "--compact", str(tmp_path / "kept")]) == 0
    kept = tmp_path / "kept/a.json"
    assert kept.stat().st_size < path.stat().st_size / 3
    results.check(json.loads(kept.read_text()), "kept")
    known = results.read(kept)
    assert len(known["records"]) == len(raw["records"])
    assert summary.summary(machines([known])) == summary.summary(machines([raw]))


def test_every_figure_that_is_kept_is_that_of_the_raw_file(raw):
    before = copy.deepcopy(raw)
    found = {name(r): r for r in expand(compact(raw))["records"]}
    assert raw == before and set(found) == {name(r) for r in raw["records"]}

    def compare(kept, whole):
        for member, value in kept.items():
            if isinstance(value, dict):
                compare(value, whole[member])
            elif isinstance(value, float):
                assert value == pytest.approx(whole[member], rel=0.6 * 10 ** (1 - DIGITS))
            else:
                assert value == whole[member]

    for record in raw["records"]:
        kept = found[name(record)]
        compare(kept, record)
        assert set(record) - set(kept) <= {"iterations", "checked"}
        assert "replay" not in record or {"low", "high"} <= set(kept["replay"]["seconds"])
        if record["case"] == "--tokens=4096" and "eager" in record:
            assert {"low", "high"} <= set(kept["eager"]["seconds"])


def test_a_compact_file_stays_as_it_is(raw):
    once = compact(raw)
    assert compact(once) is once and expand(raw) is raw
    again = compact({**raw, **expand(once)})
    assert json.dumps(again) == json.dumps(once)


@pytest.mark.parametrize("change", [
    {"columns": list(COLUMNS[:-1])}, {"columns": None}, {"kernels": [["ropekit"]]}, {"kernels": None},
    {"records": [{"case": "", "shape": {}, "rows": [[0, 0, 1.0]]}]},
    {"records": [{"case": "", "shape": {}, "rows": [["ropekit", 0, 1, 1, 1, 1]]}]}])  # fmt: skip
def test_the_schema_refuses_what_is_no_compact_file(raw, change):
    document = {k: v for k, v in {**compact(raw), **change}.items() if v is not None}
    with pytest.raises(results.ResultsError):
        results.check(document, "changed")


@pytest.mark.parametrize(
    "command", [["info"], ["verify", "--by-position", "--tokens=2"], ["verify", "--tokens=2"]]
)
def test_records_that_are_no_measurements_stay_as_they_are(tool_path, command):
    answer = subprocess.run([tool_path, *command, "--json"], capture_output=True, text=True, check=True)
    document = json.loads(answer.stdout)
    results.check(compact(document), "compact")
    assert expand(compact(document)) == document
