"""What the table of targets says of a run made for it."""

import shutil
import subprocess
import sys

import pytest
from conftest import ROOT, measurement

from ropekit_bench import results
from ropekit_bench.report import targets


def record(suite, us, label="", ratio=1.0, host=0.0, tokens=8192, cache="cold", **shape):
    made = measurement("ropekit", 1e-6 * us, tokens, suite, label, cache=cache)
    made["shape"] |= shape
    made["replay"]["ratio"] = {"median": ratio, "low": ratio - 0.01, "high": ratio + 0.01}
    made["eager"]["host_seconds"], made["floor"]["host_seconds"] = 1e-6 * (3 + host), 3e-6
    return made


@pytest.fixture
def run(make):
    def made(*records, time="2026-01-01T00:00:00Z"):
        document = make(list(records))
        document |= {"command": "bench", "time": time}
        results.check(document, "made")
        return document

    return made


def verdicts(document):
    return {case: tuple(rest) for case, _, *rest in targets.rows(document)[1:]}


def test_a_run_without_cases_meets_nothing(run):
    assert set(verdicts(run()).values()) == {("not measured", "-")}
    assert len(verdicts(run())) == len(targets.TARGETS) == 38
    assert "Met: 0 of 38; not measured: 38." in targets.section([run()])
    assert targets.section([]).startswith("No run")


@pytest.mark.parametrize(("ratio", "met"), [(0.985, "yes"), (0.9849, "no")])
def test_a_share_of_the_floor(run, ratio, met):
    name = "Llama-3-8B bf16, T 8192"
    found = verdicts(run(record("prefill", 1, "Llama-3-8B", ratio)))
    assert found.pop(name) == (f"{ratio:.3f} ({ratio - 0.01:.3f}..{ratio + 0.01:.3f})", met)
    assert set(found.values()) == {("not measured", "-")}
    assert verdicts(run(record("prefill", 1, "Llama-3-8B", ratio, dtype="f32")))[name][0] == "not measured"
    placed = run(record("in-place", 1, "whole", ratio, in_place=True))
    assert verdicts(placed)["the same in place, T 8192"][1] == met


@pytest.mark.parametrize(
    ("us", "ratio", "met"),
    [(1.28, 0.766, "yes"), (1.29, 0.766, "share alone"), (1.28, 0.765, "time alone"), (1.29, 0.765, "no")],
)
def test_a_time_beside_that_of_a_copy(run, us, ratio, met):
    found = verdicts(run(record("decode", us, "Llama-3-8B", ratio, tokens=1)))["decode, warm, T 1"]
    assert found == (f"{us} us, {ratio:.3f} ({ratio - 0.01:.3f}..{ratio + 0.01:.3f})", met)


@pytest.mark.parametrize(("us", "met"), [(1.15, "yes"), (1.16, "no")])
def test_a_time_alone(run, us, met):
    made = run(record("programmatic", us, "Llama-3-8B", 0.5, tokens=64))
    assert verdicts(made)["decode, warm, early launches, T 64"][1] == met


@pytest.mark.parametrize(
    ("us", "strided", "equal"),
    [(100, "yes", "yes"), (109, "yes", "no"), (111, "no", "no"), (98, "yes", "no")],
)
def test_a_case_beside_another(run, us, strided, equal):
    turned = record("backward", us, "backward", direction="transpose")
    apart = record("prefill", us, "DeepSeek MLA")
    alone = verdicts(run(turned, apart))
    assert alone["backward, bf16"] == alone["MLA in place, bf16, T 8192"] == ("not measured", "-")
    twins = (record("backward", 100, "forward"), record("prefill", 100, "DeepSeek MLA, contiguous"))
    both = verdicts(run(turned, apart, *twins))
    assert both["backward, bf16"] == (f"{us / 100:.3f} ({us * 0.00998:.3f}..{us * 0.01002:.3f})", equal)
    assert both["MLA in place, bf16, T 8192"][1] == strided


@pytest.mark.parametrize(("host", "met"), [(0.29, "yes"), (0.31, "no")])
def test_the_host_above_a_launch(run, host, met):
    made = run(record("overhead", 1, "32 + 8", host=host, tokens=1))
    assert verdicts(made)["rope_apply, heads 32 + 8, bf16"] == (f"+{host} us", met)
    del made["records"][0]["floor"]["host_seconds"]
    assert verdicts(made)["rope_apply, heads 32 + 8, bf16"] == ("not measured", "-")


def test_the_tools_latest_run_on_a_gpu_counts(run):
    first, last, *others = (run(time=f"2026-01-0{day}T00:00:00Z") for day in range(1, 7))
    others[0]["command"], others[1]["quick"], others[2]["device"]["backend"] = "peers", True, "cpu"
    del others[3]["device"]
    assert targets.newest([first, *others, last]) is last
    assert targets.newest(others) is None


def test_the_document_is_checked_against_the_results(run, tmp_path):
    for name in ("scripts", "bench/results", "docs", "examples"):
        (tmp_path / name).mkdir(parents=True)
    shutil.copy(ROOT / "scripts/update_documents", tmp_path / "scripts")
    (tmp_path / "bench/python").symlink_to(ROOT / "bench/python")
    for name in ("README.md", "docs/figures.md", "examples/minimal.c"):
        (tmp_path / name).touch()
    document = tmp_path / "docs/performance.md"
    document.write_text("<!-- begin: targets -->\n\n<!-- end: targets -->\n")

    def update(ratio, *options):
        made = run(record("large", 1, ratio=ratio, dtype="f32"))
        results.write(made, tmp_path / "bench/results/a.json")
        script = [sys.executable, tmp_path / "scripts/update_documents", *options]
        return subprocess.run(script, stderr=subprocess.PIPE, text=True)

    assert "performance.md is not" in update(0.995, "--check").stderr
    assert update(0.995).returncode == update(0.995, "--check").returncode == 0
    assert "0.995 (0.985..1.005)" in document.read_text() and "Met: 1 of 38" in document.read_text()
    assert "performance.md is not" in update(0.98, "--check").stderr
