"""scripts/two_gpus on a bundle that answers as told: its results, and what it does not let pass."""

import json
import subprocess
import sys

import pytest
from conftest import ROOT, summary

from ropekit_bench import results
from ropekit_bench.report.model import machines

# A bundle's run: what `ropekit` answers lies beside it, by command and device, as does the log of tests.
RUN = """#!/bin/sh
here=$(dirname "$0")
echo "$ROPE_BACKEND $ROPE_TEST_REQUIRE $ROPE_TEST_DEVICE $*" >>"$here/calls"
case $1-$2 in
ropekit-info) cat "$here/info" ;;
ropekit-bench) cat "$here/bench${3#--device=}" ;;
tests-) cat "$here/suite" ;;
cuda-) cat "$here/gpu" ;;
esac
"""


@pytest.fixture
def bundle(tmp_path, tool, make):
    """write(name, what) of a bundle whose two devices do all that is asked."""
    run = tmp_path / "bundle" / "run"
    run.parent.mkdir()
    run.write_text(RUN, encoding="utf-8")
    run.chmod(0o755)

    def write(name, what):
        text = what if isinstance(what, str) else json.dumps(what)
        (run.parent / name).write_text(text, encoding="utf-8")

    device = {"backend": "cuda", "name": "GPU", "features": "sm_90", "memory_bytes": 1, "cache_bytes": 1}
    reports = [{**device, "device": i, "compute_units": 1, "report": ""} for i in range(2)]
    write("info", {**make(reports), "command": "info"})
    timing = {"seconds": summary(1e-3), "gb_per_second": 1000.0}
    for i in range(2):
        write(f"bench{i}", {"records": [{"kernel": "cuda:plain", "bytes": 8, "eager": timing}]})
    write("suite", "pass a/b (0.00 s)\nskip c/d (0.00 s)\n1 passed, 0 failed, 1 skipped\n")
    write("gpu", "pass devices/a (0.00 s)\n1 passed, 0 failed, 0 skipped\n")
    return run.parent, write


def two_gpus(folder, *options):
    command = [sys.executable, ROOT / "scripts" / "two_gpus", folder, f"--output={folder / 'out'}", *options]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    path = folder / "out" / "two_gpus.json"
    return answer, json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def test_results_follow_the_schema(bundle):
    folder, _ = bundle
    answer, document = two_gpus(folder)
    assert answer.returncode == 0, answer.stderr
    results.check(document, "two_gpus.json")
    assert machines([document]) == []  # no device's section: the report compares within one
    assert [r["skipped"] for r in document["records"] if "passed" in r] == [[], ["c/d"], ["c/d"]]
    assert {r["ratio"] for r in document["records"] if "ratio" in r} == {1.0}
    calls = (folder / "calls").read_text(encoding="utf-8").splitlines()
    assert {"cuda cuda 1 cuda", "cuda cuda 0 tests", "cuda cuda 1 tests"} <= set(calls)


@pytest.mark.parametrize(
    "name, text, told",
    [
        ("gpu", "FAIL devices/a (0.00 s)\n0 passed, 1 failed, 0 skipped\n", "gpu: 0 passed, 1 failed"),
        ("gpu", "skip devices/a (0.00 s)\npass b/c (0.00 s)\n1 passed, 0 failed, 1 skipped\n", "devices/a"),
        ("gpu", "pass devices/a (0.00 s)\n", "gpu: 0 passed, 1 failed"),
        ("suite", "skip a/b (0.00 s)\n0 passed, 0 failed, 1 skipped\n", "suite_1: 0 passed"),
    ],
)
def test_a_failure_and_a_skip_are_told(bundle, name, text, told):
    folder, write = bundle
    write(name, text)
    answer, document = two_gpus(folder, "--only=gpu,suite")
    assert answer.returncode == 1 and told in answer.stdout
    results.check(document, "two_gpus.json")


def test_a_slow_device_is_told(bundle):
    folder, write = bundle
    # The third call of device 1 is the one after both; the mean of alone and again is what counts.
    timing = {"seconds": summary(1e-3), "gb_per_second": 1000.0}
    slow = {"records": [{"kernel": "k", "bytes": 8, "eager": {**timing, "gb_per_second": 970.0}}]}
    write("slow", slow)
    run = RUN.replace(
        'ropekit-bench) cat "$here/bench${3#--device=}" ;;',
        'ropekit-bench) [ "$3" = --device=1 ] && echo x >>"$here/count" && '
        '[ "$(wc -l <"$here/count")" = 2 ] && exec cat "$here/slow"; cat "$here/bench0" ;;',
    )
    (folder / "run").write_text(run, encoding="utf-8")
    answer, document = two_gpus(folder, "--only=speed")
    assert answer.returncode == 1 and answer.stdout.count("NOT HELD") == 1
    assert min(r["ratio"] for r in document["records"] if "ratio" in r) == pytest.approx(0.97)


def test_one_device_is_too_few(bundle):
    folder, write = bundle
    info = json.loads((folder / "info").read_text(encoding="utf-8"))
    info["records"] = info["records"][:1]
    write("info", info)
    answer, document = two_gpus(folder)
    assert answer.returncode == 2 and "allowed is two" in answer.stderr and document is None
